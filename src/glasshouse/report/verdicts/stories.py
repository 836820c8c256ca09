"""The verdict on each scenario in sentences, for readers who must decide whether to continue a federation."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

from glasshouse.report import numbers, readings, words
from glasshouse.report.cards import ACCURACY
from glasshouse.report.verdicts import strength
from glasshouse.report.verdicts.choice import Choice
from glasshouse.report.verdicts.sentences import (
    NOT_SAFE,
    additions,
    condition,
    deed,
    few,
    over_guessing,
    place,
    power,
    sentence,
    value,
    victims,
    where,
)
from glasshouse.results.judgement import OUT
from glasshouse.results.records import Finding, Result, Utility, Verdict
from glasshouse.results.rows import grouped


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


def stories(result: Result, choice: Choice) -> list[Story]:
    """One story per scenario, the worst first."""
    rows = []
    for name in result.scenarios:
        own = choice.of(name)
        top = own.worst()
        kind, sentences = own.standing(top) if top else None, tuple(_told(result.of(name), own, top))
        rows.append((choice.rank(top), Story(scenario=name, kind=kind, sentences=sentences)))
    return [story for _, story in sorted(rows, key=lambda row: row[0])]


def _told(result: Result, choice: Choice, top: Finding | None) -> Iterator[Sentence]:
    """The sentences on one scenario; ``top``: its worst finding."""
    if top is None:
        yield Sentence("note", f"Nothing about private data was measured here. {NOT_SAFE}")
    else:
        bare = choice.worst(f for f in choice.findings if not f.defenses)
        # The worst undefended finding comes first, unless a defended one has a worse verdict.
        first = bare if bare is not None and choice.standing(bare) == choice.standing(top) else top
        yield Sentence(choice.standing(first), sentence(first, choice))
        if bare is not None and bare is not first:
            yield Sentence(choice.standing(bare), sentence(bare, choice))
        yield from _single_victims(choice, {id(first), id(bare)})
        yield from _tell_defences(choice, result.utility, first)
        yield from _unpowered(choice, first)
        yield from _tell_distances(choice)
    yield from _not_private(choice)
    for one in result.epsilons:
        yield Sentence("contradiction" if one.contradicted else "note", strength.epsilon(one))
    for attack in dict.fromkeys(one.attack for one in result.proofs):
        held = [one for one in result.proofs if one.attack == attack]
        kind = "contradiction" if any(one.refuted for one in held) else "note"
        yield Sentence(kind, f"{choice.cards.attack(attack)}: {strength.proofs(held)}")
    yield from _at_chance(result.utility)
    if result.refusals:
        subjects = words.join_words(list(dict.fromkeys(r.subject for r in result.refusals)))
        yield Sentence("note", f"Could not run: {subjects}; reasons below.")


def _single_victims(choice: Choice, named: set[int]) -> Iterator[Sentence]:
    """Single victims that came out where the mean shows nothing, and that no earlier sentence covered."""
    rest = [f for f in choice.with_victims_out() if id(f) not in named and choice.standing(f) not in OUT]
    if not rest:
        return
    worst, more = rest[0], len(rest) - 1
    sentence = victims(choice.victims(worst))
    text = f"{condition(worst)}, {choice.cards.attack(worst.attack)}: {sentence[0].lower()}{sentence[1:]}"
    if more:
        text += f" Single victims came out in {words.count(more, 'measurements')} more."
    yield Sentence("leaks", text)


def _tell_defences(choice: Choice, utility: Sequence[Utility], first: Finding) -> Iterator[Sentence]:
    """Effect of the defences: which still leak and how much, which do not, and at what cost."""
    cards, standing = choice.cards, choice.standing
    cells = grouped((f for f in choice.findings if f.defenses), place)
    powered = {name: [f for f in fs if standing(f) != "no power"] for name, fs in cells.items()}
    leaking = {name: f for name, fs in cells.items() if standing(f := choice.worst_first(fs)[0]) in OUT}
    quiet = [name for name, fs in powered.items() if fs and all(standing(f) == "no leak found" for f in fs)]
    still_open = {
        name: fs for name, fs in powered.items() if fs and name not in leaking and name not in quiet
    }
    worst = choice.worst(leaking.values())
    if worst and worst is not first:
        text = (
            f"{len(leaking)} of {words.count(len(cells), 'defended settings')} still "
            f"{'leaks' if len(leaking) == 1 else 'leak'}, most of all {place(worst)}: "
            f"{cards.attack(worst.attack)} {deed(worst, cards)}. {over_guessing(worst, cards)}."
        )
        yield Sentence("leaks", " ".join([text, *additions(worst, choice)]))
    if any(f is not first for fs in still_open.values() for f in fs):
        unsure = [f for fs in still_open.values() for f in fs if standing(f) == "not shown"]
        why = few([f"{cards.attack(f.attack)}: {f.reason}" for f in unsure if f.reason])
        told = f" ({why})" if why else ""
        yield Sentence("not shown", f"Under {few(list(still_open))} no leak is shown, nor its absence{told}.")
    silent = [f for name in quiet for f in powered[name]]
    if any(f is not first for f in silent):
        yield Sentence("no leak found", _quiet(quiet, silent, utility, choice))


def _quiet(
    names: Sequence[str], findings: Sequence[Finding], utility: Sequence[Utility], choice: Choice
) -> str:
    """Settings without a leak, the same attack without the defence, and the cheapest setting."""
    text = f"No leak was found under {few(names)}."
    defended = [f for f in findings if f.undefended is not None]
    if defended:
        best = min(defended, key=lambda f: (f.undefended is None or f.undefended.verdict != "leaks",
                                         choice.cards.rank(f.metric)))  # fmt: skip
        text += f" {choice.cards.attack(best.attack)}, under {place(best)}: {power(best, choice.cards)}"
    return text + _price(findings, utility)


def _price(quiet: Sequence[Finding], utility: Sequence[Utility]) -> str:
    """The setting without a leak that has the highest utility, in a sentence."""
    relevant = [u for u in utility if u.cell in {f.cell for f in quiet}]
    if not relevant:
        return ""
    best = max(relevant, key=lambda u: u.value)
    bare = [u for u in utility if not u.defenses]
    plain = [u for u in bare if u.axes == best.axes] or bare
    beside = f"; without a defence it is {readings.utility(plain[0])}" if plain else ""
    if len({place(f) for f in quiet}) == 1:
        return f" Held-out {best.metric} is {readings.utility(best)} there{beside}."
    return f" Cheapest of these is {place(best)}: held-out {best.metric} {readings.utility(best)}{beside}."


def _unpowered(choice: Choice, first: Finding) -> Iterator[Sentence]:
    """Attacks with a failed control that the first sentence did not name."""
    powerless = [f for f in choice.findings if f.verdict == "no power" and f is not first]
    names = list(dict.fromkeys(choice.cards.attack(f.attack) for f in powerless))
    if names:
        text = f"Nothing can be said about {words.join_words(names)}: a control failed. {NOT_SAFE}"
        yield Sentence("no power", text)


def _tell_distances(choice: Choice) -> Iterator[Sentence]:
    """Image distances that leak although the deciding metric does not."""
    cards, selection = choice.cards, {id(f) for f in choice.findings}
    distances: dict[str, dict[str, list[str]]] = {}
    for f in choice.findings:
        if cards.metric(f.metric).severity != "images" or choice.standing(f) in (*OUT, "no power"):
            continue
        for other in choice.siblings(f):
            card = cards.metric(other.metric)
            if other.verdict == "leaks" and card.display == "plain" and id(other) not in selection:
                who = f"{cards.attack(f.attack)} {where(f, capital=False)}"
                distances.setdefault(cards.metric(f.metric).label, {}).setdefault(card.label, []).append(who)
    for deciding, labels in distances.items():
        who = few([name for names in labels.values() for name in names])
        what = f"{who}: above guessing by {words.join_words(list(labels))}, but not by {deciding}"
        yield Sentence("note", f"{what}. This does not count as rebuilt images.")


def _not_private(choice: Choice) -> Iterator[Sentence]:
    """Findings about data that are not private: reported, but never in the headline."""
    cards = choice.cards
    other = [f for f in choice.every if not cards.metric(f.metric).private and f.verdict == "leaks"]
    for fs in grouped(other, lambda f: f.metric).values():
        best = choice.worst_first(fs)[0]
        text = f"{cards.attack(best.attack)} also reached {value(best, cards)} {where(best, capital=False)}"
        yield Sentence("note", f"{text}; that is not private data.")


def _at_chance(rows: Sequence[Utility]) -> Iterator[Sentence]:
    """Models at chance accuracy: their leakage and their defences say little."""
    useless = [u for u in rows if readings.at_chance(u)]
    if not useless:
        return
    worst = min(useless, key=lambda u: u.value)
    text = (
        f"{worst.metric.capitalize()} is at chance {few([where(u, capital=False) for u in useless])}: "
        f"{readings.utility(worst)}, where always giving the most common answer gets "
        f"{numbers.value(worst.chance or 0.0, ACCURACY)}. Such a model is of no use, whatever it leaks."
    )
    yield Sentence("note", text)
