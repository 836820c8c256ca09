"""XGBoost models: ``Booster.save_raw("json")`` and ``save_raw("ubj")``, which hold the same tree of keys.

Source: the schema in XGBoost's documentation, "Introduction to Model IO" (doc/model.schema), read at 3.2.
What we do not read is refused by name: other boosters than gbtree, categorical splits, several outputs,
objectives whose derivatives the attacks do not know.
"""

import json
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, final

import numpy as np

from glasshouse.formats.base import Format, bad, field, json_of, numbers, whole_numbers
from glasshouse.formats.records import LEAF, Tree, TreeEnsemble
from glasshouse.formats.ubj import read_ubj
from glasshouse.registry import Card

OBJECTIVES: Final[dict[str, Literal["logistic", "squared"]]] = {
    "binary:logistic": "logistic",
    "binary:logitraw": "logistic",
    "reg:logistic": "logistic",
    "reg:squarederror": "squared",
}
TREES: Final = 100_000
"""Largest number of trees of a document."""


@final
@dataclass(frozen=True, kw_only=True)
class XGBoostJson(Format):
    """A model as JSON."""

    card: ClassVar[Card] = Card(summary="XGBoost's model as JSON", source="XGBoost, doc/model.schema")
    media: ClassVar[str] = "xgboost-json"

    def sniff(self, head: bytes) -> bool:
        """``learner`` is the first key."""
        return head[:200].replace(b" ", b"").replace(b"\n", b"").startswith(b'{"learner":')

    def parse(self, document: bytes) -> TreeEnsemble:
        return model_of(json_of(document, "XGBoost model"))


@final
@dataclass(frozen=True, kw_only=True)
class XGBoostUbj(Format):
    """A model as Universal Binary JSON."""

    card: ClassVar[Card] = Card(
        summary="XGBoost's model as Universal Binary JSON", source="XGBoost, doc/model.schema"
    )
    media: ClassVar[str] = "xgboost-ubj"

    def sniff(self, head: bytes) -> bool:
        """``learner`` is the first key, behind its length."""
        return head[:1] == b"{" and b"learner{" in head[:24]

    def parse(self, document: bytes) -> TreeEnsemble:
        return model_of(read_ubj(document))


def model_of(raw: Any) -> TreeEnsemble:
    """The trees in a parsed model.

    Raises:
        BadFile: a missing key, another booster or objective, several outputs, or damaged trees.
    """
    subject = "XGBoost model"
    learner = field(raw, "learner", subject=subject)
    booster = field(learner, "gradient_booster", "name", subject=subject)
    objective = field(learner, "objective", "name", subject=subject)
    outputs = {str(learner.get("learner_model_param", {}).get(k, "1")) for k in ("num_class", "num_target")}
    if booster != "gbtree" or objective not in OBJECTIVES or not outputs <= {"0", "1"}:
        raise bad(
            subject,
            f"booster gbtree, one output, objective {', '.join(OBJECTIVES)}",
            f"booster {booster}, objective {objective}, outputs {', '.join(sorted(outputs))}",
        )
    parameters = field(learner, "learner_model_param", subject=subject)
    features = _whole(field(parameters, "num_feature", subject=subject), "num_feature")
    trees = field(learner, "gradient_booster", "model", "trees", subject=subject)
    if not isinstance(trees, list) or len(trees) > TREES:
        raise bad(subject, f"a list of at most {TREES:,} trees", type(trees).__name__)
    read = tuple(tree_of(tree, f"{subject}, tree {i}") for i, tree in enumerate(trees))
    # Without a missing value nothing decides where one would go: "hist" and "approx", which cut at values,
    # then always say right, and "exact", which cuts between values, left (measured, 3.2).
    sides = np.concatenate([tree.missing_left[tree.feature != LEAF] for tree in read] or [np.zeros(0, bool)])
    return TreeEnsemble(
        objective=OBJECTIVES[objective],
        features=features,
        base=_base(field(parameters, "base_score", subject=subject)),
        strict=True,
        exact_cuts=not sides.any(),
        trees=read,
        missing=bool(sides.any() and not sides.all()),
    )


def tree_of(raw: Any, subject: str) -> Tree:
    """One tree. Raises ``BadFile`` for lists of different lengths, and for categorical splits."""
    left = whole_numbers(field(raw, "left_children", subject=subject), subject)
    size = len(left)

    def column(name: str) -> Any:
        return numbers(field(raw, name, subject=subject), f"{subject}, {name}", length=size)

    # The library compares in float32; JSON holds the shortest text of such a number.
    conditions = column("split_conditions").astype(np.float32).astype(np.float64)
    split = left != LEAF
    if any(raw.get("split_type") or ()):
        raise bad(subject, "splits at a number", "a categorical split")
    return Tree(
        feature=np.where(split, whole_numbers(raw["split_indices"], subject, length=size), LEAF)
        if "split_indices" in raw
        else np.full(size, LEAF),
        threshold=np.where(split, conditions, np.nan),
        left=left,
        right=whole_numbers(field(raw, "right_children", subject=subject), subject, length=size),
        missing_left=column("default_left") != 0,
        value=np.where(split, np.nan, conditions),
        weight=column("base_weights") if raw.get("base_weights") else None,
        gain=column("loss_changes") if raw.get("loss_changes") else None,
        hessian=column("sum_hessian") if raw.get("sum_hessian") else None,
    )


def _base(raw: Any) -> float:
    """``"5E-1"``, or from version 3.1 on ``"[5E-1]"``."""
    try:
        value = float(str(raw).strip("[] "))
    except ValueError as error:
        raise bad("XGBoost model, base_score", "one number", str(raw)[:40]) from error
    if not math.isfinite(value):
        raise bad("XGBoost model, base_score", "a finite number", str(value))
    return value


def _whole(raw: Any, name: str) -> int:
    text = str(raw)
    if not text.isdecimal() or len(text) > 9:
        raise bad(f"XGBoost model, {name}", "a whole number", text[:40])
    return int(text)


def append_trees(common: bytes, document: bytes) -> bytes:
    """The common model with the trees of a document behind its own, numbered on; as Flower's server does it.

    The base score stays that of the first model.
    """
    if not common:
        return document
    whole, new = json.loads(common), json.loads(document)
    model, added = (raw["learner"]["gradient_booster"]["model"] for raw in (whole, new))
    count = len(model["trees"])
    for position, tree in enumerate(added["trees"]):
        model["trees"].append({**tree, "id": count + position})
        model["tree_info"].append(0)
        model["iteration_indptr"].append(model["iteration_indptr"][-1] + 1)
    model["gbtree_model_param"]["num_trees"] = str(len(model["trees"]))
    return json.dumps(whole).encode()
