"""Differential privacy of one client's update: clip it, add Gaussian noise, account for all rounds.

Source: McMahan et al. 2018, arXiv:1710.06963 (the user's update as the unit); Balle & Wang 2018,
arXiv:1805.06530 (the exact noise of one release). Where we differ: the client adds the noise (local model),
so the guarantee holds against the server too, without trusting it.

Neighbouring relation: the client's update, or zeros in its place; the sensitivity is then ``clip``. For *any
two* updates of that client the sensitivity is ``2·clip`` and the same noise gives a weaker guarantee, which
is stated beside it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, final

from glasshouse.federation.defenses.accounting import check_level, needed_noise
from glasshouse.federation.defenses.base import NamedDefense, describe_mechanism
from glasshouse.federation.defenses.clip import Clip
from glasshouse.federation.defenses.gaussian_noise import GaussianNoise
from glasshouse.federation.defenses.guarantee import Exposure, Guarantee, client_level
from glasshouse.federation.defenses.marks import Mark, noise_mark
from glasshouse.limits import Count, Fix, Fraction, Positive, Probability, check_ranges
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.wire import Mechanism, Terms, Update, Value


@final
@dataclass(frozen=True, kw_only=True)
class GaussianMechanism(NamedDefense):
    """Clip to an L2 ball over all tensors, then N(0, (noise_multiplier·clip)²) on every entry.

    Args:
        clip: L2 radius over all tensors together, in units of the update; > 0.
        delta: of the guarantee, in (0, 1).
        noise_multiplier: standard deviation of each entry's noise ÷ ``clip``, in (0, 1e6).
        epsilon: alternative: the budget of one client over all ``rounds``, in (0, 1e6); the noise follows.
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

    clip: Annotated[Positive, Fix("try 1")]
    delta: Annotated[Probability, Fix("try 1e-5")] = 1e-5
    noise_multiplier: float | None = None
    epsilon: float | None = None
    rounds: Count = 1
    sampling: Annotated[Fraction, Fix("leave it at 1 unless nobody can see who takes part")] = 1.0

    @classmethod
    def marks(cls, parameters: Mapping[str, Value], update: Update, terms: Terms) -> tuple[Mark, ...]:
        del update, terms
        bound = float(parameters["clip"])
        return Mark(kind="norm", setting="clip", value=bound), noise_mark(float(parameters["std"]))

    def __post_init__(self) -> None:
        check_ranges(self, "defense 'gaussian_mechanism'")
        check_level("defense 'gaussian_mechanism'", self.noise_multiplier, self.epsilon)

    @property
    def noise(self) -> float:
        """Standard deviation of each entry's noise ÷ ``clip``: as stated, or what the budget needs."""
        if self.noise_multiplier is not None:
            return self.noise_multiplier
        assert self.epsilon is not None  # one of the two is stated
        return needed_noise(
            self.epsilon, delta=self.delta, rate=self.sampling, steps=self.rounds, neighbours="update"
        )

    def describe(self) -> Mechanism:
        return describe_mechanism(
            self,
            note="neighbouring: the client's update, or zeros in its place; the noise is the client's own"
            + ("; counts on nobody seeing who takes part" if self.sampling < 1 else ""),
            noise_multiplier=self.noise,
            std=self.noise * self.clip,
        )

    def update(self, update: Update, *, rng: Rng) -> Update:
        """A clipped and noisy copy."""
        clipped = Clip(norm=self.clip).update(update, rng=rng)
        return GaussianNoise(std=self.noise * self.clip).update(clipped, rng=rng)

    def spent(self, exposure: Exposure) -> Guarantee:
        """The budget that this noise spends over ``exposure``, whatever the number of local steps."""
        return client_level(
            self.name,
            noise_multiplier=self.noise,
            clip=self.clip,
            delta=self.delta,
            exposure=exposure,
        )
