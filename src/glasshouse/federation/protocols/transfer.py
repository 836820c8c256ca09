"""Federated transfer learning: public features, broadcast once and frozen; clients train the head alone.

Source: Dabholkar et al. 2025, section 2.1, and the works it follows: Nguyen et al. 2023 (starting from
a pre-trained model), Legate et al. 2023, arXiv:2302.01297 (the last layers alone). Round 0 broadcasts
features and head, later rounds the head. Clients send the gradient of one batch (``sends = "gradient"``,
FedSGD), or the change of the head, or the head itself, after local epochs (FedAvg).
"""

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from glasshouse.federation import rounds
from glasshouse.federation.setting import Setting
from glasshouse.interfaces import Recorder, Tamper, Traits
from glasshouse.registry import Card
from glasshouse.rng import Rng


@final
@dataclass(frozen=True, kw_only=True)
class Transfer:
    """The head of a pre-trained model, trained by all clients together.

    The fields are the protocol's public settings; the round loop reads them from ``Terms.options``.

    Args:
        dropout: clients train with dropout switched on.
        sum_bits: bits of each contribution to a secure sum; 0: not quantised.
        sum_bound: clips it first.
    """

    card: ClassVar[Card] = Card(
        summary="features pre-trained on public data and frozen; clients send what belongs to the head",
        source="Nguyen et al. 2023; Legate et al. 2023, arXiv:2302.01297",
    )
    traits: ClassVar[Traits] = Traits(
        sends="gradient", allows=("gradient", "delta", "parameters"), trained="head.", start="features"
    )

    dropout: bool = False
    sum_bits: int = 0
    sum_bound: float = 1.0

    def play(
        self, setting: Setting, *, recorder: Recorder, rng: Rng, tamper: Tamper | None = None
    ) -> dict[str, Tensor]:
        """Run all rounds; see :func:`glasshouse.federation.rounds.play`."""
        return rounds.play(setting, recorder=recorder, rng=rng, tamper=tamper)

    def passes(self, rounds: int) -> None:
        """Nothing to add: the terms say how often a client goes through its data."""
