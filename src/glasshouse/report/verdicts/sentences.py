"""One finding in plain sentences, and what stands beside the findings: measured ε, and proofs.

A sentence always states the interval, the null baseline (guessing without the update), the sample size and
how the number was selected. "No power" never reads as "safe".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from glasshouse.report import numbers, words
from glasshouse.report.cards import Cards
from glasshouse.report.readings import Reading, Readings
from glasshouse.results.judgement import FEW_DRAWS_OF_CLIENTS, OUT, expected_by_luck
from glasshouse.results.records import Control, Finding
from glasshouse.results.strength import EmpiricalEpsilon, Proofs

KNOWS: Final[Mapping[str, str]] = {
    "nothing": "nothing",
    "domain": "similar public data",
    "label": "the label",
    "twin": "all but the example itself",
}
"""What the null adversary of a rung knows, after "whoever knows"."""
UNITS: Final = {"example": "one example more or less", "update": "a client's update, or zeros in its place"}
FEW_NAMES = 3
PLAIN_GUESS = "random guessing"
NOT_SAFE = "This is no sign of safety."
SILENT = "it claimed nothing about any victim, so that its number is no measurement"
CONTRADICTION = "CONTRADICTION: more came out than the guarantee allows"
WRONG_PROOF = "WRONG PROOF: an attack certified what is not true"


@final
@dataclass(frozen=True, kw_only=True)
class Said:
    """One finding in sentences.

    Attributes:
        reading: the finding.
        beside: other findings of the same attack in the same cell about the same kind of private data.
        core: the setting, the attack, the value with its interval, the null baseline, the gain with its
            interval, the sample size and the selection.
        caveats: single victims, missing claims, few runs, the bound, the same attack without the defence,
            side knowledge; empty: none.
        deed: what the attack achieved, with value and interval; not a whole sentence.
        over_guessing: the null baseline and the gain over it; a sentence without its full stop.
        power: the same attack with the same settings, but without defences; empty if unknown.
        victims: whose examples leaked; empty if nobody's did.
    """

    reading: Reading
    beside: tuple[Reading, ...]
    core: str
    caveats: str
    deed: str
    over_guessing: str
    power: str
    victims: str

    @property
    def whole(self) -> str:
        """The finding and its caveats."""
        return f"{self.core} {self.caveats}".strip()


def say(readings: Readings) -> dict[int, Said]:
    """Every deciding finding in sentences, by the id of its reading."""
    said = {}
    for r in readings.deciding:
        beside = [other for other in readings.every if _alike(r, other)]
        said[id(r)] = _said(r, beside, readings.cards)
    return said


def measured(readings: Readings) -> list[tuple[str, str]]:
    """What stands beside findings, as (kind, sentence): a measured ε, and what attacks said they proved."""
    result = readings.result
    sentences = [("contradiction" if one.contradicted else "note", epsilon(one)) for one in result.epsilons]
    for attack in dict.fromkeys(one.attack for one in result.proofs):
        held = [one for one in result.proofs if one.attack == attack]
        kind = "contradiction" if any(one.refuted for one in held) else "note"
        sentences.append((kind, f"{readings.cards.attack(attack)}: {proofs(held)}"))
    return sentences


def _alike(r: Reading, other: Reading) -> bool:
    """Whether another metric judges the same kind of private data from the same attack in the same cell."""
    f, g = r.finding, other.finding
    in_cell = (f.scenario, f.cell, f.attack) == (g.scenario, g.cell, g.attack)
    return in_cell and f.metric != g.metric and r.card.severity == other.card.severity


def _said(reading: Reading, beside: Sequence[Reading], cards: Cards) -> Said:
    """A finding in sentences.

    Args:
        reading: the finding.
        beside: others of its attack; one may say that by its pixels the images are worse than a guess.
        cards: of the metrics, for a control in another metric.
    """
    f = reading.finding
    denial = next((other for other in beside if other.finding.metric == f.denied_by), None)
    beside_defence, out = _undefended(reading), _victims(reading)
    caveats = [
        out,
        _ladder(f),
        _unseen(f),
        _draws(reading),
        _sample(f),
        _search(f),
        bound(reading),
        beside_defence,
        f"The attacker also had {reading.given}." if reading.given else "",
    ]
    return Said(
        reading=reading,
        beside=tuple(beside),
        core=_core(reading, denial, cards),
        caveats=" ".join(text for text in caveats if text),
        deed=_deed(reading),
        over_guessing=_over_guessing(reading),
        power=beside_defence,
        victims=out,
    )


def bound(reading: Reading) -> str:
    """The bound on any attack, in words; empty if no guarantee covers the number."""
    finding, most = reading.finding, reading.finding.bound
    if most is None:
        return ""
    limit = f"more than {reading.most}" if finding.higher_leaks else f"less than {reading.most}"
    proof = (
        f"ε = {most.epsilon:.3g}, δ = {most.delta:g} for {UNITS[most.unit]}, over "
        f"{words.count(most.steps, 'releases')}"
    )
    text = f"No attack can reach {limit} on average: the defence proves {proof}."
    if reading.card.unit == "share" and finding.higher_leaks and most.value >= 1 and not most.word_of:
        return f"The defence proves {proof}: too little to bound any attack."
    if most.word_of:
        who = words.join_words([f"“{name}”" for name in most.word_of])
        text = f"The defence {who} says of itself that it proves {proof}; nobody here has checked that. "
        text += f"If it is so, no attack can reach {limit} on average."
    if most.contradicted:
        text = f"{CONTRADICTION}. {text} The defence is not what it says, or a program is wrong."
    return text


def contradictions(readings: Readings) -> list[str]:
    """Measurements that a claimed privacy guarantee rules out, and proofs that are wrong, in sentences."""
    result = readings.result
    wrong = [
        f"{one.scenario}, {readings.cards.attack(one.attack)}: {proofs([one])}"
        for one in result.proofs
        if one.refuted
    ]
    wrong += [
        f"{words.capital(r.where)}, {r.attack}: {bound(r)}"
        for r in readings.every
        if r.finding.bound is not None and r.finding.bound.contradicted
    ]
    return wrong + [epsilon(one) for one in result.epsilons if one.contradicted]


def epsilon(one: EmpiricalEpsilon) -> str:
    """The lower bound on ε that a run with canaries shows, next to the claimed ε."""
    parts = [f"Claimed ε = {one.claimed:g}", f"the run shows at least {one.shown:.2g}"]
    parts += [f"at most {one.proved:.3g} by the accountant"] if one.proved is not None else []
    text = (
        f"{'; '.join(parts)} ({one.correct} of {one.guesses} guesses about {one.canaries:,} canary "
        f"{one.unit}s were right; δ = {one.delta:g}, 95 %)."
    )
    if one.contradicted:
        return f"CONTRADICTION: the noise is not there, or not as large as claimed. {text}"
    return text if one.proved is not None else f"{text} No defence proves any ε."


def proofs(held: Sequence[Proofs]) -> str:
    """How many assertions an attack proved, and whether they are true.

    Examples:
        >>> one = Proofs(scenario="s", cell="c", attack="a", claim="facts", stated=12, wrong=0)
        >>> proofs([one])
        '12 assertions were proved (facts), and all of them are true.'
    """
    stated, wrong = sum(one.stated for one in held), sum(one.wrong for one in held)
    kinds = words.join_words(list(dict.fromkeys(one.claim.replace("_", " ") for one in held)))
    proved = f"{words.count(stated, 'assertions')} {'was' if stated == 1 else 'were'} proved ({kinds})"
    if not wrong:
        return f"{proved}, and {'it is' if stated == 1 else 'all of them are'} true."
    return (
        f"{proved}, but {wrong:,} {'is' if wrong == 1 else 'are'} not true: the attack has a defect, or the "
        "clients did not do what the terms say. Nothing that it claims here can be believed."
    )


def has_failed(finding: Finding) -> bool:
    """Whether the attack of a finding without power failed where it must succeed; else it was silent."""
    return finding.control is not None and not finding.control.passed


def _core(r: Reading, denial: Reading | None, cards: Cards) -> str:
    """The sentence that a verdict decides."""
    f, where, attack = r.finding, words.capital(r.condition), r.attack
    if f.verdict == "no power":
        why = _failure(f.control, f.unit, cards) if f.control and has_failed(f) else SILENT
        return f"{where}, nothing can be said about {attack}: {why}. {NOT_SAFE}"
    # What limits a gain is said with it: a score that another one denies, luck among many findings.
    gain = _over_guessing(r)
    if denial is not None:
        return (
            f"{where}, {attack} is above guessing by {r.card.label}, but not by {denial.card.label}. "
            f"{r.score}: {_lower(gain)}. But {denial.score}: {_lower(_over_guessing(denial))}. "
            "This does not count as rebuilt images."
        )
    if expected_by_luck(f):
        return (
            f"{where}, {attack} seems to gain: {r.score}. {gain}. Among this many findings that would be "
            "expected by luck, so no leak is shown."
        )
    if f.verdict in ("leaks", "contradiction"):
        return f"{where}, {attack} {_deed(r)}. {gain}."
    if f.verdict == "label leak":
        return (
            f"{where}, {attack} got the labels of {f.unit}, and no example is shown to have come out: "
            f"{r.score}. {gain}. But {f.reason}."
        )
    if f.verdict == "too alike":
        return f"{where}, {attack} {_deed(r)}, but of whom cannot be said: {f.reason}. {gain}."
    if f.verdict == "no leak found":
        return f"{where}, {attack} found no leak: {r.score}. {gain}. {_earned(f)}"
    # Neither a leak nor its absence: the reason, and what would show it.
    more = f" {words.capital(f.remedy)} would show it." if f.remedy else ""
    why = f", because {f.reason}" if f.reason else ""
    return f"{where}, it is not shown whether {attack} finds a leak{why}: {r.score}. {gain}.{more}"


def _deed(r: Reading) -> str:
    return r.card.sentence.replace("{}", f"{r.value} {r.interval}", 1)


def _over_guessing(r: Reading) -> str:
    how = "Guessing without the update" + ("" if r.guess == PLAIN_GUESS else f" ({r.guess})")
    if r.guesser == r.guess:
        how = words.capital(r.guesser)
    # Sample size and selection: "20 victims; best of 4 restarts, chosen by the attack's own loss".
    basis = "; ".join(part for part in (r.sample, r.finding.chosen) if part)
    return f"{how} reaches {r.baseline}; the gain is {r.measured_gain} {r.gain_interval} ({basis})"


def _undefended(r: Reading) -> str:
    """The same attack without the defence: whether its silence here proves anything."""
    reference = r.finding.undefended
    if reference is None:
        return ""
    text = (
        f"With the same settings this attack reaches {r.undefended} without a defence and {r.defended} here"
    )
    text += f" ({r.card.label})."
    if reference.verdict not in OUT:
        text += " Even without a defence it shows no leak, so its silence here proves little."
    return text


def _victims(r: Reading) -> str:
    names = [v.name for v in r.victims if v.leaks]
    if not names:
        return ""
    if len(names) == len(r.victims) > 1:
        return f"Each of the {r.jury} came out: their own examples were recognised among held-out ones."
    more = [f"{len(names) - FEW_NAMES} more"] if len(names) > FEW_NAMES else []
    listed = "; ".join([*names[:FEW_NAMES], *more])
    return f"The examples of {len(names)} of {r.jury} came out, recognised among held-out ones: {listed}."


def _search(finding: Finding) -> str:
    """Whether the attack's searches were unfinished; empty if all finished, or if unknown."""
    # A search whose loss could not be evaluated has stopped nowhere; the verdict's reason says so.
    stopped = (finding.unfinished or 0) - sum(bool(search.reason) for search in finding.searches)
    if stopped <= 0:
        return ""
    of = f" of {len(finding.searches)}" if finding.searches else ""
    text = (
        f"Search unfinished: {stopped}{of} searches stopped above the loss of the truth, so more "
        "iterations or restarts can find more."
    )
    if falling := sum(s.falling for s in finding.searches):
        text += f" {words.count(falling, 'searches')} were still improving at the end."
    return text


