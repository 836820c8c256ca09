"""Which findings speak for a run, what each of them is worth there, and which comes first.

Fixed before the run: only primary findings about private data count, after Holm's correction. Naming a
defence is not private data. An image metric that moved while the pixels stayed further from the original than
a guess is not a rebuilt image.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, final

from glasshouse.report import words
from glasshouse.report.cards import SEVERITIES, Cards
from glasshouse.results.cards import MetricCard
from glasshouse.results.judgement import expected_by_luck, with_somebody_out
from glasshouse.results.records import Finding, Result, Verdict, Victim

ORDER: Final[tuple[Verdict, ...]] = ("contradiction", "leaks", "no power", "inconclusive", "no leak found")


@final
@dataclass(frozen=True, kw_only=True)
class Choice:
    """The findings that decide headline and sentences.

    Attributes:
        findings: those that decide, in the order of the audit.
        every: all findings of the result.
        cards: how attacks and metrics are shown.
    """

    findings: tuple[Finding, ...]
    every: tuple[Finding, ...]
    cards: Cards

    def standing(self, finding: Finding) -> Verdict:
        """What a finding is worth beside the others: its verdict, unless luck or pixels speak against it."""
        doubtful = expected_by_luck(finding) or self.contradiction(finding) is not None
        return "inconclusive" if doubtful else finding.verdict

    def contradiction(self, finding: Finding) -> Finding | None:
        """For an image metric that leaks: the pixels of the same images, where a guess comes nearer.

        A share of images that somebody or something recognised stands on its own.
        """
        card = self.cards.metric(finding.metric)
        if finding.verdict != "leaks" or card.severity != "images" or card.display != "plain":
            return None
        pixels = (
            f for f in self.siblings(finding) if self.cards.metric(f.metric).display == "level" and f.gain < 0
        )
        return next(pixels, None)

    def siblings(self, finding: Finding) -> list[Finding]:
        """Other findings of the same attack in the same cell about the same kind of private thing."""
        severity = self.cards.metric(finding.metric).severity
        return [
            f
            for f in self.every
            if (f.scenario, f.cell, f.attack) == (finding.scenario, finding.cell, finding.attack)
            and f.metric != finding.metric
            and self.cards.metric(f.metric).severity == severity
        ]

    def victims(self, finding: Finding) -> tuple[Victim, ...]:
        """The verdicts on single victims: the finding's own, else those of another metric of its claims."""
        key = (finding.scenario, finding.cell, finding.attack, finding.claim)
        alike = (f for f in self.every if (f.scenario, f.cell, f.attack, f.claim) == key and f.victims)
        return finding.victims or next((f.victims for f in alike), ())

    def with_victims_out(self) -> list[Finding]:
        """Findings with power where single victims' examples came out, the most of them first.

        Corrected for how many findings of the run judge single victims.
        """
        candidates = [f for f in self.findings if f.verdict != "no power" and self.victims(f)]
        out = with_somebody_out([self.victims(f) for f in candidates])
        some = [f for f, somebody in zip(candidates, out, strict=True) if somebody]
        return sorted(some, key=lambda f: -sum(v.leaks for v in self.victims(f)))

    def of(self, scenario: str) -> "Choice":
        """The same for one scenario."""
        return Choice(
            findings=tuple(f for f in self.findings if f.scenario == scenario),
            every=tuple(f for f in self.every if f.scenario == scenario),
            cards=self.cards,
        )

    def worst_first(self, findings: Iterable[Finding]) -> list[Finding]:
        """Leaks before what could not be measured, before what stayed open, before silence.

        Within these, private examples come before facts about who takes part, before labels, before the rest;
        then the most complete leak.
        """
        return sorted(findings, key=self._rank)

    def _rank(self, finding: Finding) -> tuple[int, int, float]:
        card = self.cards.metric(finding.metric)
        standing = ORDER.index(self.standing(finding))
        return standing, SEVERITIES.index(card.severity), -severity(finding, card)

    def worst(self, findings: Iterable[Finding] | None = None) -> Finding | None:
        """The finding to name when only one can be named."""
        return next(iter(self.worst_first(self.findings if findings is None else findings)), None)


def choose(result: Result) -> Choice:
    """The findings that decide: primary ones about private data.

    Of a result that marks none as primary: for each attack, cell and kind of private thing, the metric that
    its card puts first.
    """
    cards = Cards.of(result)
    private = [f for f in result.findings if cards.metric(f.metric).private]
    if any(f.primary for f in result.findings):
        selection = [f for f in private if f.primary]
    else:
        selection = _first_of_each(private, cards)
    return Choice(findings=tuple(selection), every=tuple(result.findings), cards=cards)


def severity(finding: Finding, card: MetricCard) -> float:
    """How much of the way from a guess to a perfect copy the attack went; 1 is all of it.

    Comparable across metrics, which gains are not: used to order, never printed. For decibels it is the
    share of the guess's squared error that is gone; without a known end of the scale it is the gain itself.
    """
    if finding.unit_of_value == "dB" or card.display == "level":
        return float(1 - 10 ** (-finding.gain / 10))
    top = 1.0 if card.high is None else card.high
    reach = top - finding.baseline_value if finding.higher_leaks else finding.baseline_value
    return finding.gain / reach if reach > 1e-9 else finding.gain


def _first_of_each(findings: Iterable[Finding], cards: Cards) -> list[Finding]:
    best: dict[tuple[str, ...], Finding] = {}
    for finding in findings:
        kind = cards.metric(finding.metric).severity
        key = (
            finding.scenario,
            finding.cell,
            words.under(finding.defenses),
            finding.attack,
            finding.about,
            kind,
        )
        if key not in best or _order(finding, cards) < _order(best[key], cards):
            best[key] = finding
    return list(best.values())


def _order(finding: Finding, cards: Cards) -> tuple[int, int]:
    return cards.metric(finding.metric).order, ORDER.index(finding.verdict)
