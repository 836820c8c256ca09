"""Each leak in at most 70 plain words, with a remedy; scenarios without one in a line."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from glasshouse.report import numbers, readings, words
from glasshouse.report.cards import ACCURACY, SEVERITIES
from glasshouse.report.first_screen.matrix import ACTS, EXAMPLES, READS, threat_of
from glasshouse.report.verdicts.choice import Choice, kind_of, severity
from glasshouse.report.verdicts.sentences import condition, place
from glasshouse.report.verdicts.stories import Story
from glasshouse.results.cards import ThreatCard
from glasshouse.results.judgement import OUT
from glasshouse.results.records import TAMPERED, Finding, Result, Utility, Verdict
from glasshouse.results.rows import grouped
from glasshouse.results.vocabulary import SEES

CHEAP: Final = 0.02
"""Largest loss of accuracy for which no cheaper setting is suggested."""
NAMED: Final = 4
"""Most defences that a card names."""
SHORT: Final = 5
"""Side knowledge is spelled out if it has fewer words than this."""
SOME_DEFENCE: Final = "limit each update's size and add noise"
WHO: Final = {
    READS: "the server, only reading what clients send",
    ACTS: "the server, manipulating what it sends",
}
"""Who attacked, as the subject of a sentence; others are named as in the matrix."""
SOURCES: Final = {"update": "single updates", "aggregate": "sums of updates"}
"""What data came out of, by what the attacker sees; the first that applies."""
SCALE: Final[Mapping[str, tuple[int, str, str]]] = {
    "images": (4, "whole examples", "What a person gave is seen as it is."),
    "membership": (3, "who takes part", "That alone can be the secret: a patient, a member."),
    "descriptions": (
        3,
        "inner descriptions of examples",
        "Numbers that the model computes of one example: not what a person gave, but a likeness may follow.",
    ),
    "labels": (2, "labels", "One answer per example, such as a diagnosis."),
    "other": (1, "facts about the group", "They name nobody, and still tell on a site."),
}
"""Kind of private data → severity, its name, why. Only the kind decides: how much came out, the bar says."""
ALSO: Final = {
    "images": "examples",
    "membership": "who takes part",
    "descriptions": "inner descriptions",
    "labels": "labels",
    "other": "other facts",
}
QUIET: Final[Mapping[Verdict | None, str]] = {
    "leaks": "",
    "contradiction": "More came out than the guarantee allows. Next, check that the clients really run it.",
    "no leak found": "No leak was found. Next, audit with stronger attacks and more victims.",
    "label leak": "",
    "too alike": "Victims are too alike to say whose data came out. Next, audit victims that differ.",
    "not shown": "No leak is shown, nor its absence.",
    "no power": "Nothing can be said: the attack failed where it must succeed.",
    None: "Nothing about private data was measured. Next, choose an attack that fits.",
}


GLOSSARY: Final = (
    ("Guessing", "what anybody reaches who never saw what the clients sent. Only what exceeds it is a leak."),
    ("A range such as (59 to 83)", "holds the true value in 95 of 100 such audits."),
    ("Update", "what a client sends to the server instead of its data. Sums of updates hide whose is whose."),
    ("Example, victim", "one picture or record of a client; whose example or behaviour an attack aimed at."),
    ("Defence", "a change to what a client sends. It closed a leak if the same attack then gains nothing."),
    ("Accuracy", "how often the finished model is right on new examples."),
)
"""Glossary of the first screen: (term, explanation)."""


@final
@dataclass(frozen=True, kw_only=True)
class Leak:
    """One kind of private data that leaked in one scenario.

    Attributes:
        finding: the worst finding of this kind.
        severity: 1 to 4, by :data:`SCALE`.
        severe: what stands for that severity, in words.
        scenario: name of the scenario.
        setting: defence, other axes and participants.
        title: what came out, in numbers.
        what: who got it and how, and what guessing gets.
        whose: whose data leaked.
        action: the cheapest audited setting that closed the leak, with its cost; or that none did.
        advice: the next setting to try.
    """

    finding: Finding
    severity: int
    severe: str
    scenario: str
    setting: str
    title: str
    what: str
    whose: str
    action: str
    advice: str

    @property
    def text(self) -> str:
        """All text except the headings: at most 70 words."""
        return " ".join([self.what, self.whose, self.action, self.advice])


@final
@dataclass(frozen=True, kw_only=True)
class Setting:
    """A defended setting of the leak's scenario: its effect on the leak, and its cost.

    ``left``: remaining gain of the leak's attack; ``accuracy``: None if it was not measured; ``others``:
    other kinds of private data that still come out in this setting.
    """

    finding: Finding
    state: Verdict
    left: float
    accuracy: Utility | None
    others: tuple[str, ...] = ()

    @property
    def family(self) -> tuple[str, ...]:
        """Names of the defences without their strengths."""
        return tuple(text.split(" ")[0] for text in self.finding.defenses)


def leaks(result: Result, choice: Choice) -> list[Leak]:
    """Leaks, one per scenario and kind: images, membership, labels, other; most complete first."""
    out = choice.with_victims_out()

    def kind(f: Finding) -> tuple[int, str]:
        return SEVERITIES.index(kind_of(f, choice.cards.metric(f.metric))), f.scenario

    leaking = [f for f in choice.findings if choice.standing(f) in ("leaks", "label leak") or f in out]
    groups = grouped(leaking, kind).values()
    worst = [choice.worst_first([f for f in group if not f.defenses] or group)[0] for group in groups]
    ranked = sorted(worst, key=lambda f: (kind(f)[0], -severity(f, choice.cards.metric(f.metric))))
    return [_leak(f, result, choice) for f in ranked]


def quiet(stories: Iterable[Story], leak_list: Sequence[Leak], choice: Choice) -> list[tuple[Story, str]]:
    """Scenarios without a leak, each with its outcome and the next step."""
    leaking = {leak.scenario for leak in leak_list}
    rest = [story for story in stories if story.scenario not in leaking]
    return [(story, _quiet(story, choice.of(story.scenario))) for story in rest]


def _quiet(story: Story, choice: Choice) -> str:
    """The outcome of one scenario, with its number where more work may change it, and what work."""
    text, worst = QUIET[story.kind], choice.worst()
    if worst is None or story.kind not in ("not shown", "no power"):
        return text
    if story.kind == "not shown":
        reading, metric = readings.read(worst, choice.cards), choice.cards.metric(worst.metric)
        span = reading.interval.strip("[]").replace(", ", " to ")
        text = (
            f"{text} {choice.cards.attack(worst.attack)} reached {metric.label} {reading.value} ({span}) "
            f"over {words.count(worst.n, worst.unit)}, where {words.guesser(worst.baseline)} gets "
            f"{reading.baseline}."
        )
    return f"{text} Next: {worst.remedy or 'more victims, and more effort of the attack'}."


def explain(result: Result, leak_list: Sequence[Leak]) -> list[tuple[str, str]]:
    """The defences named in the leaks' texts as (label, explanation)."""
    text = " ".join(leak.text for leak in leak_list)
    does = {name: what for card in result.threats for name, what in card.defenses.items()}
    rows = {}
    for f in result.findings:
        label, names = place(f).partition(" (")[0], [d.split(" ")[0] for d in f.defenses]
        if f.defenses and label in text and any(name in does for name in names):
            rows[label] = "; ".join(does[name] for name in names if name in does)
    return list(rows.items())


