"""The verdict on each scenario in sentences, for readers who must decide whether to continue a federation."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

from glasshouse.report import numbers, words
from glasshouse.report.cards import ACCURACY
from glasshouse.report.readings import ORDER, Reading, Readings, UtilityReading, worst
from glasshouse.report.verdicts.sentences import NOT_SAFE, SILENT, Said, has_failed, measured, say
from glasshouse.results.judgement import OUT
from glasshouse.results.records import Verdict


class Sentence(NamedTuple):
    """One sentence of the verdict; ``kind`` is a verdict or ``note``."""

    kind: str
    text: str


@final
@dataclass(frozen=True, kw_only=True)
class Story:
    """The verdict on one scenario; ``kind``: that of its worst finding, None if nothing was measured."""

    scenario: str
    kind: Verdict | None
    sentences: tuple[Sentence, ...]


def stories(readings: Readings) -> list[Story]:
    """One story per scenario, the worst first."""
    rows = []
    for name in readings.result.scenarios:
        own = readings.of(name)
        top = worst(own.deciding)
        story = Story(
            scenario=name, kind=top.finding.verdict if top else None, sentences=tuple(_told(own, top))
        )
        rows.append(((len(ORDER), 0, 0.0) if top is None else top.rank, story))
    return [story for _, story in sorted(rows, key=lambda row: row[0])]


def _told(own: Readings, top: Reading | None) -> Iterator[Sentence]:
    """The sentences on one scenario; ``top``: its worst finding."""
    said, beside = say(own), measured(own)
    if top is None:
        yield Sentence("note", f"Nothing about private data was measured here. {NOT_SAFE}")
    else:
        yield from _findings(own, said, top)
    yield from _not_private(own)
    yield from (Sentence(kind, text) for kind, text in beside)
    yield from _at_chance(own.utility)
    if own.result.refusals:
        subjects = words.join_words(list(dict.fromkeys(r.subject for r in own.result.refusals)))
        yield Sentence("note", f"Could not run: {subjects}; reasons below.")


def _findings(own: Readings, said: Mapping[int, Said], top: Reading) -> Iterator[Sentence]:
    """What decides the verdict, from the worst finding to what is no leak."""
    bare = worst(r for r in own.deciding if not r.finding.defenses)
    # The worst undefended finding comes first, unless a defended one has a worse verdict.
    first = bare if bare is not None and bare.finding.verdict == top.finding.verdict else top
    for reading in [first] if bare is None or bare is first else [first, bare]:
        yield Sentence(reading.finding.verdict, said[id(reading)].whole)
    yield from _single_victims(own.named, said, {id(first), id(bare)})
    yield from _tell_defences(own, said, first)
    yield from _unpowered(own.deciding, first)
    yield from _tell_distances(said)


def _single_victims(out: Sequence[Reading], said: Mapping[int, Said], told: set[int]) -> Iterator[Sentence]:
    """Single victims that came out where the mean shows nothing, and that no earlier sentence covered."""
    rest = [r for r in out if id(r) not in told and r.finding.verdict not in OUT]
    if not rest:
        return
    most, more = rest[0], len(rest) - 1
    sentence = said[id(most)].victims
    text = f"{words.capital(most.condition)}, {most.attack}: {sentence[0].lower()}{sentence[1:]}"
    if more:
        text += f" Single victims came out in {words.count(more, 'measurements')} more."
    yield Sentence("leaks", text)


def _tell_defences(own: Readings, said: Mapping[int, Said], first: Reading) -> Iterator[Sentence]:
    """Effect of the defences: which still leak and how much, which do not, and at what cost."""
    defended = [r for r in own.deciding if r.finding.defenses]
    places = dict.fromkeys(r.place for r in defended)
    leaking: dict[str, Reading] = {}
    quiet: dict[str, list[Reading]] = {}
    unsure: dict[str, list[Reading]] = {}
    # A setting is judged by its gravest finding; findings without power say nothing about it.
    for name in places:
        readings = [r for r in defended if r.place == name]
        top = min(readings, key=lambda r: r.rank)
        powered = [r for r in readings if r.finding.verdict != "no power"]
        if top.finding.verdict in OUT:
            leaking[name] = top
        elif powered and all(r.finding.verdict == "no leak found" for r in powered):
            quiet[name] = powered
        elif powered:
            unsure[name] = powered

    # What the first sentence of the page has already said is not said again.
    most = worst(leaking.values())
    if most and most is not first:
        words_of = said[id(most)]
        text = (
            f"{len(leaking)} of {words.count(len(places), 'defended settings')} still "
            f"{'leaks' if len(leaking) == 1 else 'leak'}, most of all {most.place}: "
            f"{most.attack} {words_of.deed}. {words_of.over_guessing}."
        )
        yield Sentence("leaks", f"{text} {words_of.caveats}".strip())

    in_doubt = [r for readings in unsure.values() for r in readings]
    if any(r is not first for r in in_doubt):
        why = words.few(
            [
                f"{r.attack}: {r.finding.reason}"
                for r in in_doubt
                if r.finding.verdict == "not shown" and r.finding.reason
            ]
        )
        told = f" ({why})" if why else ""
        yield Sentence(
            "not shown", f"Under {words.few(list(unsure))} no leak is shown, nor its absence{told}."
        )

    silent = [r for readings in quiet.values() for r in readings]
    if any(r is not first for r in silent):
        text = f"No leak was found under {words.few(list(quiet))}."
        yield Sentence("no leak found", text + _reference(silent, said) + _price(silent, own.utility))


def _reference(silent: Sequence[Reading], said: Mapping[int, Said]) -> str:
    """The same attack without the defence: of those that leak there, the metric that is quoted first."""
    defended = [r for r in silent if r.finding.undefended is not None]
    if not defended:
        return ""

    def shows_power(r: Reading) -> bool:
        return r.finding.undefended is not None and r.finding.undefended.verdict == "leaks"

    best = min(defended, key=lambda r: (not shows_power(r), r.quoted))
    return f" {best.attack}, under {best.place}: {said[id(best)].power}"


def _price(silent: Sequence[Reading], utility: Sequence[UtilityReading]) -> str:
    """The setting without a leak that has the highest utility, in a sentence."""
    cells, places = {r.finding.cell for r in silent}, {r.place for r in silent}
    relevant = [u for u in utility if u.utility.cell in cells]
    if not relevant:
        return ""
    best = max(relevant, key=lambda u: u.utility.value)
    bare = [u for u in utility if not u.utility.defenses]
    plain = [u for u in bare if u.utility.axes == best.utility.axes] or bare
    beside = f"; without a defence it is {plain[0].text}" if plain else ""
    if len(places) == 1:
        return f" Held-out {best.utility.metric} is {best.text} there{beside}."
    return f" Cheapest of these is {best.place}: held-out {best.utility.metric} {best.text}{beside}."


def _unpowered(deciding: Sequence[Reading], first: Reading) -> Iterator[Sentence]:
    """Attacks that the first sentence did not name: with a failed control, or silent where it passed."""
    powerless = [r for r in deciding if r.finding.verdict == "no power" and r is not first]
    for failed, why in ((True, "a control failed"), (False, SILENT)):
        if those := [r.attack for r in powerless if has_failed(r.finding) == failed]:
            names = words.join_words(list(dict.fromkeys(those)))
            place = "" if failed else " here"
            yield Sentence("no power", f"Nothing can be said about {names}{place}: {why}. {NOT_SAFE}")


def _tell_distances(said: Mapping[int, Said]) -> Iterator[Sentence]:
    """Image distances that leak although the deciding metric does not."""
    distances: dict[str, dict[str, list[str]]] = {}
    for one in said.values():
        r = one.reading
        if r.card.severity != "images" or r.finding.verdict in (*OUT, "no power"):
            continue
        for other in one.beside:
            leaks = other.finding.verdict == "leaks" and other.card.display == "plain"
            if leaks and id(other) not in said:
                by_label = distances.setdefault(r.card.label, {})
                by_label.setdefault(other.card.label, []).append(f"{r.attack} {r.where}")
    for deciding, labels in distances.items():
        who = words.few([name for names in labels.values() for name in names])
        what = f"{who}: above guessing by {words.join_words(list(labels))}, but not by {deciding}"
        yield Sentence("note", f"{what}. This does not count as rebuilt images.")


def _not_private(own: Readings) -> Iterator[Sentence]:
    """Findings about data that are not private: reported, but never in the headline."""
    best: dict[str, Reading] = {}
    for r in own.every:
        if not r.card.private and r.finding.verdict == "leaks":
            best[r.finding.metric] = min(best.get(r.finding.metric, r), r, key=lambda one: one.rank)
    for r in best.values():
        yield Sentence("note", f"{r.attack} also reached {r.score} {r.where}; that is not private data.")


def _at_chance(utility: Sequence[UtilityReading]) -> Iterator[Sentence]:
    """Models at chance accuracy: their leakage and their defences say little."""
    useless = [u for u in utility if u.at_chance]
    if not useless:
        return
    least = min(useless, key=lambda u: u.utility.value)
    text = (
        f"{least.utility.metric.capitalize()} is at chance {words.few([u.where for u in useless])}: "
        f"{least.text}, where always giving the most common answer gets "
        f"{numbers.value(least.utility.chance or 0.0, ACCURACY)}. "
        "Such a model is of no use, whatever it leaks."
    )
    yield Sentence("note", text)
