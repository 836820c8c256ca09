"""The strength of an audit's evidence: finished searches, upper bounds, and empirical ε from one run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final, Literal, final

__all__ = ["TOLD", "Certificate", "EmpiricalEpsilon", "Proofs", "Search", "UpperBound"]


TOLD: Final = 0.05
"""A loss tells the truth from decoys if ranks as low as the truth's have at most this chance."""
_FLAT: Final = 0.01
"""The last half of a search added nothing if it lowered the loss by at most this share."""
_TOLERATED: Final = 0.05
"""Largest tolerance of a loss, as a share of its distance from the truth to a typical decoy."""


@final
@dataclass(frozen=True, kw_only=True)
class Search:
    """Whether the search for one victim finished: the attack's own loss at its claim and at the ground truth.

    Attributes:
        name: of the victim, e.g. ``round 0, client 3``.
        loss: at the claim; the larger value, where it was asked twice.
        truth: at the private examples in the order of the claim, with the claim's labels or with their own,
            whichever is smaller (decision 0137).
        noise: tolerance that the attack declares: losses that differ by at most this count as equal.
        projected: for attacks with a generator, the loss at the generator's images nearest to the ground
            truth; None: the attack searches over all images.
        curve: (step, smallest loss so far) of the attack's search, where reported.
        decoys: losses at held-out examples in the truth's place.
        reproduced: the loss said the same of the claim both times.
        reason: why the loss could not be evaluated; empty: it was.
    """

    name: str
    loss: float
    truth: float
    noise: float
    projected: float | None = None
    curve: tuple[tuple[int, float], ...] = ()
    decoys: tuple[float, ...] = ()
    reproduced: bool = True
    reason: str = ""

    @property
    def tolerance(self) -> float:
        """The declared noise, but never so much that a held-out example would count as the truth."""
        if not self.decoys:
            return self.noise
        return min(self.noise, _TOLERATED * max(0.0, median(self.decoys) - self.truth))

    @property
    def rank(self) -> int:
        """Decoys whose loss is as low as the truth's; all of them, for a constant loss."""
        return sum(decoy <= self.truth for decoy in self.decoys)

    @property
    def finished(self) -> bool:
        """Whether the claim's loss is no higher than that of the ground truth, or of its projection."""
        threshold = self.truth if self.projected is None else self.projected
        return not self.reason and self.reproduced and self.loss <= threshold + self.tolerance

    @property
    def falling(self) -> bool:
        """Whether the last half of the search lowered its loss by more than 1 %, and more than the noise."""
        if len(self.curve) < 2:
            return False
        end = self.curve[-1][0]
        before = [loss for step, loss in self.curve if step <= 0.5 * end]
        return bool(before) and before[-1] - self.curve[-1][1] > max(_FLAT * abs(before[-1]), self.noise)


@final
@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What the searches behind one finding certify together; it could have failed.

    Attributes:
        searches: number of claims whose search was asked about.
        unfinished: of these, stopped above the truth's loss, or could not be evaluated.
        told_p: chance of ranks among decoys as low as the truth's for a loss that cannot tell; 1 without
            decoys.
        drawn: searches that reported a curve of their loss.
        falling: of these, lowered their loss in the last half of their budget.
        reason: why losses could not be evaluated; empty: all were.
    """

    searches: int
    unfinished: int
    told_p: float
    drawn: int
    falling: int
    reason: str = ""

    @property
    def missing(self) -> str:
        """What keeps it from certifying that more search would find nothing; empty: nothing does."""
        if self.reason:
            return f"the attack's loss could not be evaluated: {self.reason}"
        if self.told_p > TOLD + 1e-9:  # one truth ranked first among 20 has exactly this chance
            return "the attack's loss does not tell the private examples from held-out ones"
        if self.unfinished:
            return f"{self.unfinished} of {self.searches} searches stopped above the loss of the truth"
        if self.falling:
            return f"the last half of the budget lowered the loss of {self.falling} of {self.drawn} searches"
        return ""


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
        word_of: defences of other packages on whose word the guarantee rests; empty: it is computed here.
    """

    value: float
    chance: float | None
    unit: Literal["example", "update"]
    epsilon: float
    delta: float
    steps: int
    contradicted: bool = False
    word_of: tuple[str, ...] = ()


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


@final
@dataclass(frozen=True, kw_only=True)
class Proofs:
    """What an attack said it proved in one cell, held against the truth.

    Attributes:
        scenario: name of the scenario.
        cell: hash of the cell.
        axes: values of the axes in this cell.
        attack: registered name, or its label.
        claim: kind of the claims.
        stated: number of assertions with a certificate.
        wrong: of these, the number that are not true: a defect, which ends the audit with exit code 1.
    """

    scenario: str
    cell: str
    axes: Mapping[str, Any] = field(default_factory=dict)
    attack: str
    claim: str
    stated: int
    wrong: int

    @property
    def refuted(self) -> bool:
        """Whether a certificate is wrong."""
        return self.wrong > 0
