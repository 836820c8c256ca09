"""Base class of protocols whose clients send gradients or parameters: settings, and the round loop."""

from dataclasses import dataclass

from torch import Tensor

from glasshouse.federation import rounds
from glasshouse.federation.setting import Setting
from glasshouse.interfaces import Recorder, Tamper
from glasshouse.rng import Rng


@dataclass(frozen=True, kw_only=True)
class ParameterRounds:
    """The fields are the protocol's public settings; the round loop reads them from ``Terms.options``.

    Args:
        dropout: clients train with dropout enabled.
        sum_bits: bits of each contribution to a secure sum; 0: not quantised.
        sum_bound: bound to which contributions are clipped before quantisation.
    """

    dropout: bool = False
    sum_bits: int = 0
    sum_bound: float = 1.0

    def play(
        self, setting: Setting, *, recorder: Recorder, rng: Rng, tamper: Tamper | None = None
    ) -> dict[str, Tensor]:
        """Run all rounds; see :func:`glasshouse.federation.rounds.play`."""
        return rounds.play(setting, recorder=recorder, rng=rng, tamper=tamper)

    def passes(self, rounds: int) -> None:
        """None: the number of passes over the data follows from the terms."""
