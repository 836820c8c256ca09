"""Maximise the loss instead of minimising it: untargeted model poisoning.

Source: Kerkouche et al. 2023, arXiv:2303.03908, section 4 (gradient ascent attack: w + η·∇). Where we
differ: their code also clips the gradient of every local step, for honest clients as well; that is a
setting of training, not of the attack, so ``clip_norm`` here bounds what is sent.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, final

from torch import nn

from glasshouse.federation.behaviours.base import (
    NamedBehaviour,
    clip_to_radius,
    copy_parameters,
    replace_change,
)
from glasshouse.interfaces import Trainer
from glasshouse.limits import Fix, Positive
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.wire import Batch, Trained


@final
@dataclass(frozen=True, kw_only=True)
class GradientAscent(NamedBehaviour):
    """Train with the sign of the loss reversed. With one local step this equals ``gradient_inversion``.

    Args:
        clip_norm: L2 bound on the change that is sent, to be less conspicuous; None: no bound.
    """

    card: ClassVar[Card] = Card(
        summary="climb the loss in local training", source="Kerkouche et al. 2023, arXiv:2303.03908"
    )
    name: ClassVar[str] = "gradient_ascent"

    clip_norm: Annotated[Positive, Fix("try 2")] | None = None

    def deviate(self, train: Trainer, *, round: int, rng: Rng) -> Trainer:
        """The ascending trainer; the same in every round."""
        del round, rng  # always the same
        return Ascending(inner=train, clip_norm=self.clip_norm)


@final
@dataclass(frozen=True, kw_only=True)
class Ascending:
    """``inner`` with the sign of the loss reversed."""

    inner: Trainer
    clip_norm: float | None

    def __call__(self, model: nn.Module, data: Batch, *, rng: Rng, ascend: bool = False) -> Trained:
        """Train by gradient ascent (by descent if ``ascend``)."""
        before = copy_parameters(model)
        trained = self.inner(model, data, rng=rng, ascend=not ascend)
        return replace_change(
            trained, before, lambda t: clip_to_radius(t, self.clip_norm), name="gradient_ascent"
        )
