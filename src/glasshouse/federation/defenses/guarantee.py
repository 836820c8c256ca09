"""The differential-privacy guarantee of a chain of defences, if any."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, final, runtime_checkable

from glasshouse.federation.defenses.clip import Clip
from glasshouse.federation.defenses.gaussian_noise import GaussianNoise
from glasshouse.federation.defenses.subsample import Subsample
from glasshouse.interfaces import Defense
from glasshouse.limits import Count, Fraction, check_ranges

DELTA: Final = 1e-5
"""δ of a guarantee whose defences state none."""


@final
@dataclass(frozen=True, kw_only=True)
class Exposure:
    """How often a client's data are used; the input of privacy accounting.

    Attributes:
        rounds: rounds of the federation, >= 1.
        sampling: probability that the client is in a round's cohort, in (0, 1]. Leave it at 1 unless the
            adversary cannot see who takes part; a server always can.
        steps: local optimizer steps per round, >= 1.
        batch_rate: expected share of the client's examples in one step, in (0, 1].
    """

    rounds: Count
    sampling: Fraction = 1.0
    steps: Count = 1
    batch_rate: Fraction = 1.0

    def __post_init__(self) -> None:
        check_ranges(self, "privacy guarantee", fix="take them from the terms of the federation")


@final
@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """(ε, δ)-differential privacy of everything that one client sends.

    Attributes:
        epsilon: the budget over the whole exposure.
        delta: the budget over the whole exposure.
        neighbours: ``update``: the client takes part, or sends zeros; ``example``: one example more or less.
        defense: name of the defence that provides it.
        noise_multiplier: of its Gaussian releases: standard deviation ÷ sensitivity to one unit.
        steps: number of releases.
        clip: norm of the largest contribution of one unit.
        any_two: ε between any two updates of the client, twice as far apart as one is from zeros; None: the
            unit is an example.
        rate: probability of a unit to be in a release, where the adversary cannot see that.
    """

    epsilon: float
    delta: float
    neighbours: Literal["update", "example"]
    defense: str
    noise_multiplier: float
    steps: int
    clip: float = 1.0
    rate: float = 1.0
    any_two: float | None = None


def remark_on_delta(delta: float, unit: str, units: int) -> str:
    """What to know of a δ that is too large for ``units`` clients or examples; empty: nothing.

    Examples:
        >>> remark_on_delta(1e-5, "client", 20)
        ''
        >>> remark_on_delta(0.1, "client", 20)[:28]
        'delta = 0.1 is above 1 in 20'
    """
    if delta * units <= 1:
        return ""
    return (
        f"delta = {delta:g} is above 1 in {units:,}, the number of {unit}s that it is about: "
        f"a mechanism that publishes one {unit} at random and whole would pass. Choose one far below."
    )


@runtime_checkable
class Private(Protocol):
    """A defence with a differential-privacy guarantee."""

    def spent(self, exposure: Exposure) -> Guarantee:
        """Its guarantee over ``exposure``."""


@runtime_checkable
class PrivateRounds(Protocol):
    """A protocol whose clients send nothing but what is differentially private."""

    def proves(self, rounds: int) -> Guarantee:
        """The guarantee of everything that one client sends in so many rounds."""


def client_level(
    defense: str, *, noise_multiplier: float, clip: float, delta: float, exposure: Exposure
) -> Guarantee:
    """The guarantee of noise on a clipped update, whatever the number of local steps.

    The unit is the client. For the client's update against zeros in its place the sensitivity is ``clip``;
    for any two updates it is twice that, as if the noise were half as large.
    """
    # Imported here: only what proves something needs the extra.
    from glasshouse.federation.defenses.accounting import spent_epsilon  # noqa: PLC0415

    common: dict[str, Any] = {
        "delta": delta,
        "neighbours": "update",
        "steps": exposure.rounds,
        "rate": exposure.sampling,
    }
    return Guarantee(
        epsilon=spent_epsilon(noise_multiplier, **common),
        any_two=spent_epsilon(noise_multiplier / 2, **common),
        noise_multiplier=noise_multiplier,
        defense=defense,
        clip=clip,
        **common,
    )


def guarantee(defenses: Sequence[Defense], exposure: Exposure) -> Guarantee | None:
    """The guarantee of a chain of defences, or None if it has none.

    Post-processing of a private result keeps its guarantee. A later defence that uses the private batch
    (place ``gradient``, such as Soteria) voids it. Of two guarantees, the one about whole updates is
    returned: it covers every example. It holds for clients that follow the protocol. Clipping directly before
    Gaussian noise on the update proves what ``gaussian_mechanism`` does, at δ = ``DELTA``. An ε too large for
    a float proves nothing.

    Under ``subsample`` a step uses a larger share of fewer examples; amplification by the subsampling itself
    is not counted.
    """
    for defense in defenses:
        if isinstance(defense, Subsample):
            rate = min(1.0, exposure.batch_rate / defense.share)
            exposure = dataclasses.replace(exposure, batch_rate=rate)
    guarantees: list[Guarantee] = []
    for position, defense in enumerate(defenses):
        later = defenses if defense.place == "local" else defenses[position + 1 :]
        if isinstance(defense, Private) and not any(d.place == "gradient" for d in later):
            guarantees.append(defense.spent(exposure))
        clipped = defenses[position - 1] if position else None
        if not isinstance(clipped, Clip) or not isinstance(defense, GaussianNoise) or not defense.std:
            continue
        if not any(d.place == "gradient" for d in later):
            guarantees.append(_clipped_noise(clipped, defense, exposure))
    guarantees = [one for one in guarantees if math.isfinite(one.epsilon)]
    return min(guarantees, key=lambda g: (g.neighbours != "update", g.epsilon), default=None)


def _clipped_noise(clip: Clip, noise: GaussianNoise, exposure: Exposure) -> Guarantee:
    """What clipping and then Gaussian noise prove together."""
    return client_level(
        f"{clip.name} + {noise.name}",
        noise_multiplier=noise.std / clip.norm,
        clip=clip.norm,
        delta=DELTA,
        exposure=exposure,
    )
