"""The headline: the answer of the whole run in a few words, with its qualification."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import final

from glasshouse.report import words
from glasshouse.report.cards import KINDS, SEVERITIES
from glasshouse.report.readings import ORDER, Reading, Readings
from glasshouse.report.verdicts.sentences import CONTRADICTION, NOT_SAFE, WRONG_PROOF, contradictions
from glasshouse.results.judgement import ONE_SIDE, OUT, expected_by_luck, these_weights
from glasshouse.results.records import Result, Verdict


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


def overall(readings: Readings) -> Answer:
    """The answer in a few words, and the sentences that qualify it."""
    verdicts = [r.finding.verdict for r in readings.deciding]
    wrong = contradictions(readings)
    text, qualification = _answer(readings, wrong)
    kind = min(verdicts, key=ORDER.index) if verdicts else None
    if kind not in (None, "contradiction") and readings.named:
        kind = "leaks"
    if wrong:
        kind = "contradiction"
    return Answer(text=text, qualification=qualification, count=_count(readings), kind=kind)


def facts(result: Result) -> list[tuple[str, str]]:
    """Date, auditor, scope and versions as (name, value); unknown ones are left out."""
    manifest = result.manifest
    packages = manifest.get("packages", {})
    torch = f", torch {packages['torch']}" if isinstance(packages, dict) and "torch" in packages else ""
    day, register = _day(str(manifest.get("started", ""))), registered(manifest.get("register"))
    whole = manifest.get("cpu_seconds_of_the_whole_run")
    scope = [
        words.count(len({t.scenario for t in result.threats}), "scenario"),
        words.count(len({f.attack for f in result.findings}), "attack"),
        words.count(len({f.cell for f in result.findings}), "setting"),
    ]
    rows = [
        ("Date", day),
        ("Auditor", str(manifest.get("auditor", "")) or "not named"),
        ("Scope", ", ".join(scope)),
        ("Versions", f"glasshouse {manifest['glasshouse']}{torch}" if "glasshouse" in manifest else ""),
        ("Register", register),
        ("Computed in", f"{whole:.0f} CPU seconds of the whole run" if whole is not None else ""),
    ]
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


def _answer(readings: Readings, wrong: Sequence[str]) -> tuple[str, str]:
    """The answer and what qualifies it, from the worst case to the best.

    Args:
        readings: of the result.
        wrong: what a guarantee rules out and proofs that are wrong, in sentences.
    """
    deciding, verdicts = readings.deciding, [r.finding.verdict for r in readings.deciding]
    # A guarantee or a proof that turned out wrong outranks whatever leaked.
    if wrong:
        refuted = any(one.refuted for one in readings.result.proofs)
        return WRONG_PROOF if refuted else CONTRADICTION, " ".join(wrong)
    if not deciding:
        refused = len(readings.result.refusals)
        lead = f"{words.count(refused, 'refusal')} below say why. " if refused else ""
        return "Nothing was measured", f"No attack produced a finding about private data. {lead}{NOT_SAFE}"

    total = words.count(len(deciding), "measurements")
    attempts = words.count(len({r.finding.attack for r in readings.every}), "attack")
    # One leak is an answer, however many other measurements are silent.
    leaking = [r for r in deciding if r.finding.verdict in OUT]
    if leaking:
        what = "Private data" if any(r.finding.verdict != "label leak" for r in leaking) else "Labels"
        return f"{what} came out", f"{_leak_sentence(leaking, readings)}; {attempts} ran."
    if readings.named:
        return "Single victims' data came out", _single(readings.named, deciding)

    # The absence of a leak is said only where every deciding measurement shows it.
    if set(verdicts) == {"no leak found"}:
        controls = [r.finding.control for r in deciding]
        controlled = all(control is not None and control.passed for control in controls)
        able = ", and the controls of every attack passed" if controlled else ""
        ran = f"{attempts} ran in {total}{able}."
        few = [these_weights(f.draws, of_clients=f.unit == "clients") for f in (r.finding for r in deciding)]
        weights = " on these weights" if any(few) else ""
        return "No leak was found", f"{ran} That bounds these attacks{weights}, not every attack."
    # The rest is doubt: say of which kind.
    rest = "What could not be measured may still leak."
    if set(verdicts) == {"not shown"}:
        shows = f"Neither a leak nor its absence is shown in {total}."
        return "This audit cannot tell", f"{shows} {rest}"
    if "too alike" in verdicts:
        return "Victims are too alike to say whose", (
            "What came out fits several victims, which are near-duplicates of each other. " + NOT_SAFE
        )
    parts = words.join_words([f"{verdicts.count(kind)} {kind}" for kind in ORDER if kind in verdicts])
    return "This audit cannot tell", f"Of {total}: {parts}. {rest}"


def _single(out: Sequence[Reading], deciding: Sequence[Reading]) -> str:
    """Whose data leaked when the average over victims shows nothing."""
    most = out[0]
    judged = sum(r.finding.verdict != "no power" and bool(r.victims) for r in deciding)
    return (
        f"The average over all victims decides nothing, but {most.attack} got the examples of "
        f"{most.reached} of {most.jury}. {words.count(judged, 'measurements')} judged victims one by one; "
        f"{len(out)} named somebody, corrected for the number of victims and of measurements."
    )


def _leak_sentence(leaking: Sequence[Reading], readings: Readings) -> str:
    """How many measurements found a leak, in how many scenarios, of which kinds."""
    result, noun = readings.result, words.count(len(readings.deciding), "measurements")
    names = {t.scenario for t in result.threats} | {f.scenario for f in result.findings}
    leaky = {r.finding.scenario for r in leaking}
    several = f", in {len(leaky)} of {len(names)} scenarios" if len(names) > 1 else ""
    kinds = [r.kind for r in leaking]
    listed = words.join_words([f"{KINDS[k]} ({kinds.count(k)})" for k in SEVERITIES if k in kinds])
    described = all(r.finding.metric in readings.cards.metrics for r in leaking)
    return f"{len(leaking)} of {noun} found a leak{several}" + (f": {listed}" if described else "")


def _count(readings: Readings) -> str:
    """Number of findings, how many would lie above 0 by luck, and the correction for it, in sentences."""
    n = len(readings.every)
    if not n:
        return ""
    expected = ONE_SIDE * n
    luck = f"{expected:.1f}" if expected < 10 else f"{expected:.0f}"
    text = (
        f"Of {words.count(n, 'findings')} in all, about {luck} would lie above 0 by luck if nothing leaked."
    )
    primary = sum(r.finding.primary for r in readings.deciding)
    lucky = sum(expected_by_luck(r.finding) for r in readings.deciding)
    if primary:
        text += (
            f" This answer rests on {words.count(primary, 'primary findings')}, one per attack and kind of "
            "claim, chosen before the run and corrected for their number."
        )
    if lucky:
        verb = "lies" if lucky == 1 else "lie"
        text += f" {lucky} of these {verb} above 0 but would be expected by luck."
    return text