def _earned(finding: Finding) -> str:
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


def _ladder(finding: Finding) -> str:
    """Which null adversaries a leak beats; else empty."""
    top = finding.highest if finding.verdict in ("leaks", "label leak") else None
    return "" if top is None else f"It does better than whoever knows {KNOWS[top.knows]}."


def _unseen(finding: Finding) -> str:
    """Why an interval reaches so far where others may leak more; empty: it does not."""
    if finding.gain_high <= finding.gain_end:
        return ""
    return "The interval reaches beyond what these victims show: others may leak more than any of them."


def _draws(r: Reading) -> str:
    """The metric in every draw of the network's first weights; empty: there is one."""
    if len(r.by_draw) < 2 or r.finding.verdict == "no power":
        return ""
    whose = "draw of the network's first weights"
    if r.finding.draws < len(r.by_draw):  # a network from a file starts alike in every federation
        whose = f"federation, over {words.count(r.finding.draws, 'draws')} of first weights"
    return f"By {whose}: {', '.join(r.by_draw)}."


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
    if f.exchange is not None and not f.exchange.is_beaten and f.gain_low > 0:
        parts.append("It is not shown to gain more about its victims than about others.")
    if f.claimed is not None and f.claimed < f.n:
        parts.append(f"It claimed something about {f.claimed} of {f.n} {f.unit}; the others count as misses.")
    if f.unit == "clients" and f.runs is not None and f.runs < FEW_DRAWS_OF_CLIENTS:
        parts.append(f"The clients come from only {words.count(f.runs, 'runs')} of the federation.")
    return " ".join(parts)
