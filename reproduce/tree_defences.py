"""Tables of docs/results/tree-defences.md: stripped, rounded and private trees, and attacks told of it.

Run: ``python -m reproduce.tree_defences rounded|private|bounds|sgd [--data adult] [--seeds 5]``.
The table is Adult, from GLASSHOUSE_DATA (in the pages), or the made-up clinic.
"""

import argparse
import itertools
import json
import math
import warnings

import numpy as np
import torch
import xgboost

from glasshouse.attacks.base import About
from glasshouse.attacks.tabular import leaves_of
from glasshouse.attacks.trees.algebra import Configuration
from glasshouse.attacks.trees.joint_cells import background_of
from glasshouse.attacks.trees.private.noise import Noise
from glasshouse.attacks.trees.private.noisy_leaves import count_noisy
from glasshouse.attacks.trees.private.noisy_membership import exactly, expected, likelihood_ratio
from glasshouse.attacks.trees.rounded_leaves import Told, count_rounded
from glasshouse.audit.simulation.epsilon import measure_epsilon
from glasshouse.data.sources import load
from glasshouse.errors import Inapplicable
from glasshouse.federation.defenses.strip_trees import StripTrees
from glasshouse.federation.protocols.documents.dp_bagging import DpBagging
from glasshouse.formats.base import read_document
from glasshouse.formats.carried import NAME, tensor_of
from glasshouse.metrics.base import ScoreContext
from glasshouse.metrics.membership import auc
from glasshouse.metrics.tables.proofs import LeavesExact
from glasshouse.modalities.row import Row
from glasshouse.privacy.gaussian import gaussian_mu, gaussian_share
from glasshouse.rng import Rng
from glasshouse.scenario.axes import cells
from glasshouse.scenario.load import from_dict
from glasshouse.wire import Batch, Update

warnings.filterwarnings("ignore")
DELTA, EPSILONS = 1e-5, (1.0, 8.0)
WORLDS = 100
"""Runs with and without a row, each."""
SECRETS = {"adult": "sex", "clinic": "smokes"}
"""A binary column of each table, whose value is guessed between two worlds."""


def parts(source, seed, *sizes):
    """Rows of a client, public rows and rows to predict, all different people."""
    rows = source.splits["train"].batch()
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(rows)))
    cuts = np.cumsum((0, *sizes))
    return tuple(rows.pick(order[a:b]) for a, b in itertools.pairwise(cuts))


def boosted(rows, *, trees, depth):
    """XGBoost's file of a client."""
    how = {"objective": "binary:logistic", "max_depth": depth, "nthread": 1, "tree_method": "hist"}
    booster = xgboost.train(how, xgboost.DMatrix(rows.inputs.numpy(), rows.labels.numpy()), trees)
    return bytes(booster.save_raw("json"))


def area(document, held) -> float:
    """AUC of a file's predictions."""
    trees, inputs = read_document(document)[1], held.inputs.double().numpy()
    margins = sum(tree.value[trees.reach(t, inputs)] for t, tree in enumerate(trees.trees))
    return auc(margins, held.labels.numpy() == 1).value


def placed(table, own, public, boxes, counts) -> tuple[float, float]:
    """Share of the rows that are counted in their box with their label, and the same of public rows."""
    level, (lower, upper) = np.zeros(counts.shape, dtype=np.int64), boxes
    claim = leaves_of(About(rounds=(0,), client=0), lower, upper, counts, level, within=table.range)
    truth = torch.cat([own.inputs.double(), own.labels.double()[:, None]], 1)
    metric, context = LeavesExact(), ScoreContext(inputs=table)
    return (
        float(metric.score(claim.boxes, truth, context=context).mean()),
        float(metric.blind(claim.boxes, truth, public, context=context).mean()),
    )