def _leak(f: Finding, result: Result, choice: Choice) -> Leak:
    card = next((t for t in result.threats if t.scenario == f.scenario), None)
    kind = kind_of(f, choice.cards.metric(f.metric))
    action, advice = _remedy(f, list(_settings(f, result, choice)), result, card)
    return Leak(
        finding=f,
        severity=SCALE[kind][0],
        severe=SCALE[kind][1],
        scenario=f.scenario,
        setting="; ".join(part for part in (condition(f, capital=False), card.setup if card else "") if part),
        title=_title(f, choice, card),
        what=_what(f, choice, card),
        whose=_whose(f, choice),
        action=action,
        advice=advice,
    )


def _title(f: Finding, choice: Choice, card: ThreatCard | None) -> str:
    """What came out, in numbers: "8 of 8 pictures rebuilt from single updates"."""
    things = card.things if card and card.things in EXAMPLES else "examples"
    seen = [text for part, text in SOURCES.items() if card and SEES[part] in card.sees]
    source = f" from {seen[0]}" if seen else ""
    if choice.standing(f) not in OUT:
        verdicts = choice.victims(f)
        return f"{sum(v.leaks for v in verdicts)} of {len(verdicts)} {things} recognised{source}"
    if f.verdict == "label leak":
        return f"Labels read{source}"
    metric, counted = choice.cards.metric(f.metric), f.hits is not None and f.scored is not None
    share = f"{f.hits} of {f.scored}" if counted else readings.read(f, choice.cards).value
    if metric.headline:
        text = metric.headline.replace(
            "{}", f"{share} {things}" if counted else f"{share} of the {things}", 1
        )
    else:
        # "read {} of the words" becomes "16 of 16 words" where hits were counted; explanations are cut.
        text = re.sub(r"(?<=\{\}) of (the )?", " ", metric.sentence) if counted else metric.sentence
        text = re.sub(r"; [^()]*(?=\))", "", text.replace("{}", share, 1))
    return f"{text[0].upper()}{text[1:]}{source}"


