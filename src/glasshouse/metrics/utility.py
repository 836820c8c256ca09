"""Utility cost of a defence: what the accuracy of the federation's model is compared with."""

from torch import Tensor


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
