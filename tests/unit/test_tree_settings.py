"""Trees of other settings than ours: an attack says nothing about them, or what it proves is true."""

import json
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import lightgbm
import numpy as np
import pytest
import torch
import xgboost
from document_views import Played
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    RandomForestRegressor,
)

from glasshouse import registry
from glasshouse.attacks.base import tensors_of
from glasshouse.attacks.parts.documents import as_certain
from glasshouse.attacks.rows.newton_rows import NewtonRows
from glasshouse.attacks.tabular import Certainty, CertifiedRows, Facts
from glasshouse.attacks.trees.algebra import Configuration, count_rows
from glasshouse.attacks.trees.boxes import Background
from glasshouse.attacks.trees.cut_values import CutValues
from glasshouse.attacks.trees.joint_cells import JointCells
from glasshouse.attacks.trees.leaf_algebra import LeafAlgebra
from glasshouse.attacks.trees.programs import Effort
from glasshouse.attacks.trees.rounded_leaves import RoundedLeaves, Told, count_rounded
from glasshouse.data.tables.clinic import clinic
from glasshouse.errors import BadValue, Inapplicable, NothingClaimed
from glasshouse.formats.base import read_document
from glasshouse.formats.carried import NAME, tensor_of
from glasshouse.formats.sklearn_trees import document_of
from glasshouse.integrations.documents import Documents
from glasshouse.metrics.base import ScoreContext
from glasshouse.rng import Rng

COUNT = 80
EXAMPLES = 25
"""Settings drawn of each library."""
SOURCE = clinic("")
ROWS = SOURCE.splits["train"].batch()
BATCH = ROWS.pick(torch.arange(COUNT))
X, Y = BATCH.inputs.numpy(), BATCH.labels.numpy()
ABSENT = X.copy()
ABSENT[::3, 0] = np.nan
EVEN = np.where(np.arange(COUNT) % 2, 2.0, 1.0)
ATTACKS = (
    LeafAlgebra(),
    CutValues(),
    JointCells(effort=Effort(seconds=2.0, certify=30)),
    RoundedLeaves(digits=17),
)
XGBOOST = {
    "as ours": ({}, {}),
    "exact": ({"tree_method": "exact"}, {}),
    "approx": ({"tree_method": "approx"}, {}),
    "missing values": ({}, {"data": ABSENT}),
    "zeros for missing": ({}, {"missing": 0.0}),
    "positives count three times": ({"scale_pos_weight": 3.0}, {}),
    "whole weights": ({}, {"weight": EVEN}),
    "every weight is two": ({}, {"weight": np.full(COUNT, 2.0)}),
    "margins": ({}, {"base_margin": np.full(COUNT, 0.7)}),
    "forest": ({"num_parallel_tree": 3, "eta": 1.0}, {}),
    "monotone": ({"monotone_constraints": "(1" + ",0" * (X.shape[1] - 1) + ")"}, {}),
    "bounded steps": ({"max_delta_step": 0.3}, {}),
}
LIGHTGBM = {
    "as ours": ({}, X),
    "missing values": ({}, ABSENT),
    "zeros for missing": ({"zero_as_missing": True}, X),
    "smoothed": ({"path_smooth": 5.0}, X),
    "bagging": ({"bagging_freq": 1, "bagging_fraction": 0.6}, X),
}
NUMBERS = st.sampled_from((0.0, 0.5, 1.0, 2.5, 10.0))
TOLD = {
    "eta": st.sampled_from((0.05, 0.1, 0.3, 0.6, 1.0)),
    "reg_lambda": NUMBERS,
    "reg_alpha": st.sampled_from((0.0, 0.0, 0.0, 0.2)),
    "subsample": st.sampled_from((1.0, 1.0, 1.0, 0.5)),
}
"""What a federation's terms state; all else only the client knows."""
UNTOLD = {
    "max_delta_step": st.sampled_from((0.0, 0.0, 0.0, 0.1, 0.7)),
    "scale_pos_weight": st.sampled_from((1.0, 1.0, 1.0, 0.5, 2.0)),
}
OF_XGBOOST = st.fixed_dictionaries(
    {
        **TOLD,
        **UNTOLD,
        "max_depth": st.integers(1, 6),
        "min_child_weight": NUMBERS,
        "gamma": st.sampled_from((0.0, 0.0, 0.3)),
        "tree_method": st.sampled_from(("hist", "hist", "approx", "exact")),
        "colsample_bytree": st.sampled_from((1.0, 0.5)),
        "max_bin": st.sampled_from((256, 8)),
    },
    optional={
        "base_score": st.sampled_from((0.5, 0.2, 0.77)),
        "grow_policy": st.just("lossguide"),
    },
)
OF_LIGHTGBM = st.fixed_dictionaries(
    {
        **UNTOLD,
        "learning_rate": TOLD["eta"],
        "lambda_l2": NUMBERS,
        "lambda_l1": TOLD["reg_alpha"],
        "num_leaves": st.integers(2, 20),
        "min_data_in_leaf": st.integers(1, 20),
        "path_smooth": st.sampled_from((0.0, 0.0, 0.0, 3.0)),
        "boost_from_average": st.booleans(),
        "is_unbalance": st.sampled_from((False, False, True)),
        "sigmoid": st.sampled_from((1.0, 1.0, 0.5)),
        "data_sample_strategy": st.sampled_from(("bagging", "bagging", "goss")),
        "bagging_freq": st.sampled_from((0, 0, 1)),
        "bagging_fraction": st.sampled_from((1.0, 0.7)),
        "max_bin": st.sampled_from((255, 8)),
        "zero_as_missing": st.sampled_from((False, False, False, True)),
    }
)
WEIGHTS = st.sampled_from((None, None, None, EVEN, np.full(COUNT, 2.0), np.full(COUNT, 0.5)))


