"""Time short simulations, from which ``glasshouse check`` estimates the time of an audit."""

import math
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, final

import torch
from torch import Tensor

from glasshouse.audit.simulation.build import build, defense_of
from glasshouse.audit.simulation.deal import forget_data, require_part, seconds_spent
from glasshouse.audit.simulation.group import Group, simulate
from glasshouse.audit.simulation.record import GroupRecord, read_record
from glasshouse.federation.setting import FederationProtocol
from glasshouse.interfaces import GradientDefense
from glasshouse.metrics.base import Metric
from glasshouse.registry import create, load
from glasshouse.scenario.load import write_resolved
from glasshouse.scenario.spec import Scenario
from glasshouse.scenario.table import Plugin
from glasshouse.wire import Aggregate, Broadcast, Trained, Update

TOLD_APART: Final = 0.1
"""CPU seconds beyond those of a single round needed to distinguish the time per round from noise."""
LONG: Final = 1.5
"""CPU seconds of one round from which a federation is played once: one-time costs beyond those of building it
hardly matter, and the rest is taken for the round."""
FASTER: Final = 4
"""Factor by which the number of rounds grows until they take that long."""


@final
@dataclass(frozen=True, kw_only=True)
class Played:
    """CPU seconds of a federation.

    Attributes:
        first: additional time of the first federation in a process.
        one: of simulating and writing one round.
        further: of each additional round.
        estimated: taken from another federation, as no time was left for this one.
    """

    first: float = 0.0
    one: float
    further: float = 0.0
    estimated: bool = False

    def of(self, rounds: int) -> float:
        """Seconds of a federation with ``rounds`` rounds.

        Examples:
            >>> Played(one=0.5, further=0.1).of(3)
            0.7
        """
        return self.one + (rounds - 1) * self.further

    def times(self, factor: float) -> "Played":
        """An estimate for a federation whose rounds take ``factor`` as long."""
        return replace(self, one=factor * self.one, further=factor * self.further, estimated=True)

    def slowed(self, seconds: float) -> "Played":
        """The same federation where every round takes this many seconds more."""
        return replace(self, one=self.one + seconds, further=self.further + seconds)


def time_simulation(
    scenario: Scenario,
    *,
    cold: bool = False,
    into: Callable[[Scenario], Path] | None = None,
    lighten: Callable[[Scenario], tuple[Scenario, float]] = lambda whole: (whole, 0.0),
    report: Callable[[Played], None] | None = None,
) -> Played:
    """Time a passive federation with one round and, if it has more, with enough to time a round.

    Without pre-training, and without networks that only metrics need.

    Args:
        scenario: without axes.
        cold: no federation was simulated in this process yet: the first one is timed separately.
        into: returns the folder for the federation with a single round; None: it is deleted.
        lighten: returns the federation that is played instead, and the seconds that its rounds lack.
        report: receives what a single round says, before it is refined.
    """
    unbuilt = _seconds_to_build(scenario) if cold else 0.0
    if cold:
        forget_data()  # the first time costs more
    built = _seconds_to_build(scenario) if cold else 0.0
    scenario, missing = lighten(scenario)
    first = max(0.0, unbuilt - built)
    one = play_shortened(scenario, into=None if into is None else into(scenario))
    estimated, most = missing > 0, scenario.federation.rounds
    coarse = Played(first=first, one=one, further=max(0.0, one - built), estimated=estimated)
    if report is not None:
        report(coarse.slowed(missing))
    if cold and one < LONG and not missing:
        again = play_shortened(scenario)
        first, one = first + max(0.0, one - again), again
    spent, rounds = one, 1
    if most > 1 and one >= LONG:  # nearly all of it is the round
        built = built or _seconds_to_build(scenario)
        return replace(coarse, further=max(0.0, one - built)).slowed(missing)
    while rounds < most and spent - one < TOLD_APART:
        rounds = min(most, 2 if rounds == 1 else FASTER * rounds)
        spent = play_shortened(scenario, rounds=rounds)
    further = max(0.0, spent - one) / (rounds - 1) if rounds > 1 else 0.0
    return Played(first=first, one=one, further=further, estimated=estimated).slowed(missing)


def time_with_few_images(scenario: Scenario) -> Played:
    """A logit federation's time, from one of a single client with a batch of the public images.

    Args:
        scenario: of a logit protocol, without axes.
    """
    built = build(shortened(scenario), seed=scenario.seed)
    setting, public = built.setting, require_part(built.setting.terms.public, "public")
    step = math.ceil(len(public) / scenario.federation.batch_size)
    rows = torch.arange(0, len(public), step)
    sensitive = int((rows < setting.terms.sensitive).sum())
    terms = replace(setting.terms, clients=1, cohort=1, public=public.pick(rows), sensitive=sensitive)
    light = replace(setting, terms=terms, shards=(setting.shards[0][::step],), behaviours={})
    protocol: FederationProtocol = load("protocols", terms.protocol)()
    spent = []
    for rounds in (1, 2):
        started, rng = seconds_spent(), built.rng.child("federation")
        protocol.play(replace(light, rounds=rounds), recorder=_NoRecorder(), rng=rng)
        spent.append(step * (seconds_spent() - started))
    light_one = Played(one=spent[0], further=max(0.0, spent[1] - spent[0]))
    return light_one.times((setting.terms.clients + 1) / 2)  # the server trains, too


