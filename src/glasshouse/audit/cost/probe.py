"""Times short pieces of an audit, so that ``glasshouse check`` can say how long the whole will take."""

import importlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, final

import torch

from glasshouse.attacks.budget import PROBE, Budget
from glasshouse.audit.attacking.call import AttackTask, units_of
from glasshouse.audit.attacking.needs import attack_of
from glasshouse.audit.attacking.pieces import pieces, run_piece
from glasshouse.audit.attacking.threat import threat_of
from glasshouse.audit.cost.timings import Timing
from glasshouse.audit.scoring.certificate import certify_together
from glasshouse.audit.scoring.rehearsal import Scoring, time_scoring
from glasshouse.audit.simulation.build import build, require_part
from glasshouse.audit.simulation.group import Group, federation_digest, simulate
from glasshouse.audit.simulation.pretraining import ascent_of
from glasshouse.audit.simulation.rehearsal import Played, metric_of, play_shortened, time_simulation
from glasshouse.cache import FOLDER as CACHE
from glasshouse.cache import folder as cache_folder
from glasshouse.errors import Inapplicable
from glasshouse.executors.local import PRELOAD
from glasshouse.interfaces import mean_loss
from glasshouse.models import build as models
from glasshouse.models.fit import fit
from glasshouse.rng import Rng
from glasshouse.scenario.load import write_resolved
from glasshouse.scenario.spec import Scenario
from glasshouse.scenario.table import Plugin

PROBED_IMAGES = 16
"""Images at most that a probe of a training or an inversion takes at a time."""
PROBED_VALUES = 2**17
"""Of a training more, as long as they have no more values: a batch of small images is mostly overhead."""


SEVERAL = 2, 4
"""Rounds of both probes of an attack that trains for each: it reads none off a single one, and what its call
takes grows with them."""
CERTIFIED = 4
"""Units whose searches a probe checks together."""
DEAR = 1.0
"""Seconds of a short search after which it is not run again."""
LONGEST = 8.0
"""CPU seconds after which no further setting of an attack is measured."""


