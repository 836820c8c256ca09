"""Tables of docs/results/documents.md: statistics, survival data, Newton's sums, histograms.

Run: python -m reproduce.documents statistics|survival|newton|histograms [--runs N]
Every line: what was read, how much of it is wrong, and what the same claims of public rows reach.
"""

import argparse
import statistics as middle

import torch

from glasshouse import registry
from glasshouse.attacks.rows.newton_rows import NewtonRows
from glasshouse.attacks.statistics.follow_up import FollowUp
from glasshouse.attacks.statistics.joined import Differencing
from glasshouse.attacks.statistics.stated_numbers import StatedNumbers
from glasshouse.attacks.tabular import CertifiedRows, Facts, Leaves
from glasshouse.attacks.trees.histogram_readout import HistogramReadout
from glasshouse.data.sources import load
from glasshouse.data.tables.clinic import clinic
from glasshouse.data.tables.cohort import cohort
from glasshouse.federation.setting import Setting
from glasshouse.metrics.base import ScoreContext
from glasshouse.metrics.statistics.shares import share_interval
from glasshouse.metrics.tables.proofs import FactsRight, LeavesExact
from glasshouse.models.build import build, state
from glasshouse.rng import Rng
from glasshouse.testing.toys import Recorder
from glasshouse.transcript.cut import cut
from glasshouse.transcript.grants import Grants
from glasshouse.transcript.record import Keep, Log
from glasshouse.transcript.threat import Threat
from glasshouse.wire import Architecture, Terms

MODELS = {"newton": "coefficients", "xgb_histogram": "boosted_trees"}
ROOT = Rng.root(0)


def played(source, rows, protocol, *, rounds=1, options=None):
    """A federation of one site: (rounds, client) → what the server sees of them."""
    name = MODELS.get(protocol, "no_model")
    architecture = Architecture(
        name=name, inputs=source.inputs, task=source.task, arguments={"capacity": 2**21}
    )
    size = len(rows)
    terms = Terms(
        protocol=protocol, architecture=architecture, sends="document", clients=1, cohort=1, batch_size=size,
        options=options or {},
    )  # fmt: skip
    setting = Setting(
        terms=terms, rounds=rounds, private=rows, shards=(torch.arange(size),),
        start=state(build(architecture, rng=ROOT)), build=build,
    )  # fmt: skip
    log = Log(terms=terms, keep=Keep())
    registry.load("protocols", protocol)().play(setting, recorder=Recorder(log), rng=ROOT)
    transcript = log.transcript()

    def view(seen=(0,), client=0):
        return cut(
            transcript, threat=Threat(), grants=Grants(), own={}, memory={}, rounds=seen, client=client
        )

    return view


def sample(source, count, seed):
    """Private rows, and as many public ones as there are."""
    rows = source.splits["train"].batch()
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    return rows.pick(order[:count]), rows.pick(order[count : count + 1000])


def examples(rows):
    """Rows with their label behind them."""
    return torch.cat([rows.inputs.double(), rows.labels.double()[:, None]], 1)


def facts_of(claims, rows, public):
    """Facts stated, those that are wrong, and the share that public rows get right."""
    facts = torch.cat([c.facts for c in claims if isinstance(c, Facts)])
    if not len(facts):
        return 0, 0, float("nan")
    truth, context = examples(rows), ScoreContext()
    right = FactsRight().score(facts, truth, context=context)
    return (
        len(facts),
        int((right < 1).sum()),
        FactsRight().blind(facts, truth, public, context=context).mean(),
    )


def certified(claims, source, rows):
    """Rows certified, and those that are wrong."""
    found = torch.cat([c.inputs for c in claims if isinstance(c, CertifiedRows)] or [rows.inputs[:0]])
    if not len(found):
        return 0, 0
    return len(found), int(((source.inputs.distance(found, rows.inputs) == 0).sum(1) == 0).sum())


def of_statistics(runs):
    """Who joined, by what was sent; n sites of 100 people each."""
    source = clinic("")
    for word, options in (
        ("sums, 4 decimals", {"asked": "count,sum,bins,labels"}),
        ("means, 4 decimals", {"asked": "count,mean,bins,labels"}),
        ("sums behind three filters", {"asked": "count,sum,bins,labels,minimum,maximum", "filters": True}),
        ("counts and bins alone", {"asked": "count,bins,labels"}),
        ("three people join", {"asked": "count,sum,bins,labels", "joins": 3}),
        ("two join, one leaves", {"asked": "count,sum,bins,labels", "joins": 2, "leaves": 1}),
    ):
        rows = wrong = stated = false = 0
        nulls = []
        for seed in range(runs):
            own, public = sample(source, 100, seed)
            view = played(source, own, "statistics", rounds=2, options={"joins": 1, **options})
            joined = Differencing().run(view((0, 1), None), rng=ROOT)
            one, bad = certified(joined, source, own)
            rows, wrong = rows + one, wrong + bad
            options_ = options.get("joins", 1)
            first = own.pick(torch.arange(100 - options_))
            told, untrue, null = facts_of(StatedNumbers().run(view((0,)), rng=ROOT), first, public)
            stated, false = stated + told, false + untrue
            nulls.append(float(null))
        ends = share_interval(torch.cat([torch.ones(rows), torch.zeros(max(0, runs - rows))]).numpy())
        print(
            f"{word}: joined {rows} of {runs} [{ends.low:.2f}, {ends.high:.2f}], wrong {wrong}; facts "
            f"{stated}, wrong {false}, public rows {middle.mean(nulls):.2f}", flush=True,
        )  # fmt: skip


