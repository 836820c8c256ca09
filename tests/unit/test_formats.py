"""Readers of documents read what the library predicts with, and refuse what is hostile in a line."""

import json
import time

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

from glasshouse.errors import BadFile
from glasshouse.formats.base import read_document
from glasshouse.formats.records import TreeEnsemble
from glasshouse.formats.sklearn_trees import document_of

ROWS, LABELS = load_breast_cancer(return_X_y=True)
ROWS, LABELS = ROWS[:120].astype(np.float32), LABELS[:120]


def trained(**settings) -> xgboost.Booster:
    given = {"objective": "binary:logistic", "max_depth": 3, "nthread": 1, **settings}
    return xgboost.train(given, xgboost.DMatrix(ROWS, LABELS), 4)


def margins(trees: TreeEnsemble, rows: np.ndarray) -> np.ndarray:
    return sum(t.value[trees.reach(i, rows)] for i, t in enumerate(trees.trees))


@pytest.mark.parametrize("form", ["json", "ubj"])
def test_xgboost_is_read_as_it_predicts(form):
    booster = trained(base_score=0.5)
    media, trees = read_document(bytes(booster.save_raw(form)))
    predicted = booster.predict(xgboost.DMatrix(ROWS), output_margin=True)
    assert media == f"xgboost-{form}"
    np.testing.assert_allclose(margins(trees, ROWS), predicted, atol=1e-6)
    np.testing.assert_array_equal(
        trees.reach(2, ROWS), booster.predict(xgboost.DMatrix(ROWS), pred_leaf=True)[:, 2]
    )


def test_both_forms_of_xgboost_say_the_same():
    booster = trained()
    (_, one), (_, other) = (read_document(bytes(booster.save_raw(form))) for form in ("json", "ubj"))
    assert one.base == pytest.approx(LABELS.mean(), abs=1e-6) == pytest.approx(other.base, abs=1e-6)
    for left, right in zip(one.trees, other.trees, strict=True):
        np.testing.assert_array_equal(left.feature, right.feature)
        np.testing.assert_allclose(left.hessian, right.hessian, rtol=1e-6)


def test_missing_values_go_where_the_model_sends_them():
    holes = ROWS.copy()
    holes[::3, ::2] = np.nan
    booster = xgboost.train(
        {"objective": "binary:logistic", "max_depth": 4}, xgboost.DMatrix(holes, LABELS), 3
    )
    trees = read_document(bytes(booster.save_raw("json")))[1]
    wanted = booster.predict(xgboost.DMatrix(holes), pred_leaf=True)
    np.testing.assert_array_equal(np.stack([trees.reach(i, holes) for i in range(3)], 1), wanted)


def test_lightgbm_is_read_as_it_predicts():
    settings = {"objective": "binary", "verbose": -1, "num_threads": 1, "min_data_in_leaf": 5}
    booster = lightgbm.train(settings, lightgbm.Dataset(ROWS, LABELS), 3)
    media, trees = read_document(booster.model_to_string().encode())
    assert media == "lightgbm-text"
    np.testing.assert_allclose(margins(trees, ROWS.astype(np.float64)), booster.predict(ROWS, raw_score=True))
    first = trees.trees[0]
    assert first.count[first.leaves].sum() == len(ROWS)


def test_scikit_learn_counts_are_in_clear():
    forest = RandomForestClassifier(5, max_depth=3, bootstrap=False, random_state=0).fit(ROWS, LABELS)
    media, trees = read_document(document_of(forest))
    first = trees.trees[0]
    assert media == "sklearn-trees-json"
    assert (first.count[0], first.positives[0]) == (len(ROWS), LABELS.sum())
    for boosted in (GradientBoostingClassifier(n_estimators=3), HistGradientBoostingClassifier(max_iter=3)):
        trees = read_document(document_of(boosted.fit(ROWS, LABELS)))[1]
        prior = np.log(trees.base / (1 - trees.base))
        np.testing.assert_allclose(margins(trees, ROWS) + prior, boosted.decision_function(ROWS), atol=1e-6)


