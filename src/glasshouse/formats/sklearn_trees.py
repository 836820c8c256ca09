"""scikit-learn trees as a document of our own: what federations send that wrap its estimators without pickle.

scikit-learn has no text format. A site that shares a forest or a boosted ensemble as JSON sends ``tree_``'s
arrays; this is their plainest form, and :func:`document_of` writes it.
"""

import json
from dataclasses import dataclass
from typing import Any, ClassVar, Final, final

import numpy as np

from glasshouse.errors import BadValue
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
            settings=_settings(raw.get("settings", {})),
            unusual=_unusual(raw.get("unusual", [])),
        )


def _settings(raw: Any) -> dict[str, float]:
    """Of boosting, by our names; none in documents that do not state them."""
    if not isinstance(raw, dict) or not raw.keys() <= {"eta", "reg_lambda", "subsample"}:
        raise bad(SUBJECT, "settings eta, reg_lambda and subsample", raw)
    stated = dict(zip(raw, numbers(list(raw.values()), SUBJECT).tolist(), strict=True))
    if stated.get("eta", 1.0) <= 0:
        raise bad(SUBJECT, "eta above 0", stated["eta"])
    return stated


def _unusual(raw: Any) -> tuple[str, ...]:
    """Settings under which a tree's numbers are not those of all rows, each counted once."""
    if (
        not isinstance(raw, list)
        or len(raw) > len(HIDDEN) + 2
        or not all(isinstance(one, str) for one in raw)
    ):
        raise bad(SUBJECT, "a short list of unusual settings", raw)
    return tuple(one[:80] for one in raw)


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
    """A fitted forest, or boosting of two classes, as a document.

    Args:
        model: ``RandomForestClassifier``, ``ExtraTreesClassifier``, ``GradientBoostingClassifier`` or
            ``HistGradientBoostingClassifier`` of two classes, with the usual loss and start.

    Raises:
        BadValue: another model, or a setting that no reader of sums knows.
    """
    name = type(model).__name__
    odd = [f"{k} = {v}" for k, plain in PLAIN.items() if (v := getattr(model, k, plain[0])) not in plain]
    classes = getattr(model, "n_classes_", len(getattr(model, "classes_", ())))
    if name not in WRITERS or odd or classes != 2:
        raise BadValue(
            SUBJECT,
            needs=f"{', '.join(WRITERS)} of two classes, without {', '.join(PLAIN)}",
            got=", ".join([name, f"{classes} classes", *odd]),
            fix="send another model, or write its format",
        )
    head, trees = WRITERS[name](model)
    unusual = [f"{k} = {v}" for k, plain in HIDDEN.items() if (v := getattr(model, k, plain)) != plain]
    general = {"format": "sklearn-trees", "objective": "logistic", "features": int(model.n_features_in_)}
    unusual += head.pop("unusual", [])
    return json.dumps({**general, **head, "unusual": unusual, "trees": trees}).encode()


def _plain_trees(model: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Of a forest, or of gradient boosting."""
    boosted, weighed, trees = hasattr(model, "learning_rate"), False, []
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
        weighed = weighed or not np.array_equal(tree.n_node_samples, tree.weighted_n_node_samples)
        trees.append(table)
    head: dict[str, Any] = {"unusual": ["rows with weights"] if weighed else []}
    if not boosted:
        return {**head, "settings": {"subsample": 1.0}}, trees
    if model.n_iter_no_change is not None:
        head["unusual"].append("rows held out for early stopping")
    settings = {"eta": model.learning_rate, "reg_lambda": 0.0, "subsample": model.subsample}
    return {**head, "base": float(model.init_.class_prior_[1]), "settings": settings}, trees


def _histogram_trees(model: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Of histogram gradient boosting."""
    trees = []
    for (grown,) in model._predictors:
        nodes = grown.nodes
        leaf = nodes["is_leaf"].astype(bool)
        if nodes["is_categorical"].any():
            raise BadValue(
                SUBJECT, needs="splits at a number", got="a split by categories", fix="encode them"
            )
        trees.append(
            {
                "feature": np.where(leaf, LEAF, nodes["feature_idx"]).tolist(),
                "threshold": np.where(leaf, 0, nodes["num_threshold"]).tolist(),
                "left": np.where(leaf, LEAF, nodes["left"].astype(np.int64)).tolist(),
                "right": np.where(leaf, LEAF, nodes["right"].astype(np.int64)).tolist(),
                "value": nodes["value"].tolist(),
                "count": nodes["count"].tolist(),
            }
        )
    settings = {"eta": model.learning_rate, "reg_lambda": model.l2_regularization}
    prior = 1 / (1 + np.exp(-float(np.ravel(model._baseline_prediction)[0])))
    return {"base": float(prior), "settings": {**settings, "subsample": 1.0}}, trees


WRITERS: Final = {
    "RandomForestClassifier": _plain_trees,
    "ExtraTreesClassifier": _plain_trees,
    "GradientBoostingClassifier": _plain_trees,
    "HistGradientBoostingClassifier": _histogram_trees,
}
PLAIN: Final[dict[str, tuple[Any, ...]]] = {
    "loss": ("log_loss",),
    "init": (None,),
    "monotonic_cst": (None,),
    "warm_start": (False,),
}
"""Settings under which a tree's values are one step on the sums of its rows."""
HIDDEN: Final[dict[str, Any]] = {"class_weight": None, "do_early_stopping_": False}
"""Settings under which all rows stand in the counts, each once."""
