"""Upper bounds on the success of any attack under a proven privacy guarantee.

An adversary that succeeds with probability κ without the update succeeds with at most e^ε κ + δ(ε) with it,
for every real ε; the smallest of these is the bound. δ(ε) comes from dp-accounting's privacy loss
distributions, which round up. If the lower end of a measured interval is above the bound, the defence does
not do what it declares, or the code has a bug.

Source: Hayes, Mahloujifar & Balle 2023, "Bounding training data reconstruction in DP-SGD", NeurIPS, Theorem 2
(the blow-up function, here by the dual of its trade-off curve); Doroshenko et al. 2022, "Connect the Dots",
arXiv:2207.04380 (privacy loss distributions).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray

from glasshouse.errors import BadValue, not_installed
from glasshouse.limits import Count, Fraction, NotNegative, check_ranges
from glasshouse.privacy.gaussian import check_share

try:
    import dp_accounting
    from dp_accounting.pld import PLDAccountant
except ImportError as error:
    raise not_installed("bound on any attack", "dp-accounting", error, extra="dp") from error

Floats = NDArray[np.float64]
Unit = Literal["example", "update"]
"""``example``: one example more or less. ``update``: the client's update, or zeros instead of it."""

_RELATIONS = {
    "example": dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    "update": dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
}
_LINES = 4001  # one per ε; the gap between neighbouring tangents is below 1e-4
_REST = 1e-10  # lines beyond the ε of this δ cannot lower a bound by more than this δ
_LARGEST_EPSILON = 700.0  # e^ε is finite


@final
@dataclass(frozen=True, kw_only=True)
class Release:
    """Gaussian releases of one kind, all of which the adversary sees.

    Attributes:
        noise_multiplier: standard deviation ÷ sensitivity of one unit, >= 0; 0 gives no guarantee.
        steps: number of releases, >= 1.
        rate: sampling rate: probability that the unit is in one release, in (0, 1]. Use below 1 only where
            the adversary cannot see who takes part (Poisson sampling).
    """

    noise_multiplier: NotNegative
    steps: Count = 1
    rate: Fraction = 1.0

    def __post_init__(self) -> None:
        fix = "take them from the defence and the terms of the federation"
        check_ranges(self, "bound on any attack", fix=fix)


