"""Utility cost of a defence: accuracy of the federation's model."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.errors import BadValue
from glasshouse.metrics.statistics.interval import Interval
from glasshouse.metrics.statistics.shares import proportion_interval


def accuracy(predictions: Tensor, labels: Tensor, *, level: float = 0.95) -> Interval:
    """Share of held-out examples classified correctly, with its exact interval over the examples.

    Higher is better for the user; chance is the share of the most frequent class.

    Args:
        predictions: ``(n,)`` class numbers; take the arg max of logits first.
        labels: ``(n,)`` class numbers; take the arg max of logits first.
        level: coverage, in (0, 1). It covers the sampling of test examples, not the randomness of training.

    Raises:
        BadValue: shapes differ, or numbers are not whole.
        Undefined: no examples.

    Examples:
        >>> import torch
        >>> accuracy(torch.tensor([0, 1, 2, 2]), torch.tensor([0, 1, 2, 0])).value
        0.75
    """
    right = _correct(predictions, labels)
    return accuracy_interval(int(right.sum()), len(right), level=level)


def constant_accuracy(labels: Tensor) -> float:
    """Accuracy of always predicting the most common class; a model that does no better has learnt nothing.

    Args:
        labels: ``(n,)`` class numbers, n > 0.

    Examples:
        >>> import torch
        >>> constant_accuracy(torch.tensor([0, 0, 0, 1]))
        0.75
    """
    return float(labels.bincount().max() / len(labels))


def accuracy_interval(hits: int, n: int, *, level: float = 0.95) -> Interval:
    """As :func:`accuracy`, from counts: ``hits`` of ``n`` held-out examples were classified correctly.

    Raises:
        BadValue: ``hits`` is not in 0 … n.
        Undefined: no examples.

    Examples:
        >>> accuracy_interval(3, 4).value
        0.75
    """
    return proportion_interval(hits, n, level=level)


def _correct(predictions: Tensor, labels: Tensor) -> NDArray[np.float64]:
    whole = not (predictions.is_floating_point() or labels.is_floating_point())
    if predictions.shape != labels.shape or labels.ndim != 1 or not whole:
        raise BadValue(
            "held-out accuracy",
            needs="one predicted and one true class number per example",
            got=f"{tuple(predictions.shape)} of {predictions.dtype}, {tuple(labels.shape)} of {labels.dtype}",
            fix="take the arg max of the logits over classes",
        )
    return np.asarray((predictions.cpu() == labels.cpu()).numpy(), dtype=np.float64)