def _what(f: Finding, choice: Choice, card: ThreatCard | None) -> str:
    """Who achieved what, and what a guess gets; of a label leak, that the label is all that is shown."""
    reading, metric = readings.read(f, choice.cards), choice.cards.metric(f.metric)
    threat = threat_of(card) if card else "an attack"
    knowledge = words.grants(f.given)
    side = f", given {knowledge if knowledge.count(' ') < SHORT else 'side knowledge (listed below)'}"
    who = WHO.get(threat, threat) + (side if knowledge else "")
    if f.verdict == "label leak":
        text = (
            f"{who} learnt the labels. {choice.cards.attack(f.attack)} also claimed the examples; "
            "whoever knows the labels alone does as well, so no example is shown to have come out."
        )
        return text[0].upper() + text[1:]
    deed = metric.sentence.replace("{}", reading.value, 1)
    guesser = words.guesser(f.baseline)
    guess = f"{guesser[0].upper()}{guesser[1:]} gets {reading.baseline}."
    text = f"{who}{',' if ',' in who else ''} {deed}. {guess}"
    return text[0].upper() + text[1:]


def _whose(f: Finding, choice: Choice) -> str:
    """Whose data came out: a count of victims, or that it was not judged one by one."""
    verdicts = choice.victims(f)
    count, total = sum(v.leaks for v in verdicts), len(verdicts)
    if not count:
        return f"Whose: {words.count(f.n, f.unit)} counted together; none was judged alone."
    victims = words.count(total, "victims")
    if count == total > 1:
        return f"Whose: beyond chance for all {victims}, each judged alone."
    return f"Whose: beyond chance for {count} of {victims}, each judged alone."


def _settings(f: Finding, result: Result, choice: Choice) -> Iterator[Setting]:
    """Defended settings comparable with the leak: same scenario, protocol and other axes."""
    kind, out = choice.cards.metric(f.metric).severity, choice.with_victims_out()
    beside = [
        g
        for g in choice.findings
        if (g.scenario, g.protocol, words.setting(g.axes)) == (f.scenario, f.protocol, words.setting(f.axes))
        and g.defenses
        and g.cell != f.cell
        and choice.cards.metric(g.metric).severity == kind
    ]
    for cell, in_cell in grouped(beside, lambda g: g.cell).items():
        others = [g for g in choice.findings if g.cell == cell and (g.verdict in OUT or g in out)]
        kinds = {kind_of(g, choice.cards.metric(g.metric)) for g in others} - {kind}
        same = [g for g in in_cell if (g.attack, g.metric) == (f.attack, f.metric)]
        standings = {choice.standing(g) for g in in_cell if g.verdict != "no power"}
        state: Verdict = "not shown"
        if standings & set(OUT) or any(g in out for g in in_cell):
            state = "leaks"
        elif standings == {"no leak found"} and any(g.verdict != "no power" for g in same):
            state = "no leak found"
        left = max((g.gain for g in same), default=float("inf"))
        yield Setting(
            finding=in_cell[0],
            state=state,
            left=left,
            accuracy=_accuracy(result, cell),
            others=tuple(ALSO[k] for k in SEVERITIES if k in kinds),
        )


