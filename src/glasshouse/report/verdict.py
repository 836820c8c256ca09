"""The verdict in plain sentences, for someone who must decide whether to go on with a federation.

A sentence always carries the interval, what an adversary without the update reaches, how many units stand
behind it and how the number was chosen. "No power" never reads as "safe".
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, final

from glasshouse.report import numbers, readings, words
from glasshouse.results.records import Control, Finding, Refused, Result, Utility, Verdict

ORDER: Final[tuple[Verdict, ...]] = ("leaks", "no power", "inconclusive", "no leak found")


@final
@dataclass(frozen=True, kw_only=True)
class Sentence:
    """One statement of the verdict and the kind of news it is; ``kind`` is a verdict or ``note``."""

    kind: str
    text: str


@final
@dataclass(frozen=True, kw_only=True)
class Story:
    """What is to be said about one scenario, the worst first."""

    scenario: str
    kind: Verdict | None
    severity: float
    sentences: tuple[Sentence, ...]


def severity(finding: Finding) -> float:
    """How much of the way from the null adversary to a perfect copy the attack went; 1 is all of it.

    Comparable across metrics, which gains are not: used to order, never printed. For decibels it is the
    share of the null's squared error that is gone; without a known end of the scale it is the gain itself.
    """
    if finding.unit_of_value == "dB" or words.metric(finding.metric).kind == "level":
        return float(1 - 10 ** (-finding.gain / 10))
    reach = 1 - finding.baseline_value if finding.higher_leaks else finding.baseline_value
    return finding.gain / reach if reach > 1e-9 else finding.gain


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Leaks before what could not be measured, before what stayed open, before silence; severe ones first.

    A leak of labels comes after every leak of examples, however complete it is.
    """
    return sorted(findings, key=lambda f: (ORDER.index(f.verdict), f.metric in words.MINOR, -severity(f)))


def quoted(findings: Iterable[Finding]) -> list[Finding]:
    """One finding per attack and cell: the one whose metric is quoted first.

    A leak in any metric is a leak: metrics in which the attack leaks come before those in which it does not.
    """
    best: dict[tuple[str, ...], Finding] = {}
    for finding in findings:
        key = (finding.scenario, finding.cell, words.under(finding.defenses), finding.attack, finding.about)
        old = best.get(key)
        if old is None or _quote_rank(finding) < _quote_rank(old):
            best[key] = finding
    return list(best.values())


def headline(findings: Iterable[Finding]) -> Finding | None:
    """The finding to name when only one can be named."""
    return next(iter(worst_first(quoted(findings))), None)


def sentence(finding: Finding) -> str:
    """A finding in words.

    Names the setting, the attack, the value and its interval, the gain over the null with its interval, the
    units, how it was chosen and what was given.
    """
    tell = {"leaks": _leaks, "no leak found": _silent, "inconclusive": _open, "no power": _powerless}
    given = words.grants(finding.given)
    return tell[finding.verdict](finding) + (f" It was given: {given}." if given else "")


def where(finding: Finding | Refused | Utility, *, capital: bool = True) -> str:
    """The setting of a finding: ``Without a defence (batch = 4)``, ``Under clip 4``."""
    name = words.protection(finding.defenses, finding.axes)
    text = f"under {name}" if finding.defenses else "without a defence"
    axes = words.setting(finding.axes)
    text += f" ({axes})" if axes else ""
    return text[0].upper() + text[1:] if capital else text


def basis(finding: Finding) -> str:
    """What stands behind a number: ``null: prior mean; 20 victims; 4 restarts, lowest loss``."""
    parts = (f"null: {words.plain(finding.baseline)}", words.count(finding.n, finding.unit), finding.chosen)
    return "; ".join(part for part in parts if part)


def overall(result: Result) -> tuple[str, str]:
    """The answer in a few words, and the sentence that qualifies it."""
    counts = {kind: sum(f.verdict == kind for f in quoted(result.findings)) for kind in ORDER}
    total = sum(counts.values())
    tried = words.count(len({f.attack for f in result.findings}), "attack")
    if total == 0:
        lead = f"{words.count(len(result.refusals), 'refusal')} below say why. " if result.refusals else ""
        return "Nothing was measured", f"No attack produced a finding. {lead}This is no sign of safety."
    if counts["leaks"]:
        leaking = len({f.scenario for f in result.findings if f.verdict == "leaks"})
        of = len(scenarios(result))
        place = "" if of == 1 else f", in {leaking} of {words.count(of, 'scenarios')}"
        found = f"{counts['leaks']} of {words.count(total, 'measurements')} found a leak{place}"
        return "Private data came out", f"{found}; {tried} ran."
    if counts["no leak found"] == total:
        ran = f"{tried} ran in {words.count(total, 'measurements')}, each able to see one."
        return "No leak was found", f"{ran} That bounds these attacks, not every attack."
    parts = words.listed([f"{counts[k]} {k}" for k in ORDER if counts[k]])
    rest = "What could not be measured may still leak."
    return "This audit cannot tell", f"Of {words.count(total, 'measurements')}: {parts}. {rest}"


