"""VGIA's table of docs/results/tables.md: ``python -m reproduce.slabs [--data adult] [--seeds 10]``.

Rows and targets that a malicious server proves, out of one batch of Adult or the made-up clinic (two
classes) and of scikit-learn's diabetes (a number, two rounds). ``guard`` shows every model to the guard.
"""

import argparse
import dataclasses
import time

import torch
from benchmarks.active import play_out
from sklearn.datasets import load_diabetes

import glasshouse as gh
from glasshouse.attacks.rows.vgia import Vgia
from glasshouse.data.sources import load
from glasshouse.metrics.match import assign
from glasshouse.metrics.statistics.shares import share_interval
from glasshouse.modalities.row import Column, Row
from glasshouse.tasks.regression import Regression
from glasshouse.wire import Architecture, Batch

TOLERANCE = 4e-4
"""Of numbers with many steps, as a share of their range: what float32 sums of a gradient keep."""
STEPS = 128
SIZES = {
    "two classes": ((128, 256), (128, 384), (512, 1024), (512, 1536)),
    "number": ((128, 256), (342, 1026)),
}
"""(rows of the batch, neurons of the first layer)."""


def tolerant(rows: Row) -> Row:
    """The same columns; numbers with many steps count as right within the tolerance."""
    columns = []
    for column in rows.columns:
        steps = column.high - column.low if column.kind == "integer" else float("inf")
        wide = column.numeric and steps > STEPS
        columns.append(
            dataclasses.replace(column, tolerance=TOLERANCE * (column.high - column.low)) if wide else column
        )
    return Row(columns=tuple(columns))


def diabetes() -> tuple[Row, Batch]:
    """scikit-learn's diabetes, unscaled: 442 rows of sex and nine numbers, and a target from 25 to 346."""
    data = load_diabetes(scaled=False)
    values = torch.from_numpy(data.data)
    columns = []
    for name, own in zip(data.feature_names, values.T, strict=True):
        if name == "sex":
            own -= 1
            columns.append(Column(name=name, kind="binary", levels=("1", "2")))
        else:
            columns.append(Column(name=name, kind="continuous", low=float(own.min()), high=float(own.max())))
    rows = Row(columns=tuple(columns))
    return rows, Batch(inputs=rows.encode(values), labels=torch.from_numpy(data.target).float())


def played(architecture: Architecture, private: Batch, public: Batch, *, seed: int, rounds: int):
    """Rounds of one client under the attack, a batch that is the same in each."""
    return play_out(
        Vgia(), private, clients=1, arguments={}, seed=seed, architecture=architecture, auxiliary=public,
        rounds=rounds,
    )  # fmt: skip


def compared(architecture: Architecture, claims, private: Batch) -> tuple[int, int, int, int]:
    """Rows that are proved, proved and wrong, right, and right with their target (numbers within 0.5)."""
    found, proved = claims
    rows = architecture.inputs
    if not len(found.inputs):
        return 0, 0, 0, 0
    apart = rows.distance(private.inputs, found.inputs)
    pairs = [(i, j) for i, j in enumerate(assign(apart.numpy()).tolist()) if j >= 0 and apart[i, j] == 0]
    near = [abs(float(private.labels[i]) - float(found.labels[j])) < 0.5 for i, j in pairs]
    wrong = (
        int((rows.distance(proved.inputs, private.inputs).min(1).values > 0).sum())
        if len(proved.inputs)
        else 0
    )
    return len(proved.inputs), wrong, len(pairs), sum(near)


def tables(data: str, seeds: int, *, guard: bool) -> None:
    """One line per table and batch size."""
    source = load(data)
    own = source.splits["train"].batch()
    numbers, patients = diabetes()
    plans = [
        ("two classes", tolerant(source.inputs), source.task, own, 1),
        ("number", tolerant(numbers), Regression(targets=1), patients, 2),
    ]
    refused = shown = 0
    for kind, rows, task, every, rounds in plans:
        for size, width in SIZES[kind]:
            counts, started = torch.zeros(4), time.process_time()
            for seed in range(seeds):
                order = torch.randperm(len(every), generator=torch.Generator().manual_seed(seed))
                private, public = every.pick(order[:size]), every.pick(order[size : size + 1000])
                architecture = Architecture(
                    name="mlp", inputs=rows, task=task, arguments={"hidden": f"{width},64"}
                )
                run = played(architecture, private, public, seed=seed, rounds=rounds)
                counts += torch.tensor(compared(architecture, run.claims[-1], private))
                if guard:
                    sent = run.transcript.rounds[-1].broadcasts[0].tensors
                    refused, shown = refused + (gh.guard(dict(sent)).verdict == "refused"), shown + 1
            proved, wrong, right, targets = (int(n) for n in counts)
            n = seeds * size
            print(
                kind, f"batch {size}, {width} neurons: proved {proved}/{n} ({proved / n:.3f}),",
                f"wrong {wrong}, right {right}/{n}, with target {targets},",
                f"{(time.process_time() - started) / seeds:.2f} s", flush=True,
            )  # fmt: skip
    if guard:
        print(f"refused by the guard {refused}/{shown}", share_interval(torch.ones(shown).numpy()).low)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="clinic", choices=("clinic", "adult"), help="the table")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--guard", action="store_true", help="show every model to the guard")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tables(arguments.data, arguments.seeds, guard=arguments.guard)


if __name__ == "__main__":
    main()