def test_catboost_leaves_are_numbered_by_their_bits():
    """Tree of two levels, by hand: leaf 1 has bit 0 set, which is the first split (feature 0 above 0.5)."""
    splits = [{"float_feature_index": i, "border": 0.5, "split_type": "FloatFeature"} for i in (0, 1)]
    tree = {"splits": splits, "leaf_values": [0.0, 1.0, 2.0, 3.0], "leaf_weights": [4, 3, 2, 1]}
    document = {
        "oblivious_trees": [tree],
        "features_info": {"float_features": [{}, {}]},
        "model_info": {"params": {"loss_function": {"type": "Logloss"}}},
        "scale_and_bias": [1, [0]],
    }
    media, trees = read_document(json.dumps(document).encode())
    rows = np.array([[0, 0], [1, 0], [0, 1], [1, 1]], dtype=float)
    assert media == "catboost-json"
    assert margins(trees, rows).tolist() == [0, 1, 2, 3]
    assert trees.trees[0].count[trees.reach(0, rows)].tolist() == [4, 3, 2, 1]


def test_boxes_hold_the_rows_of_their_leaf():
    trees = read_document(bytes(trained().save_raw("json")))[1]
    leaves, lower, upper = trees.boxes(1)
    inside = ((ROWS[:, None] >= lower) & (ROWS[:, None] < upper)).all(2)
    assert (inside.sum(1) == 1).all()
    np.testing.assert_array_equal(leaves[inside.argmax(1)], trees.reach(1, ROWS))


def _changed(**places) -> bytes:
    """A model of XGBoost with something else at a path (joined by __) of its keys."""
    raw = json.loads(bytes(trained().save_raw("json")))
    for path, value in places.items():
        *way, last = path.split("__")
        table = raw["learner"]
        for key in way:
            table = table[int(key) if key.isdecimal() else key]
        table[int(last) if last.isdecimal() else last] = value
    return json.dumps(raw).encode()


