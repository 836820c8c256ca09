"""What an audit will cost before anything long starts: calls, evaluations, and a time from a short probe."""

import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from glasshouse.attacks.base import Attack
from glasshouse.attacks.parts.frozen import frozen
from glasshouse.attacks.parts.head_gradient import Inversion, Inverting
from glasshouse.audit.attacking.call import AttackTask, run_attack, units_of
from glasshouse.audit.attacking.needs import attack_of
from glasshouse.audit.attacking.threat import threat_of
from glasshouse.audit.simulation.build import build, held
from glasshouse.audit.simulation.group import Group, simulate
from glasshouse.audit.simulation.pretraining import OURS, ascent, passes
from glasshouse.errors import Inapplicable
from glasshouse.models import build as models
from glasshouse.models.fit import Recipe, fit
from glasshouse.rng import Rng
from glasshouse.scenario.axes import Cell, cells
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


PROBED_IMAGES = 16
"""Images at most that a probe of a training or an inversion takes at a time."""


def cost(scenario: Scenario, *, probe: bool) -> list[dict[str, Any]]:
    """One row per attack: calls over all cells, evaluations of its objective, CPU seconds (None: not probed).

    Before them, where there is some, a row of the pre-training: how many models, images times passes, and the
    time if none of them lies in the cache. Attacks that invert representations count steps times images, of
    which there are at most as many as examples behind what they see; what they train beforehand is in no row.

    The probe runs the first cell's federation for one client, with a model as drawn (training changes no
    speed), and ``PROBE`` iterations of the attack. Other active attacks and those without a search are not
    probed: their cost is in cached training, which is in no attack's seconds.
    """
    every = cells(scenario)
    repeats = max(1, len(scenario.audit.seeds))
    rows = [_pretraining(every, probe=probe)] if any(passes(c.scenario) for c in every) else []
    for position, spec in enumerate(scenario.attacks):
        attack = attack_of(spec.name, spec.arguments)
        calls = sum(_calls(c.scenario, attack) for c in every) * repeats
        seconds = None
        if isinstance(attack, Inverting):
            steps = sum(number for _, number in attack.inversion.phases)
            images = sum(_images(c.scenario, attack) for c in every) * repeats
            evaluations = images * steps or calls
            if probe and steps and (each := _probe_inversion(every[0].scenario, attack.inversion)):
                seconds = each * images
        else:
            per_call = _evaluations(attack)
            evaluations = calls * per_call
            searches = budget_of(attack) is not None and attack.needs.scope == "update"
            if probe and searches and per_call and not attack.needs.changes:
                seconds = _probe(every[0].scenario, position) * per_call * calls
        rows.append(_row(scenario, spec.label or spec.name, calls, evaluations, seconds))
    return rows


def _row(
    scenario: Scenario, name: str, calls: int, evaluations: int, seconds: float | None
) -> dict[str, Any]:
    return {
        "scenario": scenario.name,
        "attack": name,
        "calls": calls,
        "evaluations": evaluations,
        "seconds": seconds,
    }


def _pretraining(every: Sequence[Cell], *, probe: bool) -> dict[str, Any]:
    """Cells and seeds that start from the same public model train it once."""
    different: dict[str, int] = {}
    for cell in every:
        one = cell.scenario
        for seed in one.audit.seeds or (one.seed,):
            key = (one.model.model_dump(), one.data.model_dump(), one.federation.clients, seed)
            different[repr(key)] = passes(one)
    counts = [number for number in different.values() if number]
    seconds = None
    first = next((c.scenario for c in every if c.scenario.model.pretraining.epochs), None)
    if probe and first is not None:
        seconds = _probe_training(first) * sum(counts)
    return _row(every[0].scenario, "pre-training", len(counts), sum(counts), seconds)


def _images(scenario: Scenario, attack: Inverting) -> int:
    """Representations inverted in a whole run, at most: the examples behind what is seen in its rounds."""
    federation = scenario.federation
    behind = federation.batch_size if federation.kind == "gradient" else scenario.data.examples
    seen, together = federation.cohort_size, 1
    if federation.secure_sum:
        seen, together = together, seen
    return len(scenario.audit.rounds) * seen * min(attack.inversion.images, behind * together)


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
    untrained = model.pretraining.model_copy(update={"epochs": 0, "head_epochs": 0})
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


def _probe_inversion(scenario: Scenario, inversion: Inversion) -> float | None:
    """CPU seconds of inverting one image, all steps of it; None: not behind this model."""
    built = build(_short(scenario), seed=scenario.seed)
    agreed = built.setting.terms.architecture
    count = min(PROBED_IMAGES, inversion.images, scenario.federation.batch_size)
    images = torch.rand((count, *agreed.input_shape), generator=torch.Generator().manual_seed(0))
    try:
        model = frozen(agreed, built.setting.start, subject="a probe of the inversion")
        vectors, spent = model.of(images), 0.0
        for invert, steps in inversion.phases:
            short = replace(inversion, invert=invert, iterations=min(PROBE, steps))
            run = partial(short, model, vectors, shape=agreed.input_shape, rng=Rng.root(0))
            spent += _seconds(run) * steps / short.iterations
    except Inapplicable:
        return None
    return spent / count


def _probe_training(scenario: Scenario) -> float:
    """CPU seconds of one image's pass through the model and back, in training."""
    built = build(_short(scenario), seed=scenario.seed)
    how, public = scenario.model.pretraining, held(built.public, "public")
    few = public.pick(torch.arange(min(PROBED_IMAGES, how.batch_size, len(public))))
    recipe = Recipe(**{**how.model_dump(exclude=OURS), "epochs": PROBE})
    model, against = models.build(built.setting.terms.architecture, rng=Rng.root(0)), ascent(how)
    run = partial(fit, model, few, recipe, rng=Rng.root(0), perturb=against, label="a probe of the training")
    return _seconds(run) / (PROBE * len(few) * (1 + (against.taken if against else 0)))


def _seconds(run: Callable[[], object]) -> float:
    """CPU seconds of ``run`` when it is done again: what is made only once is made before."""
    run()
    started = time.process_time()
    run()
    return time.process_time() - started
