"""How often rows drawn from public ones are called a leak: audits of a table in which nothing comes out.

``python -m tests.simulated.false_leaks_tables [--data adult] [--runs 300] [--without COLUMN]``.
Of Adult or the made-up clinic. Every victim's claim is a public row; twins of private rows are among
them as often as they are in the table.
"""

import argparse
from dataclasses import replace

import numpy as np
import torch
from tests.verdicts.bench import Bench

from glasshouse.data.base import DataSource
from glasshouse.data.sources import load
from glasshouse.metrics.statistics import interval, pairing, permutation
from glasshouse.metrics.statistics.shares import share_interval
from glasshouse.modalities.row import Row
from glasshouse.results.judgement import OUT
from glasshouse.wire import Batch

METRICS = ("row_cells", "rows_exact")
VICTIMS = 8


def columns_of(source: DataSource, without: str = "") -> tuple[Row, Batch]:
    """The rows of a table, without one of its columns."""
    rows = source.splits["train"].batch()
    assert isinstance(source.inputs, Row)
    places = [(c, p) for c, p in source.inputs.places() if c.name != without]
    inputs = torch.cat([rows.inputs[:, place] for _, place in places], 1)
    return Row(columns=tuple(column for column, _ in places)), replace(rows, inputs=inputs)


def audit(rows: Row, every: Batch, seed: int) -> str:
    """The verdict of one audit of public rows, by turns any or those of the victim's label."""
    random = np.random.default_rng(seed)
    n, metric = VICTIMS, METRICS[seed % 2]
    order = torch.from_numpy(random.permutation(len(every)))
    private, heldout, public = (every.pick(order[a:b]) for a, b in ((0, n), (n, n + 160), (n + 160, n + 360)))
    drawn = torch.from_numpy(random.integers(len(public), size=n))
    if seed // 2 % 2:
        alike = [torch.nonzero(public.labels == label)[:, 0].numpy() for label in private.labels]
        drawn = torch.tensor([int(random.choice(own)) for own in alike])
    one = Bench(
        private=private, claims=public.inputs[drawn], heldout=heldout, auxiliary=public, metrics=(metric,),
        modality=rows,
    )  # fmt: skip
    return one.finding().verdict


def false_leaks(rows: Row, every: Batch, runs: int, first: int = 0) -> int:
    """Of so many audits, those that are called a leak."""
    return sum(audit(rows, every, seed) in OUT for seed in range(first, first + runs))


def main() -> None:
    """Print one rate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="clinic", choices=("clinic", "adult"), help="the table")
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="seed of the first run")
    parser.add_argument("--without", default="", help="a column that is left out")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    interval.RESAMPLES, permutation.EXCHANGES = 50, 999  # cheaper, as in the studies of other claims
    pairing.EXCHANGES = 999  # type: ignore[attr-defined]  # imported there by value
    rows, every = columns_of(load(arguments.data), arguments.without)
    found = false_leaks(rows, every, arguments.runs, arguments.first)
    high = share_interval(np.arange(arguments.runs) < found).high
    print(f"{found} of {arguments.runs} called a leak, at most {high:.3f}")


if __name__ == "__main__":
    main()
