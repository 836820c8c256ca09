"""Time shortened calls of attacks on short federations."""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, final

from glasshouse.attacks.budget import Budget
from glasshouse.audit.attacking.call import AttackTask, pieces, run_piece, units_of
from glasshouse.audit.attacking.needs import attack_of, declared, threat_of
from glasshouse.audit.cost.clock import seconds_on
from glasshouse.audit.cost.timings import CLOSED_FORM, Timing
from glasshouse.audit.scoring.certificate import certify_together
from glasshouse.audit.simulation.group import federation_digest
from glasshouse.audit.simulation.record import has_record
from glasshouse.audit.simulation.rehearsal import play_shortened, time_crafting, without_timed_defenses
from glasshouse.cache import FOLDER as CACHE
from glasshouse.cache import folder as cache_folder
from glasshouse.scenario.spec import Scenario
from glasshouse.scenario.table import Plugin

CHEAP: Final = 1.0
"""Calls of up to this many seconds are timed while any time is left, longer ones if under half of it."""
SEVERAL: Final = 2, 4
"""Rounds in the two probes of an attack that trains for every round: it needs more than one round, and the
time of its call grows with them."""
CERTAIN: Final = 2.0
"""Seconds that must be left for certifying several searches, which share work, instead of one."""
CERTIFIED: Final = 4
"""Number of units whose searches a probe certifies together."""
TOLD_APART: Final = 0.5
"""A longer search must take longer than a short one by this fraction, to separate its units from noise."""
SHARED: Final = 0.4
"""Seconds for a short search of several victims; larger batches are extrapolated from it and one victim."""
DATA: Final = "pictures"
"""Folder of the cache with decoded images, which audits read too."""
FEW: Final = 4
"""Number of clients that stand for all where a federation takes too long."""
CRAFTED: Final = 128, 384
"""Numbers of auxiliary images in the two probes of crafting, which tell the time for all of them."""


@final
@dataclass(frozen=True, kw_only=True)
class _Probe:
    """Shortened calls of an attack on a simulated federation.

    Attributes:
        tasks: of all units of one round.
        arguments: of the attack, shortened.
        victims: number of victims in one piece, which share a batch in the audit.
        place: folder for their claims.
        crafting: seconds in which a malicious server crafts; 0: passive attack.
    """

    tasks: Sequence[AttackTask]
    arguments: Mapping[str, Any]
    victims: int
    place: Path
    crafting: float

    def run(self, name: str, count: int, arguments: Mapping[str, Any] | None = None) -> None:
        """Run one piece with ``count`` victims."""
        text = json.dumps(self.arguments if arguments is None else arguments)
        moved = (
            replace(task, out=str(self.place / name / task.unit.name), arguments=text)
            for task in self.tasks[:count]
        )
        run_piece(tuple(moved))


