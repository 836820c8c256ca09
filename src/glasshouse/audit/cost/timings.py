"""What each setting of an attack takes: measured, or estimated from a measured one by their networks."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, final

from glasshouse.attacks.budget import Budget
from glasshouse.audit.attacking.needs import attack_of, calls_of
from glasshouse.audit.scoring.rehearsal import Scoring
from glasshouse.audit.simulation.rehearsal import Played
from glasshouse.scenario.spec import Scenario
from glasshouse.scenario.table import Plugin

CLOSED_FORM = Budget(unit="evaluations", amount=0)
"""Of an attack without a budget: a call is one evaluation, and is timed as it is."""
_SHORTEST = 1e-6
"""Seconds: clocks that tick coarsely may measure nothing."""


@final
@dataclass(frozen=True, kw_only=True)
class Timing:
    """What one setting of an attack takes.

    Attributes:
        unit: seconds of one unit of its budget, on one image where the budget goes by images.
        call: seconds of what each call does once.
        certificate: seconds of checking one call's search at the truth.
        step: seconds of one step of what it trains beforehand; None: not timed.
        crafting: seconds of what a malicious server makes before a round, but for what it trains.
        estimated: from the timing of something else, with no time left to measure it.
    """

    unit: float
    call: float = 0.0
    certificate: float = 0.0
    step: float | None = None
    crafting: float = 0.0
    estimated: bool = False


class Timer(Protocol):
    """Measures short pieces of a scenario without axes; each answer is in seconds of one unit.

    Attributes:
        device: of attacks; their seconds are the device's, all others those of one processor.
        exhausted: it has measured long enough; what was measured of the same attack must do.
        spent: what was measured of any attack must do.
    """

    @property
    def device(self) -> str: ...

    @property
    def exhausted(self) -> bool: ...
    @property
    def spent(self) -> bool: ...

    def attack(self, scenario: Scenario, plugin: Plugin, budget: Budget) -> Timing | None:
        """One setting of an attack; None: not timed."""
        ...

    def pretraining(self, scenario: Scenario) -> float:
        """One image's pass through the model and back."""
        ...

    def gradient(self, scenario: Scenario) -> float:
        """One client's gradient of one batch: how dear a network is beside another."""
        ...

    def simulation(self, scenario: Scenario, *, cold: bool) -> Played:
        """A federation; ``cold``: asked before anything else, and tells what a process does once."""
        ...

    def scoring(self, scenario: Scenario) -> Scoring | None: ...


Uses = Sequence[tuple[Scenario, Plugin]]
Timings = Sequence[Timing | None]


Use = tuple[Scenario, Budget | None, Timing | None]
"""An attack's setting, and what it takes."""


@final
class Known:
    """What was timed so far, of all attacks; what no time is left for is estimated from it.

    Args:
        timer: None: nothing is timed.
    """

    def __init__(self, timer: Timer | None) -> None:
        self.timer = timer
        self._timed: dict[str, dict[str, Use]] = {}

    def timing(self, scenario: Scenario, plugin: Plugin, *, first: bool = False) -> Timing | None:
        """Of one use of an attack: measured while there is time, and the first thing of all in any case.

        ``first``: of the attack under this label, which is measured as long as there is any time.

        Then estimated from the same attack in another setting, else from another attack whose budget counts
        the same; None: there is no such, or it cannot be timed.
        """
        attack = attack_of(plugin.name, plugin.arguments)
        if self.timer is None or not calls_of(scenario, plugin, attack):
            return None
        budget, own = attack.budget, self._timed.setdefault(plugin.name, {})
        key = _what_matters(scenario, plugin, budget)
        late = self.timer.exhausted if own and not first else self.timer.spent
        late = late and any(self._timed.values())
        if key not in own and not late:
            own[key] = scenario, budget, self.timer.attack(scenario, plugin, budget or CLOSED_FORM)
        if key in own:
            return own[key][2] or self._estimate(scenario, budget, own)
        alike = {k: use for uses in self._timed.values() for k, use in uses.items() if _alike(budget, use[1])}
        return self._estimate(scenario, budget, own or alike)

    def _estimate(self, scenario: Scenario, budget: Budget | None, uses: Mapping[str, Use]) -> Timing | None:
        assert self.timer is not None  # asked before
        return stand_in(scenario, budget, [(there, timing) for there, _, timing in uses.values()], self.timer)


