"""Numbers of rows per joint cell: none that fits is left out, and nearly all follow from the sums."""

from itertools import product

import numpy as np
import pytest
import torch
import xgboost
from sklearn.datasets import load_breast_cancer

from glasshouse.attacks.trees.algebra import (
    Configuration,
    Sums,
    count_rows,
    derivatives,
    margin_of,
    sums_of,
)
from glasshouse.attacks.trees.boxes import add
from glasshouse.attacks.trees.cells import Growth, count_cells
from glasshouse.attacks.trees.joint_cells import background_of
from glasshouse.attacks.trees.narrow import ROW, SUM, Ranges, fitting_counts, narrow
from glasshouse.attacks.trees.programs import Effort
from glasshouse.data.tables.clinic import clinic
from glasshouse.formats.base import read_document

SOURCE = clinic("")
ROWS = SOURCE.splits["train"].batch()


def test_the_halves_find_what_trying_everything_finds():
    draws = np.random.default_rng(0)
    for _ in range(20):
        p, n = draws.uniform(0.2, 0.8, 4), draws.integers(0, 4, 4)
        h = p * (1 - p)
        # Coarse sums, so that several numbers fit.
        hessian, gradient = float(h @ n) or 1.0, float(p @ n - draws.integers(0, n.sum() + 1))
        low, high = np.zeros(4, dtype=np.int64), np.full(4, 5)
        found = fitting_counts((p, h), low, high, (hessian, gradient))
        every = np.array(list(product(range(6), repeat=4)))
        positives, rows = every @ p - gradient, every.sum(1)
        good = np.abs(every @ h - hessian) <= SUM * hessian + ROW * rows
        good &= np.abs(positives - np.round(positives)) <= SUM * abs(gradient) + ROW * rows
        good &= (np.round(positives) >= 0) & (np.round(positives) <= rows)
        assert {tuple(row) for row in found.tolist()} == {tuple(row) for row in every[good].tolist()}


def test_known_cells_are_no_part_of_the_search_however_many_they_are():
    p = np.linspace(0.2, 0.8, 80)
    n = np.ones(80, dtype=np.int64)
    high = n.copy()
    high[:3] = 4
    h = p * (1 - p)
    wanted = float(h @ n), float(p @ n - 30)
    assert fitting_counts((p, h), np.where(high == 4, 0, 1), high, wanted).tolist() == [n.tolist()]


def two_leaves(hessian, gradient, p):
    """Ranges of two earlier cells of 3 and 4 rows, each in two leaves."""
    nothing = np.zeros((2, 1))
    sums = Sums(
        leaves=np.arange(2), lower=nothing, upper=nothing, count=np.full(2, np.nan),
        hessian=np.array(hessian), gradient=np.array(gradient),
    )  # fmt: skip
    before = Ranges.exactly(np.array([[2, 1], [1, 3]]))
    parents, leaf = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    margins = np.log(p / (1 - p))[parents]
    return narrow(before, parents, leaf, margins, sums)


def test_numbers_and_labels_follow_by_conservation_and_contradictions_are_seen():
    p = np.array([0.3, 0.62])
    h, positives = p * (1 - p), np.array([1, 3])
    rows = np.array([[1, 2], [2, 2]])  # cells by leaf
    hessian, gradient = h @ rows, p @ rows - positives
    found = two_leaves(hessian, gradient, p)
    assert found.low[:, 2].tolist() == found.high[:, 2].tolist() == [1, 2, 2, 2]
    # The second cell has one row of label 0 alone, so that the leaf's row of label 1 is one of its two.
    assert (found.high[0, 1], found.low[2, 1], found.high[2, 1]) == (0, 1, 1)
    assert two_leaves(hessian + 1e-3, gradient, p) is None


def boosted(rows, labels, count, depth):
    how = {"objective": "binary:logistic", "max_depth": depth, "nthread": 1, "tree_method": "hist"}
    booster = xgboost.train(how, xgboost.DMatrix(rows.numpy(), labels.numpy()), count)
    return read_document(bytes(booster.save_raw("json")))[1]


@pytest.mark.parametrize(("size", "count"), [(100, 3), (500, 2)])
def test_nearly_all_rows_of_a_large_client_are_placed_and_proofs_are_true(size, count):
    shares = []
    for seed in range(3):
        order = torch.from_numpy(np.random.default_rng(seed).permutation(len(ROWS)))
        own, public = ROWS.pick(order[:size]), ROWS.pick(order[size : size + 1000])
        trees = boosted(own.inputs, own.labels, count, 5)
        first = count_rows(trees, Configuration(), subject="test")
        later = [sums_of(trees, t, Configuration()) for t in range(1, count)]
        background = background_of(SOURCE.inputs, public)
        got = count_cells(
            trees, first, later, reg_lambda=1.0, effort=Effort(certify=0), background=background
        )
        grown, _ = Growth(trees, first, later, background).follow(guess=False)
        rows, labels = own.inputs.double().numpy(), own.labels.numpy()
        cells, _ = grown[-1]
        inside = ((rows[:, None] >= cells.lower) & (rows[:, None] < cells.upper)).all(2)
        assert (inside.sum(1) == 1).all()  # without a guess no cell that holds a row is ruled out
        inside = ((rows[:, None] >= got.cells.lower) & (rows[:, None] < got.cells.upper)).all(2)
        true = np.stack([inside[labels == y].sum(0) for y in (0, 1)], 1)
        assert (true == got.counts)[got.certain].all()
        shares.append(np.minimum(true, got.counts).sum() / size)
    assert np.mean(shares) > 0.9


def test_the_sums_of_a_document_are_as_exact_as_is_assumed():
    """Also those of the twentieth tree, whose margins are sums of twenty rounded values."""
    worst = 0.0
    rows, labels = load_breast_cancer(return_X_y=True)
    for seed, count, depth in ((0, 20, 3), (102, 20, 3), (2, 2, 6)):
        own = np.random.default_rng(seed).permutation(len(rows))[:400]
        inputs, truth = rows[own].astype(np.float32), labels[own]
        trees = boosted(torch.from_numpy(inputs), torch.from_numpy(truth), count, depth)
        base = margin_of(count_rows(trees, Configuration(), subject="test").base)
        margin = np.full(len(own), base, dtype=np.float32)
        for t in range(count):
            sums = sums_of(trees, t, Configuration())
            at, leaves = np.searchsorted(sums.leaves, trees.reach(t, inputs)), len(sums.leaves)
            allowed = [SUM * np.abs(part) + ROW * np.bincount(at) for part in (sums.hessian, sums.gradient)]
            p, h = derivatives(margin)
            for part, told, most in zip((h, p - truth), (sums.hessian, sums.gradient), allowed, strict=True):
                worst = max(worst, (np.abs(np.bincount(at, part, leaves) - told) / most).max())
            margin = add(margin, trees.trees[t].value[sums.leaves][at])
    assert worst < 1