@final
class Calls:
    """Times calls of attacks; passive attacks on the same federation share one simulation.

    Args:
        device: of attacks.
        home: folder of the federations.
        left: returns the CPU seconds that probes may still take.

    Attributes:
        few: names of scenarios whose clients take long: few of them play.
        light: names of scenarios whose federations were stopped: they are also played without utility.
    """

    def __init__(self, device: str, home: Path, left: Callable[[], float]) -> None:
        self._device, self._home, self.left = device, home, left
        self.few, self.light = set[str](), set[str]()
        self.forget()

    def forget(self) -> None:
        """Forget what is known of the attack that was timed last."""
        self._known: Timing | None = None
        self._running: tuple[float, int] | None = None  # the start of its first call, and the units of that

    def folder_of(self, scenario: Scenario, rounds: int = 1) -> Path:
        """The folder of a passive federation with this number of rounds."""
        digest = federation_digest(without_timed_defenses(scenario))
        return self._home / f"{digest}-{rounds}" / "cells" / "group"  # as in a run

    def played(self, scenario: Scenario, rounds: int = 1) -> Path:
        """The folder of a passive federation, which is simulated on first use."""
        scenario = self._lightened(scenario)
        folder = self.folder_of(scenario, rounds)
        if not has_record(folder):
            with tempfile.TemporaryDirectory() as place, cache_in(place):
                play_shortened(scenario, rounds=rounds, into=folder)
        return folder

    def _lightened(self, scenario: Scenario) -> Scenario:
        if scenario.name in self.light:
            audit = scenario.audit.model_copy(update={"utility": False})
            scenario = scenario.model_copy(update={"audit": audit})
        return with_few_clients(scenario) if scenario.name in self.few | self.light else scenario

    def time(self, scenario: Scenario, plugin: Plugin, budget: Budget) -> Timing:
        """Time one setting of an attack, without what a malicious server crafts before a round."""
        if not budget.every_round:
            return self._call(scenario, plugin, budget)
        before, rounds = self.left(), scenario.federation.rounds
        few = self._call(scenario, plugin, budget, SEVERAL[0])
        self._known = replace(few, unit=few.unit * rounds / SEVERAL[0])
        if 2 * (before - self.left()) > self.left():  # no time for more rounds
            return self._known
        more = self._call(scenario, plugin, budget, SEVERAL[1])
        slope = max(0.0, more.unit - few.unit) / (SEVERAL[1] - SEVERAL[0])
        return replace(more, unit=few.unit + slope * max(0, rounds - SEVERAL[0]))

    def with_crafting(self, timing: Timing, scenario: Scenario, plugin: Plugin, budget: Budget) -> Timing:
        """Add to ``timing`` the time of crafting before a round, and of each training step for it.

        From an empty cache, on few auxiliary images; again with a longer training, and with more images.
        ``timing.crafting``: the time of the first crafting, on few images.
        """
        scenario = self._lightened(scenario)
        light, once = _with_auxiliary(scenario, CRAFTED[0]), timing.crafting
        if self._affords(once):
            once = _crafted(light, plugin, budget.probe)
        step, steps = None, 0
        if budget.training and budget.longer:
            steps, more = (_changed(plugin, probe).training for probe in (budget.probe, budget.longer))
            step = max(0.0, _crafted(light, plugin, budget.longer) - once) / max(1, more - steps)
        trained = steps * (step or 0.0)
        if further := scenario.data.auxiliary - light.data.auxiliary:
            heavier = _with_auxiliary(scenario, CRAFTED[1])
            longer = max(0.0, _crafted(heavier, plugin, budget.probe) - once)
            once += further * longer / (heavier.data.auxiliary - light.data.auxiliary)
            if self._affords(once):
                once = _crafted(scenario, plugin, budget.probe)
        step = timing.step if step is None else step
        return replace(timing, crafting=max(0.0, once - trained), step=step)

    def unfinished(self) -> Timing | None:
        """The timing of an attack that was stopped: what was measured, or what its first call took."""
        if self._known is None and self._running is not None:
            started, units = self._running
            return Timing(unit=(time.process_time() - started) / units, estimated=True)
        return None if self._known is None else replace(self._known, estimated=True)

    def _call(self, scenario: Scenario, plugin: Plugin, budget: Budget, rounds: int = 1) -> Timing:
        """Time per unit, from a short search with all restarts, for one of the victims that share a batch.

        The first call warms up, and does the attack's prior training with the probe's small number of steps.
        """
        units, first = max(1, _changed(plugin, budget.probe).units), self._known is None
        with tempfile.TemporaryDirectory() as place, cache_in(place):
            probe = self._prepared(scenario, plugin, budget, rounds, Path(place))
            if first:
                self._running = time.process_time(), units
            one = cold = self._seconds(lambda: probe.run("cold", 1))
            if first:
                self._known = Timing(unit=cold / units, crafting=probe.crafting)
            if budget.training or self._affords(cold):
                one = self._seconds(lambda: probe.run("one", 1))
            step = self._step(probe, plugin, budget, rounds, cold=cold, warm=one)
            if first:
                self._known = Timing(unit=one / units, crafting=probe.crafting, step=step)
            count = min(probe.victims, max(2, round(SHARED / max(one, SHARED / probe.victims))))
            count = count if self._affords(2 * one) else 1
            spent = one if count == 1 else self._seconds(lambda: probe.run("several", count))
            fixed = self._fixed(probe, plugin, budget, spent, count)
            each = _of_each(one, spent, count, probe.victims)
            share = fixed / spent if spent else 0.0
            certificate = self._certificate(probe)
        timing = Timing(
            unit=each * (1 - share) / units,
            call=each * share,
            certificate=certificate,
            step=step,
            crafting=probe.crafting,
        )
        self._known = timing if first else self._known
        return timing

    def _fixed(self, probe: _Probe, plugin: Plugin, budget: Budget, spent: float, count: int) -> float:
        """Fixed part of a call that took ``spent`` seconds, from longer calls with as many victims."""
        units, fixed = max(1, _changed(plugin, budget.probe).units), 0.0
        for name, changed in (("longer", budget.longer), ("longest", budget.longest)):
            more = _changed(plugin, changed).units - units if changed else 0
            if more <= 0 or not self._affords(spent):
                break
            rest = self._seconds(partial(probe.run, name, count, {**plugin.arguments, **changed})) - spent
            fixed = max(0.0, spent - units * max(0.0, rest) / more)
            if rest > TOLD_APART * spent:
                break
        return fixed

    def _prepared(
        self, scenario: Scenario, plugin: Plugin, budget: Budget, rounds: int, place: Path
    ) -> _Probe:
        arguments = {**plugin.arguments, **budget.probe}
        attack = attack_of(plugin.name, arguments)
        if attack.needs.changes:  # its own federation, in which it crafts and trains
            folder = place / "cells" / "group"
            light = _with_auxiliary(self._lightened(scenario), CRAFTED[0])
            only = light.model_copy(update={"attacks": (plugin.model_copy(update={"arguments": arguments}),)})
            crafting = time_crafting(only, into=folder)
        else:
            folder, crafting = self.played(scenario, rounds), 0.0
        tasks = [
            AttackTask(
                folder=str(folder),
                out=str(place / "cold" / unit.name),
                attack=plugin.name,
                arguments=json.dumps(arguments),
                threat=threat_of(scenario),
                attack_seed=scenario.attack_seed,
                unit=unit,
                device=self._device,
                trust_factory=True,  # the scenario is the user's own
            )
            for unit in units_of(attack, folder, victims=scenario.audit.victims, attacked=frozenset({0}))
        ]
        victims = len(pieces(tasks)[0])
        return _Probe(tasks=tasks, arguments=arguments, victims=victims, place=place, crafting=crafting)

    def _step(
        self, probe: _Probe, plugin: Plugin, budget: Budget, rounds: int, *, cold: float, warm: float
    ) -> float | None:
        """Seconds per step of prior training: a call with an empty cache minus a warm one."""
        training = _changed(plugin, budget.probe).training * (rounds if budget.every_round else 1)
        if not training or declared(plugin)[0].changes:
            return None
        if self._affords(cold):
            for entry in cache_folder().iterdir():
                if not entry.is_symlink():
                    shutil.rmtree(entry)
            cold = self._seconds(lambda: probe.run("anew", 1))
        return max(0.0, cold - warm) / training

    def _certificate(self, probe: _Probe) -> float:
        """Seconds to certify one unit; units that were not run get the claims of the first."""
        sample = tuple(probe.tasks[: CERTIFIED if self.left() > CERTAIN else 1])
        for task in sample[1:]:
            if not Path(task.out).exists():
                shutil.copytree(sample[0].out, task.out)
        return self._seconds(lambda: certify_together(sample)) / len(sample)

    def _affords(self, seconds: float) -> bool:
        left = self.left()
        return left > 0 and seconds < max(CHEAP, left / 2)

    def _seconds(self, run: Callable[[], object]) -> float:
        return seconds_on(self._device, run)


