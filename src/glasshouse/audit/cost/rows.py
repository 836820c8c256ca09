"""Rows of the cost table, and the counts of work in them."""

from typing import Any

from glasshouse.attacks.budget import Budget
from glasshouse.audit.attacking.needs import images_of
from glasshouse.scenario.spec import Scenario

Row = dict[str, Any]
"""``scenario``, ``part`` (an attack's label, or another part of the audit), ``calls``, ``unit``,
``evaluations`` (number of units), ``seconds`` (None: not measured), ``device``. The last row is the total;
its ``devices`` are the seconds by device. ``estimated``: derived from another timing, as no time was left to
measure it; in the total, the names of such parts."""


def make_row(
    scenario: str, part: str, calls: int, work: tuple[str, int | None], seconds: float | None = None
) -> Row:
    """One row, with device ``cpu``."""
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


def untrained(scenario: Scenario) -> dict[str, Any]:
    """The settings of the scenario's network, without its pre-training, on which no step's time depends."""
    return {name: value for name, value in scenario.model.model_dump().items() if name != "pretraining"}


def inputs_of(scenario: Scenario) -> dict[str, Any]:
    """The keys of ``[data]`` that decide how large inputs are, and how many classes a network tells apart."""
    return scenario.data.model_dump(
        include={"source", "tokenizer", "length", "resize", "channels", "domains"}
    )


def repeats(scenario: Scenario) -> int:
    """Number of runs of a cell: one per seed."""
    return max(1, len(scenario.audit.seeds))


def attacked_rounds(scenario: Scenario) -> int:
    """Number of attacked rounds of a federation."""
    return len({r % scenario.federation.rounds for r in scenario.audit.rounds})


def units_in(scenario: Scenario, budget: Budget, calls: int) -> int:
    """Units of work in ``calls`` calls of an attack."""
    if not budget.amount:
        return calls
    if not calls or not budget.images:
        return calls * budget.units
    return images_of(scenario, budget) * repeats(scenario) * budget.units
