"""Batches made to mislead `double_span`: no row that it proves is wrong, or stated more often than it is.

Twins under both labels, rows that differ in numbers alone, constant columns; narrow layers, dead units, and
networks whose probabilities are far from one half.
"""

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from test_double_span import ROWS, SOURCE, view_of

from glasshouse.attacks.rows.double_span import DoubleSpan
from glasshouse.rng import Rng
from glasshouse.wire import Batch

TABLE = SOURCE.inputs
KINDS = ("plain", "twins", "near", "nearer", "apart", "constant")
SHIFTS = {"twins": 0.0, "near": 0.02, "nearer": 0.002, "apart": 0.2}
"""By how much of a column's range numbers of the copies are moved."""


def crafted(seed: int) -> Batch:
    """A batch of 2 to 19 rows."""
    draws = np.random.default_rng(seed)
    count, kind = int(draws.integers(2, 20)), KINDS[seed % len(KINDS)]
    batch = ROWS.pick(torch.from_numpy(draws.integers(0, len(ROWS), count)))
    values, labels = TABLE.decode(batch.inputs), batch.labels.clone()
    if kind == "constant":
        for column in draws.integers(0, len(TABLE.columns), 3):
            values[:, column] = values[0, column].clone()
    for _ in range(max(1, count // 3) if kind in SHIFTS else 0):
        copy, row = draws.integers(0, count, 2)
        values[copy], labels[copy] = values[row].clone(), labels[row] ^ int(draws.integers(2))
        for i, column in enumerate(TABLE.columns):
            if column.numeric and draws.random() < 0.6:
                span = column.high - column.low
                moved = float(values[copy, i]) + draws.normal() * SHIFTS[kind] * span
                moved = round(moved) if column.kind == "integer" else moved
                values[copy, i] = float(np.clip(moved, column.low, column.high))
    return Batch(inputs=TABLE.encode(values), labels=labels)


def network(seed: int) -> dict[str, object]:
    """A network for it: widths, a gain of all weights, and the share of first units that are dead."""
    draws = np.random.default_rng((seed, 1))
    return {
        "hidden": ("128,32", "256,64", "32,16", "16", "64", "12,8")[draws.integers(6)],
        "gain": (1.0, 1.0, 1.0, 2.0, 4.0)[draws.integers(5)],
        "dead": (0.0, 0.0, 0.3, 0.7)[draws.integers(4)],
    }


def wrong_proofs(seed: int) -> tuple[int, int]:
    """Rows proved, and how many of them are not there."""
    batch = crafted(seed)
    proved = DoubleSpan().run(view_of(batch, seed=seed, **network(seed)), rng=Rng.root(0))[1].inputs
    if not len(proved):
        return 0, 0
    apart = TABLE.distance(proved, batch.inputs).numpy()
    if len(proved) > len(batch):
        return len(proved), len(proved)
    return len(proved), int((apart[linear_sum_assignment(apart)] != 0).sum())


@pytest.mark.parametrize("seed", range(36))
def test_no_crafted_batch_makes_a_proof_wrong(seed):
    assert wrong_proofs(seed)[1] == 0


@pytest.mark.slow
def test_no_proof_is_wrong_in_two_thousand_crafted_batches():
    each = [wrong_proofs(seed) for seed in range(2000)]
    assert sum(wrong for _, wrong in each) == 0
    assert sum(stated for stated, _ in each) > 5000
