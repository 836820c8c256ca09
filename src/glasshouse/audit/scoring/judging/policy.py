"""Decide for every limit of a policy whether it holds, is broken, or neither was shown.

A policy fails closed. A limit holds only if the whole interval is within it and the attack's controls
passed. If the interval crosses the limit, if nothing shows that the attack works, or if nothing was
measured, the state says so; it never counts as success.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Literal, TypeVar

from glasshouse.audit.scoring.judging.verdict import BEYOND_SMALL, NOT_PLANTED, POWER, UNBOUNDED
from glasshouse.audit.scoring.words import defense_labels
from glasshouse.results.cards import Limit, MetricCard
from glasshouse.results.judgement import OUT, expected_by_luck, these_weights, victims_by_claim
from glasshouse.results.records import Finding, Refused, Result, Utility, Victim
from glasshouse.scenario.axes import Cell
from glasshouse.scenario.table import Plugin

State = Literal["holds", "broken", "undecided", "unmeasured"]
T = TypeVar("T", Finding, Refused, Utility)


def policy_limits(cells: Sequence[Cell], result: Result) -> tuple[Limit, ...]:
    """One row for every limit, cell and attack that should have been measured, in the order of the cells.

    Args:
        cells: every cell of every scenario.
        result: of the run, with the cards of its attacks and metrics.
    """
    return tuple(row for cell in cells for row in (*_gain_rows(cell, result), *_accuracy_rows(cell, result)))


def state_of_gain(
    finding: Finding,
    limit: float,
    victims: Sequence[Victim] | None = None,
    *,
    refused: bool = False,
    best: float | None = None,
) -> tuple[State, str]:
    """The state of a limit on the gain under a finding, with a reason if undecided.

    Args:
        finding: about one attack in one cell.
        limit: the largest tolerated gain.
        victims: verdicts on single victims of the same claims, where another metric judged them.
        refused: the attack could not run on some of the victims, who count as misses.
        best: the metric's value where everything comes out; None: it has no such end.
    """
    single = victims or finding.victims
    control = finding.control
    failed = control is not None and not control.passed
    if failed or finding.verdict == "no power":
        why = "its control failed" if failed else "it claimed nothing about any victim"
        return "undecided", f"{why}, so the number says nothing"
    if finding.gain_low > limit:
        if expected_by_luck(finding):
            return "undecided", "among this many findings it would be expected by luck"
        if finding.exchange is not None and not finding.exchange.is_beaten:
            return "undecided", "that it gains less about victims whose update it did not see is not shown"
        return "broken", ""
    if reason := _unbreakable(finding, limit, best):
        return "undecided", reason
    # Without a bound on the share of victims that come out, the mean must hold for unseen ones, too.
    end = finding.gain_high if finding.share is None else finding.gain_end
    if end > limit:
        return "undecided", "the interval reaches beyond the limit"
    if control is None:
        return "undecided", "no control shows that this attack works where it must"
    if finding.unfinished:
        return "undecided", f"the search was not finished for {finding.unfinished} victims"
    if refused and finding.claimed is not None and finding.claimed < finding.n:
        return "undecided", f"the attack could not run on some victims and claimed {finding.claimed}"
    if reason := _unearned(finding):
        return "undecided", reason
    if count := sum(victim.leaks for victim in single):
        return "undecided", f"the mean is within the limit, but {count} of {len(single)} came out"
    return "holds", ""


def _unbreakable(finding: Finding, limit: float, best: float | None) -> str:
    """Why no attack could exceed the limit, so that it means nothing; empty: one could."""
    if finding.chance is not None and finding.higher_leaks and limit >= 1 - finding.chance:
        reach = f"{100 * (1 - finding.chance):.0f} points"
        return f"no attack could break it: the metric gains at most {reach} over chance"
    if best is not None and limit >= abs(best - finding.baseline_value):
        most = abs(best - finding.baseline_value)
        return f"no attack could break it: over guessing the metric gains at most {most:.3g}"
    return ""


def _unearned(finding: Finding) -> str:
    """Why a silence means nothing although the interval is narrow; empty: it means something.

    Few victims who come out whole, or an attack that could not have found them, hardly move an interval. A
    limit has a size of its own, and of claims about no single example it is a limit on the mean alone.
    """
    other = {BEYOND_SMALL, *([NOT_PLANTED] if finding.verdict in OUT else [])}  # a leak shows that it works
    for reason in finding.lacks:
        if reason not in other and (finding.ladder or not reason.startswith(UNBOUNDED)):
            return reason
    if finding.ladder and finding.verdict == "not shown" and finding.reason not in ("", BEYOND_SMALL):
        return finding.reason
    if finding.share is not None and finding.share.most > finding.share.margin and not finding.share.out:
        most, needed = 100 * finding.share.most, finding.share.needed
        return f"up to {most:.0f} % of such victims could come out; {needed} victims show less"
    if (planted := finding.power) is not None and planted.found < POWER * planted.planted:
        return f"only {planted.found} of {planted.planted} planted leaks were found"
    return ""


def state_of_accuracy(utility: Utility, least: float) -> tuple[State, str]:
    """The state of a lower limit on held-out accuracy, with a reason if undecided."""
    if utility.high < least:
        return "broken", ""
    if utility.low < least:
        return "undecided", "the interval reaches below the limit"
    return "holds", ""


def _gain_rows(cell: Cell, result: Result) -> Iterator[Limit]:
    cards, place = {m.name: m for m in result.metrics}, _place(cell)
    judged = victims_by_claim(result.findings)
    for metric, limit in cell.scenario.policy.max_gain.items():
        card = cards[metric]
        tolerated = f"tolerated: {_amount(limit, card)}"
        for attack in cell.scenario.attacks:
            label, title = attack.label or attack.name, _title(attack, result)
            subject = f"gain in {card.label} of {title}, {place}"
            row = partial(Limit, scenario=cell.scenario.name, subject=subject, limit=limit)
            findings = [
                f for f in _of_cell(result.findings, cell) if f.attack == label and f.metric == metric
            ]
            for f in findings:
                victims = f.victims or judged.get(f.claim_key, ())
                refused = _refused(cell, attack, result)
                best = card.high if card.higher_leaks else card.low
                state, reason = state_of_gain(f, limit, victims, refused=refused, best=best)
                # Beside a bound on single victims the mean's end is that of victims like these.
                whole = f.share is None or f.gain_high <= f.gain_end
                end = f.gain_high if whole else f.gain_end
                bounds = f"[{_number(f.gain_low, card)}, {_number(end, card)}]"
                bounds += "" if whole else " among victims like these"
                gain = f"the gain in {card.label} is {_amount(f.gain, card)} {bounds}"
                why = f"; {reason}." if reason else "."
                weights = these_weights(f.draws, of_clients=f.unit == "clients")
                where = f"{place}, for {weights}" if weights else place
                yield row(state=state, text=f"{title}, {where}: {gain}; {tolerated}{why}")
            # A limit on what nobody measured must not look as if it held.
            if not findings and _belongs(label, metric, cell.scenario.name, result):
                none = f"no gain in {card.label} was measured ({_why_unmeasured(cell, attack, result)})"
                yield row(state="unmeasured", text=f"{title}, {place}: {none}; {tolerated}.")


def _belongs(label: str, metric: str, scenario: str, result: Result) -> bool:
    """Whether an attack without a score in this metric should have had one.

    It should not if the attack was measured in other metrics only and this one was not refused: its claims
    are about something else (e.g. labels, while the limit is on images). If no attack at all has a score in
    the metric, the limit was never checked, and every attack is reported.
    """
    of_scenario = [f for f in result.findings if f.scenario == scenario]
    if not any(f.attack == label for f in of_scenario) or not any(f.metric == metric for f in of_scenario):
        return True
    subject = f"metric '{metric}' of attack '{label}'"
    refused = any(r.subject == subject for r in result.refusals if r.scenario == scenario)
    return refused or any(f.attack == label and f.metric == metric for f in of_scenario)


def _refused(cell: Cell, attack: Plugin, result: Result) -> bool:
    """Whether any call of the attack in the cell was refused (and not just one of its metrics)."""
    names = f"attack '{attack.label or attack.name}'", f"attack '{attack.name}'"
    return any(r.subject.startswith(names) for r in _of_cell(result.refusals, cell))


def _why_unmeasured(cell: Cell, attack: Plugin, result: Result) -> str:
    subject = (f"'{attack.label or attack.name}'", f"'{attack.name}'")
    refusals = (r for r in _of_cell(result.refusals, cell) if r.subject.endswith(subject))
    return next((f"{r.subject} needs {r.needs}, got {r.got}" for r in refusals), "nothing was scored")


def _accuracy_rows(cell: Cell, result: Result) -> Iterator[Limit]:
    least = cell.scenario.policy.min_accuracy
    if least is None:
        return
    subject, place = f"held-out accuracy, {_place(cell)}", _place(cell, capital=True)
    row = partial(Limit, scenario=cell.scenario.name, subject=subject, limit=least)
    required = f"required: {100 * least:.3g} %"
    measured = _of_cell(result.utility, cell)
    for u in measured:
        state, reason = state_of_accuracy(u, least)
        value = f"{100 * u.value:.3g} % [{100 * u.low:.3g}, {100 * u.high:.3g}]"
        end = f"; {reason}." if reason else "."
        yield row(state=state, text=f"{place}: held-out {u.metric} is {value}; {required}{end}")
    if not measured:
        yield row(state="unmeasured", text=f"{place}: held-out accuracy was not measured; {required}.")


def _of_cell(rows: Sequence[T], cell: Cell) -> list[T]:
    return [r for r in rows if r.scenario == cell.scenario.name and r.cell == cell.hash]


def _title(attack: Plugin, result: Result) -> str:
    label = attack.label or attack.name
    return next((c.title for c in result.attacks if c.label == label == c.name), label)


def _place(cell: Cell, *, capital: bool = False) -> str:
    given = [v for path, v in cell.axes.items() if path.startswith("defenses") and isinstance(v, str)]
    own = " + ".join(defense_labels(cell.scenario))
    names = given[0] if own and given else own
    axes = ", ".join(
        f"{path.rsplit('.', 1)[-1]} = {value}"
        for path, value in cell.axes.items()
        if not path.startswith("defenses")
    )
    text = (f"under {names}" if names else "without a defence") + (f" ({axes})" if axes else "")
    return text[0].upper() + text[1:] if capital else text


def _amount(value: float, card: MetricCard) -> str:
    unit = {"rate": " points", "level": " dB"}.get(card.display, "")
    return _number(value, card) + unit


def _number(value: float, card: MetricCard) -> str:
    text = f"{100 * value if card.display == 'rate' else value:.3g}"
    return text.replace("-", "\u2212")
