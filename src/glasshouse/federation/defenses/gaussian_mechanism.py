"""Differential privacy of one client's update: clip it, add Gaussian noise, account for all rounds.

Source: McMahan et al. 2018, arXiv:1710.06963 (the user's update as the unit); Balle & Wang 2018,
arXiv:1805.06530 (the exact noise of one release). Where we differ: the client adds the noise (local model),
so the guarantee holds against the server too, without trusting it.

Neighbouring relation: the client's update, or zeros in its place; the sensitivity is then ``clip``. For *any
two* updates of that client the sensitivity is ``2·clip`` and the same noise gives a weaker guarantee: use
half the clip, or read the noise multiplier as half.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, final

from annotated_types import Gt, Le

from glasshouse.federation.defenses.accounting import needed_noise, spent_epsilon
from glasshouse.federation.defenses.base import NamedDefense, describe_mechanism
from glasshouse.federation.defenses.clip import Clip
from glasshouse.federation.defenses.gaussian_noise import GaussianNoise
from glasshouse.federation.defenses.guarantee import Exposure, Guarantee
from glasshouse.limits import Count, Fix, Fraction, Positive, Probability
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.wire import Mechanism, Update


@final
@dataclass(frozen=True, kw_only=True)
class GaussianMechanism(NamedDefense):
    """Clip to an L2 ball over all tensors, then N(0, (noise_multiplier·clip)²) on every entry.

    Args:
        epsilon: budget of one client over all ``rounds``; epsilon in (0, 1e6], delta in (0, 1).
        delta: budget of one client over all ``rounds``; epsilon in (0, 1e6], delta in (0, 1).
        clip: L2 radius over all tensors together, in units of the update; > 0.
        rounds: releases of this client that the budget must cover, >= 1; 1 means "per round".
        sampling: probability that the client is in a round's cohort, in (0, 1]. Below 1 it assumes that the
            adversary does not know who took part (Poisson sampling), which never holds for the server.
    """

    card: ClassVar[Card] = Card(
        summary="limits the size of an update and adds noise, with a proven (epsilon, delta) guarantee",
        source="Balle & Wang 2018, arXiv:1805.06530",
        extra="dp",
        details={"neighbours": "the client's update, or zeros in its place"},
    )
    name: ClassVar[str] = "gaussian_mechanism"
    place: ClassVar[Literal["update"]] = "update"

    epsilon: Annotated[float, Gt(0), Le(1e6), Fix("try 8")]
    delta: Annotated[Probability, Fix("try 1e-5")]
    clip: Annotated[Positive, Fix("try 1")]
    rounds: Count = 1
    sampling: Annotated[Fraction, Fix("leave it at 1 unless nobody can see who takes part")] = 1.0

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of each entry's noise ÷ ``clip``."""
        return needed_noise(
            self.epsilon, delta=self.delta, rate=self.sampling, steps=self.rounds, neighbours="update"
        )

    def describe(self) -> Mechanism:
        return describe_mechanism(
            self,
            note="neighbouring: the client's update, or zeros in its place; the noise is the client's own"
            + ("; counts on nobody seeing who takes part" if self.sampling < 1 else ""),
            noise_multiplier=self.noise_multiplier,
            std=self.noise_multiplier * self.clip,
        )

    def update(self, update: Update, *, rng: Rng) -> Update:
        """A clipped and noisy copy."""
        clipped = Clip(norm=self.clip).update(update, rng=rng)
        return GaussianNoise(std=self.noise_multiplier * self.clip).update(clipped, rng=rng)

    def spent(self, exposure: Exposure) -> Guarantee:
        """The budget that this noise spends over ``exposure``, whatever the number of local steps."""
        stated: dict[str, Any] = {
            "noise_multiplier": self.noise_multiplier,
            "delta": self.delta,
            "neighbours": "update",
            "steps": exposure.rounds,
            "rate": exposure.sampling,
        }
        return Guarantee(epsilon=spent_epsilon(**stated), defense=self.name, clip=self.clip, **stated)