def _alike(budget: Budget | None, other: Budget | None) -> bool:
    """Whether a unit of both is the same kind of work, as far as their budgets say."""
    return _kind(budget or CLOSED_FORM) == _kind(other or CLOSED_FORM)


def _kind(budget: Budget) -> object:
    """What is counted and trained, and the names of the settings of the search."""
    settings = {n: sorted(v) if isinstance(v, Mapping) else "" for n, v in budget.probe.items()}
    searches = bool(budget.amount), bool(budget.images), budget.pieces is not None
    return budget.unit, budget.trained, searches, settings


def time_uses(uses: Uses, known: Known) -> Timings:
    """For each use of an attack what its setting takes.

    While there is time, the next to be measured is the one least like those that are, so that every axis gets
    its turn.
    """
    left, measured = list(uses), list[Scenario]()
    while left and known.timer is not None and not known.timer.exhausted:
        chosen = max(left, key=lambda use: min((_unlike(use[0], one) for one in measured), default=0))
        left.remove(chosen)
        measured.append(chosen[0])
        known.timing(*chosen)
    return [known.timing(scenario, plugin) for scenario, plugin in uses]


def stand_in(
    scenario: Scenario, budget: Budget | None, known: Iterable[tuple[Scenario, Timing | None]], timer: Timer
) -> Timing | None:
    """The timing of an attack in a setting that was not measured; None: it was measured nowhere.

    That of the measured setting that differs in the fewest parts, of these the one whose client's gradient
    takes the most similar time, times the ratio of both gradients. What a server makes and trains beforehand
    goes with the gradient of an image, not of a client's batch.
    """
    measured = [(there, timing) for there, timing in known if timing is not None]
    if not measured:
        return None
    here = _size(scenario, budget, timer)
    there, timing = min(
        measured,
        key=lambda one: (_unlike(scenario, one[0]), abs(math.log(here / _size(one[0], budget, timer)))),
    )
    factor = here / _size(there, budget, timer)
    each = factor * _images(there, budget) / _images(scenario, budget)
    for_model = budget is None or "model" in budget.behind
    return replace(
        timing,
        step=None if timing.step is None else (each if for_model else 1.0) * timing.step,
        unit=factor * timing.unit,
        call=factor * timing.call,
        certificate=factor * timing.certificate,
        crafting=each * timing.crafting,
        estimated=True,
    )


def _size(scenario: Scenario, budget: Budget | None, timer: Timer) -> float:
    """Seconds of a client's gradient: of one image where the budget goes by images, else of a batch."""
    return (
        max(timer.gradient(scenario), _SHORTEST) * _images(scenario, budget) / scenario.federation.batch_size
    )


def _images(scenario: Scenario, budget: Budget | None) -> int:
    """Images whose gradient a unit of the budget goes with."""
    return 1 if budget is not None and budget.images else scenario.federation.batch_size


def _what_matters(scenario: Scenario, plugin: Plugin, budget: Budget | None) -> str:
    """What the seconds of one unit depend on: neither how many units there are nor defences nor training."""
    arguments = {**plugin.arguments, **(budget.probe if budget else {})}
    return repr((sorted(arguments.items(), key=lambda pair: pair[0]), _setting(scenario)))


def _setting(scenario: Scenario) -> tuple[str, ...]:
    """Of a federation what an attack's work depends on, part by part."""
    federation, data = scenario.federation, scenario.data
    model = scenario.model.model_dump(exclude={"pretraining"})
    steps = (federation.batch_size, federation.local_epochs, data.examples)
    parts = (model, (federation.protocol, federation.kind), federation.optimizer, steps, data.source)
    return tuple(map(repr, parts))


def _unlike(one: Scenario, other: Scenario) -> int:
    """In how many parts two settings differ."""
    return sum(a != b for a, b in zip(_setting(one), _setting(other), strict=True))
