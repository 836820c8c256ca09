"""Time per setting of an attack: measured, or estimated from a measured one by comparing their networks."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, final

from glasshouse.attacks.budget import Budget
from glasshouse.audit.attacking.needs import calls_of, declared
from glasshouse.audit.cost.rows import inputs_of, untrained
from glasshouse.audit.scoring.rehearsal import Scoring
from glasshouse.audit.simulation.rehearsal import Played
from glasshouse.scenario.spec import Scenario
from glasshouse.scenario.table import Plugin

CLOSED_FORM = Budget(unit="evaluations", amount=0)
"""Budget of an attack without one: a call is one evaluation, timed in full."""
_SHORTEST = 1e-6
"""Smallest time in seconds, because coarse clocks may measure 0."""


@final
@dataclass(frozen=True, kw_only=True)
class Timing:
    """The time of one setting of an attack.

    Attributes:
        unit: seconds of one unit of its budget, on one image where the budget counts images.
        call: seconds of the fixed part of each call.
        certificate: seconds to certify one call's search at the ground truth.
        step: seconds of one step of its prior training; None: not timed.
        crafting: seconds of crafting by a malicious server before a round, without its training.
        estimated: derived from another timing, as no time was left to measure it.
    """

    unit: float
    call: float = 0.0
    certificate: float = 0.0
    step: float | None = None
    crafting: float = 0.0
    estimated: bool = False


class Timer(Protocol):
    """Times short pieces of a scenario without axes; results are in seconds per unit.

    Attributes:
        device: of attacks; their seconds are the device's, all others CPU seconds of one core.
        exhausted: little time is left: use existing timings of the same attack.
        spent: no time is left: use existing timings of any attack.
    """

    @property
    def device(self) -> str: ...

    @property
    def exhausted(self) -> bool: ...
    @property
    def spent(self) -> bool: ...

    def attack(self, scenario: Scenario, plugin: Plugin, budget: Budget) -> Timing | None:
        """Time one setting of an attack; None: not timed."""

    def pretraining(self, scenario: Scenario) -> Timing:
        """Time a forward and backward pass of one image, the unit."""

    def gradient(self, scenario: Scenario) -> float:
        """Time one client's gradient of one batch, for comparing the cost of networks."""

    def simulation(self, scenario: Scenario, *, cold: bool) -> Played:
        """Time a federation without defences at gradients.

        ``cold``: the first call, which also measures one-time costs of a process.
        """

    def defenses(self, scenario: Scenario) -> float:
        """Time the defences at gradients on one client's update; :meth:`simulation` is without them."""

    def scoring(self, scenario: Scenario) -> Scoring | None: ...


Uses = Sequence[tuple[Scenario, Plugin]]
Timings = Sequence[Timing | None]


Use = tuple[Scenario, Budget, Timing | None]
"""An attack's setting and its timing."""


@final
class Known:
    """The timings of all attacks so far; settings for which no time is left are estimated from them.

    Args:
        timer: None: nothing is timed.
    """

    def __init__(self, timer: Timer | None) -> None:
        self.timer = timer
        self._timed: dict[str, dict[str, Use]] = {}

    def timing(self, scenario: Scenario, plugin: Plugin, *, first: bool = False) -> Timing | None:
        """The timing of one use of an attack: measured while time is left; the very first one always.

        ``first``: the first use of the attack under this label, which is measured while any time is left.

        Otherwise estimated from the same attack in another setting, else from another attack whose budget
        counts the same units; None: no such timing exists, or the attack cannot be timed.
        """
        if self.timer is None or not calls_of(scenario, plugin):
            return None
        budget, own = declared(plugin)[1] or CLOSED_FORM, self._timed.setdefault(plugin.name, {})
        key = _what_matters(scenario, plugin, budget)
        late = self.timer.exhausted if own and not first else self.timer.spent
        late = late and any(self._timed.values())
        if key not in own and not late:
            own[key] = scenario, budget, self.timer.attack(scenario, plugin, budget)
        if key in own:
            return own[key][2] or self._estimate(scenario, budget, own)
        alike = {
            k: use
            for uses in self._timed.values()
            for k, use in uses.items()
            if _kind(use[1]) == _kind(budget)
        }
        return self._estimate(scenario, budget, own or alike)

    def _estimate(self, scenario: Scenario, budget: Budget, uses: Mapping[str, Use]) -> Timing | None:
        assert self.timer is not None  # checked by the caller
        return stand_in(scenario, budget, [(there, timing) for there, _, timing in uses.values()], self.timer)


