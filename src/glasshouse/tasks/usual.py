"""The losses of classes that people train with, in words: tried where nobody says which one a client took.

Shape letters: B examples, K classes.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, final

from torch import Tensor

from glasshouse.tasks.base import Task
from glasshouse.tasks.declare import declared_task

__all__ = ["USUAL", "Usual", "usual_tasks"]


@final
@dataclass(frozen=True, kw_only=True)
class Usual:
    """One loss in use.

    Attributes:
        words: its name.
        settings: of task ``classification``.
        by_labels: settings that follow from the examples' labels (B,) and K, which nobody knows without them.
        scaled: cross-entropy times a constant, which the direction of an update does not show.
    """

    words: str
    settings: Mapping[str, Any]
    by_labels: Callable[[Tensor, int], Mapping[str, Any]] | None = None
    scaled: bool = False


def _balanced(labels: Tensor, classes: int) -> Mapping[str, Any]:
    counts = labels.bincount(minlength=classes).double()
    return {"weights": tuple((len(labels) / (counts.count_nonzero() * counts.clamp_min(1))).tolist())}


def _negatives(labels: Tensor, classes: int) -> Mapping[str, Any]:
    del labels
    return {"positive": float(classes - 1)}


USUAL: Final = (
    Usual(words="cross-entropy", settings={}),
    Usual(words="label smoothing of 0.1", settings={"smoothing": 0.1}),
    Usual(words="binary cross-entropy", settings={"criterion": "binary"}),
    Usual(words="mean squared error", settings={"criterion": "squared"}),
    Usual(words="focal loss, gamma = 2", settings={"criterion": "focal"}),
    Usual(words="Huber (smooth L1) loss", settings={"criterion": "huber"}),
    Usual(words="margin loss", settings={"criterion": "margin"}),
    Usual(words="class weights by inverse frequency", settings={}, by_labels=_balanced),
    Usual(
        words="binary cross-entropy with pos_weight = negatives / positives",
        settings={"criterion": "binary"},
        by_labels=_negatives,
    ),
    Usual(
        words="Kullback-Leibler divergence, mean over batch and classes",
        settings={"criterion": "divergence"},
        scaled=True,
    ),
)
"""In the order in which they are tried."""


def usual_tasks(
    classes: int, labels: Tensor | None, *, scaled: bool = True
) -> Iterator[tuple[str, Mapping[str, Any], Task]]:
    """Every usual loss of ``classes``: its words, its settings and its task.

    Args:
        classes: K.
        labels: of the examples, (B,); None: unknown, so that what follows from them, and what only scales
            an update, is left out.
        scaled: with those that only scale an update.

    Examples:
        >>> [words for words, _, _ in usual_tasks(3, None)][:2]
        ['cross-entropy', 'label smoothing of 0.1']
    """
    for usual in USUAL:
        if labels is None and usual.by_labels:
            continue
        if usual.scaled and (labels is None or not scaled):
            continue
        follows = usual.by_labels(labels, classes) if usual.by_labels and labels is not None else {}
        settings = {**usual.settings, **follows}
        yield usual.words, settings, declared_task("classification", settings, facts={"classes": classes})
