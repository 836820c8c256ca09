"""Select the candidates that count: as many as announced examples, the most confident first."""

import dataclasses

import torch
from torch import Tensor

from glasshouse.attacks.base import Reconstruction


def most_confident(claim: Reconstruction, count: int) -> Reconstruction:
    """The ``count`` inputs of the claim with the highest confidence; ties in favour of the first.

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
    """The ``count`` most confident of ``items`` (N, …), selected and ordered as by :func:`most_confident`."""
    return items if len(items) <= count else items[_rows(confidence, count)]


def _rows(confidence: Tensor, count: int) -> Tensor:
    order = torch.argsort(confidence, descending=True, stable=True)[:count]
    return order.sort().values