@final
class Stopwatch:
    """The timer behind ``glasshouse check``: models as drawn, one round, one victim, a short search.

    Args:
        device: where attacks are timed.
    """

    def __init__(self, device: str = "cpu") -> None:
        self._device, self._began = device, time.process_time()
        self._played: dict[str, Played] = {}
        self._gradients: dict[str, float] = {}

    @property
    def device(self) -> str:
        """Of attacks."""
        return self._device

    @property
    def exhausted(self) -> bool:
        """Whether it has measured long enough."""
        return time.process_time() - self._began > LONGEST

    def attack(self, scenario: Scenario, plugin: Plugin, budget: Budget) -> Timing | None:
        """Seconds of one setting; None: there is no short piece of it, or it will refuse."""
        timing: Timing | None
        if budget.pieces is not None:
            unit = _time_pieces(scenario, budget)
            timing = None if unit is None else Timing(unit=unit)
        elif not (budget.probe or not (budget.amount or budget.training)):
            timing = None
        elif budget.every_round:
            timing = _time_rounds(scenario, plugin, budget, self._device)
        else:
            timing = _time_call(scenario, plugin, budget, self._device)
        if timing is None or not attack_of(plugin.name, plugin.arguments).needs.changes:
            return timing
        return _with_crafting(timing, scenario, plugin, budget, honest=self._honest(scenario))

    def pretraining(self, scenario: Scenario) -> float:
        """CPU seconds of one image's pass through the model and back, in training."""
        federation = build(_short(scenario), seed=scenario.seed)
        how, public = scenario.model.pretraining, require_part(federation.public, "public")
        most = max(PROBED_IMAGES, PROBED_VALUES // public.inputs[0].numel())
        few = public.pick(torch.arange(min(most, how.batch_size, len(public))))
        short = how.model_copy(update={"epochs": PROBE})
        model, against = models.build(federation.setting.terms.architecture, rng=Rng.root(0)), ascent_of(how)
        run = partial(
            fit, model, few, short, rng=Rng.root(0), perturb=against, label="a probe of the training"
        )
        return seconds_of(run) / (PROBE * len(few) * (1 + (against.taken if against else 0)))

    def gradient(self, scenario: Scenario) -> float:
        """Seconds of one client's gradient of one batch, where attacks are timed."""
        key = repr((scenario.model, scenario.federation.batch_size, scenario.data))
        if key not in self._gradients:
            setting = build(_short(scenario), seed=scenario.seed).setting
            batch = setting.private.pick(setting.shards[0][: scenario.federation.batch_size])
            there = replace(batch, inputs=batch.inputs.to(self._device), labels=batch.labels.to(self._device))
            model = models.build(setting.terms.architecture, rng=Rng.root(0)).to(self._device).eval()

            def differentiate() -> None:
                model.zero_grad()
                loss = mean_loss(model, there)
                loss.backward()  # type: ignore[no-untyped-call]  # torch's own
                float(loss.detach())  # waits for an accelerator

            differentiate()
            self._gradients[key] = min(_seconds_on(self._device, differentiate) for _ in range(PROBE))
        return self._gradients[key]

    def simulation(self, scenario: Scenario, *, cold: bool) -> Played:
        """CPU seconds of a passive federation; what workers import once for all of them is not in it."""
        if cold:
            for module in PRELOAD:
                importlib.import_module(module)
        with tempfile.TemporaryDirectory() as place, _cache_in(place):
            self._played[federation_digest(scenario)] = time_simulation(scenario, cold=cold)
        return self._played[federation_digest(scenario)]

    def _honest(self, scenario: Scenario) -> float:
        """Seconds of one round in which nobody crafts anything."""
        known = self._played.get(federation_digest(scenario))
        return play_shortened(scenario) if known is None else known.one

    def scoring(self, scenario: Scenario) -> Scoring | None:
        """CPU seconds of made-up claims.

        Metrics that need a network trained for them count like the others.
        """
        every = scenario.audit.metrics
        light = tuple(m for m in every if "stand_in" not in metric_of(m).requires)
        short = _short(scenario)
        timed = short.audit.model_copy(update={"metrics": light, "victims": scenario.audit.victims})
        with tempfile.TemporaryDirectory() as place:
            resolved = short.model_copy(update={"audit": timed})
            write_resolved(resolved, Path(place) / "scenario.toml")
            simulate(Group(folder=place, seed=scenario.seed))
            return time_scoring(resolved, Path(place))


def seconds_of(run: Callable[[], object]) -> float:
    """CPU seconds of ``run`` after a warm-up, so that one-time costs are excluded."""
    run()
    started = time.process_time()
    run()
    return time.process_time() - started


def _short(scenario: Scenario, rounds: int = 1) -> Scenario:
    """The scenario with one victim, one round (or so many) and no pre-training."""
    model, audit = scenario.model, scenario.audit
    untrained = model.pretraining.model_copy(update={"epochs": 0, "head_epochs": 0})
    brief = {"victims": 1, "utility": False, "rounds": (0,), "metrics": ()}
    return scenario.model_copy(
        update={
            "model": model.model_copy(update={"pretraining": untrained}),
            "audit": audit.model_copy(update=brief),
            "federation": scenario.federation.model_copy(update={"rounds": rounds}),
        }
    )


def _time_rounds(scenario: Scenario, plugin: Plugin, budget: Budget, device: str) -> Timing:
    """Per unit of a call that reads all rounds, along the line through two short ones."""
    few, more = (_time_call(scenario, plugin, budget, device, rounds=rounds) for rounds in SEVERAL)
    slope = max(0.0, more.unit - few.unit) / (SEVERAL[1] - SEVERAL[0])
    return replace(more, unit=few.unit + slope * max(0, scenario.federation.rounds - SEVERAL[0]))


def _with_crafting(
    timing: Timing, scenario: Scenario, plugin: Plugin, budget: Budget, *, honest: float
) -> Timing:
    """The same with what a malicious server makes before a round, and each step of training for it.

    A federation with it, from an empty cache, against an ``honest`` one; where it trains, twice.
    """
    shorts = [{**plugin.arguments, **budget.probe}]
    if budget.training and budget.longer:
        shorts.append({**plugin.arguments, **budget.longer})
    spent = []
    for arguments in shorts:
        attack = plugin.model_copy(update={"arguments": arguments})
        with tempfile.TemporaryDirectory() as place, _cache_in(place):
            only = scenario.model_copy(update={"attacks": (attack,)})
            spent.append(play_shortened(only, active=0) - honest)
    if len(spent) < 2:
        return replace(timing, crafting=max(0.0, spent[0]))
    few, more = (_training_of(plugin.name, arguments) for arguments in shorts)
    step = max(0.0, spent[1] - spent[0]) / max(1, more - few)
    return replace(timing, crafting=max(0.0, spent[0] - few * step), step=step)


def _time_call(scenario: Scenario, plugin: Plugin, budget: Budget, device: str, rounds: int = 1) -> Timing:
    """Per unit, over a short search with all of its restarts, on the clients that share a batch.

    The first call warms up, the second counts, unless the first was dear. A third, with an empty
    cache, trains anew what is trained beforehand, for as few steps as the probe says.
    """
    arguments = {**plugin.arguments, **budget.probe}
    attack, short = attack_of(plugin.name, arguments), _short(scenario, rounds)
    units, training = (attack.budget.units, attack.budget.training) if attack.budget is not None else (0, 0)
    training *= rounds if budget.every_round else 1
    active = 0 if attack.needs.changes else None
    if active is not None:  # a federation of its own, in which it crafts and trains what it needs
        plugin, training = plugin.model_copy(update={"arguments": arguments}), 0
        short = short.model_copy(update={"attacks": (plugin,)})
    with tempfile.TemporaryDirectory() as place, _cache_in(place):
        folder = Path(place) / "cells" / "group"  # as in a run
        write_resolved(short, folder / "scenario.toml")
        simulate(Group(folder=str(folder), seed=scenario.seed, active=active))
        calls = units_of(attack, folder, victims=scenario.audit.victims, attacked=frozenset({0}))
        call = AttackTask(
            folder=str(folder),
            out="",
            attack=plugin.name,
            arguments=json.dumps(arguments),
            threat=threat_of(scenario),
            attack_seed=scenario.attack_seed,
            unit=calls[0],
            device=device,
            trust_factory=True,  # the scenario is the user's own
        )
        tasks = [replace(call, unit=unit, out=str(folder / "claims" / unit.name)) for unit in calls]
        first = pieces(tasks)[0]  # victims that share a batch are timed together

        def again(name: str, given: Mapping[str, Any] = arguments) -> object:
            text = json.dumps(given)
            moved = (replace(t, out=str(folder / name / t.unit.name), arguments=text) for t in first)
            return run_piece(tuple(moved))

        spent, together = _seconds_on(device, lambda: run_piece(first[:1])), 1
        if spent < DEAR:  # else what happens once, and what a batch saves, is little beside it
            spent, together = _seconds_on(device, lambda: again("again")), len(first)
        units, fixed = max(1, units), 0.0
        if budget.longer and spent < DEAR:
            given = {**plugin.arguments, **budget.longer}
            more = _units_of(plugin.name, given) - units
            rest = _seconds_on(device, lambda: again("longer", given)) - spent
            fixed = max(0.0, spent - units * max(0.0, rest) / more) if more > 0 else 0.0
        several = _same_claims(tasks, first[0])
        certificate = _seconds_on(device, lambda: certify_together(several)) / len(several)
        step = None
        if training:
            shutil.rmtree(cache_folder(), ignore_errors=True)
            step = max(0.0, _seconds_on(device, lambda: again("anew")) - spent) / training
        return Timing(
            unit=(spent - fixed) / (units * together),
            call=fixed / together,
            certificate=certificate,
            step=step,
        )


def _training_of(name: str, arguments: Mapping[str, Any]) -> int:
    budget = attack_of(name, arguments).budget
    return 0 if budget is None else budget.training


def _units_of(name: str, arguments: Mapping[str, Any]) -> int:
    budget = attack_of(name, arguments).budget
    return 0 if budget is None else budget.units


def _same_claims(tasks: Sequence[AttackTask], claimed: AttackTask) -> tuple[AttackTask, ...]:
    """A few units that are certified together; those that were not run have the claims of ``claimed``."""
    few = tuple(tasks[:CERTIFIED])
    for task in few:
        if not Path(task.out).exists():
            shutil.copytree(claimed.out, task.out)
    return few


def _seconds_on(device: str, run: Callable[[], object]) -> float:
    """CPU seconds; on an accelerator seconds on the clock, in which the processor mostly waits for it."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    started = clock()
    run()
    return clock() - started


@contextmanager
def _cache_in(place: str) -> Iterator[None]:
    """Within the block, the cache is empty and lies in ``place``: a probe leaves nothing in the user's."""
    before = os.environ.get(CACHE)
    os.environ[CACHE] = f"{place}/cache"
    try:
        yield
    finally:
        if before is None:
            del os.environ[CACHE]
        else:
            os.environ[CACHE] = before


def _time_pieces(scenario: Scenario, budget: Budget) -> float | None:
    """CPU seconds per unit and image; None: the attack does not support this model."""
    assert budget.pieces is not None
    federation = build(_short(scenario), seed=scenario.seed)
    agreed = federation.setting.terms.architecture
    size, cohort = scenario.federation.batch_size, scenario.federation.cohort_size
    read = size * cohort if scenario.federation.secure_sum else cohort * min(size, budget.images)
    count = min(PROBED_IMAGES, read)  # what is read of a round's clients is inverted together
    images = torch.rand((count, *agreed.input_shape), generator=torch.Generator().manual_seed(0))
    try:
        pieces = budget.pieces(agreed, federation.setting.start, images)
    except Inapplicable:
        return None
    spent = sum(seconds_of(piece.run) * piece.times for piece in pieces)
    return spent / (count * budget.units)
