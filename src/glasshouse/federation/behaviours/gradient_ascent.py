"""Maximise the loss instead of minimising it: untargeted model poisoning.

Source: Kerkouche et al. 2023, arXiv:2303.03908, section 4 (gradient ascent attack: w + η·∇). Where we
differ: their code also clips the gradient of every local step, for honest clients as well; that is a
setting of training, not of the attack, so ``clip_norm`` here bounds what is sent.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, final

from glasshouse.federation.behaviours.base import ChangedTrainer, NamedBehaviour
from glasshouse.interfaces import Trainer
from glasshouse.limits import Fix, Positive
from glasshouse.registry import Card
from glasshouse.rng import Rng


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
        return ChangedTrainer(inner=train, name=self.name, clip_norm=self.clip_norm, ascends=True)
