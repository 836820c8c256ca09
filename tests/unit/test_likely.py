"""Likeliest numbers of rows per joint cell: those that brute force finds, and many trees of one client."""

from dataclasses import replace
from itertools import product

import lightgbm
import numpy as np
import pytest
import torch
import xgboost
from sklearn.datasets import load_breast_cancer

from glasshouse.attacks.trees.algebra import Configuration, Sums, count_rows, sums_of
from glasshouse.attacks.trees.boxes import Background
from glasshouse.attacks.trees.cells import Growth, count_cells
from glasshouse.attacks.trees.joint_cells import background_of
from glasshouse.attacks.trees.likely import KEPT, Split, likely_counts
from glasshouse.attacks.trees.narrow import Ranges, share_out
from glasshouse.attacks.trees.programs import Effort
from glasshouse.formats.base import read_document
from glasshouse.modalities.array import Array
from glasshouse.wire import Batch

ROWS, LABELS = load_breast_cancer(return_X_y=True)


def split_of(seed: int) -> tuple[Split, np.ndarray]:
    """Four earlier cells of some rows each, that fall into two leaves as they like; and how they did."""
    draws = np.random.default_rng(seed)
    total, margins = draws.integers(1, 5, 4), draws.normal(size=4).astype(np.float32)
    rows = np.stack([kept := draws.integers(0, total + 1), total - kept], 1)  # cells by leaf
    p = 1 / (1 + np.exp(-margins.astype(np.float64)))
    positives = draws.integers(0, rows + 1)
    nothing = np.zeros((2, 1))
    sums = Sums(
        leaves=np.arange(2), lower=nothing, upper=nothing, count=np.full(2, np.nan),
        hessian=(p * (1 - p)) @ rows, gradient=p @ rows - positives.sum(0),
    )  # fmt: skip
    parents = np.repeat(np.arange(4), 2)
    before = Ranges.exactly(np.stack([total - positives.sum(1), positives.sum(1)], 1))
    split = Split(
        total=total, parents=parents, leaf=np.tile([0, 1], 4), margins=margins[parents], sums=sums,
        ranges=share_out(before, parents), weights=np.full(8, 0.5),
    )  # fmt: skip
    return split, rows.ravel()


def test_what_fits_is_found_and_nothing_else():
    for seed in range(20):
        split, rows = split_of(seed)
        found = likely_counts(split)
        assert len(found.counts) < KEPT
        p = 1 / (1 + np.exp(-split.margins.astype(np.float64)))
        fitting = set()
        for first in product(*(range(n + 1) for n in split.total)):
            counts = np.stack([first, split.total - np.array(first)], 1).ravel()
            sums = [np.bincount(split.leaf, counts * part) for part in (p * (1 - p), p)]
            positives = sums[1] - split.sums.gradient
            if np.allclose(sums[0], split.sums.hessian, atol=1e-6) and np.allclose(
                positives, np.round(positives), atol=1e-6
            ):
                fitting.add(tuple(counts))
        assert tuple(rows) in fitting
        assert {tuple(counts) for counts in found.counts.tolist()} <= fitting
        assert tuple(rows) in {tuple(counts) for counts in found.counts.tolist()}


def test_cells_that_h_does_not_tell_apart_are_left_open():
    """Forty cells of the same h: nearly all pairs of choices have a sum that fits, too many to look at."""
    cells = 40
    nothing, parents = np.zeros((2, 1)), np.repeat(np.arange(cells), 2)
    sums = Sums(
        leaves=np.arange(2), lower=nothing, upper=nothing, count=np.full(2, np.nan),
        hessian=np.full(2, 0.25 * 2 * cells), gradient=np.zeros(2),
    )  # fmt: skip
    before = Ranges.exactly(np.full((cells, 2), 2))
    split = Split(
        total=np.full(cells, 4), parents=parents, leaf=np.tile([0, 1], cells),
        margins=np.zeros(2 * cells, dtype=np.float32), sums=sums, ranges=share_out(before, parents),
        weights=np.full(2 * cells, 0.5),
    )  # fmt: skip
    assert len(likely_counts(split).counts) == 0


def test_likelier_numbers_come_first():
    split, rows = split_of(3)
    # Sums that fit everything leave the order to the weights alone.
    assert (np.diff(likely_counts(split).score) <= 0).all()
    assert rows.sum() == split.total.sum()


def placed(seed: int, count: int, library: str) -> float:
    """Share of 100 rows that are placed in their joint cell with their label; proofs are true."""
    order = np.random.default_rng(seed).permutation(len(ROWS))
    (own, labels), (public, said) = ((ROWS[part], LABELS[part]) for part in (order[:100], order[100:200]))
    own = own.astype(np.float32)
    if library == "lightgbm":
        how = {"objective": "binary", "verbose": -1, "num_threads": 1, "max_depth": 4, "min_data_in_leaf": 5}
        document = lightgbm.train(how, lightgbm.Dataset(own, labels), count).model_to_string().encode()
        configuration = Configuration(eta=0.1, reg_lambda=0.0)
    else:
        how = {"objective": "binary:logistic", "max_depth": 3, "nthread": 1, "tree_method": "hist"}
        document = bytes(xgboost.train(how, xgboost.DMatrix(own, labels), count).save_raw("json"))
        configuration = Configuration()
    trees = read_document(document)[1]
    got = count_cells(
        trees, count_rows(trees, configuration, subject="test"),
        [sums_of(trees, t, configuration) for t in range(1, count)],
        reg_lambda=configuration.reg_lambda, effort=Effort(certify=20),
        background=background_of(
            Array(size=(30,)), Batch(inputs=torch.from_numpy(public).float(), labels=torch.from_numpy(said))
        ),
    )  # fmt: skip
    inside = ((own[:, None] >= got.cells.lower) & (own[:, None] < got.cells.upper)).all(2)
    true = np.stack([inside[labels == y].sum(0) for y in (0, 1)], 1)
    assert (true == got.counts)[got.certain].all()
    return float(np.minimum(true, got.counts).sum() / 100)


@pytest.mark.parametrize("seed", [100, 108])
def test_twenty_trees_still_place_every_row(seed):
    """Leaves that too many cells meet are guessed from public rows, and fit to the last tree."""
    assert placed(seed, 20, "xgboost") == 1


def test_nothing_is_certain_of_sums_that_fit_nothing():
    """The second tree's H is off by a hundredth: whatever follows from the others is no proof."""
    rows, labels = ROWS[:100].astype(np.float32), LABELS[:100]
    how = {"objective": "binary:logistic", "max_depth": 3, "nthread": 1, "tree_method": "hist"}
    document = bytes(xgboost.train(how, xgboost.DMatrix(rows, labels), 3).save_raw("json"))
    trees = read_document(document)[1]
    first = count_rows(trees, Configuration(), subject="test")
    second, third = (sums_of(trees, t, Configuration()) for t in (1, 2))
    layers, doubtful = Growth(trees, first, [second, third], Background()).follow(guess=False)
    assert len(layers) == 3
    assert not doubtful
    wrong = replace(second, hessian=second.hessian * 1.01)
    layers, doubtful = Growth(trees, first, [wrong, third], Background()).follow(guess=False)
    assert len(layers) == 3
    assert doubtful


def test_files_of_lightgbm_place_rows_whose_prior_counts_once():
    assert placed(100, 3, "lightgbm") == 1