@final
class _NoRecorder:
    """A :class:`glasshouse.interfaces.Recorder` that keeps nothing."""

    def prepare(self, broadcast: Broadcast) -> None: ...

    def broadcast(self, broadcast: Broadcast) -> None: ...

    def update(self, update: Update) -> None: ...

    def aggregate(self, aggregate: Aggregate) -> None: ...

    def own(self, round: int, tensors: Mapping[str, Tensor]) -> None: ...

    def private(
        self, round: int, client: int, *, index: Tensor, trained: Trained, behaviour: str
    ) -> None: ...


def _seconds_to_build(scenario: Scenario) -> float:
    """CPU seconds of loading the data and building the federation."""
    started = seconds_spent()
    build(shortened(scenario), seed=scenario.seed)
    return seconds_spent() - started


def play_shortened(scenario: Scenario, *, rounds: int = 1, into: Path | None = None) -> float:
    """CPU seconds of simulating and writing one federation with ``rounds`` rounds.

    Args:
        scenario: without axes.
        rounds: number of rounds; those attacked in the audit are attacked, or else the first.
        into: its folder; None: a temporary one.
    """
    with tempfile.TemporaryDirectory() as place:
        started = seconds_spent()
        _play(scenario, rounds, Path(place) if into is None else into, active=None)
        return seconds_spent() - started


def time_crafting(scenario: Scenario, *, into: Path | None = None) -> float:
    """CPU seconds in which the scenario's first attack, of a malicious server, crafts before one round.

    ``into``: folder of the federation, without its utility; None: a temporary one.
    """
    audit = scenario.audit.model_copy(update={"utility": False})
    scenario = scenario.model_copy(update={"audit": audit})
    with tempfile.TemporaryDirectory() as place:
        return _play(scenario, 1, Path(place) if into is None else into, active=0).crafting


def _play(scenario: Scenario, rounds: int, folder: Path, *, active: int | None) -> GroupRecord:
    write_resolved(shortened(scenario, rounds), folder / "scenario.toml")
    simulate(Group(folder=str(folder), seed=scenario.seed, active=active))
    return read_record(folder)


def shortened(scenario: Scenario, rounds: int = 1) -> Scenario:
    """The scenario with ``rounds`` rounds, without what is timed by itself or not at all.

    Pre-training, defences at gradients, networks that only metrics need.
    """
    scenario = without_timed_defenses(scenario)
    attacked = {r % scenario.federation.rounds for r in scenario.audit.rounds}
    light = tuple(m for m in scenario.audit.metrics if "stand_in" not in metric_of(m).requires)
    left = tuple(sorted(r for r in attacked if r < rounds)) or (0,)
    model, untrained = scenario.model, {"epochs": 0, "head_epochs": 0}
    how = model.pretraining.model_copy(update=untrained)
    return scenario.model_copy(
        update={
            "model": model.model_copy(update={"pretraining": how}),
            "audit": scenario.audit.model_copy(update={"rounds": left, "metrics": light}),
            "federation": scenario.federation.model_copy(update={"rounds": rounds}),
        }
    )


def timed_defenses(scenario: Scenario) -> list[tuple[Plugin, GradientDefense]]:
    """The defences that are timed on one client's update, not in a federation: those at gradients."""
    if scenario.federation.kind == "logits":
        return []
    every = [(plugin, defense_of(plugin.name, plugin.arguments)) for plugin in scenario.defenses]
    return [(plugin, defense) for plugin, defense in every if defense.place == "gradient"]


def without_timed_defenses(scenario: Scenario) -> Scenario:
    """The scenario without :func:`timed_defenses`; scenarios that differ in nothing else are equal."""
    apart = [plugin for plugin, _ in timed_defenses(scenario)]
    return scenario.model_copy(update={"defenses": tuple(d for d in scenario.defenses if d not in apart)})


def client_passes(scenario: Scenario) -> int:
    """Number of passes of private images through the model in one federation, over rounds and clients."""
    federation, examples = scenario.federation, scenario.data.examples
    protocol: FederationProtocol = create(load("protocols", federation.protocol), federation.options)
    if (whole := protocol.passes(federation.rounds)) is not None:
        return whole * federation.clients * examples
    each = federation.batch_size if federation.kind == "gradient" else federation.local_epochs * examples
    return federation.rounds * federation.cohort_size * each


def metric_of(plugin: Plugin) -> Metric:
    """The metric with its settings."""
    metric: Metric = create(load("metrics", plugin.name), plugin.arguments)
    return metric
