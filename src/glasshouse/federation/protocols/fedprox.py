"""FedProx: FedAvg whose clients are pulled back to the model that they received.

Source: Li et al. 2020, "Federated Optimization in Heterogeneous Networks", arXiv:1812.06127, Algorithm 2. The
proximal term is part of every local step, so it is the term ``proximal`` of ``federation.training``, which
attacks repeat. Where we differ: all clients make the same number of epochs; none stops early.
"""

from dataclasses import dataclass
from typing import ClassVar, final

from glasshouse.federation.rounds import ParameterRounds
from glasshouse.interfaces import Traits
from glasshouse.registry import Card
from glasshouse.settings import NotNegative


@final
@dataclass(frozen=True, kw_only=True)
class FedProx(ParameterRounds):
    """FedAvg with a proximal term in local training.

    Args:
        proximal_mu: factor of half the squared distance from the received parameters; the paper takes 0.001,
            0.01, 0.1 or 1.
    """

    card: ClassVar[Card] = Card(
        summary="FedAvg whose clients are pulled back to the model that they received",
        source="Li et al. 2020, arXiv:1812.06127",
    )
    traits: ClassVar[Traits] = Traits(
        sends="delta",
        allows=("delta", "parameters"),
        like="fedavg",
        terms={"proximal_mu": "proximal"},
    )
    proximal_mu: NotNegative = 0.1
