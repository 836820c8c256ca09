"""One finding in plain sentences.

A sentence always states the interval, the null baseline (guessing without the update), the sample size and
how the number was selected. "No power" never reads as "safe".
"""

from collections.abc import Mapping, Sequence
from typing import Final

from glasshouse.report import numbers, readings, words
from glasshouse.report.cards import Cards
from glasshouse.report.verdicts import strength
from glasshouse.report.verdicts.choice import Choice
from glasshouse.results.judgement import OUT, expected_by_luck
from glasshouse.results.records import Control, Finding, Refused, Utility, Victim

KNOWS: Final[Mapping[str, str]] = {
    "nothing": "nothing",
    "domain": "similar public data",
    "label": "the label",
    "twin": "all but the example itself",
}
"""What the null adversary of a rung knows, after "whoever knows"."""
FEW_RUNS = 4
FEW_NAMES = 3
PLAIN_GUESS = "random guessing"
NOT_SAFE = "This is no sign of safety."


def sentence(finding: Finding, choice: Choice) -> str:
    """A finding in words.

    States the setting, the attack, the value with its interval, the null baseline, the gain with its
    interval, the sample size and the selection; then the caveats: single victims, missing claims, few runs,
    the same attack without the defence, side knowledge.
    """
    return " ".join([_core(finding, choice), *additions(finding, choice)])


def additions(finding: Finding, choice: Choice) -> list[str]:
    """The caveats of a finding, in sentences."""
    knowledge = words.grants(finding.given)
    parts = [
        victims(choice.victims(finding)),
        ladder(finding),
        unseen(finding),
        draws(finding, choice.cards),
        _sample(finding),
        strength.search(finding),
        strength.bound(finding, choice.cards.metric(finding.metric)),
        power(finding, choice.cards),
        f"The attacker also had {knowledge}." if knowledge else "",
    ]
    return [part for part in parts if part]


def where(finding: Finding | Refused | Utility, *, capital: bool = True) -> str:
    """The setting of a finding: ``Without a defence (batch = 4)``, ``Under clip 4``."""
    name = words.protection(finding.defenses, finding.axes)
    text = f"under {name}" if finding.defenses else "without a defence"
    axes = words.setting(finding.axes)
    text += f" ({axes})" if axes else ""
    return text[0].upper() + text[1:] if capital else text


def condition(finding: Finding, *, capital: bool = True) -> str:
    """The setting, and the draws of first weights that the finding is about, if they are too few for more.

    ``Without a defence, for these weights``; from four draws on a finding is about the scenario.
    """
    text = where(finding, capital=capital)
    if not 0 < finding.draws < FEW_RUNS:
        return text
    few = "these weights" if finding.draws == 1 else f"these {words.count(finding.draws, 'draws')} of weights"
    return f"{text}, for {few}"


def place(finding: Finding | Utility) -> str:
    """The setting as a noun: ``clip 4``, ``without a defence``."""
    return where(finding, capital=False).removeprefix("under ")


def basis(finding: Finding) -> str:
    """Sample size and selection: ``20 victims; best of 4 restarts, chosen by the attack's own loss``."""
    return "; ".join(part for part in (words.count(finding.n, finding.unit), finding.chosen) if part)


def power(finding: Finding, cards: Cards) -> str:
    """The same attack with the same settings, but without defences; empty if unknown."""
    reference = finding.undefended
    if reference is None:
        return ""
    card = cards.metric(finding.metric)
    hits = _hits(reference.value, reference.n), _hits(finding.value, finding.n)
    if card.display == "rate" and None not in hits:
        before, after = (f"{hits[0]} of {reference.n}", f"{hits[1]} of {finding.n}")
    else:
        digits = numbers.places(card, finding.low, finding.high)
        before, after = (
            numbers.value(v, card, finding.unit_of_value, digits) for v in (reference.value, finding.value)
        )
    text = f"With the same settings this attack reaches {before} without a defence and {after} here"
    text += f" ({card.label})."
    if reference.verdict not in OUT:
        text += " Even without a defence it shows no leak, so its silence here proves little."
    return text


def victims(verdicts: Sequence[Victim]) -> str:
    """Whose examples leaked; empty if nobody's did."""
    names = [v.name for v in verdicts if v.leaks]
    if not names:
        return ""
    total = words.count(len(verdicts), "victims")
    if len(names) == len(verdicts) > 1:
        return f"Each of the {total} came out: their own examples were recognised among held-out ones."
    listed = "; ".join(
        [*names[:FEW_NAMES], *([f"{len(names) - FEW_NAMES} more"] if names[FEW_NAMES:] else [])]
    )
    return f"The examples of {len(names)} of {total} came out, recognised among held-out ones: {listed}."


def few(names: Sequence[str]) -> str:
    """Unique names; if there are more than four, the first three and the number of others."""
    once = list(dict.fromkeys(names))
    return words.join_words(once if len(once) <= 4 else [*once[:3], f"{len(once) - 3} more"])


def value(finding: Finding, cards: Cards) -> str:
    """Metric, value and interval, as a noun: ``SSIM 0.12 [0.10, 0.15]``."""
    reading = readings.read(finding, cards)
    return f"{cards.metric(finding.metric).label} {reading.value} {reading.interval}"


def deed(finding: Finding, cards: Cards) -> str:
    """What the attack achieved, with value and interval."""
    reading = readings.read(finding, cards)
    return cards.metric(finding.metric).sentence.replace("{}", f"{reading.value} {reading.interval}", 1)


