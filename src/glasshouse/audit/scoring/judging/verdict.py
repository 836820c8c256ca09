"""Decide what a finding means. The verdict is decided here and nowhere else; the report words it.

A leak needs a gain over the null adversaries and over the same claims on other victims. "No leak found" is
earned, never a default: whatever is missing for it makes the verdict "not shown", with the reason.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

from glasshouse.metrics.base import Metric
from glasshouse.metrics.statistics.interval import Interval
from glasshouse.results.cards import MetricCard
from glasshouse.results.judgement import ALPHA, ONE_SIDE
from glasshouse.results.records import Control, Finding, Power, Rung, Share, Verdict
from glasshouse.results.strength import Certificate

# | number | what it trades                        | which measurement set it | where repeated   |
# |--------|---------------------------------------|--------------------------|------------------|
# | SMALL  | gains that are called negligible      | docs/result.md           | tests of scoring |
# | POWER  | leaks missed against victims needed   | docs/result.md           | tests/verdicts   |
# | ALIKE  | cells where "whose" has no meaning    | tests/verdicts           | tests/verdicts   |
SMALL: Final = {"dB": 1.0, "share": 0.1, "": 0.05}
"""Largest negligible gain, by unit; for unbounded metrics, as a fraction of the null's value."""
POWER: Final = 0.8
"""Smallest share of planted leaks that must be found before an attack that found nothing shows anything."""
TOLD_APART: Final = 4
"""Victims that differ, from which an exchange of claims can show whose they are."""
ALIKE: Final = 0.5
"""Share of victims with a near-duplicate among other victims from which "whose" is no question."""

BEYOND_SMALL: Final = "the interval of the gain reaches beyond what is negligible"
NOT_PLANTED: Final = "no leak was planted here to show that it would be found"
UNBOUNDED: Final = "how many would come out is not bounded"


