"""Each leak in at most 70 plain words, with a remedy; scenarios without one in a line."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final, final

from glasshouse.report import words
from glasshouse.report.cards import SEVERITIES
from glasshouse.report.readings import ACTS, READS, Reading, Readings, Threat, UtilityReading, worst
from glasshouse.report.verdicts.stories import Story
from glasshouse.results.judgement import OUT
from glasshouse.results.records import TAMPERED, Verdict
from glasshouse.results.rows import grouped

CHEAP: Final = 0.02
"""Largest loss of accuracy for which no cheaper setting is suggested."""
NAMED: Final = 4
"""Most defences that a card names."""
SHORT: Final = 5
"""Side knowledge is spelled out if it has fewer words than this."""
SOME_DEFENCE: Final = "limit each update's size and add noise"
MEANWHILE: Final = "Until then, protect what clients send like the data."
"""What holds while no defence is shown to be enough."""
WHO: Final = {
    READS: "the server, only reading what clients send",
    ACTS: "the server, manipulating what it sends",
}
"""Who attacked, as the subject of a sentence; others are named as in the matrix."""
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
    ("Defence", "a change to what a client sends. It stopped a leak if the same attack then gains nothing."),
    ("Accuracy", "how often the finished model is right on new examples."),
    ("Label", "the answer that the model learns for an example, such as a diagnosis."),
    ("Weights", "the numbers of the network, drawn at random; another draw may give more or less away."),
)
"""Glossary of the first screen: (term, explanation)."""


@final
@dataclass(frozen=True, kw_only=True)
class Leak:
    """One kind of private data that leaked in one scenario.

    Attributes:
        reading: of the worst finding of this kind.
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

    reading: Reading
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

    Attributes:
        name: of its defences.
        defenses: their descriptions.
        state: of the leak in this setting.
        left: remaining gain of the leak's attack.
        left_in_all: gains of all that measured this kind of data there, added up: where the former ties.
        utility: None if it was not measured.
        others: other kinds of private data that still come out in this setting.
    """

    name: str
    defenses: tuple[str, ...]
    state: Verdict
    left: float
    utility: UtilityReading | None
    left_in_all: float = 0.0
    others: tuple[str, ...] = ()

    @property
    def family(self) -> tuple[str, ...]:
        """Names of the defences without their strengths."""
        return tuple(text.split(" ")[0] for text in self.defenses)


def leaks(readings: Readings) -> list[Leak]:
    """Leaks, one per scenario and kind: images, membership, labels, other; most complete first."""
    out = {id(r) for r in readings.named}
    leaking = [r for r in readings.deciding if r.finding.verdict in ("leaks", "label leak") or id(r) in out]
    groups = grouped(leaking, lambda r: (r.kind, r.finding.scenario)).values()
    # Of a kind, the worst that no defence was meant to stop, where there is one.
    found = [
        min([r for r in group if not r.finding.defenses] or group, key=lambda r: r.rank) for group in groups
    ]
    found.sort(key=lambda r: (SEVERITIES.index(r.kind), -r.severity))
    return [_leak(r, readings.threats.get(r.finding.scenario), readings, out) for r in found]


def quiet(stories: Iterable[Story], found: Sequence[Leak], readings: Readings) -> list[tuple[Story, str]]:
    """Scenarios without a leak, each with its outcome and the next step."""
    leaking = {leak.scenario for leak in found}
    rest = [story for story in stories if story.scenario not in leaking]
    rows = []
    for story in rest:
        top = worst(r for r in readings.deciding if r.finding.scenario == story.scenario)
        rows.append((story, _quiet(story, top)))
    return rows


def _quiet(story: Story, top: Reading | None) -> str:
    """The outcome of one scenario, with its number where more work may change it, and what work."""
    text = QUIET[story.kind]
    if top is None or story.kind not in ("not shown", "no power"):
        return text
    if story.kind == "not shown":
        text = (
            f"{text} {top.attack}: {top.card.label} {top.value} ({_span(top.interval)}) over {top.sample}; "
            f"{top.guesser} gets {top.baseline}."
        )
        if top.finding.gain < 0:
            text = f"{text} Doing worse than that is no proof: another attack may do better."
    return f"{text} Next: {top.finding.remedy or 'more victims, and more effort of the attack'}."


def explain(readings: Readings, found: Sequence[Leak]) -> list[tuple[str, str]]:
    """The defences named in the leaks' texts as (label, explanation)."""
    text = " ".join(leak.text for leak in found)
    does = {name: what for card in readings.result.threats for name, what in card.defenses.items()}
    rows = {}
    for r in readings.every:
        label, names = r.place.partition(" (")[0], [d.split(" ")[0] for d in r.finding.defenses]
        if names and label in text and any(name in does for name in names):
            rows[label] = "; ".join(does[name] for name in names if name in does)
    return list(rows.items())


