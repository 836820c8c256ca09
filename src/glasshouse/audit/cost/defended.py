"""Time defences at gradients on one client's update: in pieces if a defence has them, else one whole call."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final, final

import torch
from torch import nn

from glasshouse.audit.cost.clock import seconds_on, steady_seconds
from glasshouse.audit.cost.rows import inputs_of, untrained
from glasshouse.audit.simulation.build import build
from glasshouse.audit.simulation.rehearsal import shortened, timed_defenses
from glasshouse.errors import BadValue, Inapplicable
from glasshouse.federation.client import LocalTraining
from glasshouse.federation.setting import Setting
from glasshouse.interfaces import GradientDefense, HasPieces, Piece
from glasshouse.rng import Rng
from glasshouse.scenario.spec import Scenario
from glasshouse.scenario.table import Plugin
from glasshouse.wire import Batch, Update

LONG: Final = 0.2
"""Calls of this many CPU seconds are timed once, without a warm-up."""


@final
class Defenses:
    """Times each defence once per setting on which its time depends.

    Args:
        exhausted: whether little time is left: settings are then told from another one of the same defence.
        gradient: seconds of one client's gradient in a scenario, for comparing them.
    """

    def __init__(self, *, exhausted: Callable[[], bool], gradient: Callable[[Scenario], float]) -> None:
        self._exhausted, self._gradient = exhausted, gradient
        self._known: dict[str, dict[str, tuple[Scenario, float]]] = {}

    def seconds(self, scenario: Scenario) -> float:
        """CPU seconds of all defences at gradients for one update of one client."""
        return sum(self._of(scenario, plugin, defense) for plugin, defense in timed_defenses(scenario))

    def _of(self, scenario: Scenario, plugin: Plugin, defense: GradientDefense) -> float:
        known, key = self._known.setdefault(plugin.name, {}), _what_matters(scenario, plugin)
        if key not in known and known and self._exhausted():
            other, seconds = next(iter(known.values()))
            return seconds * self._gradient(scenario) / max(self._gradient(other), 1e-6)
        if key not in known:
            known[key] = scenario, _measure(scenario, defense)
        return known[key][1]


def pieces_of(defense: GradientDefense, update: Update, batch: Batch, model: nn.Module) -> tuple[Piece, ...]:
    """The defence's own pieces, or one whole call as a single piece."""
    if isinstance(defense, HasPieces):
        return defense.pieces(update, batch, model)
    return (Piece(run=lambda: defense.gradient(update, batch, model, rng=Rng.root(0)), times=1),)


def _what_matters(scenario: Scenario, plugin: Plugin) -> str:
    federation = scenario.federation
    examples = federation.kind, federation.batch_size, scenario.data.examples
    setting = federation.protocol, examples, inputs_of(scenario)
    return repr((plugin.arguments, untrained(scenario), setting))


def _measure(scenario: Scenario, defense: GradientDefense) -> float:
    """CPU seconds of one call; 0 where the defence refuses, as the federation will."""
    setting = build(shortened(scenario), seed=scenario.seed).setting
    try:
        update, batch, model = _first_update(setting)
        pieces = pieces_of(defense, update, batch, model)
        return sum(piece.times * _steady_seconds(piece.run) for piece in pieces)
    except (Inapplicable, BadValue):
        return 0.0


def _first_update(setting: Setting) -> tuple[Update, Batch, nn.Module]:
    """What a defence of the first client receives: its update after one epoch, its examples, the model."""
    model, data = setting.build(setting.terms.architecture), setting.shard(0)
    model.load_state_dict(dict(setting.start))
    trained = replace(LocalTraining.of(setting.terms, round=0), epochs=1)(model, data, rng=Rng.root(0))
    model.load_state_dict(dict(setting.start))
    batch = data.pick(torch.unique(torch.cat(trained.order)))
    update = Update(
        round=0,
        client=0,
        kind=trained.kind,
        tensors=trained.tensors,
        examples=len(batch),
        steps=trained.steps,
    )
    return update, batch, model


def _steady_seconds(run: Callable[[], object]) -> float:
    """CPU seconds of ``run`` after a warm-up, or of its first call where that is long."""
    first = seconds_on("cpu", run)
    return first if first > LONG else steady_seconds("cpu", run)
