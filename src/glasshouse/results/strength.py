"""The strength of an audit's evidence: finished searches, upper bounds, and empirical ε from one run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, final

__all__ = ["EmpiricalEpsilon", "Search", "UpperBound"]


@final
@dataclass(frozen=True, kw_only=True)
class Search:
    """Whether the search for one victim finished: the attack's own loss at its claim and at the ground truth.

    Attributes:
        name: of the victim, e.g. ``round 0, client 3``.
        loss: at the claim.
        truth: at the private images in the order of the claim, with the claim's labels or with their own,
            whichever is smaller (decision 0137).
        noise: tolerance: losses that differ by at most this count as equal.
        projected: for attacks with a generator, the loss at the generator's images nearest to the ground
            truth; None: the attack searches over all images.
        curve: (step, smallest loss so far) of the attack's search, where reported.
    """

    name: str
    loss: float
    truth: float
    noise: float
    projected: float | None = None
    curve: tuple[tuple[int, float], ...] = ()

    @property
    def finished(self) -> bool:
        """Whether the claim's loss is no higher than that of the ground truth, or of its projection."""
        threshold = self.truth if self.projected is None else self.projected
        return self.loss <= threshold + self.noise

    @property
    def falling(self) -> bool:
        """Whether the last 10 % of the search lowered its loss by more than 1 %."""
        if len(self.curve) < 2:
            return False
        end = self.curve[-1][0]
        before = [loss for step, loss in self.curve if step <= 0.9 * end]
        return bool(before) and before[-1] - self.curve[-1][1] > 0.01 * abs(before[-1])


@final
@dataclass(frozen=True, kw_only=True)
class UpperBound:
    """Upper bound on the mean score of any attack, proved by the cell's defences.

    Attributes:
        value: in the metric's unit; for errors a lower bound.
        chance: score of the best guess without the update: in closed form, or from the null adversary.
        unit: what is protected: one ``example`` more or less; a client's ``update``, replaced by zeros.
        epsilon: of the guarantee over the whole federation.
        delta: of the guarantee over the whole federation.
        steps: releases that the guarantee covers.
        contradicted: the measured interval lies beyond the bound: the defence does not do what it declares,
            or the code has a bug.
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
    """A lower bound on ε from one federation with canaries, to compare with the claimed ε.

    Attributes:
        scenario: name of the scenario.
        cell: hash of the cell.
        axes: values of the axes in this cell.
        unit: what each canary is: an ``example`` or a ``client``.
        claimed: ε that the scenario claims.
        proved: ε by the accountant; None: no defence proves one.
        low: lower bound on ε at 95 % confidence, for any mechanism.
        gaussian: the same for a Gaussian mechanism; None where the guarantee is of another kind.
        delta: δ for all of these values of ε.
        canaries: number of canaries, each included by an independent coin flip.
        guesses: number of guesses, fixed before the run.
        correct: number of correct guesses.
        seconds: CPU time.
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
        """The larger of the valid lower bounds."""
        return max(self.low, self.gaussian or 0.0)

    @property
    def contradicted(self) -> bool:
        """Whether the run shows a larger ε than claimed or proved."""
        return self.shown > min(x for x in (self.claimed, self.proved) if x is not None)
