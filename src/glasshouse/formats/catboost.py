"""CatBoost models: ``save_model(path, format="json")``; a tree asks one question on a whole level.

Source: CatBoost's documentation, "Model analysis, JSON": ``oblivious_trees`` with ``splits`` (``border``,
``float_feature_index``), ``leaf_values`` and ``leaf_weights``. Bit i of a leaf's number is set where split
i holds (value above its border). Categories are read by :mod:`.catboost_categories`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, final

import numpy as np

from glasshouse.formats.base import Format, bad, field, json_of, numbers
from glasshouse.formats.catboost_categories import splits_of, tables_of
from glasshouse.formats.records import LEAF, Category, Tree, TreeEnsemble
from glasshouse.registry import Card

SUBJECT: Final = "CatBoost model"
LEVELS: Final = 16
"""Largest depth of a tree, as in CatBoost itself."""
FEATURES: Final = 2**20
"""Largest number of columns."""
_PARTS: Final = ("boosting_options", "tree_learner_options", "data_processing_options", "loss_function")
_Plain = Mapping[str, tuple[Any, ...]]
_STEP: Final[_Plain] = {
    "leaf_estimation_method": ("Newton",),
    "leaf_estimation_iterations": (1,),
    "monotone_constraints": (None, {}),
}
_SHRUNK: Final[_Plain] = {"model_shrink_rate": (None, 0), "langevin": (None, False)}
_WEIGHTED: Final[_Plain] = {"class_weights": (None, [])}
_LOSS: Final[_Plain] = {"type": ("Logloss", "RMSE")}
"""Parameters by part, and the values under which a leaf's value is one step on the sums of its rows."""


@final
@dataclass(frozen=True, kw_only=True)
class CatBoostJson(Format):
    """A model as JSON."""

    card: ClassVar[Card] = Card(
        summary="CatBoost's model as JSON", source="CatBoost, documentation of JSON models"
    )
    media: ClassVar[str] = "catboost-json"

    def sniff(self, head: bytes) -> bool:
        """One of its keys is the first."""
        first = head[:200].replace(b" ", b"").replace(b"\n", b"")
        keys = (b"ctr_data", b"features_info", b"model_info", b"oblivious_trees")
        return any(first.startswith(b'{"' + key) for key in keys)

    def parse(self, document: bytes) -> TreeEnsemble:
        raw = json_of(document, SUBJECT)
        trees = field(raw, "oblivious_trees", subject=SUBJECT)
        described = field(raw, "features_info", subject=SUBJECT)
        if not isinstance(trees, list) or not isinstance(described, dict):
            raise bad(SUBJECT, "a list of oblivious_trees, and features_info", "something else")
        floats, named = _places(described, "float_features"), _places(described, "categorical_features")
        if not floats and not named:
            raise bad(SUBJECT, "a list of float_features", "none")
        if len({*floats, *named}) != len(floats) + len(named):
            raise bad(SUBJECT, "one place for every feature", "two at one place")
        stated, unusual = _settings(raw)
        tables = tables_of(raw, named, SUBJECT) if named else ()
        asked = splits_of(raw, named, tables, SUBJECT) if named else {}
        return TreeEnsemble(
            objective="logistic" if "Logloss" in str(raw.get("model_info", {})) else "squared",
            features=max([*floats, *named]) + 1,
            base=_base(raw),
            strict=False,
            exact_cuts=False,
            trees=tuple(_tree(tree, floats, asked, f"{SUBJECT}, tree {i}") for i, tree in enumerate(trees)),
            settings=stated,
            unusual=unusual,
            tables=tables,
            missing=any(one.get("has_nans") for one in described.get("float_features", [])),
        )


def _places(described: Mapping[str, Any], kind: str) -> list[int]:
    """The position of every feature of a kind among all columns; where the file is silent, their order."""
    features = described.get(kind, [])
    if not isinstance(features, list) or not all(isinstance(one, dict) for one in features):
        raise bad(SUBJECT, f"a list of {kind}", type(features).__name__)
    places = [one.get("flat_feature_index", i) for i, one in enumerate(features)]
    if not all(isinstance(place, int) and 0 <= place < FEATURES for place in places):
        raise bad(SUBJECT, f"features at places below {FEATURES:,}", "others")
    return places


