"""FedAdam: the server steps by Adam along the clients' mean change.

Source: Reddi et al. 2021, "Adaptive Federated Optimization", arXiv:2003.00295, Algorithm 2. Where we differ,
as Flower does: steps are corrected for the start at zero, by Adam's factor of the round after (``t + 1``).
"""

import math
from dataclasses import dataclass
from typing import ClassVar, final

from glasshouse.federation.rounds import ParameterRounds
from glasshouse.federation.server_rules import Adaptive, ServerRule
from glasshouse.interfaces import Traits
from glasshouse.registry import Card
from glasshouse.settings import Positive, Share


@final
@dataclass(frozen=True, kw_only=True)
class FedAdam(ParameterRounds):
    """FedAvg with Adam at the server; the rate is ``federation.server_rate``.

    Args:
        beta1: decay of the mean of changes.
        beta2: decay of the mean of their squares.
        tau: added to the square root of the mean of squares.
    """

    card: ClassVar[Card] = Card(
        summary="FedAvg whose server steps by Adam",
        source="Reddi et al. 2021, arXiv:2003.00295",
    )
    traits: ClassVar[Traits] = Traits(
        sends="delta", allows=("gradient", "delta", "parameters"), like="fedavg", averages=False
    )
    beta1: Share = 0.9
    beta2: Share = 0.99
    tau: Positive = 1e-3

    def server_rule(self) -> ServerRule:
        """Adam."""
        beta1, beta2 = self.beta1, self.beta2
        return Adaptive(
            beta1=beta1,
            tau=self.tau,
            second=lambda v, square: beta2 * v + (1 - beta2) * square,
            correct=lambda t: math.sqrt(1 - beta2 ** (t + 1)) / (1 - beta1 ** (t + 1)),
        )
