"""FedYogi: the server steps by Yogi, whose mean of squares changes by their sign of difference.

Source: Reddi et al. 2021, "Adaptive Federated Optimization", arXiv:2003.00295, Algorithm 2.
"""

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from glasshouse.federation.protocols.adaptive import AdaptiveRounds
from glasshouse.federation.server_rules import Adaptive, ServerRule
from glasshouse.registry import Card


@final
@dataclass(frozen=True, kw_only=True)
class FedYogi(AdaptiveRounds):
    """FedAvg with Yogi at the server; the rate is ``federation.server_rate``."""

    card: ClassVar[Card] = Card(
        summary="FedAvg whose server steps by Yogi",
        source="Reddi et al. 2021, arXiv:2003.00295",
    )

    def server_rule(self) -> ServerRule:
        """Yogi: the mean of squares moves by a share of the new square, towards it."""
        share = 1 - self.beta2

        def second(v: Tensor, square: Tensor) -> Tensor:
            return v - share * square * (v - square).sign()

        return Adaptive(beta1=self.beta1, tau=self.tau, second=second)
