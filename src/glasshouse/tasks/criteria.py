"""Losses of one class per example that are not plain cross-entropy: one row each, by name.

Shape letters: B examples, K classes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["CRITERIA", "Criterion"]


@final
@dataclass(frozen=True, kw_only=True)
class Criterion:
    """A loss of outputs (B, K) against one-hot labels or probabilities (B, K).

    Attributes:
        losses: outputs, labels and the loss's settings → the loss of each example, (B,).
        unit: factor of ``p − y`` in the gradient of the outputs; None: it has no such form.
        mean: that factor is divided by K.
        chances: outputs → what ``p`` is.
    """

    losses: Callable[[Tensor, Tensor, Mapping[str, float]], Tensor]
    unit: float | None = None
    mean: bool = True
    chances: Callable[[Tensor], Tensor] = torch.sigmoid


def _softmax(outputs: Tensor) -> Tensor:
    return outputs.softmax(1)


def _as_they_are(outputs: Tensor) -> Tensor:
    return outputs


def _binary(outputs: Tensor, wanted: Tensor, how: Mapping[str, float]) -> Tensor:
    positive = outputs.new_tensor(how["positive"])
    losses = F.binary_cross_entropy_with_logits(outputs, wanted, pos_weight=positive, reduction="none")
    return losses.mean(1)


def _squared(outputs: Tensor, wanted: Tensor, how: Mapping[str, float]) -> Tensor:
    del how
    return (outputs - wanted).square().mean(1)


def _focal(outputs: Tensor, wanted: Tensor, how: Mapping[str, float]) -> Tensor:
    logs = outputs.log_softmax(1)
    return -(wanted * (1 - logs.exp()) ** how["gamma"] * logs).sum(1)


def _huber(outputs: Tensor, wanted: Tensor, how: Mapping[str, float]) -> Tensor:
    del how
    return F.huber_loss(outputs, wanted, reduction="none").mean(1)


def _margin(outputs: Tensor, wanted: Tensor, how: Mapping[str, float]) -> Tensor:
    """As ``torch.nn.MultiMarginLoss``; of probabilities the mean over the labels that they stand for."""
    del how
    short = (1 - outputs[:, :, None] + outputs[:, None, :]).clamp_min(0)  # of label y by class k
    # A label is short of itself by the whole margin, which the loss leaves out.
    return (wanted * (short.sum(2) - 1)).sum(1) / outputs.shape[1]


def _divergence(outputs: Tensor, wanted: Tensor, how: Mapping[str, float]) -> Tensor:
    del how
    return F.kl_div(outputs.log_softmax(1), wanted, reduction="none").mean(1)


CRITERIA: Final[Mapping[str, Criterion]] = {
    "binary": Criterion(losses=_binary, unit=1.0),
    "squared": Criterion(losses=_squared, unit=2.0, chances=_as_they_are),
    "focal": Criterion(losses=_focal, unit=1.0, mean=False, chances=_softmax),
    "huber": Criterion(losses=_huber, chances=_as_they_are),
    "margin": Criterion(losses=_margin, chances=_softmax),
    "divergence": Criterion(losses=_divergence, unit=1.0, chances=_softmax),
}
"""By the name of ``Classification.criterion``."""
