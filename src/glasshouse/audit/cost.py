"""What an audit will cost before anything long starts: calls, evaluations, and a time from a short probe."""

import json
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from glasshouse.attacks.base import Attack
from glasshouse.audit.build import threat_of
from glasshouse.audit.cell import AttackTask, Group, attack_of, run_attack, simulate, units_of
from glasshouse.scenario.axes import cells
from glasshouse.scenario.load import write_resolved
from glasshouse.scenario.spec import Scenario
from glasshouse.scenario.table import Plugin

PROBE = 3
BUDGETS = ("evaluations", "iterations", "steps")
"""What attacks call the length of one search; the first that an attack has is counted and shortened."""
POPULATION = "population"
"""What attacks call the candidates that they evaluate together: the probe's least budget of evaluations."""
TRAININGS = ("training_steps",)
"""What attacks call the length of a training that is cached: shortened too, it changes no speed."""
PROCESSES = "processes"
"""What attacks call the pieces that they do at a time: one in a probe, which times its own process."""


def cost(scenario: Scenario, *, probe: bool) -> list[dict[str, Any]]:
    """One row per attack: calls over all cells, evaluations of its objective, CPU seconds (None: not probed).

    The probe runs the first cell's federation for one client, with a model as drawn (training changes no
    speed), and ``PROBE`` iterations of the attack. Active attacks and those without a search are not probed:
    their cost is in cached training, which is in no attack's seconds.
    """
    every = cells(scenario)
    rows = []
    for position, spec in enumerate(scenario.attacks):
        attack = attack_of(spec.name, spec.arguments)
        calls = sum(_calls(c.scenario, attack) for c in every) * max(1, len(scenario.audit.seeds))
        per_call = _evaluations(attack)
        seconds = None
        searches = budget_of(attack) is not None and attack.needs.scope == "update"
        if probe and searches and per_call and not attack.needs.changes:
            seconds = _probe(every[0].scenario, position) * per_call * calls
        rows.append(
            {
                "scenario": scenario.name,
                "attack": spec.label or spec.name,
                "calls": calls,
                "evaluations": calls * per_call,
                "seconds": seconds,
            }
        )
    return rows


def _calls(scenario: Scenario, attack: Attack) -> int:
    rounds = len(scenario.audit.rounds)
    per_scope = {
        "run": 1,
        "round": rounds,
        "update": min(scenario.audit.victims, rounds * scenario.federation.cohort_size),
    }
    return per_scope[attack.needs.scope]


def budget_of(attack: Attack) -> str | None:
    """The argument that holds the length of the attack's search; None: it has none."""
    return next((name for name in BUDGETS if hasattr(attack, name)), None)


def _evaluations(attack: Attack) -> int:
    """The length of a search times restarts, for attacks that search; 1 for a closed form."""
    name = budget_of(attack)
    return (1 if name is None else int(getattr(attack, name))) * int(getattr(attack, "restarts", 1))


def _short(scenario: Scenario) -> Scenario:
    """One victim, one round, nothing trained beforehand."""
    model, audit = scenario.model, scenario.audit
    untrained = model.pretraining.model_copy(update={"epochs": 0})
    brief = {"victims": 1, "utility": False, "rounds": (0,), "metrics": (Plugin(name="mse"),)}
    return scenario.model_copy(
        update={
            "model": model.model_copy(update={"pretraining": untrained}),
            "audit": audit.model_copy(update=brief),
            "federation": scenario.federation.model_copy(update={"rounds": 1}),
        }
    )


def shortened(attack: Attack) -> dict[str, int]:
    """The arguments that make ``attack`` a probe: ``PROBE`` iterations, or one population of candidates.

    No longer than what was asked for; trainings, which are cached, likewise; in one process.
    """
    name = budget_of(attack)
    assert name is not None, "only attacks that search are probed"
    least = max(PROBE, int(getattr(attack, POPULATION, PROBE))) if name == "evaluations" else PROBE
    wanted = {name: least} | {training: PROBE for training in TRAININGS if hasattr(attack, training)}
    wanted |= {PROCESSES: 1} if hasattr(attack, PROCESSES) else {}
    return {argument: min(value, int(getattr(attack, argument))) for argument, value in wanted.items()}


def _probe(scenario: Scenario, position: int) -> float:
    """CPU seconds per evaluation, over a short search with all of its restarts."""
    spec = scenario.attacks[position]
    full = attack_of(spec.name, spec.arguments)
    arguments: Mapping[str, Any] = {**spec.arguments, **shortened(full)}
    short = _short(scenario)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_resolved(short, folder / "scenario.toml")
        simulate(Group(folder=place, seed=scenario.seed))
        unit = units_of(full, folder, victims=1, attacked=frozenset({0}))[0]
        task = AttackTask(
            folder=place,
            out=str(folder / "claims"),
            attack=spec.name,
            arguments=json.dumps(arguments),
            threat=threat_of(scenario),
            attack_seed=scenario.attack_seed,
            unit=unit,
        )
        run_attack(task)
        warm = replace(task, out=str(folder / "again"))
        started = time.process_time()
        run_attack(warm)
        spent = time.process_time() - started
        return spent / _evaluations(attack_of(spec.name, arguments))
