"""FedAvgM: the server adds momentum to the clients' mean change.

Source: Hsu et al. 2019, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification", arXiv:1909.06335, section 4.3.
"""

from dataclasses import dataclass
from typing import ClassVar, final

from glasshouse.federation.protocols.adaptive import SERVER_STEPS
from glasshouse.federation.rounds import ParameterRounds
from glasshouse.federation.server_rules import Momentum, ServerRule
from glasshouse.interfaces import Traits
from glasshouse.registry import Card
from glasshouse.settings import Share


@final
@dataclass(frozen=True, kw_only=True)
class FedAvgM(ParameterRounds):
    """FedAvg with server momentum.

    Args:
        momentum: share of the last step that goes on.
    """

    card: ClassVar[Card] = Card(
        summary="FedAvg whose server adds momentum to the mean change",
        source="Hsu et al. 2019, arXiv:1909.06335",
    )
    traits: ClassVar[Traits] = SERVER_STEPS
    momentum: Share = 0.9

    def server_rule(self) -> ServerRule:
        """Momentum."""
        return Momentum(momentum=self.momentum)
