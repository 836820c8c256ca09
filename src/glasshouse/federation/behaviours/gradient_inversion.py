"""Train honestly, then send the opposite: untargeted model poisoning.

Source: Kerkouche et al. 2023, arXiv:2303.03908, section 4 (gradient inversion attack: −Δw; their code sends
−0.5·Δw and trains its detector on −Δw). Not to be confused with inverting gradients, an attack on privacy.
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
class GradientInversion(NamedBehaviour):
    """Send ``-scale`` times the honest change (gradient, or difference of parameters).

    Args:
        scale: > 0; 1 sends the exact opposite.
        clip_norm: L2 bound on what is sent, after scaling; None: no bound.
    """

    card: ClassVar[Card] = Card(
        summary="send the opposite of the honest update", source="Kerkouche et al. 2023, arXiv:2303.03908"
    )
    name: ClassVar[str] = "gradient_inversion"

    scale: Annotated[Positive, Fix("try 1")] = 1.0
    clip_norm: Annotated[Positive, Fix("try 2")] | None = None

    def deviate(self, train: Trainer, *, round: int, rng: Rng) -> Trainer:
        """The inverting trainer; the same in every round."""
        del round, rng  # always the same
        return ChangedTrainer(inner=train, name=self.name, clip_norm=self.clip_norm, scale=-self.scale)
