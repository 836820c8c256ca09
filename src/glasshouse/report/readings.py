"""A result as the page reads it: every finding and every utility once, in words, numbers and order.

The first stage of the page. What comes after it (sentences, answer, matrix, leaks, figures, tables) looks at
these readings and asks no card again. Fixed before the run: only primary findings about private data decide
the headline; which defence is used is not private data. What a finding means is decided in the audit
(``Finding.verdict``); here it is only put in order.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, final

from glasshouse.report import numbers, words
from glasshouse.report.cards import ACCURACY, SEVERITIES, Cards
from glasshouse.results.cards import MetricCard, ThreatCard
from glasshouse.results.judgement import victims_by_claim, with_somebody_out
from glasshouse.results.records import Finding, Result, Utility, Verdict, Victim
from glasshouse.results.vocabulary import SEES

PICTURE: Final = re.compile(r"data:image/png;base64,[A-Za-z0-9+/=]+")
ORDER: Final[tuple[Verdict, ...]] = (
    "contradiction", "leaks", "label leak", "too alike", "no power", "not shown", "no leak found",
)  # fmt: skip
"""Verdicts, the worst first."""
READS, ACTS = "a server that only reads", "a server that manipulates what it sends"
CLIENT, SUMS = "another client", "whoever sees only sums of updates"
BYSTANDER, MODEL = "a bystander who sees what is sent", "whoever gets the finished model"
EXAMPLES: Final = ("pictures", "rows", "sentences")
"""What examples can be; as modalities name them."""
SOURCES: Final = {"update": "single updates", "aggregate": "sums of updates"}
"""What data came out of, by what the attacker sees; the first that applies."""
Rank = tuple[int, bool, int, float]


class Threat(NamedTuple):
    """The threat of one scenario.

    Attributes:
        card: as the audit describes it.
        who: who attacks, in words.
        things: what examples are: ``pictures``, ``rows``, ``sentences``, else ``examples``.
        source: what data came out of: ``single updates``; empty: neither updates nor their sums.
    """

    card: ThreatCard
    who: str
    things: str
    source: str


@final
@dataclass(frozen=True, kw_only=True)
class Reading:
    """One finding with everything that the page says of it.

    Attributes:
        finding: as the audit decided it.
        attack: title of the attack.
        card: of the metric.
        kind: kind of private data that came out: the label, where an example is claimed and not shown.
        severity: the gain as a share of the way from a guess to a perfect copy; 1 is perfect. For ordering.
        victims: verdicts on single victims: the finding's own, else those of another metric of its claim.
        jury: ``3 victims``: how many they are.
        where: the setting: ``without a defence (batch = 4)``, ``under clip 4``.
        condition: the setting, and the draws of first weights that the finding is about, where they are too
            few for more: ``without a defence, for these weights``.
        axes: the setting without its defences: ``batch = 4``.
        protection: the scenario's name of the defences, else their descriptions.
        described: the defences' own descriptions.
        sample: ``20 victims``.
        given: side knowledge of the attacker, in words; empty: none.
        guess: the null baseline, in words.
        guesser: who reaches it, before a number: ``guessing``.
        value: value with its unit.
        interval: confidence interval of the value, in brackets.
        baseline: value of the null baseline, with unit.
        median: median over victims, with unit; empty if there is none.
        gain: signed gain without unit; its interval is ``gain_interval``.
        measured_gain: signed gain with unit.
        most: what the defences' guarantee allows any attack, with unit; empty: there is none.
        undefended: what the same attack reaches without the defences; empty: unknown.
        defended: what it reaches here, written like ``undefended``.
        by_draw: the value in each draw of the network's first weights; empty: there is one.
    """

    finding: Finding
    attack: str
    card: MetricCard
    kind: str
    severity: float
    victims: tuple[Victim, ...]
    jury: str
    where: str
    condition: str
    axes: str
    protection: str
    described: str
    sample: str
    given: str
    guess: str
    guesser: str
    value: str
    interval: str
    baseline: str
    median: str
    gain: str
    gain_interval: str
    measured_gain: str
    most: str
    undefended: str
    defended: str
    by_draw: tuple[str, ...]

    @property
    def rank(self) -> Rank:
        """Sort key, the worst first: verdict, a gain or none, kind of data, then the most complete leak."""
        finding = self.finding
        gains = finding.gain_low > 0
        return ORDER.index(finding.verdict), not gains, SEVERITIES.index(self.kind), -self.severity

    @property
    def quoted(self) -> tuple[int, int, str]:
        """Sort key of the metric in the order in which metrics are quoted: most severe kinds first."""
        return SEVERITIES.index(self.card.severity), self.card.order, self.finding.metric

    @property
    def place(self) -> str:
        """The setting as a noun: ``clip 4``, ``without a defence``."""
        return self.where.removeprefix("under ")

    @property
    def score(self) -> str:
        """Metric, value and interval, as a noun: ``SSIM 0.12 [0.10, 0.15]``."""
        return f"{self.card.label} {self.value} {self.interval}"

    @property
    def reached(self) -> int:
        """Number of victims that came out, each judged alone."""
        return sum(victim.leaks for victim in self.victims)


@final
@dataclass(frozen=True, kw_only=True)
class UtilityReading:
    """What a cell's model is worth, in words; ``text``: with its interval, ``value``: without."""

    utility: Utility
    text: str
    value: str
    where: str
    axes: str
    protection: str

    @property
    def place(self) -> str:
        """The setting as a noun: ``clip 4``, ``without a defence``."""
        return self.where.removeprefix("under ")

    @property
    def at_chance(self) -> bool:
        """Whether the model may be no better than always predicting the most common class."""
        return self.utility.chance is not None and self.utility.low <= self.utility.chance


