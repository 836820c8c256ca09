"""CatBoost models: ``save_model(path, format="json")``; a tree asks one question on a whole level.

Source: CatBoost's documentation, "Model analysis, JSON": ``oblivious_trees`` with ``splits`` (``border``,
``float_feature_index``), ``leaf_values`` and ``leaf_weights``. Bit i of a leaf's number is set where split
i holds (value above its border).
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Final, final

import numpy as np

from glasshouse.formats.base import Format, bad, field, json_of, numbers
from glasshouse.formats.records import LEAF, Tree, TreeEnsemble
from glasshouse.registry import Card

SUBJECT: Final = "CatBoost model"
LEVELS: Final = 16
"""Largest depth of a tree, as in CatBoost itself."""


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
        if (
            not isinstance(trees, list)
            or not isinstance(described, dict)
            or described.get("categorical_features")
        ):
            raise bad(SUBJECT, "a list of oblivious_trees on numbers alone", "none, or categorical features")
        features = described.get("float_features")
        if not isinstance(features, list):
            raise bad(SUBJECT, "a list of float_features", type(features).__name__)
        return TreeEnsemble(
            objective="logistic" if "Logloss" in str(raw.get("model_info", {})) else "squared",
            features=len(features),
            base=_base(raw),
            strict=False,
            exact_cuts=False,
            trees=tuple(_tree(tree, f"{SUBJECT}, tree {i}") for i, tree in enumerate(trees)),
        )


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


def _tree(raw: Any, subject: str) -> Tree:
    """A full binary tree in the order of levels; the last split of the list is asked first."""
    splits = field(raw, "splits", subject=subject)
    splits = [] if splits is None else splits
    if (
        not isinstance(splits, list)
        or len(splits) > LEVELS
        or any(
            not isinstance(s, dict) or s.get("split_type", "FloatFeature") != "FloatFeature" for s in splits
        )
    ):
        raise bad(subject, f"at most {LEVELS} splits at a number", "others")
    depth = len(splits)
    feature = numbers([field(s, "float_feature_index", subject=subject) for s in splits], subject)
    border = numbers([field(s, "border", subject=subject) for s in splits], subject)
    leaves = numbers(field(raw, "leaf_values", subject=subject), subject, length=2**depth)
    weights = numbers(raw["leaf_weights"], subject, length=2**depth) if raw.get("leaf_weights") else None
    inner = 2**depth - 1
    # Node k of level d has children 2 k + 1 and 2 k + 2; level d asks split depth - 1 - d, the highest bit.
    level = np.floor(np.log2(np.arange(1, inner + 1))).astype(np.int64)
    children = 2 * np.arange(inner) + 1
    nothing = np.full(2**depth, LEAF)
    return Tree(
        feature=np.concatenate([feature[depth - 1 - level].astype(np.int64), nothing]),
        threshold=np.concatenate([border[depth - 1 - level], np.full(2**depth, np.nan)]),
        left=np.concatenate([children, nothing]),
        right=np.concatenate([children + 1, nothing]),
        missing_left=np.ones(inner + 2**depth, dtype=np.bool_),
        value=np.concatenate([np.full(inner, np.nan), leaves]),
        count=None if weights is None else np.concatenate([np.full(inner, np.nan), weights]),
    )
