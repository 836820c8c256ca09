"""LightGBM models: the text that ``Booster.model_to_string()`` writes.

Source: LightGBM's documentation and ``src/io/tree.cpp``, read at 4.7. A split is ``value <= threshold`` and
thresholds lie between values. Counts of leaves are in the file; the first tree's values contain the prior.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, final

import numpy as np
from numpy.typing import NDArray

from glasshouse.formats.base import Format, bad, numbers, whole_numbers
from glasshouse.formats.records import LEAF, Tree, TreeEnsemble
from glasshouse.registry import Card

SUBJECT: Final = "LightGBM model"
LEFT_BY_DEFAULT: Final = 2
"""Bit of ``decision_type``: missing values go left."""
CATEGORICAL: Final = 1
"""Bit of ``decision_type``: a split of categories."""
MISSING: Final = 12
"""Bits of ``decision_type``: the column has missing values, zeros (4) or none (8)."""


@final
@dataclass(frozen=True, kw_only=True)
class LightGBMText(Format):
    """A model as text."""

    card: ClassVar[Card] = Card(summary="LightGBM's model as text", source="LightGBM, src/io/tree.cpp")
    media: ClassVar[str] = "lightgbm-text"

    def sniff(self, head: bytes) -> bool:
        """The first line is ``tree``, the second its version."""
        return head.startswith(b"tree\nversion=v")

    def parse(self, document: bytes) -> TreeEnsemble:
        try:
            text = document.decode()
        except UnicodeDecodeError as error:
            raise bad(SUBJECT, "text in UTF-8", str(error)) from error
        header, *parts = text.split("\nTree=")
        general = _pairs(header)
        objective = general.get("objective", "none").split(" ")[0]
        if objective not in ("binary", "regression") or general.get("num_class", "1") != "1":
            needs, got = "objective binary or regression, one class", f"objective {objective}"
            raise bad(SUBJECT, needs, f"{got}, {general.get('num_class')} classes")
        widest = general.get("max_feature_idx", "")
        if not widest.isdecimal() or len(widest) > 8:
            raise bad(SUBJECT, "max_feature_idx", widest[:40])
        read = [_tree(part.split("\n\n")[0], f"{SUBJECT}, tree {i}") for i, part in enumerate(parts)]
        return TreeEnsemble(
            objective="logistic" if objective == "binary" else "squared",
            features=int(widest) + 1,
            base=None,
            strict=False,
            exact_cuts=False,
            trees=tuple(tree for tree, _ in read),
            missing=any(missing for _, missing in read),
        )


def _pairs(block: str) -> dict[str, str]:
    """Lines ``key=value``."""
    lines = (line.partition("=") for line in block.splitlines())
    return {key: value for key, mark, value in lines if mark}


def _tree(block: str, subject: str) -> tuple[Tree, bool]:
    """A tree, and whether a split of it knows missing values.

    Splits come first, then leaves: a child c < 0 is leaf -c - 1.
    """
    pairs = _pairs("number=" + block)
    leaves = numbers(_list(pairs, "leaf_value", subject), subject)
    splits = len(leaves) - 1
    # A tree without a split has no lists of splits.
    left, right, feature, kind = (
        whole_numbers(_list(pairs, name, subject) if splits else [], f"{subject}, {name}", length=splits)
        for name in ("left_child", "right_child", "split_feature", "decision_type")
    )
    if (kind & CATEGORICAL).any():
        raise bad(subject, "splits at a number", "a categorical split")

    def both(inner: str, outer: str) -> NDArray[np.float64] | None:
        if outer not in pairs:
            return None
        inside = _list(pairs, inner, subject) if splits else []
        return np.concatenate(
            [
                numbers(inside, subject, length=splits),
                numbers(_list(pairs, outer, subject), subject, length=splits + 1),
            ]
        )

    nothing = np.full(splits + 1, LEAF)
    threshold = numbers(_list(pairs, "threshold", subject) if splits else [], subject, length=splits)
    gain = numbers(_list(pairs, "split_gain", subject) if splits else [], subject, length=splits)
    tree = Tree(
        feature=np.concatenate([feature, nothing]),
        threshold=np.concatenate([threshold, np.full(splits + 1, np.nan)]),
        left=np.concatenate([np.where(left < 0, splits - left - 1, left), nothing]),
        right=np.concatenate([np.where(right < 0, splits - right - 1, right), nothing]),
        missing_left=np.concatenate([(kind & LEFT_BY_DEFAULT) != 0, np.zeros(splits + 1, dtype=np.bool_)]),
        value=np.concatenate([np.full(splits, np.nan), leaves]),
        gain=np.concatenate([gain, np.zeros(splits + 1)]),
        hessian=both("internal_weight", "leaf_weight"),
        count=both("internal_count", "leaf_count"),
    )
    return tree, bool((kind & MISSING).any())


def _list(pairs: Mapping[str, str], name: str, subject: str) -> list[float]:
    """Numbers separated by spaces.

    Raises:
        BadFile: no such key, or no numbers.
    """
    if name not in pairs:
        raise bad(subject, f"a key '{name}'", "none")
    try:
        return [float(word) for word in pairs[name].split()]
    except ValueError as error:
        raise bad(subject, f"numbers in '{name}'", str(error)) from error