def _remedy(
    f: Finding, settings: Sequence[Setting], result: Result, card: ThreatCard | None
) -> tuple[str, str]:
    """The cheapest setting that closed the leak, and the next one to try, in sentences."""
    by_state = grouped(settings, lambda s: s.state)
    if closed := by_state.get("no leak found"):
        best = max(closed, key=_rank)
        before = _accuracy(result, f.cell)
        cost, loss = _cost(best, before)
        action = f"Use {_in_words(best, card)}: it closed this leak{_but(best)}; {cost}."
        if best.accuracy and readings.at_chance(best.accuracy):
            action = f"Only {_in_words(best, card)} closed it, but the model is then of no use: {cost}."
        weaker = [s for s in by_state.get("leaks", ()) if s.family == best.family]
        if loss is not None and loss <= CHEAP:
            return action, f"Next, audit {_name(best)} with stronger attacks and more victims."
        if weaker:
            nearest = min(weaker, key=lambda s: s.left)
            return action, f"Next, try a strength between {_name(nearest)} and {_name(best)}."
        return action, f"Next, weaken {_name(best)}: that may cost less."
    if not settings:
        advice = f"Next, {(card.advice if card else '') or SOME_DEFENCE}."
        if f.defenses:
            return f"It came out despite {words.protection(f.defenses, f.axes)}.", advice
        return "No defence was tried against it.", advice
    outcome = _outcome(f, settings, shown="not shown" not in by_state)
    if unsure := by_state.get("not shown"):
        best = max(unsure, key=_rank)
        if best.others:
            # What leaks something else in the table below is no remedy, whatever more victims would show.
            also = words.join_words(best.others)
            return outcome, f"Next, strengthen {_name(best)}: {also} still came out there."
        return outcome, f"Next, audit {_name(best)} with more victims: it may close it."
    if f.defenses and f.gain <= min(s.left for s in settings):
        return outcome, f"Next, strengthen {words.protection(f.defenses, f.axes)}: the others left more."
    nearest = min(settings, key=lambda s: s.left)
    return outcome, f"Next, strengthen {_name(nearest)}, which left least."


def _outcome(f: Finding, settings: Sequence[Setting], *, shown: bool) -> str:
    """That no setting closed the leak; ``shown``: all of them are shown not to."""
    other = " other" if f.defenses else ""
    names = f" ({words.join_words([_name(s) for s in settings])})" if len(settings) <= NAMED else ""
    if len(settings) == 1:
        text = f"the one{other} defence tried{names} {'did not' if shown else 'is not shown to'} close it"
    else:
        tried = words.count(len(settings), f"{other} defences".strip())
        text = f"none of the {tried} tried{names} {'closed' if shown else 'is shown to close'} it"
    if f.defenses:
        text = f"it came out despite {words.protection(f.defenses, f.axes)}, and {text}"
    return f"{text[0].upper()}{text[1:]}."


def _name(setting: Setting) -> str:
    return words.protection(setting.finding.defenses, setting.finding.axes)


def _in_words(setting: Setting, card: ThreatCard | None) -> str:
    """What the setting's defences do, their code names behind it; the names alone where nobody says more."""
    does = card.defenses if card else {}
    described = [does[name].partition(";")[0] for name in setting.family if name in does]
    name, code = _name(setting), " + ".join(setting.finding.defenses)
    if len(described) < len(setting.family):
        return name
    return f"a defence that {words.join_words(described)} ({name if name == code else f'{name}, {code}'})"


def _but(setting: Setting) -> str:
    """What else still comes out in a setting, to be said wherever it is recommended."""
    return f", but {words.join_words(setting.others)} still came out there" if setting.others else ""


def _rank(setting: Setting) -> tuple[bool, float]:
    """Settings in which nothing else comes out first, then those with the most accuracy."""
    return not setting.others, setting.accuracy.value if setting.accuracy else -1.0


def _cost(best: Setting, before: Utility | None) -> tuple[str, float | None]:
    """The cost of a setting in words, and its loss of accuracy."""
    if best.accuracy is None or before is None:
        return "its cost in accuracy was not measured", None
    now, then = (numbers.value(u.value, ACCURACY) for u in (best.accuracy, before))
    return f"{before.metric} is {now} instead of {then}", before.value - best.accuracy.value


def _accuracy(result: Result, cell: str) -> Utility | None:
    """The utility of a cell's model, excluding models that an attack modified; None: not measured."""
    return next((u for u in result.utility if u.cell == cell and TAMPERED not in u.metric), None)