def of_survival(runs):
    """Patients whose time and outcome are stated or follow; sites of 60."""
    source = cohort("")
    for word, options in (
        ("raw", {"shape": "raw"}), ("per day", {"shape": "table"}),
        ("per quarter", {"shape": "table", "unit": 91}), ("curve, full", {"shape": "curve"}),
        ("curve, 4 digits", {"shape": "curve", "digits": 4}),
        ("curve, 3 digits", {"shape": "curve", "digits": 3}),
        ("curve, 2 digits", {"shape": "curve", "digits": 2}),
    ):  # fmt: skip
        shares, stated, false, nulls = [], 0, 0, []
        for seed in range(runs):
            own, public = sample(source, 60, seed)
            claims = FollowUp().run(played(source, own, "survival", options=options)(), rng=ROOT)
            facts = next(c.facts for c in claims if isinstance(c, Facts))
            counted = facts[(facts[:, 0] == 0) & (facts[:, 5] >= 0)]
            shares.append(float(counted[:, 1].sum()) / 60)
            told, untrue, null = facts_of(claims, own, public)
            stated, false = stated + told, false + untrue
            nulls.append(float(null))
        print(
            f"{word}: patients with time and outcome {middle.mean(shares):.2f} ({min(shares):.2f} to "
            f"{max(shares):.2f}); facts {stated}, wrong {false}, public rows {middle.mean(nulls):.2f}",
            flush=True,
        )


def of_newton(runs):
    """Rows certified by the size of a site, of both tables."""
    for source, counts in (
        (clinic(""), (1, 4, 8, 12, 16, 20, 24, 30, 200)),
        (load("adult"), (8, 16, 24, 30, 200)),
    ):
        print(source.name)
        of_sites(runs, source, counts)


def of_sites(runs, source, counts):
    """One line per size."""
    for count in counts:
        rows = wrong = stated = false = 0
        nulls = []
        for seed in range(runs if count < 20 else max(1, runs // 4)):
            own, public = sample(source, count, seed)
            claims = NewtonRows().run(played(source, own, "newton")(), rng=ROOT)
            one, bad = certified(claims, source, own)
            told, untrue, null = facts_of(claims, own, public)
            rows, wrong, stated, false = rows + one, wrong + bad, stated + told, false + untrue
            nulls.append(float(null))
        print(
            f"{count} rows: {rows} of {count * len(nulls)} certified, wrong {wrong}; facts {stated}, wrong "
            f"{false}, public rows {middle.mean(nulls):.2f}", flush=True,
        )  # fmt: skip


def of_histograms(runs):
    """Rows placed and alone, by the size of a site."""
    source, context = clinic(""), ScoreContext()
    for count in (10, 30, 100):
        alone = placed = stated = false = 0
        null, nulls = 0.0, []
        for seed in range(runs):
            own, public = sample(source, count, seed)
            options = {"min_child_weight": 0.25 * max(1, count // 20)}
            claims = HistogramReadout().run(played(source, own, "xgb_histogram", options=options)(), rng=ROOT)
            boxes = next(c.boxes for c in claims if isinstance(c, Leaves))
            alone += int((boxes[:, -2] == 1).sum())
            placed += int(LeavesExact().score(boxes, examples(own), context=context).sum())
            null += float(LeavesExact().blind(boxes, examples(own), public, context=context).sum())
            told, untrue, guess = facts_of(claims, own, public)
            stated, false = stated + told, false + untrue
            nulls.append(float(guess))
        total = count * runs
        print(
            f"{count} rows: placed {placed}/{total} (public rows {null / total:.2f}), alone {alone}/{total}; "
            f"marginals {stated}, wrong {false}, public rows {middle.mean(nulls):.2f}", flush=True,
        )  # fmt: skip


PARTS = {
    "statistics": of_statistics, "survival": of_survival, "newton": of_newton, "histograms": of_histograms,
}  # fmt: skip


def main():
    """Print the table of one part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--runs", type=int, default=20, help="sites per line")
    chosen = parser.parse_args()
    PARTS[chosen.part](chosen.runs)


if __name__ == "__main__":
    main()