def _settings(raw: Mapping[str, Any]) -> tuple[dict[str, float], tuple[str, ...]]:
    """Rate and penalty, and what the file states, or leaves out, that makes leaves no plain step."""
    info = raw.get("model_info")
    params = info.get("params") if isinstance(info, dict) else None
    boosting, learner, data, loss = (
        part if isinstance(part, dict) else {}
        for part in map(params.get if isinstance(params, dict) else {}.get, _PARTS)
    )
    unusual = [
        f"{name}: {part.get(name)}"[:80]
        for part, names in ((learner, _STEP), (boosting, _SHRUNK), (data, _WEIGHTED), (loss, _LOSS))
        for name, plain in names.items()
        if part.get(name) not in plain
    ]
    stated = {"eta": boosting.get("learning_rate"), "reg_lambda": learner.get("l2_leaf_reg")}
    given = {name: float(numbers([one], SUBJECT)[0]) for name, one in stated.items() if one is not None}
    if len(given) < 2 or given["eta"] <= 0 or given["reg_lambda"] < 0:
        return {}, (*unusual, "no learning_rate above 0 with l2_leaf_reg")
    return given, tuple(unusual)


def _base(raw: Any) -> float | None:
    """The probability of a bias in margins; None where the file states none."""
    stated = raw.get("scale_and_bias")
    if not (
        isinstance(stated, list) and len(stated) == 2 and isinstance(stated[1], list) and len(stated[1]) == 1
    ):
        return None
    bias = float(numbers(stated[1], SUBJECT)[0])
    if "Logloss" not in str(raw.get("model_info", {})):
        return bias
    return float(1 / (1 + np.exp(-np.clip(bias, -30, 30))))


def _tree(
    raw: Any, floats: Sequence[int], asked: Mapping[int, tuple[int, Category | None]], subject: str
) -> Tree:
    """A full binary tree in the order of levels; the last split of the list is asked first."""
    splits = field(raw, "splits", subject=subject)
    splits = [] if splits is None else splits
    if not isinstance(splits, list) or len(splits) > LEVELS or not all(isinstance(s, dict) for s in splits):
        raise bad(subject, f"at most {LEVELS} splits", "others")
    depth = len(splits)
    read = [_split(split, floats, asked, subject) for split in splits]
    feature = np.array([column for column, _, _ in read], dtype=np.int64)
    border = numbers([0.5 if cut is None else cut for _, cut, _ in read], subject)
    leaves = numbers(field(raw, "leaf_values", subject=subject), subject, length=2**depth)
    weights = numbers(raw["leaf_weights"], subject, length=2**depth) if raw.get("leaf_weights") else None
    inner = 2**depth - 1
    # Node k of level d has children 2 k + 1 and 2 k + 2; level d asks split depth - 1 - d, the highest bit.
    level = np.floor(np.log2(np.arange(1, inner + 1))).astype(np.int64)
    children = 2 * np.arange(inner) + 1
    nothing = np.full(2**depth, LEAF)
    at = depth - 1 - level
    return Tree(
        feature=np.concatenate([feature[at], nothing]),
        threshold=np.concatenate([border[at], np.full(2**depth, np.nan)]),
        left=np.concatenate([children, nothing]),
        right=np.concatenate([children + 1, nothing]),
        missing_left=np.ones(inner + 2**depth, dtype=np.bool_),
        value=np.concatenate([np.full(inner, np.nan), leaves]),
        count=None if weights is None else np.concatenate([np.full(inner, np.nan), weights]),
        categories={node: read[s][2] for node, s in enumerate(at.tolist()) if read[s][1] is None},
    )


def _split(
    split: Mapping[str, Any],
    floats: Sequence[int],
    asked: Mapping[int, tuple[int, Category | None]],
    subject: str,
) -> tuple[int, float | None, Category | None]:
    """Column, border and question of a split: at a number, or by categories, which have no border."""
    if split.get("split_type", "FloatFeature") == "FloatFeature":
        feature = field(split, "float_feature_index", subject=subject)
        if not isinstance(feature, int) or not 0 <= feature < len(floats):
            raise bad(subject, f"one of {len(floats)} features", feature)
        return floats[feature], float(numbers([field(split, "border", subject=subject)], subject)[0]), None
    number = split.get("split_index")
    by_category = split["split_type"] in ("OneHotFeature", "OnlineCtr")
    if not by_category or not isinstance(number, int) or number not in asked:
        raise bad(subject, "splits at numbers or by categories that features_info describes", split)
    column, question = asked[number]
    return column, None, question
