"""What an audit found, as plain records: everything that a report, a script or a notebook reads."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, final

from glasshouse.results.cards import AttackCard, Limit, MetricCard, ThreatCard
from glasshouse.results.strength import EmpiricalEpsilon, Search, UpperBound

__all__ = [
    "Contrast",
    "Control",
    "Exchange",
    "Exhibit",
    "Finding",
    "Reference",
    "Refused",
    "Result",
    "Settings",
    "Utility",
    "Verdict",
    "Victim",
]

Verdict = Literal["contradiction", "leaks", "no leak found", "inconclusive", "no power"]
Settings = Mapping[str, Any]
ExhibitKind = Literal["pictures", "sentences", "lines", "histogram", "boxes", "table"]


@final
@dataclass(frozen=True, kw_only=True)
class Control:
    """Did the attack work where it must, and stay silent where it must?

    Attributes:
        positive: gain in the easy setting, and the lower end of its interval.
        positive_low: gain in the easy setting, and the lower end of its interval.
        negative: gain on an update unrelated to the victim, and the one-sided bound below it: the control
            fails when ``negative_low`` is above 0. None, all four: the attack made no claim there, and so did
            not pass.
        negative_high: as ``negative``.
        passed: both hold.
        setting: the easy setting in words.
        n: victims.
        metric: of the gains; it belongs to the attack, and need not be the metric of the finding beside it.
        reason: why it did not pass, in words, where it is no gain that says so.
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


@final
@dataclass(frozen=True, kw_only=True)
class Exchange:
    """The same claims scored against other victims' truth: what an attack gets that ignores the update.

    Attributes:
        value: the metric on exchanged victims.
        gain: of the true pairing over it, paired by victim, signed so that positive is leakage.
        gain_low: of the true pairing over it, paired by victim, signed so that positive is leakage.
        gain_high: of the true pairing over it, paired by victim, signed so that positive is leakage.
        n: victims.
    """

    value: float
    gain: float
    gain_low: float
    gain_high: float
    n: int


@final
@dataclass(frozen=True, kw_only=True)
class Victim:
    """The verdict on one victim: is its own example better matched than held-out ones?

    Attributes:
        name: of the victim, e.g. ``round 0, client 3, example 1``.
        value: the metric.
        rank: held-out examples that match the claim as well or better.
        compared: M, how many there were.
        p: (1 + rank) / (1 + M).
        p_adjusted: Holm's, over the victims of the cell.
        leaks: ``p_adjusted`` is below .05.
    """

    name: str
    value: float
    rank: int
    compared: int
    p: float
    p_adjusted: float
    leaks: bool


@final
@dataclass(frozen=True, kw_only=True)
class Reference:
    """What the same attack with the same settings got where no defence was on: a cell's power."""

    value: float
    low: float
    high: float
    n: int
    verdict: Verdict


@final
@dataclass(frozen=True, kw_only=True)
class Finding:
    """A score with its uncertainty, baseline and verdict.

    Attributes:
        scenario: name of the scenario.
        cell: hash of the cell.
        axes: values of the axes in this cell.
        attack: registered names.
        metric: registered names.
        protocol: registered names.
        defenses: short descriptions in order, empty for none.
        value: the metric and its 95 % interval.
        low: the metric and its 95 % interval.
        high: the metric and its 95 % interval.
        higher_leaks: larger means more leaked.
        n: units behind it.
        unit: what one is ("victims", "images", "clients").
        baseline: name of the null adversary quoted.
        baseline_value: its score on the same victims.
        gain: improvement over the null, signed so that positive is leakage, paired.
        gain_low: improvement over the null, signed so that positive is leakage, paired.
        gain_high: improvement over the null, signed so that positive is leakage, paired.
        control: name → outcome, None where the attack has none.
        chosen: how the number was chosen ("4 restarts, lowest loss of the attack").
        given: grants that were used.
        seconds: attack time, all units.
        about: rounds and clients in words.
        chance: of a guess, where known.
        median: over victims, None for pooled metrics and shares.
        claim: kind of the claims that were scored.
        p: one-sided p-value of "the gain is not above 0".
        primary: the metric by which this attack and claim kind are judged, fixed before the run; only such
            findings reach the headline and the exit code.
        p_adjusted: Holm's, over the primary findings of the run; None for others.
        exchange: against other victims' truth, None where the metric has no such control.
        undefended: the same attack without the defences; None where that was not run, or this is it.
        claimed: victims of whom anything was claimed; the others count as misses.
        runs: independent federations behind the number; below 4 the interval rests on few of them.
        victims: one verdict each, for metrics that compare single examples.
        searches: one per claim, of attacks that search and say what for; of primary findings.
        unfinished: claims whose search was not finished; None: the attack does not say what it minimises.
        bound: the most that any attack could get; None: no guarantee covers this number.
    """

    scenario: str
    cell: str
    axes: Settings
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


@final
@dataclass(frozen=True, kw_only=True)
class Refused:
    """An attack, guard or metric that could not run in a cell, and why."""

    scenario: str
    cell: str
    axes: Settings
    defenses: tuple[str, ...]
    subject: str
    needs: str
    got: str
    fix: str


@final
@dataclass(frozen=True, kw_only=True)
class Utility:
    """Held-out accuracy after the cell's rounds, with its exact interval over the n examples.

    ``epsilon`` and ``delta``: the privacy guarantee of the cell's defences, None where there is none.
    ``chance``: the share of the most common class among the examples; None: not known.
    """

    scenario: str
    cell: str
    axes: Settings
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
class Contrast:
    """By how much one attack leaks more than another on the same victims, in one cell.

    ``difference``, ``low``, ``high``: in the metric's unit, with a 95 % interval over ``n`` pairs, signed so
    that positive means that ``attack`` leaks more than ``other``.
    """

    scenario: str
    cell: str
    axes: Settings
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
        kind: ``pictures`` are originals beside reconstructions, in ``file``.
        data: by kind:
            ``lines``: {"x_label", "y_label", "x_log"?, "x_even"?: equal distances between the values of x,
            "series": [{"name", "x", "y", "low"?, "high"?, "null"?: bool, "of"?: number of the series that
            this one belongs to}]};
            ``histogram``: {"x_label", "series": [{"name", "values"}]}; ``boxes``: the same with "y_label";
            ``table``: {"columns": [...], "rows": [[...], ...]};
            ``pictures`` and ``sentences``: {"columns": [names of the columns], "rows": [labels of the rows]}.
        file: below the run directory; of pictures an .npz: ``images`` (rows, columns, H, W, C) in [0, 1]; of
            sentences a .json: ``sentences``, for each row a text for every column.
        private: columns of these that hold private data; blurred or hidden unless the user asks.
        join: exhibits of several cells with this key were joined into this one; empty: it is of one cell.
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
    attacks: tuple[AttackCard, ...] = ()
    metrics: tuple[MetricCard, ...] = ()
    manifest: Settings = field(default_factory=dict)