def scenarios(result: Result) -> list[str]:
    """Names of the scenarios in the order of the suite."""
    rows = (result.threats, result.findings, result.refusals, result.utility, result.exhibits)
    return list(dict.fromkeys(row.scenario for group in rows for row in group))


def stories(result: Result) -> list[Story]:
    """What is to be said, scenario by scenario, the worst first."""
    told = [_story(result, name) for name in scenarios(result)]
    return sorted(told, key=lambda s: (ORDER.index(s.kind) if s.kind else len(ORDER), -s.severity))


def _story(result: Result, name: str) -> Story:
    findings = quoted(f for f in result.findings if f.scenario == name)
    refusals = [r for r in result.refusals if r.scenario == name]
    top = headline(findings)
    told: list[Sentence] = []
    if top is None:
        told.append(Sentence(kind="note", text="Nothing was measured here. This is no sign of safety."))
    else:
        bare = headline(f for f in findings if not f.defenses)
        first = bare if bare is not None and bare.verdict == top.verdict else top
        told.append(Sentence(kind=first.verdict, text=sentence(first)))
        if bare is not None and bare is not first:
            told.append(Sentence(kind=bare.verdict, text=sentence(bare)))
        told += _defended([f for f in findings if f.defenses], result.utility, first)
        told += _unpowered(findings, first)
    if refusals:
        subjects = list(dict.fromkeys(r.subject for r in refusals))
        told.append(Sentence(kind="note", text=f"Could not run: {words.listed(subjects)}; reasons below."))
    return Story(
        scenario=name,
        kind=top.verdict if top else None,
        severity=severity(top) if top else 0.0,
        sentences=tuple(told),
    )


def _defended(findings: Sequence[Finding], utility: Sequence[Utility], first: Finding) -> list[Sentence]:
    """What the defences changed: which still leak and how badly, which fell silent, what that costs."""
    cells: dict[str, list[Finding]] = {}
    for finding in findings:
        cells.setdefault(_cell(finding), []).append(finding)
    powered = {name: [f for f in fs if f.verdict != "no power"] for name, fs in cells.items()}
    leaking = {name: f for name, fs in cells.items() if (f := worst_first(fs)[0]).verdict == "leaks"}
    quiet = [name for name, fs in powered.items() if fs and all(f.verdict == "no leak found" for f in fs)]
    still_open = {
        name: fs for name, fs in powered.items() if fs and name not in leaking and name not in quiet
    }
    told = []
    worst = next(iter(worst_first(leaking.values())), None)
    if worst and worst is not first:
        text = (
            f"{len(leaking)} of {words.count(len(cells), 'defended settings')} still "
            f"{'leaks' if len(leaking) == 1 else 'leak'}, most of all {_cell(worst)}: "
            f"{words.attack(worst.attack)} {_said(worst)}, {_over_null(worst)} ({basis(worst)})."
        )
        told.append(Sentence(kind="leaks", text=text))
    if any(f is not first for fs in still_open.values() for f in fs):
        unsure = [
            words.attack(f.attack) for fs in still_open.values() for f in fs if f.verdict == "inconclusive"
        ]
        text = f"It stays open under {_few(list(still_open))}: the interval of {_few(unsure)} is too wide."
        told.append(Sentence(kind="inconclusive", text=text))
    if quiet and not all(f is first for n in quiet for f in powered[n]):
        told.append(_quiet(quiet, [f for n in quiet for f in powered[n]], utility))
    return told


def _quiet(names: Sequence[str], findings: Sequence[Finding], utility: Sequence[Utility]) -> Sentence:
    """Where nothing was found, how small a gain would have been seen there, and what is cheapest."""
    metric = min((f.metric for f in findings), key=words.preference)
    dullest = max((f for f in findings if f.metric == metric), key=lambda f: f.gain - f.gain_low)
    text = (
        f"No leak was found under {_few(names)}; the audit could have seen a gain of "
        f"{readings.read(dullest).visible} in {words.metric(metric).label}."
    )
    return Sentence(kind="no leak found", text=text + _price(findings, utility))


