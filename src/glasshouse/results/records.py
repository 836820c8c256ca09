"""The results of an audit as plain records: everything that a report, a script or a notebook reads."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, final

from glasshouse.results.cards import AttackCard, Limit, MetricCard, ThreatCard
from glasshouse.results.strength import EmpiricalEpsilon, Proofs, Search, UpperBound

__all__ = [
    "Contrast",
    "Control",
    "Draw",
    "Exchange",
    "Exhibit",
    "Finding",
    "Knows",
    "Power",
    "Reference",
    "Refused",
    "Result",
    "Rung",
    "Settings",
    "Share",
    "Utility",
    "Verdict",
    "Victim",
]

Verdict = Literal[
    "contradiction", "leaks", "label leak", "too alike", "no leak found", "not shown", "no power"
]
Knows = Literal["nothing", "domain", "label", "twin"]
"""What a null adversary knows: nothing, the domain, the victim's label, everything but the example."""
Settings = Mapping[str, Any]
ExhibitKind = Literal["pictures", "sentences", "lines", "histogram", "boxes", "table"]
_PARTS = ("threats", "findings", "refusals", "utility", "exhibits", "epsilons", "contrasts", "limits",
          "proofs")  # fmt: skip
"""Fields of a result whose rows name their scenario."""


@final
@dataclass(frozen=True, kw_only=True)
class Control:
    """Whether an attack succeeds in an easy setting and gains nothing from an unrelated update.

    The four gains are None where the attack made no claim there; it then did not pass.

    Attributes:
        positive: gain in the easy setting.
        positive_low: lower end of its interval.
        negative: gain on an update unrelated to the victim.
        negative_low: its one-sided lower bound; the control fails if it is above 0.
        passed: both parts of the control passed.
        setting: the easy setting in words.
        n: number of victims.
        metric: of the gains; chosen by the attack, not necessarily the metric of the finding.
        reason: why the control did not pass, in words, where the gains do not show it.
        remedy: what would make it pass, in words; empty: more effort.
    """

    positive: float | None = None
    positive_low: float | None = None
    negative: float | None = None
    negative_low: float | None = None
    passed: bool
    setting: str
    n: int
    metric: str = ""
    reason: str = ""
    remedy: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class Exchange:
    """The same claims scored against other victims' ground truth: the score of ignoring the update.

    Attributes:
        value: the metric on exchanged victims.
        gain: of the true pairing over the exchanged one, paired by victim; positive is leakage.
        gain_low: lower end of its interval.
        gain_high: upper end of its interval.
        n: number of victims.
        beaten: a test about these victims, by which the verdict goes, finds the gain above 0; None: of an
            earlier release, in which ``gain_low`` was the end of that test.
    """

    value: float
    gain: float
    gain_low: float
    gain_high: float
    n: int
    beaten: bool | None = None

    @property
    def is_beaten(self) -> bool:
        """Whether claims are shown to know more about their own victims than about others."""
        return self.gain_low > 0 if self.beaten is None else self.beaten


@final
@dataclass(frozen=True, kw_only=True)
class Victim:
    """The verdict on one victim: does the claim match its example better than held-out ones?

    Attributes:
        name: of the victim, e.g. ``round 0, client 3, example 1``.
        value: the metric.
        rank: number of held-out examples that match the claim as well or better.
        compared: M, the number of held-out examples.
        p: (1 + rank) / (1 + M).
        p_adjusted: corrected for how many victims of the cell are judged (Benjamini and Hochberg).
        leaks: the victim is named: ``p_adjusted`` is at most 0.05, and no other claim matches it as well.
        out: it counts as come out where the share of such victims is bounded: as ``leaks``, with p at most
            .025 and no correction, which would hide some.
        unit: victims of equal units count once in that share: those of one update or one person, and
            near-duplicates. Empty: it counts on its own.
        draw: the federation in which it was a victim; with four or more, the share counts them as units, too.
    """

    name: str
    value: float
    rank: int
    compared: int
    p: float
    p_adjusted: float
    leaks: bool
    out: bool = False
    unit: str = ""
    draw: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class Draw:
    """The metric in one federation: one draw of the first weights, and of all else that is random.

    Attributes:
        seed: of the federation.
        value: of the metric over its victims or clients.
        n: their number.
    """

    seed: int
    value: float
    n: int


@final
@dataclass(frozen=True, kw_only=True)
class Rung:
    """The gain over the null adversary of one rung of the ladder.

    Attributes:
        knows: what it knows.
        name: of the null adversary.
        value: its score on the same victims.
        gain: over it, paired, signed so that positive is leakage.
        gain_low: lower end of its 95 % interval.
        gain_high: upper end of its 95 % interval.
        p: one-sided p-value of "the gain is not above 0".
        beaten: the gains over this rung and over all below it are above 0.
    """

    knows: Knows
    name: str
    value: float
    gain: float
    gain_low: float
    gain_high: float
    p: float
    beaten: bool


