"""Attacks on trees: counts, values and cells against the rows that the library was given."""

import warnings
from collections import Counter

import lightgbm
import numpy as np
import pytest
import xgboost
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)

from glasshouse.attacks.trees.algebra import Configuration, count_rows, sums_of
from glasshouse.attacks.trees.boxes import Background
from glasshouse.attacks.trees.cells import Solution, count_cells
from glasshouse.attacks.trees.programs import Effort
from glasshouse.errors import Inapplicable
from glasshouse.formats.base import read_document
from glasshouse.formats.records import LEAF, TreeEnsemble
from glasshouse.formats.sklearn_trees import document_of

ROWS, LABELS = load_breast_cancer(return_X_y=True)
ROWS = ROWS.astype(np.float32)


def sample(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    picked = np.random.default_rng(seed).permutation(len(ROWS))[:n]
    return ROWS[picked], LABELS[picked]


def boosted(n: int, seed: int, trees: int, **settings) -> TreeEnsemble:
    rows, labels = sample(n, seed)
    how = {"objective": "binary:logistic", "tree_method": "hist", "nthread": 1, **settings}
    model = xgboost.train(how, xgboost.DMatrix(rows, labels), trees)
    return read_document(bytes(model.save_raw("json")))[1]


def fitted(kind: str, rows: np.ndarray, labels: np.ndarray, depth: int) -> tuple[TreeEnsemble, Configuration]:
    """A model of one library as its document, with its public settings."""
    if kind.startswith("xgboost"):
        how = {"objective": "binary:logistic", "max_depth": depth, "nthread": 1}
        how |= {"base_score": 0.5} if kind.endswith("fixed") else {}
        model = xgboost.train(how, xgboost.DMatrix(rows, labels), 2)
        return read_document(bytes(model.save_raw("ubj")))[1], Configuration()
    shrunk = Configuration(eta=0.1, reg_lambda=0.0)
    if kind == "lightgbm":
        how = {
            "objective": "binary",
            "verbose": -1,
            "num_threads": 1,
            "max_depth": depth,
            "min_data_in_leaf": 5,
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            text = lightgbm.train(how, lightgbm.Dataset(rows, labels), 2).model_to_string()
        return read_document(text.encode())[1], shrunk
    models = {
        "forest": RandomForestClassifier(2, max_depth=depth, bootstrap=False, random_state=0),
        "boosting": GradientBoostingClassifier(n_estimators=2, max_depth=depth, random_state=0),
        "histograms": HistGradientBoostingClassifier(max_iter=2, max_depth=depth, l2_regularization=0.5),
    }
    trees = read_document(document_of(models[kind].fit(rows, labels)))[1]
    return trees, Configuration.of({}, subject="test", trees=trees)


@pytest.mark.parametrize("depth", [3, 6, 8])
@pytest.mark.parametrize("kind", ["xgboost", "xgboost fixed", "lightgbm", "boosting", "forest", "histograms"])
def test_counts_of_the_first_tree_are_exact(kind, depth):
    for seed in range(3):
        rows, labels = sample(100, seed)
        trees, how = fitted(kind, rows, labels, depth)
        counted = count_rows(trees, how, subject="test")
        at = trees.reach(0, rows)
        true = [[((at == leaf) & (labels == k)).sum() for k in (0, 1)] for leaf in counted.sums.leaves]
        assert counted.counts.tolist() == np.array(true).tolist()


def test_a_sample_or_weights_are_no_whole_numbers_of_rows():
    rows, labels = sample(100, 0)
    weights = np.random.default_rng(0).uniform(0.5, 2, len(rows))
    model = xgboost.train(
        {"objective": "binary:logistic", "nthread": 1}, xgboost.DMatrix(rows, labels, weight=weights), 1
    )
    with pytest.raises(Inapplicable, match="whole numbers"):
        count_rows(read_document(bytes(model.save_raw("json")))[1], Configuration(), subject="test")
    with pytest.raises(Inapplicable, match=r"subsample = 0\.8"):
        Configuration.of({"subsample": 0.8}, subject="test")


def test_every_cut_of_hist_is_a_value_of_the_column():
    cuts = right = 0
    for seed in range(5):
        rows, _ = sample(100, seed)
        for tree in boosted(100, seed, 5, max_depth=6).trees:
            for node in np.flatnonzero(tree.feature != LEAF):
                cuts += 1
                right += np.isclose(
                    rows[:, tree.feature[node]], tree.threshold[node], rtol=1e-6, atol=0
                ).any()
    assert cuts > 60
    assert right == cuts


def cells_of(n: int, seed: int, count: int, depth: int) -> tuple[TreeEnsemble, Solution]:
    trees = boosted(n, seed, count, max_depth=depth)
    how = Configuration()
    counted = count_rows(trees, how, subject="test")
    later = [sums_of(trees, t, how) for t in range(1, count)]
    return trees, count_cells(trees, counted, later, reg_lambda=1.0, effort=Effort(), background=Background())


def truth_in(trees: TreeEnsemble, solution: Solution, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """True rows per cell and label, (C, 2)."""
    reached = [trees.reach(t, rows) for t in range(len(trees.trees))]
    leaves = [trees.boxes(t)[0] for t in range(len(trees.trees))]
    paths = np.stack([np.searchsorted(leaves[t], at) for t, at in enumerate(reached)], 1)
    there = Counter((tuple(path), int(label)) for path, label in zip(paths.tolist(), labels, strict=True))
    return np.array([[there.get((tuple(p), k), 0) for k in (0, 1)] for p in solution.cells.paths.tolist()])


@pytest.mark.parametrize(("count", "depth"), [(2, 6), (3, 3)])
def test_joint_cells_are_exact_where_the_program_ends(count, depth):
    for seed in range(3):
        trees, solution = cells_of(100, seed, count, depth)
        true = truth_in(trees, solution, *sample(100, seed))
        assert true.sum() == 100
        assert np.minimum(true, solution.counts).sum() >= 98
        assert solution.residual <= 1 + 1e-6


def test_what_is_certain_is_true():
    certain = 0
    for seed in range(4):
        trees, solution = cells_of(100, seed, 2, 4)
        true = truth_in(trees, solution, *sample(100, seed))
        assert (true[solution.certain] == solution.counts[solution.certain]).all()
        certain += int(solution.certain.sum())
    assert certain >= 20


def test_cells_share_no_row_and_lose_none():
    _, solution = cells_of(60, 0, 3, 3)
    rows, _ = sample(60, 0)
    inside = ((rows[:, None] >= solution.cells.lower) & (rows[:, None] < solution.cells.upper)).all(2)
    assert (inside.sum(1) == 1).all()
