"""What each setting of an attack takes: measured, or told from a measured one by their networks."""

import math
from collections.abc import Iterable, Sequence
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
    """

    unit: float
    call: float = 0.0
    certificate: float = 0.0
    step: float | None = None
    crafting: float = 0.0


class Timer(Protocol):
    """Measures short pieces of a scenario without axes; each answer is in seconds of one unit.

    Attributes:
        device: of attacks; their seconds are the device's, all others those of one processor.
        exhausted: it has measured long enough; what was measured of the same attack must do.
    """

    @property
    def device(self) -> str: ...

    @property
    def exhausted(self) -> bool: ...

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


def time_uses(uses: Uses, timer: Timer | None) -> Timings:
    """For each use of an attack what its setting takes.

    Each setting that matters is measured once, while there is time; :func:`stand_in` tells the others.
    """
    known: dict[str, tuple[Scenario, Timing | None]] = {}
    timings: list[Timing | None] = []
    for scenario, plugin in uses:
        attack = attack_of(plugin.name, plugin.arguments)
        budget, key = attack.budget, _what_matters(scenario, plugin, attack.budget)
        if timer is None or not calls_of(scenario, plugin, attack):
            timings.append(None)
            continue
        if key not in known and not (known and timer.exhausted):
            known[key] = scenario, timer.attack(scenario, plugin, budget or CLOSED_FORM)
        one = known[key][1] if key in known else None
        timings.append(one or stand_in(scenario, budget, known.values(), timer))
    return timings


def stand_in(
    scenario: Scenario, budget: Budget | None, known: Iterable[tuple[Scenario, Timing | None]], timer: Timer
) -> Timing | None:
    """The timing of an attack in a setting that was not measured; None: it was measured nowhere.

    That of the measured setting whose client's gradient takes the most similar time, times the ratio of both.
    """
    measured = [(_size(there, budget, timer), timing) for there, timing in known if timing is not None]
    if not measured:
        return None
    here = _size(scenario, budget, timer)
    size, timing = min(measured, key=lambda one: abs(math.log(here / one[0])))
    factor = here / size
    return replace(
        timing,
        unit=factor * timing.unit,
        call=factor * timing.call,
        certificate=factor * timing.certificate,
        crafting=factor * timing.crafting,
    )


def _size(scenario: Scenario, budget: Budget | None, timer: Timer) -> float:
    """Seconds of a client's gradient: of one image where the budget goes by images, else of a batch."""
    each = scenario.federation.batch_size if budget is not None and budget.images else 1
    return max(timer.gradient(scenario), _SHORTEST) / each


def _what_matters(scenario: Scenario, plugin: Plugin, budget: Budget | None) -> str:
    """What the seconds of one unit depend on: neither how many units there are nor defences nor training."""
    arguments = {**plugin.arguments, **(budget.probe if budget else {})}
    model = scenario.model.model_dump(exclude={"pretraining"})
    federation = scenario.federation
    size = (federation.batch_size, federation.local_epochs, scenario.data.examples, scenario.data.source)
    return repr((sorted(arguments.items(), key=lambda pair: pair[0]), model, federation.protocol, size))