@final
@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything that a verdict rests on.

    Attributes:
        metric: of the scores.
        gain: over the quoted null adversary.
        null: that null's value.
        exchange: gain over the same claims on other victims; None: the metric has no such control.
        ladder: gains over the null adversaries of every rung; empty: not a claim about examples.
        control: of the attack; None: it has none, or it was not run.
        contradicted: the number lies beyond what a guarantee allows.
        certificate: of the attack's searches; None: it declares no loss, since it searches for nothing.
        share: of victims that came out; None: single victims could not be judged.
        why_no_share: why not.
        power: planted leaks that were found; None: none were planted.
        alike: share of the victims with a near-duplicate among the others.
        groups: how many victims can be told apart; None: unknown.
        claimed: something was claimed of at least one victim.
        mixed_up_p: p-value of claims knowing nobody, not even other victims than their own.
        other_form: in which claims know their own victims though the metric sees none; empty: none is known.
        holds_copy: some claim is a copy of a private example, whoever it was claimed of.
        by_label: claims are not shown to fit their own victims better than others of the same label.
    """

    metric: Metric
    gain: Interval
    null: float
    exchange: Interval | None = None
    ladder: Sequence[Rung] = ()
    control: Control | None = None
    contradicted: bool = False
    certificate: Certificate | None = None
    share: Share | None = None
    why_no_share: str = ""
    power: Power | None = None
    alike: float = 0.0
    groups: int | None = None
    claimed: bool = True
    mixed_up_p: float = 1.0
    other_form: str = ""
    holds_copy: bool = False
    by_label: bool = False


@final
@dataclass(frozen=True, kw_only=True)
class Decision:
    """A verdict, why it is no stronger, and what would show it; both in words, empty for leaks.

    ``lacks``: everything that "no leak found" would need and is missing, whatever the verdict.
    """

    verdict: Verdict
    reason: str = ""
    remedy: str = ""
    lacks: tuple[str, ...] = ()


def decide(evidence: Evidence) -> Decision:
    """The verdict on one finding, with everything that "no leak found" lacks."""
    return replace(_decided(evidence), lacks=tuple(reason for reason, _ in _missing(evidence)))


def _decided(evidence: Evidence) -> Decision:
    """The verdict on one finding.

    Returns:
        ``contradiction`` if more came out than a guarantee allows. ``no power`` if the control failed, or
        nothing was claimed of anybody.
        ``leaks`` if the gains over the null adversaries and over the exchange are above 0, on the rung of the
        label, too, where there is one; else ``label leak``. ``too alike`` if claims are better than any
        guess, but as good for other victims, which are near-duplicates. ``no leak found`` if nothing of what
        that needs is missing; else ``not shown``.
    """
    if evidence.contradicted:
        return Decision(verdict="contradiction")
    if evidence.control is not None and not evidence.control.passed:
        return Decision(
            verdict="no power",
            reason=evidence.control.reason or "its control failed",
            remedy=evidence.control.remedy
            or "repair the attack, or give it the effort that it needs in the easy setting",
        )
    if not evidence.claimed:
        return Decision(
            verdict="no power",
            reason="it claimed nothing about any victim",
            remedy="an attack that claims something, or settings under which this one does",
        )
    beyond_null = evidence.gain.above_zero
    if beyond_null and (evidence.exchange is None or evidence.exchange.above_zero):
        return _leak(evidence)
    # Where enough victims can be told apart, the exchange over them has said that the claims know none.
    few = evidence.groups is None or evidence.groups < TOLD_APART
    if beyond_null and evidence.alike >= ALIKE and few:
        return Decision(
            verdict="too alike",
            reason="other victims are near-duplicates, so a claim fits several of them",
            remedy="audit with victims that differ, or count near-duplicates as one",
        )
    missing = next(_missing(evidence), None)
    if missing is None:
        return Decision(verdict="no leak found")
    return Decision(verdict="not shown", reason=missing[0], remedy=missing[1])


def _leak(evidence: Evidence) -> Decision:
    """``leaks``, or ``label leak`` where whoever knows the victim's label does as well.

    That is a null adversary, or the claims themselves on other victims of the label. Single victims are named
    within their label, so that one of them beats both.
    """
    above = [rung for rung in evidence.ladder if rung.knows == "label" and not rung.beaten]
    if evidence.share is not None and evidence.share.out:
        return Decision(verdict="leaks")
    if above:
        why = f"{above[0].name} does as well"
    elif evidence.ladder and evidence.by_label:
        why = "its claims are not shown to fit their own victims better than others of the same label"
    else:
        return Decision(verdict="leaks")
    return Decision(
        verdict="label leak",
        reason=f"{why}: the label came out, and no example is shown to",
        remedy="more victims, or an attack that rebuilds more than the class",
    )


def _missing(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """What "no leak found" lacks, the most important first: (reason, what would show it)."""
    if evidence.control is None:
        yield "no control shows that this attack works where it must", "running its control"
    if evidence.share is not None and evidence.share.out:
        out = f"{evidence.share.out} of {evidence.share.n}"
        yield f"the mean shows no leak, but {out} victims came out", "a look at the single victims"
    yield from _unscored(evidence)
    # The mean may hide a few victims, so it only comes after them.
    gains = [evidence.gain] if evidence.exchange is None else [evidence.gain, evidence.exchange]
    if min(gain.high for gain in gains) > small_gain(evidence.metric, evidence.null):
        yield BEYOND_SMALL, "more victims or seeds"
    if evidence.certificate is not None and (missing := _with_canaries(evidence).missing):
        yield missing, "more iterations or restarts, or a loss that tells private examples from others"
    # An upper bound on how many victims come out is what makes silence a statement.
    if evidence.share is None and evidence.ladder:
        yield f"single victims could not be judged ({evidence.why_no_share})", "more held-out examples"
    elif evidence.share is not None and evidence.share.most > evidence.share.margin:
        most, margin = (f"{100 * x:.0f} %" for x in (evidence.share.most, evidence.share.margin))
        units, n = evidence.share.units, evidence.share.n
        few = f" ({n} victims, of whom {units} are independent)" if 0 < units < n else ""
        yield (
            f"up to {most} of such victims could come out, {margin} are tolerated{few}",
            f"{evidence.share.needed} independent victims of whom none comes out",
        )
    # Silence of an attack that misses known leaks says nothing.
    if evidence.power is None:
        yield NOT_PLANTED, "planting known leaks in this cell"
    elif evidence.power.found < POWER * evidence.power.planted:
        found = f"{evidence.power.found} of {evidence.power.planted}"
        yield f"only {found} planted leaks were found", "a stronger attack, or more effort"
    if evidence.share is None:
        why = evidence.why_no_share or "no single examples"
        yield f"{UNBOUNDED} ({why})", "a metric that compares single examples"


def _unscored(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """What claims hold although no score of theirs says so."""
    if evidence.mixed_up_p <= ONE_SIDE:
        yield "its claims fit other victims than their own", "an attack that does not mix up its victims"
    # Of single examples this is asked form by form; of clients and labels only the sign can be turned round.
    if evidence.share is None and evidence.exchange is not None and evidence.exchange.high < 0:
        reason = "its claims fit their own victims worse than others, as only who knows them can"
        yield reason, "a look at what it claims, or the same attack with its answers turned round"
    if evidence.other_form:
        reason = f"its claims know their own victims in another form: {evidence.other_form}"
        yield reason, "a look at what it claims, or a metric that sees this form"
    if evidence.holds_copy:
        reason = "its claims hold a private example, though not each under its own name"
        yield reason, "a look at what it claims"


def _with_canaries(evidence: Evidence) -> Certificate:
    """The certificate; a loss that tells the canaries of this cell from others tells examples.

    Behind a defence the loss may not be able to: then no search can, and that is the defence's merit.
    """
    certificate, power = evidence.certificate, evidence.power
    assert certificate is not None
    return (
        certificate if power is None else replace(certificate, told_p=min(certificate.told_p, power.told_p))
    )


def small_gain(metric: Metric, null: float) -> float:
    """The largest negligible gain, in the metric's unit; see ``SMALL``."""
    size = SMALL.get(metric.unit, SMALL[""])
    relative = metric.unit == "" and not all(math.isfinite(end) for end in metric.range)
    return size * abs(null) if relative else size