def _leak(r: Reading, threat: Threat | None, readings: Readings, out: Set[int]) -> Leak:
    """A leak in words: first what was tried against it, then what it is.

    Args:
        r: the finding.
        threat: of its scenario; None: unknown.
        readings: of the result.
        out: ids of the readings in which single victims came out.
    """
    before, settings = _utility(readings, r.finding.cell), list(_settings(r, readings, out))
    action, advice = _remedy(r, settings, before, threat)
    return Leak(
        reading=r,
        severity=SCALE[r.kind][0],
        severe=SCALE[r.kind][1],
        scenario=r.finding.scenario,
        setting="; ".join(part for part in (r.condition, threat.card.setup if threat else "") if part),
        title=words.capital(_title(r, threat)),
        what=words.capital(_what(r, threat)),
        whose=_whose(r),
        action=action,
        advice=advice,
    )


def _title(r: Reading, threat: Threat | None) -> str:
    """What came out, in numbers: "8 of 8 pictures rebuilt from single updates"."""
    f, metric = r.finding, r.card
    things = threat.things if threat else "examples"
    source = f" from {threat.source}" if threat and threat.source else ""
    if f.verdict not in OUT:
        return f"{r.reached} of {len(r.victims)} {things} recognised{source}"
    if f.verdict == "label leak":
        return f"Labels read{source}"
    counted = f.hits is not None and f.scored is not None
    share = f"{f.hits} of {f.scored}" if counted else r.value
    if metric.headline:
        share_of_things = f"{share} {things}" if counted else f"{share} of the {things}"
        return metric.headline.replace("{}", share_of_things, 1) + source
    # "read {} of the words" becomes "16 of 16 words" where hits were counted; explanations are cut.
    text = re.sub(r"(?<=\{\}) of (the )?", " ", metric.sentence) if counted else metric.sentence
    return re.sub(r"; [^()]*(?=\))", "", text.replace("{}", share, 1)) + source


def _what(r: Reading, threat: Threat | None) -> str:
    """Who achieved what, and what a guess gets; of a label leak, that the label is all that is shown."""
    attacker = threat.who if threat else "an attack"
    side = f", given {r.given if r.given.count(' ') < SHORT else 'side knowledge (listed below)'}"
    who = WHO.get(attacker, attacker) + (side if r.given else "")
    if r.finding.verdict == "label leak":
        return (
            f"{who} learnt the labels. {r.attack} also claimed the examples; "
            "whoever knows the labels alone does as well, so no example is shown to have come out."
        )
    deed = r.card.sentence.replace("{}", r.value, 1)
    text = f"{who}{',' if ',' in who else ''} {deed}. {words.capital(r.guesser)} gets {r.baseline}."
    f = r.finding
    if f.low <= f.baseline_value <= f.high and f.gain_low > 0:
        # The bar alone reads as "perhaps no better than guessing".
        text += f" Victim by victim the gain is {r.measured_gain} ({_span(r.gain_interval)}), which decides."
    return text


def _span(interval: str) -> str:
    """An interval in words: "23 to 29"."""
    return interval.strip("[]").replace(", ", " to ")


def _whose(r: Reading) -> str:
    """Whose data came out: a count of victims, or that it was not judged one by one."""
    if not r.reached:
        scored, n = r.finding.scored, r.finding.n
        # Of each round: a client that takes part twice is one victim, whose examples are scored twice.
        several = f", {scored} scores in all," if scored is not None and scored != n else ","
        return f"Whose: {r.sample}{several} judged together and not one by one."
    if r.reached == len(r.victims) > 1:
        return f"Whose: shown for all {r.jury}, each judged alone."
    return f"Whose: shown for {r.reached} of {r.jury}, each judged alone."


def _settings(r: Reading, readings: Readings, out: Set[int]) -> Iterator[Setting]:
    """Defended settings comparable with the leak: same scenario, protocol and other axes."""
    f, kind = r.finding, r.card.severity
    beside = [
        other
        for other in readings.deciding
        if (other.finding.scenario, other.finding.protocol, other.axes) == (f.scenario, f.protocol, r.axes)
        and other.finding.defenses
        and other.finding.cell != f.cell
        and other.card.severity == kind
    ]
    for cell in dict.fromkeys(other.finding.cell for other in beside):
        in_cell = [other for other in beside if other.finding.cell == cell]
        # Of every kind: a defence that closes this leak may leave another, which has to be said beside it.
        leaking = [
            o
            for o in readings.deciding
            if o.finding.cell == cell and (o.finding.verdict in OUT or id(o) in out)
        ]
        kinds = {other.kind for other in leaking} - {kind}
        # How much is left is said of this very attack and metric: gains of others cannot be compared.
        same = [o.finding for o in in_cell if (o.finding.attack, o.finding.metric) == (f.attack, f.metric)]
        yield Setting(
            name=in_cell[0].protection,
            defenses=in_cell[0].finding.defenses,
            state=_state(in_cell, out, powered=any(one.verdict != "no power" for one in same)),
            left=max((one.gain for one in same), default=float("inf")),
            left_in_all=sum(one.finding.gain for one in in_cell),
            utility=_utility(readings, cell),
            others=tuple(ALSO[k] for k in SEVERITIES if k in kinds),
        )


