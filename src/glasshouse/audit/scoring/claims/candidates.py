"""How many candidates count: as many as the wire announces examples, the surest first."""

import dataclasses

import torch
from torch import Tensor

from glasshouse.attacks.base import Reconstruction


def most_confident(claim: Reconstruction, count: int) -> Reconstruction:
    """At most ``count`` inputs of the claim, those of the highest confidence; of equals the first filed.

    Examples:
        >>> from glasshouse.attacks.base import About
        >>> three = torch.tensor([0.1, 0.2, 0.3]).reshape(3, 1, 1, 1)
        >>> confidence = torch.tensor([1.0, 2.0, 2.0])
        >>> claim = Reconstruction(about=About(rounds=(0,)), inputs=three, labels=None, confidence=confidence)
        >>> most_confident(claim, 1).inputs.flatten().tolist()
        [0.20000000298023224]
    """
    if len(claim.inputs) <= count:
        return claim
    rows = _rows(claim.confidence, count)
    return dataclasses.replace(
        claim,
        inputs=claim.inputs[rows],
        labels=None if claim.labels is None else claim.labels[rows],
        confidence=claim.confidence[rows],
        source=None if claim.source is None else claim.source[rows],
    )


def surest(items: Tensor, confidence: Tensor, count: int) -> Tensor:
    """At most ``count`` of ``items`` (N, …), chosen and ordered likewise."""
    return items if len(items) <= count else items[_rows(confidence, count)]


def _rows(confidence: Tensor, count: int) -> Tensor:
    order = torch.argsort(confidence, descending=True, stable=True)[:count]
    return order.sort().values
