"""LightGBM models: the text that ``Booster.model_to_string()`` writes.

Source: LightGBM's documentation and ``src/io/tree.cpp``, read at 4.7. A split is ``value <= threshold`` and
thresholds lie between values. Counts of leaves are in the file; the first tree's values contain the prior.
Behind the trees stand the parameters of the training, where the model was not cut out of another one.
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
PLAIN: Final = {
    "boosting": "gbdt",
    "data_sample_strategy": "bagging",
    "is_unbalance": "0",
    "linear_tree": "0",
    "max_delta_step": "0",
    "monotone_constraints": "",
    "path_smooth": "0",
    "scale_pos_weight": "1",
    "sigmoid": "1",
    "use_quantized_grad": "0",
}
"""Parameters under which a leaf's value is one step on the sums of its rows."""
NAMES: Final = {"learning_rate": "eta", "lambda_l2": "reg_lambda", "lambda_l1": "reg_alpha"}
"""Parameters by what we call them."""


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
        parameters = _parameters(parts[-1] if parts else "")
        read = [_tree(part.split("\n\n")[0], f"{SUBJECT}, tree {i}") for i, part in enumerate(parts)]
        return TreeEnsemble(
            objective="logistic" if objective == "binary" else "squared",
            features=int(widest) + 1,
            # Without its average a first tree starts at a margin of 0; with it, its values contain the prior.
            base=0.5 if objective == "binary" and parameters.get("boost_from_average") == "0" else None,
            strict=False,
            exact_cuts=False,
            trees=tuple(tree for tree, _ in read),
            settings=_settings(parameters),
            unusual=_unusual(parameters, [_pairs(part).get("shrinkage", "") for part in parts[1:]]),
            missing=any(missing for _, missing in read),
        )


def _pairs(block: str) -> dict[str, str]:
    """Lines ``key=value``."""
    lines = (line.partition("=") for line in block.splitlines())
    return {key: value for key, mark, value in lines if mark}


def _parameters(block: str) -> dict[str, str]:
    """Lines ``[name: value]`` behind the last tree; none where the file has no parameters."""
    lines = (line for line in block.partition("\nparameters:")[2].splitlines() if line.startswith("["))
    pairs = (line.strip("[]").partition(":") for line in lines)
    return {name: value.strip() for name, _, value in pairs}


def _settings(parameters: Mapping[str, str]) -> dict[str, float]:
    """Those of boosting that the file states, by our names."""
    stated = {ours: _number(parameters, name) for name, ours in NAMES.items() if name in parameters}
    if stated.get("eta", 1) <= 0:
        raise bad(SUBJECT, "a learning_rate above 0", f"{stated['eta']:g}")
    if parameters.get("bagging_freq", "0") != "0":
        shares = ("bagging_fraction", "pos_bagging_fraction", "neg_bagging_fraction")
        stated["subsample"] = min(
            (_number(parameters, one) for one in shares if one in parameters), default=1
        )
    return stated


def _unusual(parameters: Mapping[str, str], rates: list[str]) -> tuple[str, ...]:
    """What the file states that is not plain, as it writes it; ``rates``: of all trees but the first."""
    stated = [f"{k}: {parameters[k]}" for k, plain in PLAIN.items() if parameters.get(k, plain) != plain]
    if len(set(rates)) > 1:
        stated.append("a learning_rate that changes from tree to tree")
    return tuple(stated)


def _number(parameters: Mapping[str, str], name: str) -> float:
    return float(numbers(_list(parameters, name, SUBJECT), f"{SUBJECT}, {name}", length=1)[0])


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