def _kind(budget: Budget) -> object:
    """The unit, the prior training, and the names of the search settings of a budget."""
    settings = {n: sorted(v) if isinstance(v, Mapping) else "" for n, v in budget.probe.items()}
    searches = bool(budget.amount), bool(budget.images), budget.pieces is not None
    return budget.unit, budget.trained, searches, settings


def time_uses(uses: Uses, known: Known) -> Timings:
    """The timing of each use of an attack.

    While time is left, the setting least similar to the measured ones is measured next, so that every axis is
    covered.
    """
    remaining, measured = list(uses), list[Scenario]()
    while remaining and known.timer is not None and not known.timer.exhausted:
        chosen = max(remaining, key=lambda use: min((_unlike(use[0], one) for one in measured), default=0))
        remaining.remove(chosen)
        measured.append(chosen[0])
        known.timing(*chosen)
    return [known.timing(scenario, plugin) for scenario, plugin in uses]


def stand_in(
    scenario: Scenario, budget: Budget, known: Iterable[tuple[Scenario, Timing | None]], timer: Timer
) -> Timing | None:
    """Estimate the timing of an attack in a setting that was not measured; None: no setting was measured.

    Takes the measured setting that differs in the fewest parts (of several, the one with the most similar
    time of a client's gradient), and multiplies its timing by the ratio of the two gradient times. A server's
    crafting and prior training scale with the gradient time per image, not per client's batch.
    """
    measured = [(other, timing) for other, timing in known if timing is not None]
    if not measured:
        return None
    size = _size(scenario, budget, timer)
    nearest, timing = min(
        measured,
        key=lambda one: (_unlike(scenario, one[0]), abs(math.log(size / _size(one[0], budget, timer)))),
    )
    factor = size / _size(nearest, budget, timer)
    each = factor * _images(nearest, budget) / _images(scenario, budget)
    for_model = "model" in budget.behind
    return replace(
        timing,
        step=None if timing.step is None else (each if for_model else 1.0) * timing.step,
        unit=factor * timing.unit,
        call=factor * timing.call,
        certificate=factor * timing.certificate,
        crafting=each * timing.crafting,
        estimated=True,
    )


def _size(scenario: Scenario, budget: Budget, timer: Timer) -> float:
    """Seconds of a client's gradient: of one image where the budget counts images, else of a batch."""
    return (
        max(timer.gradient(scenario), _SHORTEST) * _images(scenario, budget) / scenario.federation.batch_size
    )


def _images(scenario: Scenario, budget: Budget) -> int:
    """Number of images whose gradient time a unit of the budget scales with."""
    return 1 if budget.images else scenario.federation.batch_size


def _what_matters(scenario: Scenario, plugin: Plugin, budget: Budget) -> str:
    """Key of what the time of one unit depends on: not the number of units, defences or pre-training."""
    arguments = {**plugin.arguments, **budget.probe}
    return repr((sorted(arguments.items(), key=lambda pair: pair[0]), _setting(scenario)))


def _setting(scenario: Scenario) -> tuple[str, ...]:
    """The parts of a federation that the work of an attack depends on."""
    federation, model, inputs = scenario.federation, untrained(scenario), inputs_of(scenario)
    steps = (federation.batch_size, federation.local_epochs, scenario.data.examples)
    parts = (model, (federation.protocol, federation.kind), federation.optimizer, steps, inputs)
    return tuple(map(repr, parts))


def _unlike(one: Scenario, other: Scenario) -> int:
    """Number of parts in which two settings differ."""
    return sum(a != b for a, b in zip(_setting(one), _setting(other), strict=True))