@final
@dataclass(frozen=True, kw_only=True)
class Share:
    """How many single victims came out, and how many would.

    Attributes:
        out: victims that are named.
        n: victims judged.
        units: of these, the independent ones: examples of one update or person, and near-duplicates, are one;
            over four or more draws of first weights, the draws. 0: of an earlier version.
        most: exact upper end of the share of such victims that come out, in [0, 1].
        margin: largest share that the scenario tolerates.
        needed: victims of whom none may come out to show that the share is below the margin.
    """

    out: int
    n: int
    most: float
    margin: float
    needed: int
    units: int = 0


@final
@dataclass(frozen=True, kw_only=True)
class Power:
    """How many leaks that were planted in this very cell the attack found.

    Attributes:
        planted: leaks that were planted.
        found: of them, by this attack with these settings.
        how: how they were planted, in words.
        told_p: of the attack's loss telling the canaries' examples from held-out ones; 1: it has none.
    """

    planted: int
    found: int
    how: str = ""
    told_p: float = 1.0


@final
@dataclass(frozen=True, kw_only=True)
class Reference:
    """The score of the same attack with the same settings without defences: shows the power of a cell."""

    value: float
    low: float
    high: float
    n: int
    verdict: Verdict


@dataclass(frozen=True, kw_only=True)
class _InCell:
    """A row about one cell of a scenario: its hash, and the values of its axes."""

    scenario: str
    cell: str
    axes: Settings