TREE = "gradient_booster__model__trees__0__"
SURVIVAL = '{"format": "survival", '
FOUR = SURVIVAL + '"times": [1], "patients": 4, '
NUMBERS = '{"format": "statistics", "numbers": '
GLM = '{"format": "glm", '
WHOLE = bytes(trained().save_raw("ubj"))
LIGHT = lightgbm.train(
    {"objective": "binary", "verbose": -1, "num_threads": 1}, lightgbm.Dataset(ROWS, LABELS), 2
).model_to_string()
HOSTILE = {
    "empty": b"",
    "pickle": b"\x80\x04\x95\x10",
    "archive": b"PK\x03\x04abc",
    "packed": b"\x1f\x8b\x08\x00abc",
    "unknown": b"hello",
    "text": "nichts".encode("utf-16"),
    "cut json": bytes(trained().save_raw("json"))[:-40],
    "not utf-8": b'{"learner":"\xff"}',
    "deep": b'{"learner":' + b"[" * 100 + b"]" * 100 + b"}",
    "very deep": b'{"learner":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "key twice": b'{"learner":{},"learner":{}}',
    "no learner's parts": b'{"learner":{}}',
    "learner is a list": b'{"learner":[]}',
    "nan": _changed(learner_model_param__base_score="NaN"),
    "base of 2": _changed(learner_model_param__base_score="2"),
    "base of 0": _changed(learner_model_param__base_score="0"),
    "two bases": _changed(learner_model_param__base_score="[5E-1,4E-1]"),
    "no number of features": _changed(learner_model_param__num_feature="many"),
    "too many features": _changed(learner_model_param__num_feature="9" * 40),
    "too few features": _changed(learner_model_param__num_feature="1"),
    "classes": _changed(learner_model_param__num_class="3"),
    "dart": _changed(gradient_booster__name="dart"),
    "linear": _changed(gradient_booster__name="gblinear"),
    "ranking": _changed(objective__name="rank:ndcg"),
    "survival objective": _changed(objective__name="survival:cox"),
    "trees are text": _changed(gradient_booster__model__trees="none"),
    "cycle": _changed(**{TREE + "left_children__1": 0}),
    "self": _changed(**{TREE + "left_children__1": 1}),
    "two parents": _changed(**{TREE + "left_children__0": 2}),
    "child out of range": _changed(**{TREE + "right_children__0": 99}),
    "negative child": _changed(**{TREE + "right_children__0": -5}),
    "child that is a fraction": _changed(**{TREE + "right_children__0": 1.5}),
    "child that is text": _changed(**{TREE + "right_children__0": "2"}),
    "child that is a switch": _changed(**{TREE + "right_children__0": True}),
    "short list": _changed(**{TREE + "split_conditions": [0.0]}),
    "empty tree": _changed(**{TREE + "left_children": []}),
    "huge threshold": _changed(**{TREE + "split_conditions__0": 10**25})
    .replace(b"1" + b"0" * 25, b"1e999"),
    "negative feature": _changed(**{TREE + "split_indices__0": -3}),
    "category": _changed(**{TREE + "split_type__0": 1}),
    "tree is a number": _changed(gradient_booster__model__trees=[3]),
    "ubj cut": WHOLE[:-30],
    "ubj behind": WHOLE + b"Z",
    "ubj long count": b"{L" + bytes(7) + b"\x07learner{L" + b"\x7f" + b"\xff" * 7,
    "ubj many": b"{L" + bytes(7) + b"\x07learner{i\x01a[$D#l\x7f\xff\xff\xff}}",
    "ubj nothing, often": b"{L" + bytes(7) + b"\x07learner{i\x01a[$Z#l\x7f\xff\xff\xff}}",
    "ubj unknown type": b"{L" + bytes(7) + b"\x07learner{i\x01aQ}}",
    "ubj deep": b"{L" + bytes(7) + b"\x07learner{i\x01a" + b"[" * 5000,
    "lightgbm without leaves": LIGHT.replace("leaf_value=", "leaf_worth=").encode(),
    "lightgbm text": LIGHT.replace("leaf_count=", "leaf_count=x ").encode(),
    "lightgbm child": LIGHT.replace("left_child=1", "left_child=77").encode(),
    "lightgbm ranking": LIGHT.replace("objective=binary", "objective=lambdarank").encode(),
    "lightgbm infinite": LIGHT.replace("leaf_value=", "leaf_value=inf ").encode(),
    "sklearn objective": b'{"format": "sklearn-trees", "objective": "x", "features": 2, "trees": []}',
    "catboost split": b'{"oblivious_trees": [{"splits": [{"split_type": "OneHot"}]}], '
    b'"features_info": {"float_features": [{}]}}',
    "catboost leaves": b'{"oblivious_trees": [{"splits": [], "leaf_values": [1, 2]}], '
    b'"features_info": {"float_features": [{}]}}',
    "survival rises": (SURVIVAL + '"times": [1, 2], "patients": 4, "curve": [0.5, 0.7]}').encode(),
    "survival times": (SURVIVAL + '"times": [2, 1], "patients": 4, "curve": [0.5, 0.4]}').encode(),
    "survival nobody": (SURVIVAL + '"times": [1, 2], "patients": 0, "curve": [0.5, 0.4]}').encode(),
    "survival more than n": (FOUR + '"events": [9], "censored": [0]}').encode(),
    "survival negative": (FOUR + '"events": [-1], "censored": [0]}').encode(),
    "survival event of 2": (SURVIVAL + '"times": [1], "raw": [2]}').encode(),
    "statistics empty": (NUMBERS + "[]}").encode(),
    "statistics name": (NUMBERS + '[{"name": "x", "value": 1, "digits": null}]}').encode(),
    "statistics precision": (NUMBERS + '[{"name": "sum", "value": 1}]}').encode(),
    "statistics negative count": (NUMBERS + '[{"name": "count", "value": -1, "digits": null}]}').encode(),
    "glm lopsided": (GLM + '"theta": [0, 0], "gradient": [0, 0], "hessian": [[1, 2], [3, 4]]}').encode(),
    "glm short": (GLM + '"theta": [0, 0], "gradient": [0], "hessian": [[1, 2], [2, 4]]}').encode(),
    "glm empty": (GLM + '"theta": [], "gradient": [], "hessian": []}').encode(),
}  # fmt: skip


def test_there_are_sixty_hostile_documents():
    assert len(HOSTILE) >= 60


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_documents_are_refused_in_a_line(name):
    started = time.monotonic()
    with pytest.raises(BadFile) as refused:
        read_document(HOSTILE[name])
    assert time.monotonic() - started < 10
    assert all(len(part) < 400 and "\n" not in part for part in (refused.value.needs, refused.value.got))
