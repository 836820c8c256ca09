"""The headline: the answer of the whole run in a few words, with its qualification."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import final

from glasshouse.report import words
from glasshouse.report.cards import KINDS, SEVERITIES, Cards
from glasshouse.report.verdicts import strength
from glasshouse.report.verdicts.choice import ORDER, Choice, kind_of
from glasshouse.report.verdicts.sentences import NOT_SAFE, where
from glasshouse.results.judgement import ONE_SIDE, OUT, expected_by_luck
from glasshouse.results.records import Finding, Result, Verdict


@final
@dataclass(frozen=True, kw_only=True)
class Answer:
    """The overall outcome of the run.

    Attributes:
        text: a few words.
        qualification: the sentences that qualify it.
        count: number of findings, and how many would lie above 0 by luck; empty without findings.
        kind: ``leaks`` if anything leaked, else the worst standing of a deciding finding; None if nothing
            was measured.
    """

    text: str
    qualification: str
    count: str
    kind: Verdict | None


def overall(result: Result, choice: Choice) -> Answer:
    """The answer in a few words, and the sentences that qualify it."""
    standings = [choice.standing(f) for f in choice.findings]
    attempts = words.count(len({f.attack for f in result.findings}), "attack")
    text, qualification = _answer(result, choice, standings, attempts)
    kind = min(standings, key=ORDER.index) if standings else None
    if kind not in (None, "contradiction") and choice.with_victims_out():
        kind = "leaks"
    if contradictions(result):
        kind = "contradiction"
    return Answer(text=text, qualification=qualification, count=_count(result, choice), kind=kind)


def facts(result: Result) -> list[tuple[str, str]]:
    """Date, auditor, scope and versions as (name, value); unknown ones are left out."""
    manifest = result.manifest
    packages = manifest.get("packages", {})
    torch = f", torch {packages['torch']}" if isinstance(packages, dict) and "torch" in packages else ""
    scope = [
        words.count(len({t.scenario for t in result.threats}), "scenario"),
        words.count(len({f.attack for f in result.findings}), "attack"),
        words.count(len({f.cell for f in result.findings}), "setting"),
    ]
    rows = [
        ("Date", _day(str(manifest.get("started", "")))),
        ("Auditor", str(manifest.get("auditor", "")) or "not named"),
        ("Scope", ", ".join(scope)),
        ("Versions", f"glasshouse {manifest['glasshouse']}{torch}" if "glasshouse" in manifest else ""),
    ]
    rows.append(("Register", registered(manifest.get("register"))))
    return [(name, text) for name, text in rows if text]


def registered(entry: object) -> str:
    """Which of how many audits of its scenario a run is, from its manifest; empty where it is not said.

    Only a register that shows a single audit of each scenario lets us say that nothing was selected.

    Examples:
        >>> registered({"kept": True, "scenarios": {"s": {"place": 3, "begun": 3, "others_ended": 1}}})
        'the 3rd of 3 audits of this scenario begun; of the other 2, 1 ended'
    """
    if not isinstance(entry, Mapping):
        return ""
    if not entry.get("kept"):
        return "none was kept, so nobody can say how often this was tried"
    counts = entry.get("scenarios")
    if not isinstance(counts, Mapping) or not counts:
        return ""
    worst = max(counts, key=lambda name: counts[name]["begun"])
    place, begun, ended = (int(counts[worst][key]) for key in ("place", "begun", "others_ended"))
    which = "this scenario" if len(counts) == 1 else "each scenario" if begun == 1 else f"'{worst}'"
    text = f"the {_ordinal(place)} of {words.count(begun, 'audits')} of {which} begun"
    if begun == 1:
        return f"{text}; nothing was selected afterwards"
    return f"{text}; of the other {begun - 1}, {ended} ended"


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number % 100 in (11, 12, 13) else ending}"


def _day(text: str) -> str:
    """A date in words; text that is not a date is returned unchanged."""
    try:
        day = datetime.fromisoformat(text)
    except ValueError:
        return text
    return f"{day.day} {day:%B %Y}"


def _answer(result: Result, choice: Choice, standings: Sequence[Verdict], attempts: str) -> tuple[str, str]:
    total = len(standings)
    if wrong := contradictions(result):
        refuted = any(one.refuted for one in result.proofs)
        return strength.WRONG_PROOF if refuted else strength.CONTRADICTION, " ".join(wrong)
    if total == 0:
        lead = f"{words.count(len(result.refusals), 'refusal')} below say why. " if result.refusals else ""
        return "Nothing was measured", f"No attack produced a finding about private data. {lead}{NOT_SAFE}"
    leaking = [f for f, s in zip(choice.findings, standings, strict=True) if s in OUT]
    if leaking:
        what = "Private data" if any(choice.standing(f) != "label leak" for f in leaking) else "Labels"
        return f"{what} came out", f"{_leak_sentence(leaking, total, result, choice)}; {attempts} ran."
    if out := choice.with_victims_out():
        return "Single victims' data came out", _single(out, choice)
    if standings.count("no leak found") == total:
        controlled = all(f.control is not None and f.control.passed for f in choice.findings)
        able = ", and the controls of every attack passed" if controlled else ""
        ran = f"{attempts} ran in {words.count(total, 'measurements')}{able}."
        return "No leak was found", f"{ran} That bounds these attacks, not every attack."
    parts = words.join_words([f"{standings.count(k)} {k}" for k in ORDER if k in standings])
    rest = "What could not be measured may still leak."
    if standings.count("not shown") == total:
        shows = f"Neither a leak nor its absence is shown in {words.count(total, 'measurements')}."
        return "This audit cannot tell", f"{shows} {rest}"
    if "too alike" in standings:
        return "Victims are too alike to say whose", (
            "What came out fits several victims, which are near-duplicates of each other. " + NOT_SAFE
        )
    return "This audit cannot tell", f"Of {words.count(total, 'measurements')}: {parts}. {rest}"


def contradictions(result: Result) -> list[str]:
    """Measurements that a claimed privacy guarantee rules out, and proofs that are wrong, in sentences."""
    cards = Cards.of(result)
    wrong = [
        f"{one.scenario}, {cards.attack(one.attack)}: {strength.proofs([one])}"
        for one in result.proofs
        if one.refuted
    ]
    return (
        wrong
        + [
            f"{where(f)}, {cards.attack(f.attack)}: {strength.bound(f, cards.metric(f.metric))}"
            for f in result.findings
            if f.bound is not None and f.bound.contradicted
        ]
        + [strength.epsilon(one) for one in result.epsilons if one.contradicted]
    )


def _single(out: Sequence[Finding], choice: Choice) -> str:
    """Whose data leaked when the average over victims shows nothing."""
    verdicts = choice.victims(out[0])
    who = f"{sum(v.leaks for v in verdicts)} of {words.count(len(verdicts), 'victims')}"
    candidates = [f for f in choice.findings if f.verdict != "no power" and choice.victims(f)]
    return (
        f"The average over all victims decides nothing, but {choice.cards.attack(out[0].attack)} got the "
        f"examples of {who}. {words.count(len(candidates), 'measurements')} judged victims one by one; "
        f"{len(out)} named somebody, corrected for the number of victims and of measurements."
    )


def _leak_sentence(leaking: Sequence[Finding], total: int, result: Result, choice: Choice) -> str:
    names = {t.scenario for t in result.threats} | {f.scenario for f in result.findings}
    several = f", in {len({f.scenario for f in leaking})} of {len(names)} scenarios" if len(names) > 1 else ""
    severities = [kind_of(f, choice.cards.metric(f.metric)) for f in leaking]
    kinds = words.join_words([f"{KINDS[s]} ({severities.count(s)})" for s in SEVERITIES if s in severities])
    noun = words.count(total, "measurements")
    described = all(f.metric in choice.cards.metrics for f in leaking)
    return f"{len(leaking)} of {noun} found a leak{several}" + (f": {kinds}" if described else "")


def _count(result: Result, choice: Choice) -> str:
    """Number of findings, how many would lie above 0 by luck, and the correction for it, in sentences."""
    n = len(result.findings)
    if not n:
        return ""
    expected = ONE_SIDE * n
    luck = f"{expected:.1f}" if expected < 10 else f"{expected:.0f}"
    text = (
        f"Of {words.count(n, 'findings')} in all, about {luck} would lie above 0 by luck if nothing leaked."
    )
    primary = sum(f.primary for f in choice.findings)
    lucky = sum(expected_by_luck(f) for f in choice.findings)
    if primary:
        text += (
            f" This answer rests on {words.count(primary, 'primary findings')}, one per attack and kind of "
            "claim, chosen before the run and corrected for their number."
        )
    if lucky:
        verb = "lies" if lucky == 1 else "lie"
        text += f" {lucky} of these {verb} above 0 but would be expected by luck."
    return text
