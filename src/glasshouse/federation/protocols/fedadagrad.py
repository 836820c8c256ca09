"""FedAdagrad: the server divides the mean change by the root of the sum of its squares.

Source: Reddi et al. 2021, "Adaptive Federated Optimization", arXiv:2003.00295, Algorithm 2.
"""

from dataclasses import dataclass
from typing import ClassVar, final

from glasshouse.federation.protocols.adaptive import SERVER_STEPS
from glasshouse.federation.rounds import ParameterRounds
from glasshouse.federation.server_rules import Adaptive, ServerRule
from glasshouse.interfaces import Traits
from glasshouse.registry import Card
from glasshouse.settings import Positive


@final
@dataclass(frozen=True, kw_only=True)
class FedAdagrad(ParameterRounds):
    """FedAvg with Adagrad at the server; the rate is ``federation.server_rate``.

    Args:
        tau: added to the square root of the sum of squares.
    """

    card: ClassVar[Card] = Card(
        summary="FedAvg whose server steps by Adagrad",
        source="Reddi et al. 2021, arXiv:2003.00295",
    )
    traits: ClassVar[Traits] = SERVER_STEPS
    tau: Positive = 1e-3

    def server_rule(self) -> ServerRule:
        """Adagrad: squares are summed, and changes are not averaged over rounds."""
        return Adaptive(beta1=0.0, tau=self.tau, second=lambda v, square: v + square)
