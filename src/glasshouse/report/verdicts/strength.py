"""Strength of the evidence, in sentences: search convergence, DP bounds, and the empirical ε of a run."""

from collections.abc import Sequence

from markupsafe import Markup

from glasshouse.report import numbers, svg, words
from glasshouse.results.cards import MetricCard
from glasshouse.results.records import Finding
from glasshouse.results.strength import EmpiricalEpsilon, Proofs

NO_GUARANTEE = "no guarantee covers this: only the attacks that were tried limit what came out"
CONTRADICTION = "CONTRADICTION: more came out than the guarantee allows"
WRONG_PROOF = "WRONG PROOF: an attack certified what is not true"
UNITS = {"example": "one example more or less", "update": "a client's update, or zeros in its place"}


def search(finding: Finding) -> str:
    """Whether the attack's searches were unfinished; empty if all finished, or if unknown."""
    if not finding.unfinished:
        return ""
    of = f" of {len(finding.searches)}" if finding.searches else ""
    text = (
        f"Search unfinished: {finding.unfinished}{of} searches stopped above the loss of the truth, so more "
        "iterations or restarts can find more."
    )
    if falling := sum(s.falling for s in finding.searches):
        text += f" {words.count(falling, 'searches')} were still improving at the end."
    return text


def brief(finding: Finding) -> str:
    """A note on a number in a chart: its privacy guarantee, or that there is none."""
    if finding.bound is None:
        return NO_GUARANTEE
    text = f"red line: the most that any attack could get under ε = {finding.bound.epsilon:.3g}"
    return text + (
        f", by the word of {words.join_words(finding.bound.word_of)}" if finding.bound.word_of else ""
    )


def bound_line(finding: Finding, scale: svg.Scale, *, height: float) -> list[Markup]:
    """The bound as a vertical line in one row of a chart; nothing without a bound."""
    if finding.bound is None:
        return []
    at = svg.percent(scale(finding.bound.value))
    return [svg.tag("line", class_="bound", x1=at, x2=at, y1=0, y2=height)]


def bound(finding: Finding, card: MetricCard) -> str:
    """The bound on any attack, in words; empty if no guarantee covers the number."""
    most = finding.bound
    if most is None:
        return ""
    amount = numbers.value(most.value, card, finding.unit_of_value)
    limit = f"more than {amount}" if finding.higher_leaks else f"less than {amount}"
    proof = (
        f"ε = {most.epsilon:.3g}, δ = {most.delta:g} for {UNITS[most.unit]}, over "
        f"{words.count(most.steps, 'releases')}"
    )
    text = f"No attack can reach {limit} on average: the defence proves {proof}."
    if most.word_of:
        who = words.join_words([f"“{name}”" for name in most.word_of])
        text = f"The defence {who} says of itself that it proves {proof}; nobody here has checked that. "
        text += f"If it is so, no attack can reach {limit} on average."
    if most.contradicted:
        text = f"{CONTRADICTION}. {text} The defence is not what it says, or a program is wrong."
    return text


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