def of_xgboost(name: str) -> bytes:
    how, data = XGBOOST[name]
    rows = xgboost.DMatrix(**{"data": X, "label": Y, "nthread": 1, **data})
    base = {"objective": "binary:logistic", "max_depth": 3, "nthread": 1}
    return bytes(xgboost.train({**base, **how}, rows, 2).save_raw("json"))


def of_lightgbm(name: str) -> bytes:
    how, data = LIGHTGBM[name]
    base = {"objective": "binary", "verbose": -1, "num_threads": 1, "min_data_in_leaf": 5}
    return lightgbm.train({**base, **how}, lightgbm.Dataset(data, Y), 2).model_to_string().encode()


@cache
def honest() -> Played:
    """A federation of one client, whose document is replaced."""
    return Played(SOURCE, BATCH, "xgb_bagging", auxiliary=ROWS.pick(torch.arange(200, 500)))


def proofs(document: bytes, **options) -> dict[str, tuple[int, int]]:
    """By attack and kind of claim, how many assertions are proved, and how many of them are true."""
    view = honest().view()
    (seen,) = view.rounds
    update = replace(seen.updates[0], tensors={NAME: tensor_of(document, 2**21)})
    terms = replace(view.terms, options=options)
    view = replace(view, terms=terms, rounds=(replace(seen, updates={0: update}),))
    truth = torch.cat([BATCH.inputs.double(), BATCH.labels.double()[:, None]], 1)
    found = {}
    for attack in ATTACKS:
        try:
            claims = [claim for claim in attack.run(view, rng=Rng.root(0)) if claim.proofs]
        except Inapplicable:
            continue
        for claim in claims:
            metric = registry.load("metrics", claim.proofs)()
            try:
                true = metric.score(
                    tensors_of(claim)[metric.reads], truth, context=ScoreContext(inputs=SOURCE.inputs)
                )
            except NothingClaimed:
                continue
            found[f"{type(attack).__name__} {claim.kind}"] = len(true), int((true == 1).sum())
    return found


@pytest.mark.parametrize("name", XGBOOST)
def test_what_is_proved_of_xgboosts_trees_is_true(name):
    found = proofs(of_xgboost(name))
    assert all(stated == true for stated, true in found.values()), found
    assert len(found) == 5 if name in ("as ours", "approx") else len(found) < 5


@pytest.mark.parametrize("name", LIGHTGBM)
def test_what_is_proved_of_lightgbms_trees_is_true(name):
    found = proofs(of_lightgbm(name), eta=0.1, reg_lambda=0.0)
    assert all(stated == true for stated, true in found.values()), found
    assert bool(found) == (name == "as ours")


def boosted_by_xgboost(how, weight, trees):
    rows = xgboost.DMatrix(X, Y, nthread=1, weight=weight)
    objective = {"objective": "binary:logistic", "nthread": 1}
    return bytes(xgboost.train({**objective, **how}, rows, trees).save_raw("json"))