def over_guessing(finding: Finding, cards: Cards) -> str:
    """The null baseline and the gain over it; a sentence without its full stop."""
    reading = readings.read(finding, cards)
    guess = words.null(finding.baseline)
    how = "Guessing without the update" if guess == PLAIN_GUESS else f"Guessing without the update ({guess})"
    if (who := words.guesser(finding.baseline)) == guess:
        how = f"{who[0].upper()}{who[1:]}"
    return (
        f"{how} reaches {reading.baseline}; the gain is {reading.measured_gain} {reading.gain_interval} "
        f"({basis(finding)})"
    )


def _core(f: Finding, choice: Choice) -> str:
    cards = choice.cards
    attack = cards.attack(f.attack)
    if f.verdict == "no power":
        failed = f.control is not None and not f.control.passed
        why = _failure(f.control, f.unit, cards) if f.control and failed else "the attack had no power here"
        return f"{condition(f)}, nothing can be said about {attack}: {why}. {NOT_SAFE}"
    score, gain = value(f, cards), over_guessing(f, cards)
    if other := choice.denial(f):
        return (
            f"{condition(f)}, {attack} is above guessing by {cards.metric(f.metric).label}, but not by "
            f"{cards.metric(other.metric).label}. {score}: {_lower(gain)}. But "
            f"{value(other, cards)}: {_lower(over_guessing(other, cards))}. "
            "This does not count as rebuilt images."
        )
    if expected_by_luck(f):
        return (
            f"{condition(f)}, {attack} seems to gain: {score}. {gain}. Among this many findings that would "
            "be expected by luck, so no leak is shown."
        )
    if f.verdict in ("leaks", "contradiction"):
        return f"{condition(f)}, {attack} {deed(f, cards)}. {gain}."
    if f.verdict == "label leak":
        return (
            f"{condition(f)}, {attack} got the labels of {f.unit}, and no example is shown to have come out: "
            f"{score}. {gain}. But {f.reason}."
        )
    if f.verdict == "too alike":
        return f"{condition(f)}, {attack} {deed(f, cards)}, but of whom cannot be said: {f.reason}. {gain}."
    if f.verdict == "no leak found":
        return f"{condition(f)}, {attack} found no leak: {score}. {gain}. {earned(f)}"
    more = f" {f.remedy[0].upper()}{f.remedy[1:]} would show it." if f.remedy else ""
    why = f", because {f.reason}" if f.reason else ""
    return f"{condition(f)}, it is not shown whether {attack} finds a leak{why}: {score}. {gain}.{more}"


def earned(finding: Finding) -> str:
    """What "no leak found" rests on: the share of victims that could come out, and planted leaks found."""
    share, planted = finding.share, finding.power
    if share is None:
        return ""
    together = f", {share.units} of them independent" if 0 < share.units < share.n else ""
    text = f"At most {100 * share.most:.0f} % of such {finding.unit} would come out ({share.out} of {share.n}"
    text += together
    if planted is not None:
        text += f"; {planted.found} of {planted.planted} planted leaks were found"
    return text + (")." if not finding.alone else "). Only one attack of this kind ran.")


def ladder(finding: Finding) -> str:
    """Which null adversaries a leak beats; else empty."""
    top = finding.highest if finding.verdict in ("leaks", "label leak") else None
    return "" if top is None else f"It does better than whoever knows {KNOWS[top.knows]}."


def unseen(finding: Finding) -> str:
    """Why an interval reaches so far where others may leak more; empty: it does not."""
    if finding.gain_high <= finding.gain_end:
        return ""
    return "The end of the interval that leaks allows for victims who leak more than any of these."


def draws(finding: Finding, cards: Cards) -> str:
    """The metric in every draw of the network's first weights; empty: there is one."""
    if len(finding.by_draw) < 2 or finding.verdict == "no power":
        return ""
    card = cards.metric(finding.metric)
    digits = numbers.places(card, finding.low, finding.high)
    values = [numbers.value(one.value, card, "", digits) for one in finding.by_draw]
    return f"By draw of the network's first weights: {', '.join(values)}."


def _lower(text: str) -> str:
    return text[0].lower() + text[1:]


def _failure(c: Control, unit: str, cards: Cards) -> str:
    """Which control failed, with numbers in the control's own metric."""
    if c.reason:
        return c.reason
    card = cards.metric(c.metric)
    in_metric = f" in {card.label}" if c.metric else ""
    if c.positive is None or c.positive_low is None or c.negative is None or c.negative_low is None:
        return f"its controls failed: it claimed nothing in an easy setting ({c.setting})"
    if c.negative_low > 0:
        gained = numbers.difference(c.negative, card) + in_metric
        return (
            f"its negative control failed: it seemed to gain {gained} from an update that has nothing to do "
            "with the victim"
        )
    gained = numbers.bare(c.positive, card) + numbers.unit(card)
    return (
        f"its positive control failed: in an easy setting ({c.setting}) it gained only {gained}{in_metric}, "
        f"at least {numbers.bare(c.positive_low, card)} ({words.count(c.n, unit)})"
    )


def _sample(f: Finding) -> str:
    """What the sample leaves open: gains on exchanged victims, missing claims, few runs."""
    parts = []
    if f.exchange is not None and f.exchange.gain_low <= 0 < f.gain_low:
        parts.append("It is not shown to gain more about its victims than about others.")
    if f.claimed is not None and f.claimed < f.n:
        parts.append(f"It claimed something about {f.claimed} of {f.n} {f.unit}; the others count as misses.")
    if f.unit == "clients" and f.runs is not None and f.runs < FEW_RUNS:
        parts.append(f"The clients come from only {words.count(f.runs, 'runs')} of the federation.")
    return " ".join(parts)


def _hits(share: float, n: int) -> int | None:
    """``share`` × n as a count; None if not a whole number (several images per victim, for example)."""
    hits = round(share * n)
    return hits if abs(hits - share * n) < 1e-6 else None
