"""Federated transfer learning: public features, broadcast once and frozen; clients train only the head.

Source: Dabholkar et al. 2025, section 2.1, and the works it follows: Nguyen et al. 2023 (starting from
a pre-trained model), Legate et al. 2023, arXiv:2302.01297 (the last layers alone). Round 0 broadcasts
features and head, later rounds the head. Clients send the gradient of one batch (``sends = "gradient"``,
FedSGD), or the change of the head, or the head itself, after local epochs (FedAvg).
"""

from dataclasses import dataclass
from typing import ClassVar, final

from glasshouse.federation.rounds import ParameterRounds
from glasshouse.interfaces import Traits
from glasshouse.registry import Card


@final
@dataclass(frozen=True, kw_only=True)
class Transfer(ParameterRounds):
    """The head of a pre-trained model, trained by all clients together."""

    card: ClassVar[Card] = Card(
        summary="features pre-trained on public data and frozen; clients send what belongs to the head",
        source="Nguyen et al. 2023; Legate et al. 2023, arXiv:2302.01297",
    )
    traits: ClassVar[Traits] = Traits(
        sends="gradient", allows=("gradient", "delta", "parameters"), trained="head.", start="features"
    )
