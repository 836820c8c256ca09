"""What the numbers of an audit are worth: finished searches, upper bounds, and what one run shows of ε."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, final

__all__ = ["EmpiricalEpsilon", "Search", "UpperBound"]


@final
@dataclass(frozen=True, kw_only=True)
class Search:
    """Was the search for one victim finished? The attack's own loss at its claim and at the truth.

    Attributes:
        name: of the victim, e.g. ``round 0, client 3``.
        loss: of the claim.
        truth: of the private images in the order of the claim, under the claim's labels or under their own:
            the smaller of both (decision 0233).
        noise: losses that differ by no more are alike.
        projected: for an attack through a generator, of the generator's images nearest to the truth; None:
            any image could have been claimed.
        curve: (step, smallest loss so far) of the attack's search, where it reports them.
    """

    name: str
    loss: float
    truth: float
    noise: float
    projected: float | None = None
    curve: tuple[tuple[int, float], ...] = ()

    @property
    def finished(self) -> bool:
        """Whether no point is known that fits better than the claim: the truth, or its projection."""
        threshold = self.truth if self.projected is None else self.projected
        return self.loss <= threshold + self.noise

    @property
    def falling(self) -> bool:
        """Whether the last tenth of the search lowered its loss by more than a hundredth."""
        if len(self.curve) < 2:
            return False
        end = self.curve[-1][0]
        before = [loss for step, loss in self.curve if step <= 0.9 * end]
        return bool(before) and before[-1] - self.curve[-1][1] > 0.01 * abs(before[-1])


@final
@dataclass(frozen=True, kw_only=True)
class UpperBound:
    """The most that any attack could get on average, as the cell's defences prove it.

    Attributes:
        value: in the metric's unit; for errors the least that must remain.
        chance: what the best guess without the update gets: in closed form, or from the null adversary.
        unit: what is protected: one ``example`` more or less; a client's ``update``, or zeros in its place.
        epsilon: of the guarantee over the whole federation.
        delta: of the guarantee over the whole federation.
        steps: releases that the guarantee covers.
        contradicted: the measured interval lies beyond it: the defence is not what it says, or a program is
            wrong.
    """

    value: float
    chance: float | None
    unit: Literal["example", "update"]
    epsilon: float
    delta: float
    steps: int
    contradicted: bool = False


@final
@dataclass(frozen=True, kw_only=True)
class EmpiricalEpsilon:
    """What one federation with canaries shows of a claimed ε.

    Attributes:
        scenario: name of the scenario.
        cell: hash of the cell.
        axes: values of the axes in this cell.
        unit: what each canary is: an ``example`` or a ``client``.
        claimed: ε that the scenario claims.
        proved: ε by the accountant; None: no defence proves any.
        low: ε is at least this at 95 %, whatever the mechanism is.
        gaussian: the same if the guarantee is that of a Gaussian mechanism; None where it is not.
        delta: δ at which all of them are meant.
        canaries: each in by its own coin.
        guesses: fixed before the run.
        correct: guesses that were right.
        seconds: processor time.
    """

    scenario: str
    cell: str
    axes: Mapping[str, Any] = field(default_factory=dict)
    unit: Literal["example", "client"]
    claimed: float
    proved: float | None
    low: float
    gaussian: float | None
    delta: float
    canaries: int
    guesses: int
    correct: int
    seconds: float

    @property
    def shown(self) -> float:
        """The larger of the bounds that hold."""
        return max(self.low, self.gaussian or 0.0)

    @property
    def contradicted(self) -> bool:
        """Whether the run shows a larger ε than was claimed, or proved."""
        return self.shown > min(x for x in (self.claimed, self.proved) if x is not None)
