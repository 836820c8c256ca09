"""FedAdam: the server steps by Adam along the clients' mean change.

Source: Reddi et al. 2021, "Adaptive Federated Optimization", arXiv:2003.00295, Algorithm 2. Where we differ,
as Flower does: steps are corrected for the start at zero, by Adam's factor of the round after (``t + 1``).
"""

import math
from dataclasses import dataclass
from typing import ClassVar, final

from glasshouse.federation.protocols.adaptive import AdaptiveRounds
from glasshouse.federation.server_rules import Adaptive, ServerRule
from glasshouse.registry import Card


@final
@dataclass(frozen=True, kw_only=True)
class FedAdam(AdaptiveRounds):
    """FedAvg with Adam at the server; the rate is ``federation.server_rate``."""

    card: ClassVar[Card] = Card(
        summary="FedAvg whose server steps by Adam",
        source="Reddi et al. 2021, arXiv:2003.00295",
    )

    def server_rule(self) -> ServerRule:
        """Adam."""
        beta1, beta2 = self.beta1, self.beta2
        return Adaptive(
            beta1=beta1,
            tau=self.tau,
            second=lambda v, square: beta2 * v + (1 - beta2) * square,
            correct=lambda t: math.sqrt(1 - beta2 ** (t + 1)) / (1 - beta1 ** (t + 1)),
        )
