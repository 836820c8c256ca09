"""Which findings decide a run's verdict, how each is rated, and how they are ordered.

Fixed before the run: only primary findings about private data count. Which defence is used is not private
data. What a finding means is decided in the audit (``Finding.verdict``); here it is only ordered and worded.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, final

from glasshouse.report.cards import SEVERITIES, Cards
from glasshouse.results.cards import MetricCard
from glasshouse.results.judgement import victims_of, with_somebody_out
from glasshouse.results.records import Finding, Result, Verdict, Victim

ORDER: Final[tuple[Verdict, ...]] = (
    "contradiction", "leaks", "label leak", "too alike", "no power", "not shown", "no leak found",
)  # fmt: skip


@final
@dataclass(frozen=True, kw_only=True)
class Choice:
    """The findings that decide headline and sentences.

    Attributes:
        findings: the deciding findings, in the order of the audit.
        every: all findings of the result.
        cards: display names and formats of attacks and metrics.
    """

    findings: tuple[Finding, ...]
    every: tuple[Finding, ...]
    cards: Cards

    def standing(self, finding: Finding) -> Verdict:
        """A finding's verdict, as the audit decided it."""
        return finding.verdict

    def denial(self, finding: Finding) -> Finding | None:
        """The finding by whose pixels the same images are worse than a guess; None: there is none."""
        return next((f for f in self.siblings(finding) if f.metric == finding.denied_by), None)

    def siblings(self, finding: Finding) -> list[Finding]:
        """Other findings of the same attack in the same cell about the same kind of private data."""
        severity = self.cards.metric(finding.metric).severity
        return [
            f
            for f in self.every
            if (f.scenario, f.cell, f.attack) == (finding.scenario, finding.cell, finding.attack)
            and f.metric != finding.metric
            and self.cards.metric(f.metric).severity == severity
        ]

    def victims(self, finding: Finding) -> tuple[Victim, ...]:
        """Per-victim verdicts: the finding's own, else those of another metric of the same claim."""
        return victims_of(finding, self.every)

    def with_victims_out(self) -> list[Finding]:
        """Findings with power in which single victims' examples leaked, most victims first.

        Corrected for the number of findings with per-victim verdicts.
        """
        candidates = [f for f in self.findings if f.verdict != "no power" and self.victims(f)]
        out = with_somebody_out([self.victims(f) for f in candidates])
        some = [f for f, somebody in zip(candidates, out, strict=True) if somebody]
        return sorted(some, key=lambda f: -sum(v.leaks for v in self.victims(f)))

    def of(self, scenario: str) -> "Choice":
        """The choice restricted to one scenario."""
        findings, every = (
            tuple(f for f in fs if f.scenario == scenario) for fs in (self.findings, self.every)
        )
        return Choice(findings=findings, every=every, cards=self.cards)

    def worst_first(self, findings: Iterable[Finding]) -> list[Finding]:
        """Order by verdict, as in ``ORDER``.

        Within a verdict: private examples, then membership, labels, the rest; then the most complete leak.
        """
        return sorted(findings, key=self.rank)

    def rank(self, finding: Finding | None) -> tuple[int, int, float]:
        """Sort key of :meth:`worst_first`; None, for no finding at all, comes last."""
        if finding is None:
            return len(ORDER), 0, 0.0
        card = self.cards.metric(finding.metric)
        standing = ORDER.index(self.standing(finding))
        return standing, SEVERITIES.index(kind_of(finding, card)), -severity(finding, card)

    def worst(self, findings: Iterable[Finding] | None = None) -> Finding | None:
        """The worst finding; None if there is none."""
        return next(iter(self.worst_first(self.findings if findings is None else findings)), None)


def choose(result: Result) -> Choice:
    """The deciding findings: primary ones about private data.

    If the result marks none as primary: for each attack, cell and kind of private data, the metric with the
    lowest ``order`` on its card.
    """
    cards = Cards.of(result)
    private = [f for f in result.findings if cards.metric(f.metric).private]
    if any(f.primary for f in result.findings):
        selection = [f for f in private if f.primary]
    else:
        selection = _first_of_each(private, cards)
    return Choice(findings=tuple(selection), every=tuple(result.findings), cards=cards)


def kind_of(finding: Finding, card: MetricCard) -> str:
    """The kind of private data that came out: the label where an example is claimed and not shown."""
    return "labels" if finding.verdict == "label leak" else card.severity


def severity(finding: Finding, card: MetricCard) -> float:
    """The attack's gain as a share of the distance from a guess to a perfect copy; 1 is perfect.

    Unlike gains, comparable across metrics: used for ordering, never printed. For decibels it is the
    relative reduction of the guess's squared error; without a known end of the scale, the gain itself.
    """
    if finding.unit_of_value == "dB" or card.display == "level":
        return float(1 - 10 ** (-finding.gain / 10))
    top = 1.0 if card.high is None else card.high
    reach = top - finding.baseline_value if finding.higher_leaks else finding.baseline_value
    return finding.gain / reach if reach > 1e-9 else finding.gain


def _first_of_each(findings: Iterable[Finding], cards: Cards) -> list[Finding]:
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for f in findings:
        key = (f.scenario, f.cell, f.defenses, f.attack, f.about, cards.metric(f.metric).severity)
        groups.setdefault(key, []).append(f)

    def order(f: Finding) -> tuple[int, int]:
        return cards.metric(f.metric).order, ORDER.index(f.verdict)

    return [min(group, key=order) for group in groups.values()]
