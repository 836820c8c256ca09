"""Cell membership: the ratio of two binomials, who holds a row, and what an unknown cell is."""

import numpy as np
import pytest
import torch
from reproduce.trees import cells_of, guessed_cells
from scipy.stats import binom

from glasshouse.attacks.trees.boxes import Cells
from glasshouse.attacks.trees.cell_membership import CellMembership, log_odds
from glasshouse.attacks.trees.cells import Solution
from glasshouse.data.tables.clinic import clinic
from glasshouse.errors import Inapplicable
from glasshouse.metrics.membership import auc
from glasshouse.rng import Rng
from glasshouse.testing.toys import toy
from glasshouse.transcript.grants import Grants
from glasshouse.wire import Batch

SOURCE = clinic("")
ROWS = SOURCE.splits["train"].batch()
PUBLIC = ROWS.pick(torch.arange(1000, 2000))


def halves(counts) -> Solution:
    """Two cells on either side of 0.5 in one column."""
    cells = Cells(
        lower=np.array([[-1.0], [0.5]]), upper=np.array([[0.5], [2.0]]), margins=np.zeros((2, 2)),
        paths=np.zeros((2, 1), dtype=np.int64),
    )  # fmt: skip
    counts = np.array(counts)
    return Solution(cells=cells, counts=counts, residual=0.0, certain=counts >= 0, trees=1)


def test_the_ratio_of_the_two_binomials_is_k_on_n_q():
    for n, k, q in ((40, 7, 0.1), (100, 30, 0.3), (12, 1, 0.5)):
        held, not_held = binom.pmf(k - 1, n - 1, q), binom.pmf(k, n, q)
        assert held / not_held == pytest.approx(k / (n * q))


def test_more_rows_than_public_ones_let_expect_speak_for_membership():
    public = Batch(inputs=torch.tensor([[0.2], [0.8], [0.9], [0.7]]), labels=torch.tensor([0, 0, 1, 1]))
    solved = halves([[6, 0], [1, 1]])
    found = log_odds(solved, np.array([[0.1], [0.9], [0.9]]), np.array([0, 0, 1]), public)
    expected = np.log((np.array([6, 1, 1]) + 0.5) / (8 * np.array([0.25, 0.25, 0.5]) + 0.5))
    np.testing.assert_allclose(found, expected)
    assert found[0] > 0 > found[2]


def test_members_score_above_strangers():
    members, strangers = ROWS.pick(torch.arange(120)), ROWS.pick(torch.arange(200, 320))
    solved = cells_of(SOURCE, members, PUBLIC)
    odds = [
        log_odds(solved, b.inputs.double().numpy(), b.labels.numpy(), PUBLIC) for b in (members, strangers)
    ]
    area = auc(np.concatenate(odds), np.arange(240) < 120)
    assert area.low > 0.55


def test_an_unknown_cell_is_guessed_no_worse_than_by_the_public_model():
    pairs = []
    for seed in range(3):
        members = ROWS.pick(torch.arange(120 * seed, 120 * seed + 120))
        pairs.append(
            guessed_cells(SOURCE.inputs, "smokes", cells_of(SOURCE, members, PUBLIC), members, PUBLIC)
        )
    assert sum(with_cells for with_cells, _ in pairs) >= sum(alone for _, alone in pairs)


def test_trees_on_top_of_others_are_refused():
    played = toy(
        model="boosted_trees", table=SOURCE.inputs, arguments={"capacity": 2**20}, protocol="xgb_bagging",
        sends="document", examples=30, clients=2, rounds=2,
    )  # fmt: skip
    grants = Grants(auxiliary=PUBLIC, challenge=ROWS.pick(torch.arange(1)))
    view = played.view(round=1, client=None, grants=grants)
    with pytest.raises(Inapplicable, match="before it received others'"):
        CellMembership().run(view, rng=Rng.root(0))
