"""What a metric says of claims beside truths, many in one operation where it compares single examples."""

from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

import torch
from torch import Tensor

from glasshouse.audit.scoring.pair import Sides
from glasshouse.errors import NothingClaimed
from glasshouse.metrics.base import Metric, ScoreContext, check_images
from glasshouse.metrics.statistics.units import Numbers

T = TypeVar("T")
AT_ONCE: Final = 2**21
"""Image values that a metric compares at a time; in float64, with SSIM's intermediates, about 150 MB."""


def measure(metric: Metric, sides: Sequence[Sides], context: ScoreContext) -> list[Numbers | NothingClaimed]:
    """The metric's scores of every claim on every truth; single examples are compared in few operations."""
    values: list[Numbers | NothingClaimed | None] = [None] * len(sides)
    if metric.reads == "inputs" and metric.against == "inputs":
        single = [i for i, side in enumerate(sides) if len(side.claimed) == len(side.truth) == 1
                  and side.claimed.shape == side.truth.shape]  # fmt: skip
        size = max(1, AT_ONCE // max(1, sides[single[0]].truth.numel())) if single else 1
        for part in batched(single, size):
            claimed, truth = (torch.cat([getattr(sides[i], n) for i in part]) for n in ("claimed", "truth"))
            compared = compare(metric, claimed, truth, context)
            if compared is None:
                break
            for place, i in enumerate(part):
                values[i] = compared[place : place + 1]
    for i, side in enumerate(sides):
        if values[i] is None:
            try:
                values[i] = metric.score(side.claimed, side.truth, context=side.context or context)
            except NothingClaimed as error:
                values[i] = error
    return [value for value in values if value is not None]


def compare(metric: Metric, claimed: Tensor, truth: Tensor, context: ScoreContext) -> Numbers | None:
    """One score per pair of examples (B, ...), in one operation; None: the metric cannot."""
    if type(metric).compare is Metric.compare:
        return None
    check_images(metric.wording.label, claimed, truth)
    return metric.compare(claimed.double(), truth.double(), context=context)


def batched(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Split the items into chunks of ``size``, in order.

    Examples:
        >>> list(batched("abcde", 2))
        ['ab', 'cd', 'e']
    """
    return (items[i : i + size] for i in range(0, len(items), size))
