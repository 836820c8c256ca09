"""Targets of examples as stored: classes, yes-or-no labels, numbers or masks; and the task they suggest.

Shape letters: N examples, K classes or labels, T targets.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.errors import BadFile
from glasshouse.tasks.base import Task
from glasshouse.tasks.classification import Classification
from glasshouse.tasks.multilabel import Multilabel
from glasshouse.tasks.regression import Regression
from glasshouse.tasks.segmentation import Segmentation

_NUMBER = "number the classes from 0; numbers, yes-or-no labels and masks: one row per example"


def check_targets(labels: NDArray[Any], n: int, subject: str) -> Tensor:
    """Raw targets of ``n`` examples: classes (n,) int64, others (n, ...) int64 or float32.

    Raises:
        BadFile: another number of them, not finite, negative classes, or no numbers.
    """
    if labels.shape[:1] != (n,) or not labels.size:
        needs, got = f"one label per example: ({n},) or ({n}, ...)", f"labels of shape {labels.shape}"
        fix = "hand over the labels of these examples, and no others"
    elif labels.dtype == np.bool_ or np.issubdtype(labels.dtype, np.integer):
        whole = torch.from_numpy(labels.astype(np.int64))
        low, high = int(labels.min()), int(labels.max())
        if low >= 0 and high <= np.iinfo(np.int32).max:
            return whole.reshape(-1) if labels.shape == (n, 1) else whole
        needs, got = "labels from 0 to the number of classes - 1", f"labels from {low} to {high}"
        fix = f"leave out what the loss ignores, or {_NUMBER}" if low < 0 else _NUMBER
    elif np.issubdtype(labels.dtype, np.floating):
        if np.isfinite(labels).all():
            return torch.from_numpy(labels.astype(np.float32))
        needs, got = "targets that are finite numbers", f"{int((~np.isfinite(labels)).sum())} that are not"
        fix = "leave out the examples whose target is missing"
    else:
        needs, got, fix = "labels that are numbers", f"type {labels.dtype}", _NUMBER
    raise BadFile(subject, needs=needs, got=got, fix=fix)


def suggested_task(labels: Tensor, classes: int) -> Task:
    """The task that targets (N, ...) suggest; a scenario may declare another.

    Examples:
        >>> task = suggested_task(torch.tensor([0, 2]), 3)
        >>> task.name, task.classes
        ('classification', 3)
        >>> suggested_task(torch.tensor([[0, 1], [1, 1]]), 0).name, suggested_task(torch.rand(4), 0).name
        ('multilabel', 'regression')
    """
    if labels.is_floating_point():
        return Regression(targets=max(1, labels[0].numel()))
    if labels.ndim == 1:
        return Classification(classes=max(2, classes))
    if labels.ndim == 2 and int(labels.max()) <= 1:
        return Multilabel(targets=labels.shape[1])
    return Segmentation(classes=max(2, int(labels.max()) + 1), positions=tuple(labels.shape[1:]))


def class_codes(labels: Tensor) -> Tensor:
    """The class of every example, (N,) int64; 0 for all where targets are no classes."""
    if labels.ndim == 1 and not labels.is_floating_point():
        return labels
    return torch.zeros(len(labels), dtype=torch.int64)