def boosted_by_lightgbm(how, weight, trees):
    if how["is_unbalance"] and how["scale_pos_weight"] != 1:  # the library takes one of both
        how = {**how, "scale_pos_weight": 1.0}
    if how["data_sample_strategy"] == "goss":
        how = {**how, "bagging_freq": 0}
    fixed = {"objective": "binary", "verbose": -1, "num_threads": 1}
    rows = lightgbm.Dataset(X, Y, weight=weight, params={"max_bin": how["max_bin"]})
    return lightgbm.train({**fixed, **how}, rows, trees).model_to_string().encode()


@settings(max_examples=EXAMPLES)
@given(how=OF_XGBOOST, weight=WEIGHTS, trees=st.integers(1, 3))
def test_no_setting_of_xgboost_makes_a_proof_wrong(how, weight, trees):
    """Whatever else the client sets: nothing is said, or what is proved is true.

    Not drawn: ``missing = 0`` and weights whose sum is the number of rows, which no document may show.
    """
    found = proofs(boosted_by_xgboost(how, weight, trees), **{name: how[name] for name in TOLD})
    assert all(stated == true for stated, true in found.values()), found


def test_whole_numbers_out_of_bounded_steps_are_not_counts():
    """A bound of 0.7 gives whole numbers of rows that are not there; the gains of the splits do not fit."""
    how = {"eta": 0.05, "max_delta_step": 0.7, "max_depth": 1, "min_child_weight": 0.0}
    how |= {"tree_method": "approx", "colsample_bytree": 0.5}
    assert proofs(boosted_by_xgboost(how, None, 1), eta=0.05) == {"CutValues facts": (1, 1)}


def test_a_tree_of_one_leaf_counts_no_labels():
    """A step that is bounded by 0.1 over an H of 20 said 38 positives of 80 rows where there were 15."""
    how = {"eta": 0.05, "max_delta_step": 0.1, "max_depth": 1, "gamma": 0.3, "max_bin": 8}
    how |= {"reg_lambda": 0.0, "base_score": 0.5}
    assert proofs(boosted_by_xgboost(how, None, 1), eta=0.05, reg_lambda=0.0) == {}


def test_another_rate_than_is_stated_is_noticed():
    document = boosted_by_xgboost({"eta": 0.1, "max_depth": 3}, None, 2)
    assert proofs(document, eta=0.2).keys() == {"CutValues facts"}


@settings(max_examples=EXAMPLES)
@given(how=OF_LIGHTGBM, weight=WEIGHTS, trees=st.integers(1, 3))
def test_no_setting_of_lightgbm_makes_a_proof_wrong(how, weight, trees):
    """Its file states its settings, so that the terms need not."""
    found = proofs(boosted_by_lightgbm(how, weight, trees))
    assert all(stated == true for stated, true in found.values()), found


UNSEEN = {
    "zeros for missing": {"missing": 0.0},
    "rows drawn again": {"weight": np.bincount(np.random.default_rng(0).integers(0, COUNT, COUNT))},
}
"""What leaves no trace: the file is that of another client, each of whose rows counts once."""


@pytest.mark.parametrize("name", UNSEEN)
def test_what_no_file_shows_is_excluded_by_the_terms_or_nothing_is_proved(name):
    rows = xgboost.DMatrix(X, Y, nthread=1, **UNSEEN[name])
    how = {"objective": "binary:logistic", "nthread": 1, "max_depth": 2}
    document = bytes(xgboost.train(how, rows, 1).save_raw("json"))
    told = proofs(document, rows="plain")
    assert any(stated != true for stated, true in told.values())  # the terms were not true
    assert proofs(document, rows="unknown") == {}


def test_a_capture_says_nothing_of_rows_unless_its_owner_does():
    sends = Documents(table=SOURCE.inputs, protocol="xgb_bagging", encoded=True)
    assert proofs(of_xgboost("as ours"), **sends.terms({})["options"]) == {}
    stated = replace(sends, options={"rows": "plain"})
    assert len(proofs(of_xgboost("as ours"), **stated.terms({})["options"])) == 5