@final
@dataclass(frozen=True, kw_only=True)
class Bound:
    """An upper bound on the mean score of any attack over victims, in the unit of its metric.

    Attributes:
        value: the bound; 1 (or the end of the metric's range) means no guarantee.
        chance: score of the best guess without the update.
        epsilon: ε of the line that gives the bound.
        delta: δ(ε) of that line.
    """

    value: float
    chance: float
    epsilon: float
    delta: float


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Ceiling:
    """The lines e^ε κ + δ(ε) that bound every attack. Build one with :func:`attack_ceiling`.

    It covers one unit, for adding as well as removing it. Where units are sampled, this makes it a few
    hundredths looser than necessary for chances above 0.3. Data of one person in several units, and clients
    that do not follow the protocol, are not covered.

    Attributes:
        unit: what is protected.
        epsilons: (L,), ascending.
        deltas: (L,), δ at each ε.
    """

    unit: Unit
    epsilons: Floats
    deltas: Floats

    def share(self, chance: float) -> Bound:
        """Upper bound on the success rate of any attack; higher is worse for privacy.

        Args:
            chance: κ, the success rate of the best adversary without the update, in [0, 1]. Identification
                among M: 1/M, or the null's rate if that is higher. True-positive rate at a false-positive
                rate f: f. Accuracy over classes: the fraction of the most frequent class. Reconstruction
                within a distance: the fraction of auxiliary images within it of the best constant guess.

        Raises:
            BadValue: ``chance`` is not in [0, 1].

        Examples:
            >>> ceiling = attack_ceiling([Release(noise_multiplier=1.0)], unit="example")
            >>> round(ceiling.share(0.01).value, 3)
            0.092
        """
        check_share("chance", chance)
        values = np.exp(self.epsilons) * chance + self.deltas
        best = int(values.argmin())
        return Bound(
            value=min(1.0, float(values[best])),
            chance=chance,
            epsilon=float(self.epsilons[best]),
            delta=float(self.deltas[best]),
        )

    def mean(self, chance: float, *, low: float, high: float, higher_leaks: bool) -> Bound:
        """Upper bound on the mean score of any attack in a metric with a finite range, such as SSIM.

        A mean over [low, high] is the average over all thresholds t of the fraction "better than t". Each
        fraction has the bound of :meth:`share`, which is concave, so the mean has it too (Jensen).

        Args:
            chance: the best mean without the update, in the metric's unit, in [low, high].
            low: smallest possible value.
            high: largest possible value.
            higher_leaks: False for errors and distances: the result is then a lower bound.

        Raises:
            BadValue: the range is empty or infinite, or ``chance`` is outside it.

        Examples:
            >>> ceiling = attack_ceiling([Release(noise_multiplier=1.0)], unit="example")
            >>> round(ceiling.mean(0.9, low=0.0, high=1.0, higher_leaks=False).value, 3)
            0.611
        """
        if not (math.isfinite(low) and math.isfinite(high) and low <= chance <= high and low < high):
            raise BadValue(
                "bound on any attack",
                needs="finite low <= chance <= high, low < high",
                got=f"low = {low}, chance = {chance}, high = {high}",
                fix="for a metric without a finite range, use the share of victims above a threshold",
            )
        width = high - low
        bound = self.share((chance - low) / width if higher_leaks else (high - chance) / width)
        value = low + width * bound.value if higher_leaks else high - width * bound.value
        return Bound(value=value, chance=chance, epsilon=bound.epsilon, delta=bound.delta)

    def auc(self) -> float:
        """The largest area under the ROC curve of any membership attack; chance 0.5, higher is worse.

        The mean of the bound at 1,000 midpoints of false-positive rates, which is never below the integral of
        a concave curve.

        Examples:
            >>> ceiling = attack_ceiling([Release(noise_multiplier=1.0)], unit="update")
            >>> round(ceiling.auc(), 3)
            0.76
        """
        rates = (np.arange(1000) + 0.5) / 1000
        slopes = np.exp(self.epsilons)
        return float(np.mean([min(1.0, float((slopes * f + self.deltas).min())) for f in rates]))


def attack_ceiling(releases: Sequence[Release], *, unit: Unit) -> Ceiling:
    """The bound for all releases, composed.

    Args:
        releases: all releases of the unit that the adversary saw, at least one. With noise 0 there is no
            guarantee and every bound is 1.
        unit: to which the sensitivity of the releases refers.

    Raises:
        BadValue: there are no releases.

    Source:
        Hayes, Mahloujifar & Balle 2023, Theorem 2. If every unit takes part in every step, the bound is
        Φ(Φ⁻¹(κ) + √T / σ), which :func:`glasshouse.privacy.gaussian.gaussian_share` computes.

    Examples:
        >>> sampled = Release(noise_multiplier=1.0, steps=50, rate=0.1)
        >>> round(attack_ceiling([sampled], unit="example").share(0.01).value, 3)
        0.083
    """
    if not releases:
        raise BadValue(
            "bound on any attack",
            needs="at least one release",
            got="none",
            fix="without a guarantee there is no bound: only the attacks that were tried limit what came out",
        )
    if any(r.noise_multiplier == 0 for r in releases):
        return Ceiling(unit=unit, epsilons=np.array([-_LARGEST_EPSILON]), deltas=np.ones(1))
    effective = [r.noise_multiplier / math.sqrt(r.steps if r.rate == 1 else 1) for r in releases]
    # The loss of one step spreads over about 1/σ² + 10/σ.
    accountant = PLDAccountant(_RELATIONS[unit], 5e-5 * min(1 / s**2 + 10 / s for s in effective))
    for release in releases:
        event = dp_accounting.GaussianDpEvent(release.noise_multiplier)
        if release.rate < 1:
            event = dp_accounting.PoissonSampledDpEvent(release.rate, event)
        accountant.compose(dp_accounting.SelfComposedDpEvent(event, release.steps))
    edge = min(_LARGEST_EPSILON, float(accountant.get_epsilon(_REST)))
    epsilons = np.linspace(-edge, edge, _LINES)
    deltas = np.asarray(accountant.get_delta(epsilons), dtype=np.float64)
    return Ceiling(unit=unit, epsilons=epsilons, deltas=deltas)