def rounded(data, seeds):
    """Stripped files by digits: AUC of 20 trees, counts of the first tree, data sets that are left."""
    source = load(data)
    table = source.inputs
    for digits in (17, 4, 3, 2, 1):
        lines = []
        for seed in range(seeds):
            own, public, held = parts(source, seed, 200, 600, 600)
            document = boosted(own, trees=20, depth=4)
            update = Update(
                round=0, client=0, kind="document", examples=len(own),
                tensors={NAME: tensor_of(document, 2**20)},
            )  # fmt: skip
            bare = StripTrees(digits=digits).strip(document, update)
            trees = read_document(bare)[1]
            told = Told(rows=len(own), digits=digits, smallest=1.0, shared=True)
            try:
                found = count_rounded(trees, Configuration(), told, background_of(table, public))
            except Inapplicable as refusal:
                print("refused", refusal, flush=True)
                continue
            sums = found.sums
            true = true_counts(trees, own)
            only = found.only
            lines.append(
                (
                    area(document, held),
                    area(bare, held),
                    *placed(table, own, public, (sums.lower, sums.upper), found.counts),
                    math.log10(found.data_sets),
                    only.sum(),
                    (found.counts == true)[only].all(1).sum(),
                    len(only),
                )
            )
        got = np.array(lines)
        print(
            source.name.split("/")[-1], "digits", digits, "AUC before", np.round(got[:, 0].mean(), 3),
            "after", np.round(got[:, 1].mean(), 3), "placed", np.round(got[:, 2], 2), "public",
            np.round(got[:, 3], 2), "data sets 10^", np.round(got[:, 4], 1),
            f"leaves of one pair {got[:, 5].sum():.0f} of {got[:, 7].sum():.0f}, true {got[:, 6].sum():.0f}",
            flush=True,
        )  # fmt: skip


def true_counts(trees, own):
    """Rows of label 0 and 1 of the first tree's leaves."""
    at, labels = trees.reach(0, own.inputs.double().numpy()), own.labels.numpy()
    return np.array([[((at == leaf) & (labels == y)).sum() for y in (0, 1)] for leaf in trees.boxes(0)[0]])


def noise_of(how: DpBagging) -> Noise:
    """What the terms say of its noise."""
    gradient, hessian = how.spreads()
    return Noise(
        gradient=gradient, hessian=hessian, eta=how.eta, reg_lambda=how.reg_lambda, base=how.base_score
    )


def private(data, seeds):
    """Private trees by ε: AUC on 1,000 rows, counts of the first tree's leaves, members against strangers."""
    source = load(data)
    for epsilon in (*EPSILONS, None):
        how = DpBagging(
            trees=20, max_depth=4, **({"epsilon": epsilon} if epsilon else {"noise_multiplier": 1e-3})
        )
        noise, lines = noise_of(how), []
        for seed in range(seeds):
            own, public, held, strangers = parts(source, seed, 1000, 1000, 1000, 200)
            document = how.grow(source.inputs, own, b"", rng=Rng.root(seed))
            trees = read_document(document)[1]
            boxes, counts = count_noisy(
                trees, noise, rows=len(own), first=1, background=background_of(source.inputs, public)
            )
            others = expected(trees, noise, public, rows=len(own) - 1)
            scores = [
                likelihood_ratio(trees, noise, side.pick(torch.tensor([i])), others)
                for side in (own, strangers)
                for i in range(200)
            ]
            plain = boosted(own, trees=20, depth=4)
            lines.append(
                (
                    area(plain, held),
                    area(document, held),
                    *placed(source.inputs, own, public, (boxes.lower, boxes.upper), counts),
                    auc(np.array(scores), np.arange(400) < 200).value,
                )
            )
        got = np.array(lines)
        print(
            source.name.split("/")[-1], "epsilon", epsilon, "AUC plain", np.round(got[:, 0], 2), "private",
            np.round(got[:, 1], 2), "placed", np.round(got[:, 2], 2), "public", np.round(got[:, 3], 2),
            "members", np.round(got[:, 4], 2), flush=True,
        )  # fmt: skip