@pytest.mark.parametrize("rows", ["plain", "unknown"])
def test_newtons_sums_are_proofs_of_plain_rows_alone(rows):
    played = Played(SOURCE, BATCH.pick(torch.arange(4)), "newton", options={"rows": rows})
    claims = NewtonRows().run(played.view(), rng=Rng.root(0))
    (certified,) = (claim for claim in claims if isinstance(claim, CertifiedRows))
    (facts,) = (claim for claim in claims if isinstance(claim, Facts))
    assert len(certified.inputs) == (4 if rows == "plain" else 0)
    assert bool((facts.facts[:, -1] == Certainty.PROVED).all()) == (rows == "plain")
    assert played.held(claims)[1] == 0


def test_the_view_of_an_older_capture_proves_nothing_of_trees():
    view = SimpleNamespace(terms=SimpleNamespace(options={"units": "raw"}))
    assert as_certain(view, Certainty.PROVED) == Certainty.GUESSED


def forest(**how):
    return RandomForestClassifier(1, max_depth=2, random_state=0, **how).fit(X, Y)


OF_SKLEARN = {
    "as ours": lambda: forest(bootstrap=False),
    "rows drawn again": forest,
    "classes of one weight": lambda: forest(bootstrap=False, class_weight="balanced"),
    "a sample": lambda: GradientBoostingClassifier(subsample=0.5, n_estimators=1, random_state=0).fit(X, Y),
    "rows held out": lambda: HistGradientBoostingClassifier(early_stopping=True, max_iter=1).fit(X, Y),
}


@pytest.mark.parametrize("name", OF_SKLEARN)
def test_the_document_of_an_estimator_says_what_its_counts_are_not(name):
    """Nobody announces how many rows there are, so that nothing but the document can tell."""
    trees = read_document(document_of(OF_SKLEARN[name]()))[1]
    if name == "as ours":
        Configuration.of({}, subject="test", trees=trees)
        return
    with pytest.raises(Inapplicable, match=r"a document that states|subsample = 0\.5"):
        Configuration.of({}, subject="test", trees=trees)


@pytest.mark.parametrize(
    "model",
    [
        GradientBoostingClassifier(loss="exponential", n_estimators=1).fit(X, Y),
        RandomForestRegressor(1).fit(X, Y),
        RandomForestClassifier(1).fit(X, np.arange(COUNT) % 3),
    ],
)
def test_estimators_whose_numbers_mean_something_else_are_no_document(model):
    with pytest.raises(BadValue, match="of two classes"):
        document_of(model)


def test_leaves_have_the_counts_that_their_document_states():
    """Half of the rows, as if they were all: values alone had pairs that add up to the 80 announced."""
    boosted = GradientBoostingClassifier(subsample=0.5, n_estimators=1, max_depth=2, random_state=0).fit(X, Y)
    raw = json.loads(document_of(boosted))
    raw["settings"]["subsample"] = 1.0
    trees = read_document(json.dumps(raw).encode())[1]
    how, told = Configuration(eta=0.1, reg_lambda=0.0), Told(rows=COUNT, digits=17, smallest=0.0, shared=True)
    with pytest.raises(Inapplicable, match="80 rows that are announced"):
        count_rounded(trees, how, told, Background(possible=None))


def test_rows_that_weigh_two_are_not_the_rows_that_lightgbm_counts():
    how = {"objective": "binary", "verbose": -1, "num_threads": 1, "num_leaves": 4}
    rows = lightgbm.Dataset(X, Y, weight=np.full(COUNT, 2.0))
    trees = read_document(lightgbm.train(how, rows, 1).model_to_string().encode())[1]
    with pytest.raises(Inapplicable, match="of the rows that are counted"):
        count_rows(trees, Configuration.of({}, subject="test", trees=trees), subject="test")


def test_the_document_says_where_missing_values_would_go():
    """What tells ``exact`` and rows with missing values from ``hist``: right for hist, left for exact."""
    read = {name: read_document(of_xgboost(name))[1] for name in ("as ours", "exact", "missing values")}
    assert [one.exact_cuts for one in read.values()] == [True, False, False]
    assert [one.missing for one in read.values()] == [False, False, True]


def test_trees_over_other_columns_than_the_tables_are_refused():
    rows = xgboost.DMatrix(X[:, :2], Y, nthread=1)
    other = xgboost.train({"objective": "binary:logistic", "max_depth": 2, "nthread": 1}, rows, 1)
    assert proofs(bytes(other.save_raw("json"))) == {}
