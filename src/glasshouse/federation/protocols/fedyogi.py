"""FedYogi: the server steps by Yogi, whose mean of squares changes by their sign of difference.

Source: Reddi et al. 2021, "Adaptive Federated Optimization", arXiv:2003.00295, Algorithm 2.
"""

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from glasshouse.federation.rounds import ParameterRounds
from glasshouse.federation.server_rules import Adaptive, ServerRule
from glasshouse.interfaces import Traits
from glasshouse.registry import Card
from glasshouse.settings import Positive, Share


@final
@dataclass(frozen=True, kw_only=True)
class FedYogi(ParameterRounds):
    """FedAvg with Yogi at the server; the rate is ``federation.server_rate``.

    Args:
        beta1: decay of the mean of changes.
        beta2: decay of the mean of their squares.
        tau: added to the square root of the mean of squares.
    """

    card: ClassVar[Card] = Card(
        summary="FedAvg whose server steps by Yogi",
        source="Reddi et al. 2021, arXiv:2003.00295",
    )
    traits: ClassVar[Traits] = Traits(
        sends="delta", allows=("gradient", "delta", "parameters"), like="fedavg", averages=False
    )
    beta1: Share = 0.9
    beta2: Share = 0.99
    tau: Positive = 1e-3

    def server_rule(self) -> ServerRule:
        """Yogi: the mean of squares moves by a share of the new square, towards it."""
        share = 1 - self.beta2

        def second(v: Tensor, square: Tensor) -> Tensor:
            return v - share * square * (v - square).sign()

        return Adaptive(beta1=self.beta1, tau=self.tau, second=second)
