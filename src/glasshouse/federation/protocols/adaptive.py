"""What protocols share whose server steps along the clients' mean change; Adam and Yogi, their arguments."""

from dataclasses import dataclass
from typing import ClassVar, Final

from glasshouse.federation.rounds import ParameterRounds
from glasshouse.interfaces import Traits
from glasshouse.settings import Positive, Share

SERVER_STEPS: Final = Traits(
    sends="delta", allows=("gradient", "delta", "parameters"), like="fedavg", averages=False
)
"""Clients do as under FedAvg; the server does not take their mean."""


@dataclass(frozen=True, kw_only=True)
class AdaptiveRounds(ParameterRounds):
    """FedAvg whose server keeps means of changes and their squares; the rate is ``federation.server_rate``.

    Args:
        beta1: decay of the mean of changes.
        beta2: decay of the mean of their squares.
        tau: added to the square root of the mean of squares.
    """

    traits: ClassVar[Traits] = SERVER_STEPS
    beta1: Share = 0.9
    beta2: Share = 0.99
    tau: Positive = 1e-3