def _price(quiet: Sequence[Finding], utility: Sequence[Utility]) -> str:
    """The silent setting that keeps the most utility, in a sentence."""
    kept = [u for u in utility if u.cell in {f.cell for f in quiet}]
    if not kept:
        return ""
    best = max(kept, key=lambda u: u.value)
    plain = [u for u in utility if u.scenario == best.scenario and not u.defenses and u.axes == best.axes]
    plain = plain or [u for u in utility if u.scenario == best.scenario and not u.defenses]
    beside = f"; {readings.utility(plain[0])} without a defence" if plain else ""
    label = words.metric(best.metric).label
    name = where(best, capital=False).removeprefix("under ")
    few = "" if len({_cell(f) for f in quiet}) == 1 else f" Cheapest of these is {name}:"
    return f"{few or ' It keeps'} {readings.utility(best)} held-out {label}{beside}."


def _cell(f: Finding) -> str:
    return where(f, capital=False).removeprefix("under ")


def _few(names: Sequence[str]) -> str:
    """Names once each; of many, the first three and how many more."""
    once = list(dict.fromkeys(names))
    return words.listed(once if len(once) <= 4 else [*once[:3], f"{len(once) - 3} more"])


def _unpowered(findings: Sequence[Finding], first: Finding) -> list[Sentence]:
    """Attacks whose control failed, which the first sentence did not name."""
    names = list(
        dict.fromkeys(words.attack(f.attack) for f in findings if f.verdict == "no power" and f is not first)
    )
    if not names:
        return []
    text = f"Nothing can be said about {words.listed(names)}: a control failed. This is no sign of safety."
    return [Sentence(kind="no power", text=text)]


def _leaks(f: Finding) -> str:
    return f"{where(f)}, {words.attack(f.attack)} {_said(f)}, {_over_null(f)} ({basis(f)})."


def _silent(f: Finding) -> str:
    return (
        f"{where(f)}, no leak was found by {words.attack(f.attack)}: {_value(f)}, {_over_null(f)} "
        f"({basis(f)}). The audit could have seen a gain of {readings.read(f).visible}; "
        "a smaller one may hide."
    )


def _open(f: Finding) -> str:
    return (
        f"{where(f)}, it stays open whether {words.attack(f.attack)} finds a leak: {_value(f)}, "
        f"{_over_null(f)} ({basis(f)}). More {f.unit} would narrow this."
    )


def _powerless(f: Finding) -> str:
    why = (
        _failure(f.control, f.unit) if f.control and not f.control.passed else "the attack had no power here"
    )
    return (
        f"{where(f)}, nothing can be said about {words.attack(f.attack)}: {why}. This is no sign of safety."
    )


def _failure(c: Control, unit: str) -> str:
    """Which control failed; its numbers are in the control's own metric."""
    in_metric = f" in {words.metric(c.metric).label}" if c.metric else ""
    if c.positive is None or c.positive_low is None or c.negative is None or c.negative_low is None:
        return f"its controls failed: it claimed nothing in an easy setting ({c.setting})"
    if c.negative_low > 0:
        gained = numbers.difference(c.negative, c.metric) + in_metric
        return (
            f"its negative control failed: it seemed to gain {gained} from an update that has nothing to do "
            "with the victim"
        )
    gained = numbers.bare(c.positive, c.metric) + numbers.unit(c.metric)
    return (
        f"its positive control failed: in an easy setting ({c.setting}) it gained only {gained}{in_metric}, "
        f"at least {numbers.bare(c.positive_low, c.metric)} ({words.count(c.n, unit)})"
    )


def _value(f: Finding) -> str:
    """Metric, value and interval, as a noun: ``SSIM 0.12 [0.10, 0.15]``."""
    reading = readings.read(f)
    return f"{words.metric(f.metric).label} {reading.value} {reading.interval}"


def _said(f: Finding) -> str:
    """What the attack did, with value and interval."""
    reading = readings.read(f)
    return words.metric(f.metric).said.format(f"{reading.value} {reading.interval}")


def _over_null(f: Finding) -> str:
    """The gain against the null adversary: above it, or below it where smaller values leak."""
    above = (f.gain >= 0) == f.higher_leaks
    reading = readings.read(f)
    side = "above" if above else "below"
    return f"{reading.size} {reading.size_interval} {side} an adversary that saw no update"


def _quote_rank(finding: Finding) -> tuple[int, int]:
    return ORDER.index(finding.verdict), words.preference(finding.metric)
