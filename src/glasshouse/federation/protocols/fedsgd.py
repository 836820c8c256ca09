"""FedSGD: each selected client sends one gradient; the server takes one step.

Source: McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized
Data", arXiv:1602.05629, section 2. Where we differ: a client's gradient is of one mini-batch of
``batch_size`` examples, as in the gradient-inversion literature, not necessarily of all its data.
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
class FedSGD:
    """One gradient per client and round.

    The fields are the protocol's public settings; the round loop reads them from ``Terms.options``.

    Args:
        dropout: clients train with dropout switched on.
        sum_bits: bits of each contribution to a secure sum; 0: not quantised.
        sum_bound: clips it first.
    """

    card: ClassVar[Card] = Card(
        summary="each client sends the gradient of one batch", source="McMahan et al. 2017, arXiv:1602.05629"
    )
    traits: ClassVar[Traits] = Traits(
        sends="gradient", allows=("gradient", "delta", "parameters"), one_pass=True
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