def bounds(data, seeds, epsilons=EPSILONS):
    """Two worlds that differ by one row, all others known: AUC and the value of a cell, beside the bound."""
    source = load(data)
    assert isinstance(source.inputs, Row)
    column, place = next((c, p) for c, p in source.inputs.places() if c.name == SECRETS[data])
    for epsilon in epsilons:
        how = DpBagging(trees=20, max_depth=4, epsilon=epsilon)
        noise = noise_of(how)
        mu = gaussian_mu(how.proves(1).epsilon, delta=DELTA)
        for seed in range(seeds):
            own, one = parts(source, seed, 199, 1)
            other = one.inputs.clone()
            value = column.decode(one.inputs[:, place])
            flipped = column.low + column.high - value if column.numeric else 1 - value
            other[:, place] = column.encode(flipped).to(other.dtype)
            twin = Batch(inputs=other, labels=one.labels)
            held = [], [], []
            for world, added in enumerate((None, one, twin)):
                rows = own if added is None else joined(own, added)
                for run in range(WORLDS):
                    stream = Rng.root(seed).child(f"world/{world}/{run}")
                    trees = read_document(how.grow(source.inputs, rows, b"", rng=stream))[1]
                    base = exactly(trees, noise, own)
                    ratios = [likelihood_ratio(trees, noise, side, base) for side in (one, twin)]
                    held[world].append((ratios[0], ratios[0] - ratios[1]))
            out, here, there = (np.array(part) for part in held)
            members = auc(np.concatenate([here[:, 0], out[:, 0]]), np.arange(2 * WORLDS) < WORLDS)
            cell = auc(np.concatenate([here[:, 1], there[:, 1]]), np.arange(2 * WORLDS) < WORLDS)
            tops = [0.5 * (1 + math.erf(mu * times / 2)) for times in (1, 2)]
            print(
                source.name.split("/")[-1], "epsilon", epsilon, "seed", seed,
                f"member {members.value:.3f} [{members.low:.3f}, {members.high:.3f}] bound {tops[0]:.3f}",
                f"cell {cell.value:.3f} [{cell.low:.3f}, {cell.high:.3f}] bound {tops[1]:.3f}",
                "within" if members.low <= tops[0] and cell.low <= tops[1] else "BEYOND",
                f"(1 % false alarms: {gaussian_share(0.01, mu=mu):.3f})", flush=True,
            )  # fmt: skip


def joined(left, right):
    """Rows of both."""
    return Batch(inputs=torch.cat([left.inputs, right.inputs]), labels=torch.cat([left.labels, right.labels]))


def sgd(data, seeds):
    """DP-SGD on the same table: ε claimed and proved, and what canaries show of it in one run each."""
    for epsilon in EPSILONS:
        for seed in range(seeds):
            scenario = from_dict(
                {
                    "name": "dp-sgd",
                    "seed": seed,
                    "data": {"source": data, "examples": 100, "auxiliary": 100, "heldout": 50},
                    "model": {"name": "mlp", "hidden": "64"},
                    "federation": {
                        "protocol": "fedsgd", "clients": 4, "batch_size": 100, "rounds": 4,
                    },
                    "defenses": [{"name": "dp_sgd", "clip": 1.0, "epsilon": epsilon, "rounds": 4}],
                    "attacks": [{"name": "label_inference"}],
                    "audit": {"epsilon": {"claimed": epsilon, "canaries": 1000, "unit": "example"}},
                }
            )  # fmt: skip
            (cell,) = cells(scenario)
            got = measure_epsilon(cell)
            print(data, "claimed", epsilon, "seed", seed, json.dumps({
                "proved": getattr(got, "proved", None), "any guarantee": getattr(got, "low", str(got)),
                "Gaussian": getattr(got, "gaussian", None), "guesses": getattr(got, "guesses", None),
                "correct": getattr(got, "correct", None),
            }), flush=True)  # fmt: skip


PARTS = {"rounded": rounded, "private": private, "bounds": bounds, "sgd": sgd}


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--data", default="clinic", choices=("clinic", "adult"), help="the table")
    parser.add_argument("--seeds", type=int, default=5, help="clients, rows or runs of each line")
    arguments = parser.parse_args()
    PARTS[arguments.part](arguments.data, arguments.seeds)


if __name__ == "__main__":
    main()