BY_LUCK: Final = "among this many findings it would be expected by luck"


def settle(findings: Sequence[Finding], cards: Mapping[str, MetricCard]) -> tuple[Finding, ...]:
    """The findings of a run with their last word.

    What luck or the pixels explain is not shown to leak, and beside a leak by one metric of examples no other
    one of the same claims says "no leak found".

    Args:
        findings: of the whole run, with adjusted p-values (:func:`with_family`).
        cards: of their metrics, by name.
    """
    settled = tuple(_settled(finding, findings, cards) for finding in findings)
    leaking = {
        f.claim_key: cards[f.metric].label
        for f in settled
        if f.verdict in ("leaks", "contradiction") and _of_examples(f, cards)
    }
    return tuple(
        _beside_leak(f, leaking[f.claim_key]) if f.claim_key in leaking and _of_examples(f, cards) else f
        for f in settled
    )


def _of_examples(finding: Finding, cards: Mapping[str, MetricCard]) -> bool:
    return finding.metric in cards and cards[finding.metric].severity == "images"


def _beside_leak(finding: Finding, other: str) -> Finding:
    """The finding, whose claims leak by the metric ``other``: a silence by this one is none."""
    if finding.verdict not in ("no leak found", "not shown"):
        return finding
    reason, remedy = f"by {other} the same claims leak", "a look at what it claims"
    lacking = replace(finding, lacks=(*finding.lacks, reason))
    if finding.verdict == "not shown":
        return lacking
    return replace(lacking, verdict="not shown", reason=reason, remedy=remedy)


def _settled(finding: Finding, findings: Sequence[Finding], cards: Mapping[str, MetricCard]) -> Finding:
    if finding.verdict not in ("leaks", "label leak", "too alike"):
        return finding
    if finding.p_adjusted is not None and finding.p_adjusted >= ALPHA:
        return replace(
            finding, verdict="not shown", by_luck=True, reason=BY_LUCK, remedy="more victims or seeds"
        )
    denial = _denial(finding, findings, cards)
    if denial is None:
        return finding
    reason = f"by {cards[denial.metric].label} the same images are further from the original than a guess"
    return replace(
        finding, verdict="not shown", denied_by=denial.metric, reason=reason,
        remedy="more effort, until the pixels agree",
    )  # fmt: skip


def _denial(finding: Finding, findings: Sequence[Finding], cards: Mapping[str, MetricCard]) -> Finding | None:
    """For an image metric: a pixel metric (dB) of the same images that is worse than a guess.

    Recognition rates are never denied: they stand on their own.
    """
    card = cards.get(finding.metric)
    if card is None or card.severity != "images" or card.display != "plain":
        return None
    for other in findings:
        same = (other.scenario, other.cell, other.attack) == (finding.scenario, finding.cell, finding.attack)
        beside = cards.get(other.metric) if same and other.gain < 0 else None
        if beside is not None and beside.severity == "images" and beside.display == "level":
            return other
    return None
