"""SCAFFOLD: control variates travel beside the model and correct every local step.

Source: Karimireddy et al. 2020, "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
arXiv:1910.06378, Algorithm 1, option II: a client's new control variate is the mean gradient of its round.
Where we differ: changes are averaged with the weights of ``federation.weighting`` (``uniform`` is the
paper's), and a client computes them from what it sends, after its defences, so that they reveal nothing more.
"""

from dataclasses import dataclass
from typing import ClassVar, final

from glasshouse.federation.rounds import ParameterRounds
from glasshouse.interfaces import Traits
from glasshouse.registry import Card


@final
@dataclass(frozen=True, kw_only=True)
class Scaffold(ParameterRounds):
    """FedAvg with control variates; clients step by plain SGD."""

    card: ClassVar[Card] = Card(
        summary="FedAvg whose clients are corrected by control variates, which travel too",
        source="Karimireddy et al. 2020, arXiv:1910.06378",
    )
    traits: ClassVar[Traits] = Traits(
        sends="delta", allows=("delta", "parameters"), like="fedavg", controls=True
    )
