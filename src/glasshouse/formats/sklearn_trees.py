"""scikit-learn trees as a document of our own: what federations send that wrap its estimators without pickle.

scikit-learn has no text format. A site that shares a forest or a boosted ensemble as JSON sends ``tree_``'s
arrays; this is their plainest form, and :func:`document_of` writes it.
"""

import json
from dataclasses import dataclass
from typing import Any, ClassVar, Final, final

import numpy as np

from glasshouse.formats.base import Format, bad, field, json_of, numbers, whole_numbers
from glasshouse.formats.records import LEAF, Tree, TreeEnsemble
from glasshouse.registry import Card

SUBJECT: Final = "scikit-learn trees"


@final
@dataclass(frozen=True, kw_only=True)
class SklearnTrees(Format):
    """Trees of scikit-learn as JSON."""

    card: ClassVar[Card] = Card(
        summary="arrays of scikit-learn's trees as JSON", source="scikit-learn, sklearn.tree._tree"
    )
    media: ClassVar[str] = "sklearn-trees-json"

    def sniff(self, head: bytes) -> bool:
        """The first key names the format."""
        return head.startswith(b'{"format": "sklearn-trees"')

    def parse(self, document: bytes) -> TreeEnsemble:
        raw = json_of(document, SUBJECT)
        objective = field(raw, "objective", subject=SUBJECT)
        features = field(raw, "features", subject=SUBJECT)
        trees = field(raw, "trees", subject=SUBJECT)
        if (
            objective not in ("logistic", "squared")
            or not isinstance(features, int)
            or not isinstance(trees, list)
        ):
            raise bad(SUBJECT, "objective logistic or squared, features, trees", f"objective {objective}")
        base = raw.get("base")
        return TreeEnsemble(
            objective=objective,
            features=features,
            base=None if base is None else float(numbers([base], SUBJECT)[0]),
            strict=False,
            exact_cuts=False,
            trees=tuple(_tree(tree, f"{SUBJECT}, tree {i}") for i, tree in enumerate(trees)),
        )


def _tree(raw: Any, subject: str) -> Tree:
    left = whole_numbers(field(raw, "left", subject=subject), subject)
    size, split = len(left), left != LEAF

    def column(name: str) -> Any:
        return numbers(field(raw, name, subject=subject), f"{subject}, {name}", length=size)

    return Tree(
        feature=np.where(
            split, whole_numbers(field(raw, "feature", subject=subject), subject, length=size), LEAF
        ),
        threshold=np.where(split, column("threshold"), np.nan),
        left=left,
        right=whole_numbers(field(raw, "right", subject=subject), subject, length=size),
        missing_left=np.zeros(size, dtype=np.bool_),
        value=np.where(split, np.nan, column("value")),
        count=column("count") if "count" in raw else None,
        positives=column("positives") if "positives" in raw else None,
    )


def document_of(model: Any) -> bytes:
    """A fitted forest, or gradient boosting of two classes, as a document.

    Args:
        model: ``RandomForestClassifier`` or ``GradientBoostingClassifier`` of two classes.
    """
    boosted = hasattr(model, "learning_rate")
    trees = []
    for estimator in np.asarray(model.estimators_).ravel():
        tree = estimator.tree_
        shares = tree.value.reshape(len(tree.feature), -1)
        table = {
            "feature": tree.feature.tolist(),
            "threshold": tree.threshold.tolist(),
            "left": tree.children_left.tolist(),
            "right": tree.children_right.tolist(),
            "value": (shares[:, 0] * model.learning_rate if boosted else shares[:, -1]).tolist(),
            "count": tree.n_node_samples.tolist(),
        }
        if not boosted:
            table["positives"] = (shares[:, -1] * tree.weighted_n_node_samples).tolist()
        trees.append(table)
    head: dict[str, Any] = {
        "format": "sklearn-trees",
        "objective": "logistic",
        "features": int(model.n_features_in_),
    }
    if boosted:
        head["base"] = float(model.init_.class_prior_[1])
    return json.dumps({**head, "trees": trees}).encode()