@contextmanager
def cache_in(place: str) -> Iterator[None]:
    """Use a cache in ``place`` within the block, empty except for decoded images.

    A probe leaves nothing but decoded images in the user's cache.
    """
    before, pictures = os.environ.get(CACHE), cache_folder() / DATA
    probe_cache = Path(place) / "cache"
    probe_cache.mkdir()
    pictures.mkdir(parents=True, exist_ok=True)
    (probe_cache / DATA).symlink_to(pictures.resolve(), target_is_directory=True)
    try:
        os.environ[CACHE] = str(probe_cache)
        yield
    finally:
        if before is None:
            os.environ.pop(CACHE, None)
        else:
            os.environ[CACHE] = before


def _of_each(one: float, spent: float, count: int, victims: int) -> float:
    """Seconds per victim in a batch of ``victims``, from the times of a batch of one and of ``count``."""
    if count in {1, victims}:
        return spent / count
    further = max(0.0, spent - one) / (count - 1)
    return (max(0.0, spent - count * further) + victims * further) / victims


def with_few_clients(scenario: Scenario) -> Scenario:
    """The scenario with ``FEW`` clients if the server sees the update of each, and no client is special."""
    federation, adversary = scenario.federation, scenario.threat.client
    whole = federation.cohort_size == federation.clients and not federation.behaviours
    special = scenario.data.members > 0 or adversary is not None
    single = all(declared(a)[0].scope == "update" for a in scenario.attacks)
    if federation.secure_sum or not whole or special or not single or federation.clients <= FEW:
        return scenario
    fewer = federation.model_copy(update={"clients": FEW})
    return scenario.model_copy(update={"federation": fewer})


def _with_auxiliary(scenario: Scenario, most: int) -> Scenario:
    """The scenario with at most this many auxiliary images, and public ones, which no crafting reads."""
    fewer = {role: min(most, getattr(scenario.data, role)) for role in ("auxiliary", "public")}
    return scenario.model_copy(update={"data": scenario.data.model_copy(update=fewer)})


def _crafted(scenario: Scenario, plugin: Plugin, changed: Mapping[str, Any]) -> float:
    """Seconds in which the attack crafts, from an empty cache."""
    attack = plugin.model_copy(update={"arguments": {**plugin.arguments, **changed}})
    with tempfile.TemporaryDirectory() as place, cache_in(place):
        return time_crafting(scenario.model_copy(update={"attacks": (attack,)}))


def _changed(plugin: Plugin, changes: Mapping[str, Any]) -> Budget:
    """The budget of the attack with some arguments changed."""
    return attack_of(plugin.name, {**plugin.arguments, **changes}).budget or CLOSED_FORM
