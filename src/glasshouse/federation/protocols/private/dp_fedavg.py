"""FedAvg whose server clips every update and adds noise to their sum: private against all but the server.

Source: McMahan et al. 2018, "Learning Differentially Private Recurrent Language Models", arXiv:1710.06963,
Algorithm 1; the clip that follows a quantile of the updates' norms is Andrew et al. 2021, arXiv:1905.03871,
Algorithm 1 and Theorem 1. Where we differ: cohorts have a fixed size and no amplification by their choice is
counted, since who takes part is often known; all clients weigh the same.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Final, final

import torch
from torch import Tensor

from glasshouse.federation.defenses.guarantee import Exposure, Guarantee, client_level
from glasshouse.federation.protocols.private.clip import clip_update
from glasshouse.federation.rounds import ParameterRounds
from glasshouse.federation.server_rules import ServerRule
from glasshouse.interfaces import Traits
from glasshouse.limits import Fix, Probability
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.settings import NotNegative, Positive, Share
from glasshouse.wire import Aggregate, Update

NAME: Final = "dp_fedavg"


@final
@dataclass(frozen=True, kw_only=True)
class DpFedAvg(ParameterRounds):
    """FedAvg with server-side clipping and Gaussian noise.

    Args:
        clip: L2 norm to which each update is scaled down; with ``quantile`` that of round 0.
        noise_multiplier: standard deviation of the noise on the sum of clipped updates ÷ the clip.
        delta: of the guarantee, in (0, 1).
        quantile: share of the updates that the clip should leave whole; 0: the clip stays as it is.
        clip_rate: how fast the clip follows, in its exponent.
        count_noise: standard deviation of the noise on the number of updates within the clip; 0: a twentieth
            of the cohort, as in the paper.
    """

    card: ClassVar[Card] = Card(
        summary="FedAvg whose server clips updates and adds noise, private against everybody but itself",
        source="McMahan et al. 2018, arXiv:1710.06963; Andrew et al. 2021, arXiv:1905.03871",
        extra="dp",
    )
    traits: ClassVar[Traits] = Traits(sends="delta", allows=("delta",), like="fedavg", singly=True)
    clip: Positive = 1.0
    noise_multiplier: Positive = 1.0
    delta: Annotated[Probability, Fix("try 1e-5")] = 1e-5
    quantile: Share = 0.0
    clip_rate: Positive = 0.2
    count_noise: NotNegative = 0.0

    def server_rule(self) -> ServerRule:
        """Clipping and noise, then the mean."""
        return NoisySum(how=self)

    def against_clients(self, rounds: int) -> Guarantee:
        """What other clients and bystanders, who see every model, can learn of one client's updates.

        One release per round, as if the client took part in all of them. The noisy count of an adaptive clip
        is part of it: the sum gets the more noise for it.
        """
        return client_level(
            NAME,
            noise_multiplier=self.noise_multiplier,
            clip=self.clip,
            delta=self.delta,
            exposure=Exposure(rounds=rounds),
        )


@final
@dataclass(kw_only=True)
class NoisySum:
    """The server's side: clips on arrival, adds noise to the sum, moves the clip.

    Attributes:
        how: the settings.
        clip: of this round.
    """

    how: DpFedAvg
    clip: float = field(init=False)
    _within: int = 0

    def __post_init__(self) -> None:
        self.clip = self.how.clip

    def admit(self, update: Update) -> Update:
        """The update, clipped; raises what :func:`clip_update` raises."""
        clipped, within = clip_update(update, self.clip, protocol=NAME)
        self._within += within
        return clipped

    def release(self, total: Aggregate, *, rng: Rng) -> Aggregate:
        """The sum with noise, whose weight is the size of the cohort; moves the clip for the next round."""
        cohort = len(total.selected)
        std = self.sum_noise(cohort) * self.clip
        tensors = {
            name: t + std * torch.randn(t.shape, generator=rng.child(name).torch(), dtype=t.dtype)
            for name, t in total.tensors.items()
        }
        if self.how.quantile:
            noise = torch.randn((), generator=rng.child("count").torch(), dtype=torch.float64)
            share = (self._within + self.counted(cohort) * float(noise)) / cohort
            self.clip *= math.exp(-self.how.clip_rate * (share - self.how.quantile))
        self._within = 0
        return replace(total, tensors=tensors, weight=float(cohort))

    def counted(self, cohort: int) -> float:
        """Standard deviation of the noise on the count; at least so large that the sum can make up for it."""
        return max(self.how.count_noise or cohort / 20, self.how.noise_multiplier)

    def sum_noise(self, cohort: int) -> float:
        """Noise multiplier of the sum, so that sum and count together cost what ``noise_multiplier`` does.

        A client changes the centred count by 1/2, hence ``z⁻² = z_sum⁻² + (2 σ_count)⁻²`` (Theorem 1).
        """
        z = self.how.noise_multiplier
        return (z**-2 - (2 * self.counted(cohort)) ** -2) ** -0.5 if self.how.quantile else z

    def step(self, change: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The mean change itself."""
        return change