@final
@dataclass(frozen=True, kw_only=True)
class Readings:
    """A result, read.

    Attributes:
        result: what was read; its utility holds one row per setting.
        cards: display names and formats of attacks and metrics.
        threats: by scenario.
        every: all findings, in the order of the audit.
        deciding: those that decide headline and sentences.
        named: of these, those with power in which single victims' examples came out, most victims first;
            corrected for the number of those that judge single victims.
        utility: what the models are worth.
    """

    result: Result
    cards: Cards
    threats: Mapping[str, Threat]
    every: tuple[Reading, ...]
    deciding: tuple[Reading, ...]
    named: tuple[Reading, ...]
    utility: tuple[UtilityReading, ...]

    @property
    def terms(self) -> list[tuple[str, str]]:
        """The metrics of the deciding findings as (label, explanation), in quoting order."""
        metrics = [r.card for r in sorted(self.deciding, key=lambda r: r.quoted)]
        return list(dict.fromkeys((card.label, card.explanation) for card in metrics if card.explanation))

    def of(self, scenario: str) -> "Readings":
        """The part that is about one scenario: nothing is read again, victims are corrected within it."""
        deciding = [r for r in self.deciding if r.finding.scenario == scenario]
        return Readings(
            result=self.result.of(scenario),
            cards=self.cards,
            threats=self.threats,
            every=tuple(r for r in self.every if r.finding.scenario == scenario),
            deciding=tuple(deciding),
            named=_with_victims_out(deciding),
            utility=tuple(u for u in self.utility if u.utility.scenario == scenario),
        )


def read(result: Result, *, cards: Cards | None = None) -> Readings:
    """Read a result for the page.

    Args:
        result: what a run reports.
        cards: of several results that are compared; None: the result's own.

    Raises:
        BadValue: one of its numbers is not finite.
    """
    utility, judged = one_per_setting(result.utility), victims_by_claim(result.findings)
    cards = cards or Cards.of(result)
    every = tuple(
        _finding(f, cards.attack(f.attack), cards.metric(f.metric), f.victims or judged.get(f.claim_key, ()))
        for f in result.findings
    )
    deciding = _deciding(every)
    return Readings(
        result=replace(result, utility=utility),
        cards=cards,
        threats={card.scenario: _threat(card) for card in reversed(result.threats)},
        every=every,
        deciding=deciding,
        named=_with_victims_out(deciding),
        utility=tuple(map(_utility, utility)),
    )


def worst(readings: Iterable[Reading]) -> Reading | None:
    """The worst of some findings; None if there is none."""
    return min(readings, key=lambda reading: reading.rank, default=None)


def landmarks(card: MetricCard) -> tuple[tuple[str, str, str], ...]:
    """(number, meaning, image) for the legend of a metric; "" instead of an invalid image."""
    return tuple(
        (numbers.value(number, card), meaning, picture if PICTURE.fullmatch(picture) else "")
        for number, meaning, picture in card.landmarks
    )


def one_per_setting(rows: Iterable[Utility]) -> tuple[Utility, ...]:
    """Merge utilities of the same cell and metric over seeds: mean value, union of the intervals."""
    groups: dict[tuple[str, str, str], list[Utility]] = {}
    for u in rows:
        groups.setdefault((u.scenario, u.cell, u.metric), []).append(u)
    return tuple(map(_merged, groups.values()))


def _merged(rows: Sequence[Utility]) -> Utility:
    value = sum(u.value for u in rows) / len(rows)
    return replace(rows[0], value=value, low=min(u.low for u in rows), high=max(u.high for u in rows))


def _utility(u: Utility) -> UtilityReading:
    """What a cell's model is worth, in words: ``61 % [58, 64]``."""
    digits = numbers.places(ACCURACY, u.low, u.high)
    value, interval = (
        numbers.value(u.value, ACCURACY, digits=digits),
        numbers.interval(u.low, u.high, ACCURACY, digits),
    )
    return UtilityReading(
        utility=u,
        text=f"{value} {interval}",
        value=numbers.value(u.value, ACCURACY),
        where=words.where(u.defenses, u.axes),
        axes=words.setting(u.axes),
        protection=words.protection(u.defenses, u.axes),
    )


def _threat(card: ThreatCard) -> Threat:
    seen = [text for part, text in SOURCES.items() if SEES[part] in card.sees]
    things = card.things if card.things in EXAMPLES else "examples"
    return Threat(card=card, who=who_attacks(card), things=things, source=seen[0] if seen else "")


