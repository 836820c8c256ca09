"""FedSGD: each selected client sends one gradient; the server takes one step.

Source: McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized
Data", arXiv:1602.05629, section 2. Where we differ: a client's gradient is computed on one mini-batch of
``batch_size`` examples, as in the gradient-inversion literature, not necessarily on all its data.
"""

from dataclasses import dataclass
from typing import ClassVar, final

from glasshouse.federation.rounds import ParameterRounds
from glasshouse.interfaces import Traits
from glasshouse.registry import Card


@final
@dataclass(frozen=True, kw_only=True)
class FedSGD(ParameterRounds):
    """One gradient per client and round."""

    card: ClassVar[Card] = Card(
        summary="each client sends the gradient of one batch", source="McMahan et al. 2017, arXiv:1602.05629"
    )
    traits: ClassVar[Traits] = Traits(
        sends="gradient", allows=("gradient", "delta", "parameters"), one_pass=True
    )