def _state(in_cell: Sequence[Reading], out: Set[int], *, powered: bool) -> Verdict:
    """The state of a leak in one setting; ``powered``: the leak's own attack had power there."""
    verdicts = {r.finding.verdict for r in in_cell} - {"no power"}
    if verdicts & set(OUT) or any(id(r) in out for r in in_cell):
        return "leaks"
    return "no leak found" if powered and verdicts == {"no leak found"} else "not shown"


def _remedy(
    r: Reading, settings: Sequence[Setting], before: UtilityReading | None, threat: Threat | None
) -> tuple[str, str]:
    """The cheapest setting that closed the leak, and the next one to try, in sentences."""
    closed = [s for s in settings if s.state == "no leak found"]
    unsure = [s for s in settings if s.state == "not shown"]
    if closed:
        still = [s for s in settings if s.state == "leaks"]
        return _closed(max(closed, key=_rank), still, before, threat)
    if not settings:
        advice = f"Next, {(threat.card.advice if threat else '') or SOME_DEFENCE}."
        if r.finding.defenses:
            return f"It came out despite {r.protection}.", advice
        return "No defence was tried against it.", advice
    outcome = _outcome(r, settings, shown=not unsure)
    if unsure:
        best = max(unsure, key=_rank)
        if best.others:
            # What leaks something else in the table below is no remedy, whatever more victims would show.
            also = words.join_words(best.others)
            return outcome, f"Next, strengthen {best.name}: {also} still came out there."
        return f"{outcome} {MEANWHILE}", f"Next, test {best.name} on more examples."
    nearest = min(settings, key=lambda s: (s.left, s.left_in_all))
    if r.finding.defenses and r.finding.gain < nearest.left:
        return outcome, f"Next, try a stronger {r.protection}: the others let more through."
    # It lets least through only where there are others, and all of them let more.
    others = [s.left for s in settings if s is not nearest]
    others += [r.finding.gain] if r.finding.defenses else []
    is_least = bool(others) and min(others) > nearest.left
    return outcome, f"Next, try a stronger {nearest.name}{': it let least through' if is_least else ''}."


def _closed(
    best: Setting, leaking: Sequence[Setting], before: UtilityReading | None, threat: Threat | None
) -> tuple[str, str]:
    """The setting that closed a leak with its cost, and what to try for less.

    Args:
        best: the setting.
        leaking: those in which the leak stayed.
        before: what the model is worth where the leak was found; None: not measured.
        threat: of the scenario, which says what defences do; None: unknown.
    """
    # The code names stand behind what the defences do; alone where nobody says what they do.
    said = threat.card.defenses if threat else {}
    does = [said[name].partition(";")[0] for name in best.family if name in said]
    code = " + ".join(best.defenses)
    known = f"({best.name if best.name == code else f'{best.name}, {code}'})"
    whole = len(does) == len(best.family)
    defence = f"a defence that {words.join_words(does)} {known}" if whole else best.name
    cost, loss = "its cost in accuracy was not measured", None
    if best.utility is not None and before is not None:
        cost = f"{before.utility.metric} is {best.utility.value} instead of {before.value}"
        loss = before.utility.value - best.utility.utility.value

    # A setting that closed this leak may have left another, or a model of no use.
    but = f", but {words.join_words(best.others)} still came out there" if best.others else ""
    action = f"Use {defence}: it stopped this leak{but}; {cost}."
    if best.utility is not None and best.utility.at_chance:
        action = f"Only {defence} stopped it, but the model is then of no use: {cost}."
    # A cheap setting is worth a harder test; a dear one a search for less.
    if loss is not None and loss <= CHEAP:
        return action, f"Next, audit {best.name} with stronger attacks and more victims."
    if weaker := [s for s in leaking if s.family == best.family]:
        nearest = min(weaker, key=lambda s: s.left)
        return action, f"Next, try a strength between {nearest.name} and {best.name}."
    return action, f"Next, weaken {best.name}: that may cost less."


def _outcome(r: Reading, settings: Sequence[Setting], *, shown: bool) -> str:
    """That no setting closed the leak; ``shown``: all of them are shown not to."""
    defended = bool(r.finding.defenses)
    other = " other" if defended else ""
    names = f" ({words.join_words([s.name for s in settings])})" if len(settings) <= NAMED else ""
    if len(settings) == 1:
        text = f"the one{other} defence tried{names} {'did not' if shown else 'is not shown to'} stop it"
    else:
        tried = words.count(len(settings), f"{other} defences".strip())
        text = f"none of the {tried} tried{names} {'stopped' if shown else 'is shown to stop'} it"
    if defended:
        text = f"it came out despite {r.protection}, and {text}"
    return words.capital(text) + "."


def _rank(setting: Setting) -> tuple[bool, float]:
    """Settings in which nothing else comes out first, then those with the most accuracy."""
    return not setting.others, setting.utility.utility.value if setting.utility else -1.0


def _utility(readings: Readings, cell: str) -> UtilityReading | None:
    """What a cell's model is worth, excluding models that an attack modified; None: not measured."""
    rows = (u for u in readings.utility if u.utility.cell == cell and TAMPERED not in u.utility.metric)
    return next(rows, None)
