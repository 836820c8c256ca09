"""Cost of an attack's controls, which run the attack again in an easy setting."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from glasshouse.audit.attacking.needs import calls_of, declared
from glasshouse.audit.cost.cached import CountedWork
from glasshouse.audit.cost.rows import Row, attacked_rounds, make_row, units_in
from glasshouse.audit.cost.timings import CLOSED_FORM, Known, Timing, Timings, Uses, stand_in
from glasshouse.audit.scoring.controls.control import easy_scenario
from glasshouse.audit.scoring.tasks import control_key
from glasshouse.scenario.spec import Scenario
from glasshouse.scenario.table import Plugin


@final
@dataclass(frozen=True, kw_only=True)
class Easy:
    """One control: an attack in its easy setting.

    Attributes:
        plugin: the attack with its settings in the control.
        scenario: the scenario of the control.
        timing: of the attack in the control; if that was not timed, elsewhere.
    """

    plugin: Plugin
    scenario: Scenario
    timing: Timing | None


def time_controls(uses: Uses, timings: Timings, known: Known, counted: CountedWork) -> list[Easy]:
    """One control per distinct setting of an attack, timed in its easy setting while time is left."""
    different: list[Easy] = []
    timer = known.timer
    for (scenario, plugin), timing in zip(uses, timings, strict=True):
        easy = easy_scenario(plugin) if scenario.audit.controls else None
        if easy is None or control_key(plugin) in counted.controls:
            continue
        counted.controls.add(control_key(plugin))
        (attack,), known_timing = easy.attacks, timing
        if timer is not None and timing is not None:
            budget = declared(attack)[1] or CLOSED_FORM
            timed = None if timer.exhausted else timer.attack(easy, attack, budget)
            known_timing = timed or stand_in(easy, budget, [(scenario, timing)], timer)
        different.append(Easy(plugin=attack, scenario=easy, timing=known_timing))
    return different


def controls_row(name: str, label: str, easy: Sequence[Easy]) -> Row:
    """The controls of one attack: their calls, without federations and training."""
    unit, work, seconds = "evaluations", 0, list[float | None]()
    for one in easy:
        calls = calls_of(one.scenario, one.plugin)
        budget = declared(one.plugin)[1] or CLOSED_FORM
        units = units_in(one.scenario, budget, calls)
        unit = budget.unit if budget.amount else unit
        work += units
        timing = one.timing
        crafting = 0.0 if timing is None else attacked_rounds(one.scenario) * timing.crafting
        seconds.append(None if timing is None else units * timing.unit + calls * timing.call + crafting)
    known = None if None in seconds else sum(s or 0.0 for s in seconds)
    row = make_row(name, f"control: {label}", len(easy), (unit, work), known)
    return {**row, "estimated": any(one.timing is not None and one.timing.estimated for one in easy)}
