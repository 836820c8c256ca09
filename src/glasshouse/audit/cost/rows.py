"""A row of the costs, and the counts of work that go into it."""

from typing import Any

from glasshouse.attacks.budget import Budget
from glasshouse.audit.attacking.needs import images_of
from glasshouse.scenario.spec import Scenario

Row = dict[str, Any]
"""``scenario``, ``part`` (an attack's label, or what else takes time), ``calls``, ``unit``, ``evaluations``
(how many units), ``seconds`` (None: not measured), ``device`` on which they are spent. The last row is the
total; its ``devices`` are the seconds of each. ``estimated``: from something else, as no time was left to
measure it; of the total the parts of which that holds."""


def make_row(
    scenario: str, part: str, calls: int, work: tuple[str, int | None], seconds: float | None = None
) -> Row:
    """One row, on the processor."""
    unit, evaluations = work
    return {
        "scenario": scenario,
        "part": part,
        "calls": calls,
        "unit": unit,
        "evaluations": evaluations,
        "seconds": seconds,
        "device": "cpu",
        "estimated": False,
    }


def repeats(scenario: Scenario) -> int:
    """How often a cell is played: once for each seed."""
    return max(1, len(scenario.audit.seeds))


def attacked_rounds(scenario: Scenario) -> int:
    """How many rounds of a federation are attacked."""
    return len({r % scenario.federation.rounds for r in scenario.audit.rounds})


def units_in(scenario: Scenario, budget: Budget | None, calls: int) -> int:
    """Units of work in so many calls of an attack."""
    if budget is None or not budget.amount:
        return calls
    if not calls or not budget.images:
        return calls * budget.units
    return images_of(scenario, budget) * repeats(scenario) * budget.units