@final
@dataclass(frozen=True, kw_only=True)
class Finding(_InCell):
    """A score with its uncertainty, baseline and verdict.

    Attributes:
        scenario: name of the scenario.
        cell: hash of the cell.
        axes: values of the axes in this cell.
        attack: registered name.
        metric: registered name.
        protocol: registered name.
        defenses: short descriptions in order, empty for none.
        value: the metric.
        low: lower end of its 95 % interval.
        high: upper end of its 95 % interval.
        higher_leaks: larger values mean more leakage.
        n: number of units scored.
        unit: what a unit is ("victims", "images", "clients").
        baseline: name of the null adversary quoted.
        baseline_value: its score on the same victims.
        gain: improvement over the null, paired, signed so that positive is leakage.
        gain_low: lower end of its 95 % interval.
        gain_high: upper end of its 95 % interval, also if victims like none of these leak more.
        gain_high_seen: the same end if no victim leaks more than the worst of these: what limits and
            comparisons refer to, beside ``share``; None: of an earlier version.
        control: outcome of the attack's control; None where it has none.
        chosen: how the number was chosen ("4 restarts, lowest loss of the attack").
        given: grants that were used.
        seconds: attack time over all units.
        about: rounds and clients in words.
        chance: score of random guessing, where known.
        median: over victims; None for pooled metrics and shares.
        claim: kind of the claims that were scored.
        p: one-sided p-value of "the gain is not above 0".
        primary: the metric is the one by which this attack and claim kind are judged, fixed before the run;
            only primary findings reach the headline and the exit code.
        p_adjusted: with Holm's correction over the primary findings of the run; None for others.
        exchange: score against other victims' ground truth; None where the metric has no such control.
        undefended: the same attack without the defences; None if not run, or if this cell has none.
        claimed: number of victims with at least one claim; the others count as misses.
        runs: independent federations in the sample; below 4 the interval rests on few of them.
        victims: one verdict each, for metrics that compare single examples.
        searches: one per claim, for primary findings of attacks that declare their objective.
        unfinished: number of claims whose search was not finished; None: the attack declares no objective.
        bound: upper bound for any attack; None: no guarantee covers this number.
        ladder: the gain over the null adversary of every rung, from the lowest up; empty: not about examples.
        share: of victims that came out; None: single victims could not be judged.
        power: planted leaks that were found; None: none were planted.
        alone: no attack of another kind made such claims in this cell.
        draws: different first weights behind the number; 0: it has no weights.
        by_draw: the metric in each federation, where there are several.
        missing: why a part is not there, in words, by name: ``ladder``, ``exchange``, ``control``,
            ``certificate``, ``bound``, ``victims``, ``power``; ``ladder.label`` for a rung.
        reason: why the verdict is no stronger, in words; empty for leaks.
        remedy: what would show it, in words.
        lacks: everything that "no leak found" lacks, the most important first; ``reason`` is the first.
        by_luck: it would leak alone, but among as many findings as the run has, luck explains it.
        scored: number of single scores behind the value; None: they are not counted.
        hits: of these, the number that are 1, for metrics that are 0 or 1 per example; None for others.
        denied_by: metric by whose pixels the same images are further from the original than a guess.
    """

    attack: str
    protocol: str
    defenses: tuple[str, ...]
    metric: str
    unit_of_value: str
    higher_leaks: bool
    value: float
    low: float
    high: float
    n: int
    unit: str
    baseline: str
    baseline_value: float
    gain: float
    gain_low: float
    gain_high: float
    control: Control | None
    verdict: Verdict
    chosen: str
    given: tuple[str, ...]
    seconds: float
    about: str
    gain_high_seen: float | None = None
    chance: float | None = None
    median: float | None = None
    claim: str = ""
    primary: bool = False
    p: float | None = None
    p_adjusted: float | None = None
    exchange: Exchange | None = None
    undefended: Reference | None = None
    claimed: int | None = None
    runs: int | None = None
    victims: tuple[Victim, ...] = ()
    searches: tuple[Search, ...] = ()
    unfinished: int | None = None
    bound: UpperBound | None = None
    ladder: tuple[Rung, ...] = ()
    share: Share | None = None
    power: Power | None = None
    alone: bool = False
    draws: int = 1
    by_draw: tuple[Draw, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    remedy: str = ""
    lacks: tuple[str, ...] = ()
    by_luck: bool = False
    denied_by: str = ""
    scored: int | None = None
    hits: int | None = None

    @property
    def claim_key(self) -> tuple[str, ...]:
        """What findings of one claim share: scenario, cell, attack and kind of claim."""
        return self.scenario, self.cell, self.attack, self.claim

    @property
    def gain_end(self) -> float:
        """Upper end of the gain's interval among victims like these: what limits and comparisons use."""
        return self.gain_high if self.gain_high_seen is None else self.gain_high_seen

    @property
    def highest(self) -> Rung | None:
        """The highest rung of the ladder that is beaten, with all below it."""
        return next((rung for rung in reversed(self.ladder) if rung.beaten), None)


@final
@dataclass(frozen=True, kw_only=True)
class Refused(_InCell):
    """An attack, guard or metric that could not run in a cell, and why."""

    defenses: tuple[str, ...]
    subject: str
    needs: str
    got: str
    fix: str


TAMPERED: Final = ", under "
"""Stands in the metric of a utility between what was measured and the attack that altered the model."""


@final
@dataclass(frozen=True, kw_only=True)
class Utility(_InCell):
    """What the task scores on held-out data after the cell's rounds, with its interval over the n examples.

    ``metric``: the task's name of it, as accuracy, R2 or Dice; with :data:`TAMPERED` and an attack, of a
    model that this attack altered.
    ``epsilon`` and ``delta``: the privacy guarantee of the cell's defences, None where there is none.
    ``chance``: the fraction of the examples in the most common class; None: unknown.
    """

    defenses: tuple[str, ...]
    metric: str
    value: float
    low: float
    high: float
    n: int
    rounds: int
    epsilon: float | None = None
    delta: float | None = None
    chance: float | None = None


@final
@dataclass(frozen=True, kw_only=True)
class Contrast(_InCell):
    """Difference between the scores of two attacks on the same victims in one cell.

    ``difference``, ``low``, ``high``: in the metric's unit, with a 95 % interval over ``n`` pairs, signed so
    that positive means that ``attack`` leaks more than ``other``.
    """

    defenses: tuple[str, ...]
    attack: str
    other: str
    metric: str
    unit_of_value: str
    difference: float
    low: float
    high: float
    n: int
    unit: str


@final
@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """Something to show beside the numbers.

    Attributes:
        kind: ``pictures`` show originals beside reconstructions, stored in ``file``.
        data: by kind:
            ``lines``: {"x_label", "y_label", "x_log"?, "x_even"?: equal distances between the values of x,
            "series": [{"name", "x", "y", "low"?, "high"?, "null"?: bool, "of"?: number of the series that
            this one belongs to}]};
            ``histogram``: {"x_label", "series": [{"name", "values"}]}; ``boxes``: the same with "y_label";
            ``table``: {"columns": [...], "rows": [[...], ...]};
            ``pictures`` and ``sentences``: {"columns": [names of the columns], "rows": [labels of the rows]}.
        file: below the run directory; for pictures an .npz: ``images`` (rows, columns, H, W, C) in [0, 1];
            for sentences a .json: ``sentences``, in each row one text per column.
        private: columns with private data, blurred or hidden unless the user asks.
        join: exhibits of several cells with this key were joined into this one; empty: one cell only.
    """

    kind: ExhibitKind
    scenario: str
    title: str
    caption: str
    data: Settings = field(default_factory=dict)
    file: str = ""
    private: tuple[str, ...] = ()
    join: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class Result:
    """Everything that one run reports."""

    suite: str
    threats: tuple[ThreatCard, ...] = ()
    findings: tuple[Finding, ...] = ()
    refusals: tuple[Refused, ...] = ()
    utility: tuple[Utility, ...] = ()
    exhibits: tuple[Exhibit, ...] = ()
    contrasts: tuple[Contrast, ...] = ()
    limits: tuple[Limit, ...] = ()
    epsilons: tuple[EmpiricalEpsilon, ...] = ()
    proofs: tuple[Proofs, ...] = ()
    attacks: tuple[AttackCard, ...] = ()
    metrics: tuple[MetricCard, ...] = ()
    manifest: Settings = field(default_factory=dict)

    @property
    def scenarios(self) -> list[str]:
        """Names of the scenarios, in the order of the suite."""
        return list(dict.fromkeys(row.scenario for part in _PARTS for row in getattr(self, part)))

    def of(self, scenario: str) -> "Result":
        """The part of the result that is about one scenario; cards and manifest stay whole."""
        parts: dict[str, Any] = {
            part: tuple(row for row in getattr(self, part) if row.scenario == scenario) for part in _PARTS
        }
        return replace(self, **parts)