def who_attacks(card: ThreatCard) -> str:
    """The adversary's role, whether it acts, and whether it sees single updates.

    A server that acts is called so also where it sees sums alone.
    """
    role = card.adversary.split()[1] if len(card.adversary.split()) > 1 else ""
    if role in ("client", "bystander"):
        return CLIENT if role == "client" else BYSTANDER
    if card.changes:
        return ACTS
    return SUMS if SEES["aggregate"] in card.sees and SEES["update"] not in card.sees else READS


def _finding(f: Finding, attack: str, card: MetricCard, victims: tuple[Victim, ...]) -> Reading:
    """A finding's numbers, with as many decimals as its intervals support, and its words."""
    unit, own = f.unit_of_value, numbers.places(card, f.low, f.high)
    # A gain needs enough decimals to show on which side of 0 its interval ends.
    gained = max(
        numbers.places(card, f.gain_low, f.gain_high), numbers.sign_places(card, f.gain_low, f.gain_high)
    )
    gain = numbers.with_sign(f.gain, card, gained)
    most = "" if f.bound is None else numbers.value(f.bound.value, card, unit)
    undefended, defended = _beside_defence(f, card, own)
    sign = gain[0] if gain[0] in f"+{numbers.MINUS}" else ""
    return Reading(
        finding=f,
        attack=attack,
        card=card,
        victims=victims,
        jury=words.count(len(victims), "victims"),
        value=numbers.value(f.value, card, unit, own),
        interval=numbers.interval(f.low, f.high, card, own),
        baseline=numbers.value(f.baseline_value, card, unit, own),
        median="" if f.median is None else numbers.value(f.median, card, unit, own),
        gain=gain,
        gain_interval=numbers.interval(f.gain_low, f.gain_high, card, gained),
        measured_gain=sign + numbers.difference(f.gain, card, unit, gained),
        most=most,
        undefended=undefended,
        defended=defended,
        by_draw=tuple(numbers.value(one.value, card, "", own) for one in f.by_draw),
        where=words.where(f.defenses, f.axes),
        condition=words.condition(f.defenses, f.axes, f.draws, of_clients=f.unit == "clients"),
        axes=words.setting(f.axes),
        protection=words.protection(f.defenses, f.axes),
        described=words.under(f.defenses),
        sample=words.count(f.n, f.unit),
        given=words.grants(f.given),
        guess=words.null(f.baseline),
        guesser=words.guesser(f.baseline),
        kind="labels" if f.verdict == "label leak" else card.severity,
        severity=_severity(f, card),
    )


def _beside_defence(f: Finding, card: MetricCard, digits: int) -> tuple[str, str]:
    """The value without the defences, and the finding's: as counts, where both are shares of victims."""
    reference = f.undefended
    if reference is None:
        return "", ""
    hits = _hits(reference.value, reference.n), _hits(f.value, f.n)
    if card.display == "rate" and None not in hits:
        return f"{hits[0]} of {reference.n}", f"{hits[1]} of {f.n}"
    unit = f.unit_of_value
    return numbers.value(reference.value, card, unit, digits), numbers.value(f.value, card, unit, digits)


def _hits(share: float, n: int) -> int | None:
    """``share`` × n as a count; None if not a whole number (several images per victim, for example)."""
    hits = round(share * n)
    return hits if abs(hits - share * n) < 1e-6 else None


def _severity(finding: Finding, card: MetricCard) -> float:
    """The attack's gain as a share of the distance from a guess to a perfect copy; 1 is perfect.

    Unlike gains, comparable across metrics: used for ordering, never printed. For decibels it is the
    relative reduction of the guess's squared error; without a known end of the scale, the gain itself.
    """
    if finding.unit_of_value == "dB" or card.display == "level":
        return float(1 - 10 ** (-finding.gain / 10))
    top = 1.0 if card.high is None else card.high
    reach = top - finding.baseline_value if finding.higher_leaks else finding.baseline_value
    return finding.gain / reach if reach > 1e-9 else finding.gain


def _deciding(readings: Sequence[Reading]) -> tuple[Reading, ...]:
    """Primary findings about private data.

    If the result marks none as primary: for each attack, cell and kind of private data, the metric with the
    lowest ``order`` on its card.
    """
    private = [r for r in readings if r.card.private]
    if any(r.finding.primary for r in readings):
        return tuple(r for r in private if r.finding.primary)
    first: dict[tuple[object, ...], Reading] = {}
    for r in private:
        f = r.finding
        key = (f.scenario, f.cell, f.defenses, f.attack, f.about, r.card.severity)
        best = first.setdefault(key, r)
        if (r.card.order, ORDER.index(f.verdict)) < (best.card.order, ORDER.index(best.finding.verdict)):
            first[key] = r
    return tuple(first.values())


def _with_victims_out(deciding: Sequence[Reading]) -> tuple[Reading, ...]:
    candidates = [r for r in deciding if r.finding.verdict != "no power" and r.victims]
    out = with_somebody_out([r.victims for r in candidates])
    some = [r for r, somebody in zip(candidates, out, strict=True) if somebody]
    return tuple(sorted(some, key=lambda reading: -reading.reached))
