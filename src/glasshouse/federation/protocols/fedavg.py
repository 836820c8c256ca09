"""FedAvg: each selected client trains for some epochs and sends its parameter change (or new parameters).

Source: McMahan et al. 2017, arXiv:1602.05629, Algorithm 1.
"""

from dataclasses import dataclass
from typing import ClassVar, final

from glasshouse.federation.rounds import ParameterRounds
from glasshouse.interfaces import Traits
from glasshouse.registry import Card


@final
@dataclass(frozen=True, kw_only=True)
class FedAvg(ParameterRounds):
    """Local epochs of mini-batch SGD per client and round."""

    card: ClassVar[Card] = Card(
        summary="each client trains for some epochs and sends the change of its parameters",
        source="McMahan et al. 2017, arXiv:1602.05629",
    )
    traits: ClassVar[Traits] = Traits(sends="delta", allows=("delta", "parameters"))
