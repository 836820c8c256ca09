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
"""What attacks call the length of their search."""


def cost(scenario: Scenario, *, probe: bool) -> list[dict[str, Any]]:
    """One row per attack: calls over all cells, evaluations of its objective, CPU seconds (None: not probed).

    The probe runs the first cell's federation for one client, with a model as drawn (training changes no
    speed), and ``PROBE`` iterations of the attack. Active attacks and those without iterations are not
    probed: their cost is in cached training.
    """
    every = cells(scenario)
    rows = []
    for position, spec in enumerate(scenario.attacks):
        attack = attack_of(spec.name, spec.arguments)
        calls = sum(_calls(c.scenario, attack) for c in every) * max(1, len(scenario.audit.seeds))
        per_call = _evaluations(attack)
        seconds = None
        searches = hasattr(attack, "iterations") and attack.needs.scope == "update"
        if probe and searches and not attack.needs.changes:
            seconds = _probe(every[0].scenario, position) / PROBE * per_call * calls
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


def _evaluations(attack: Attack) -> int:
    """Iterations times restarts, for attacks that have them; 1 for a closed form."""
    return int(getattr(attack, "iterations", 1)) * int(getattr(attack, "restarts", 1))


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


def _probe(scenario: Scenario, position: int) -> float:
    """CPU seconds of all restarts over ``PROBE`` iterations, divided by the restarts."""
    spec = scenario.attacks[position]
    full = attack_of(spec.name, spec.arguments)
    arguments: Mapping[str, Any] = {**spec.arguments, "iterations": PROBE}
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
        return (time.process_time() - started) / int(getattr(full, "restarts", 1))
