"""The verdict in plain sentences, for someone who must decide whether to go on with a federation.

A sentence always carries the interval, what an adversary without the update reaches, how many units stand
behind it and how the number was chosen. "No power" never reads as "safe".
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, final

from glasshouse.audit.result import Finding, Refused, Result, Utility, Verdict
from glasshouse.report import numbers, words

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
    """Leaks before what could not be measured, before what stayed open, before silence; severe ones first."""
    return sorted(findings, key=lambda f: (ORDER.index(f.verdict), -severity(f)))


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
    given = f" It was given: {words.listed([words.plain(g) for g in finding.given])}." if finding.given else ""
    return tell[finding.verdict](finding) + given


def where(finding: Finding | Refused | Utility, *, capital: bool = True) -> str:
    """The setting of a finding: ``Without a defence (batch = 4)``, ``Under clip 4``."""
    text = f"under {words.under(finding.defenses)}" if finding.defenses else "without a defence"
    axes = words.setting(finding.axes)
    text += f" ({axes})" if axes else ""
    return text[0].upper() + text[1:] if capital else text


def basis(finding: Finding) -> str:
    """What stands behind a number: ``20 victims; 4 restarts, lowest loss of the attack``."""
    return "; ".join(part for part in (words.count(finding.n, finding.unit), finding.chosen) if part)


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
        return (
            "Private data leak",
            f"{counts['leaks']} of {words.count(total, 'measurements')} found a leak{place}. "
            f"{tried} {'was' if tried.startswith('1 ') else 'were'} run.",
        )
    if counts["no leak found"] == total:
        return (
            "No leak was found",
            f"{tried} ran in {words.count(total, 'measurements')}, each able to see one. "
            "That bounds these attacks, not every attack.",
        )
    parts = [f"{counts[k]} {k}" for k in ORDER if counts[k]]
    return (
        "This audit cannot tell",
        f"Of {words.count(total, 'measurements')}: {words.listed(parts)}. "
        "What could not be measured may still leak.",
    )


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
        cells.setdefault(where(finding, capital=False).removeprefix("under "), []).append(finding)
    told = []
    leaking = {name: f for name, fs in cells.items() if (f := worst_first(fs)[0]).verdict == "leaks"}
    worst = max(leaking.items(), key=lambda item: severity(item[1]), default=None)
    if worst and worst[1] is not first:
        strongest = worst[1]
        text = (
            f"{len(leaking)} of {words.count(len(cells), 'defended settings')} still "
            f"{'leaks' if len(leaking) == 1 else 'leak'}, most of all {worst[0]}: "
            f"{words.attack(strongest.attack)} {_said(strongest)}, {_over_null(strongest)}."
        )
        told.append(Sentence(kind="leaks", text=text))
    quiet = [name for name, fs in cells.items() if all(f.verdict == "no leak found" for f in fs)]
    if quiet:
        seen = max((_visible(f) for n in quiet for f in cells[n] if f.metric == first.metric), default=None)
        power = f"; a gain of {numbers.difference(seen, first.metric)} would have been seen" if seen else ""
        text = f"No attack that ran found a leak under {words.listed(quiet)}{power}."
        told.append(Sentence(kind="no leak found", text=text + _price(quiet, findings, utility)))
    elif cells:
        told.append(Sentence(kind="note", text="No defence here silenced every attack with certainty."))
    return told


def _price(quiet: Sequence[str], findings: Sequence[Finding], utility: Sequence[Utility]) -> str:
    """The silent setting that keeps the most utility, in a sentence."""
    ids = {f.cell for f in findings if where(f, capital=False).removeprefix("under ") in quiet}
    kept = [u for u in utility if u.cell in ids]
    if not kept:
        return ""
    best = max(kept, key=lambda u: u.value)
    name = where(best, capital=False).removeprefix("under ")
    plain = [u for u in utility if u.scenario == best.scenario and not u.defenses and u.axes == best.axes]
    plain = plain or [u for u in utility if u.scenario == best.scenario and not u.defenses]
    shown = f"{numbers.value(best.value, best.metric)} {numbers.interval(best.low, best.high, best.metric)}"
    beside = f"; without a defence {numbers.value(plain[0].value, plain[0].metric)}" if plain else ""
    return f" Cheapest of these: {name} (held-out {words.metric(best.metric).label} {shown}{beside})."


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
        f"{where(f)}, no leak was found by {words.attack(f.attack)}: {_value(f)}, {_over_null(f)} ({basis(f)}). "
        f"The audit could have seen a gain of {numbers.difference(_visible(f), f.metric, f.unit_of_value)}; "
        "a smaller one may hide."
    )


def _open(f: Finding) -> str:
    return (
        f"{where(f)}, it stays open whether {words.attack(f.attack)} finds a leak: {_value(f)}, {_over_null(f)} "
        f"({basis(f)}). More {f.unit} would narrow this."
    )


def _powerless(f: Finding) -> str:
    why = "the attack had no power here"
    if f.control and not f.control.passed:
        c = f.control
        if c.negative_low > 0:
            why = (
                "its negative control failed: it seemed to gain "
                f"{numbers.difference(c.negative, f.metric, f.unit_of_value)} from an update that has nothing "
                "to do with the victim"
            )
        else:
            why = (
                f"its positive control failed: in an easy setting ({c.setting}) it gained only "
                f"{numbers.bare(c.positive, f.metric)}{numbers.unit(f.metric, f.unit_of_value)} "
                f"(at least {numbers.bare(c.positive_low, f.metric)}; {words.count(c.n, f.unit)})"
            )
    return f"{where(f)}, nothing can be said about {words.attack(f.attack)}: {why}. This is no sign of safety."


def _value(f: Finding) -> str:
    """Metric, value and interval, as a noun: ``SSIM 0.12 [0.10, 0.15]``."""
    return (
        f"{words.metric(f.metric).label} {numbers.value(f.value, f.metric, f.unit_of_value)} "
        f"{numbers.interval(f.low, f.high, f.metric)}"
    )


def _said(f: Finding) -> str:
    """What the attack did, with value and interval."""
    shown = numbers.value(f.value, f.metric, f.unit_of_value)
    return words.metric(f.metric).said.format(f"{shown} {numbers.interval(f.low, f.high, f.metric)}")


def _over_null(f: Finding) -> str:
    """The gain against the null adversary: above it, or below it where smaller values leak."""
    above = (f.gain >= 0) == f.higher_leaks
    size = numbers.difference(f.gain, f.metric, f.unit_of_value)
    bounds = (f.gain_low, f.gain_high) if f.gain >= 0 else (-f.gain_high, -f.gain_low)
    return (
        f"{size} {numbers.interval(*bounds, f.metric)} {'above' if above else 'below'} an adversary that saw no "
        f"update ({words.plain(f.baseline)})"
    )


def _visible(f: Finding) -> float:
    """The smallest gain that this interval would have told from none: its lower half-width."""
    return f.gain - f.gain_low


def _quote_rank(finding: Finding) -> tuple[int, int]:
    return ORDER.index(finding.verdict), words.preference(finding.metric)
