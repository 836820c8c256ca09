"""Count the work of an audit before it starts, from the plan that the audit itself follows.

Counts are exact but for searches that end early. The floating-point operations of one client's gradient are
counted by torch, and so are its operators, whose overhead is what small networks cost; on tensors without
contents where the network is large. With this machine's speed they give an order of magnitude and no more:
the run itself tells the time once its first pieces are finished.
"""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast, final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from glasshouse.attacks.base import Claim
from glasshouse.attacks.budget import Budget
from glasshouse.audit.attacking.needs import calls_of, declared, foresee_refusal, images_of, plays_of
from glasshouse.audit.plan import Plan, plan, planted_plans
from glasshouse.audit.preflight.outlook import NOTHING_KNOWN, Outlook, fault_of, look, look_at, without_memory
from glasshouse.audit.room import bytes_of, in_words
from glasshouse.audit.scoring.judging.control import easy_scenario
from glasshouse.audit.scoring.tasks import control_key
from glasshouse.audit.simulation.group import Group
from glasshouse.cache import once
from glasshouse.federation.setting import FederationProtocol
from glasshouse.models.build import build
from glasshouse.registry import card, create, load
from glasshouse.scenario.requirements import passes
from glasshouse.scenario.spec import Scenario
from glasshouse.scenario.suite import Suite
from glasshouse.scenario.table import Plugin
from glasshouse.wire import Architecture

CLOSED_FORM: Final = Budget(unit="evaluations", amount=0, gradients=1)
"""Budget of an attack without a search."""
GRADIENT: Final = 3
"""Forward passes that one gradient costs: the pass itself and twice as much for the pass back."""
TOGETHER: Final = 32
"""Examples or calls that one operator is taken to cover where the audit may batch them."""
OVERHEAD: Final = 10
"""An operator inside a search costs this many times as much as one addition of eight numbers: it is recorded
for a derivative, and Python stands between the operators. Set on the quickstart's searches, to a factor of
two."""
SCORE: Final = 400
"""Operators that one call of an attack costs under one metric: nulls, exchange, certificate. They take 0.02
seconds of the core for which attacks are chosen. Measured: 4 ms on digits, 8 ms over the quickstart, 31 ms on
faces of 64 × 64 pixels."""
PAIR: Final = 2500
"""Operations added to it for each number of each pair of a claimed and a private example of an update.
Measured: 0.26 seconds for one score at 32 pictures of 3,072 numbers, 1.5 at 64."""
STARTING: Final = 6.0
"""CPU seconds of an audit outside its pieces: imports, here and in the server of workers, checks and drawing,
as the quickstart's manifest states them."""
SECONDS: Final = 0.5
"""How long this machine's speed is measured."""


@final
@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a computation costs.

    Attributes:
        operations: floating-point operations; a multiply-add counts twice.
        operators: torch operators that are called.
    """

    operations: float = 0.0
    operators: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(operations=self.operations + other.operations, operators=self.operators + other.operators)

    def times(self, units: float, *, examples: float = 1.0) -> "Cost":
        """The cost of ``units`` repetitions on ``examples`` each; the examples of one are batched."""
        return Cost(operations=self.operations * units * examples, operators=self.operators * units)

    def seconds(self, speed: "Speed") -> float:
        """CPU seconds of one core, to an order of magnitude."""
        return self.operations / speed.operations + self.operators / speed.operators


@final
@dataclass(frozen=True, kw_only=True)
class Speed:
    """What one core of this machine does per second: floating-point operations, and small operators."""

    operations: float
    operators: float


@final
@dataclass(frozen=True, kw_only=True)
class Work:
    """One part of an audit.

    Attributes:
        scenario: its name; of the total, the suite's.
        part: ``simulation``, ``pre-training``, an attack's label, ``control: LABEL``, ``training: WHAT``,
            ``planted leaks: simulation`` or ``: attacks``, ``scoring``, ``disk`` or ``total``.
        calls: federations, calls of an attack, or scores.
        unit: of ``amount``, in the plural; empty: nothing is counted within a call.
        amount: units over all calls.
        cost: of all calls, through the agreed network; None: unknown.
    """

    scenario: str
    part: str
    calls: int
    unit: str = ""
    amount: int | None = None
    cost: Cost | None = None

    def __str__(self) -> str:
        if self.part == "disk" and self.amount is not None:
            return f"some {in_words(self.amount)}, of which what is sent by canaries goes after the run"
        words = [f"{self.calls:,} call{'s' if self.calls != 1 else ''}"]
        if self.unit and self.amount is not None:
            words.append(f"{self.amount:,} {self.unit}")
        return ", ".join(words)


@final
@dataclass(frozen=True, kw_only=True)
class Foreseen:
    """What the work in a cell is counted from.

    Attributes:
        scenario: of the cell, without axes.
        federations: number of those that are played; copies of another cell's are not.
        gradient: cost of the gradient of one example through the agreed network.
        network: the agreed network; None: unknown.
    """

    scenario: Scenario
    federations: int
    gradient: Cost
    network: Architecture | None


Use = tuple[Foreseen, Plugin]
"""A cell that an attack is used in, and the attack with its settings there."""


def foresee(outlook: Outlook, groups: Sequence[Group] = ()) -> Foreseen:
    """What the work in a cell is counted from; ``groups``: of its plan."""
    played = [] if outlook.scenario.captured else [group for group in groups if not group.same_as]
    return Foreseen(
        scenario=outlook.scenario,
        federations=len(played),
        gradient=_gradient(outlook),
        network=outlook.agreed,
    )


def count(suite: Suite, looks: Mapping[str, Outlook] = NOTHING_KNOWN) -> tuple[Work, ...]:
    """Every part of the audit of ``suite`` that has work, and one total.

    What scenarios share through the cache (controls, training before attacks) is counted once.

    Args:
        suite: valid.
        looks: what is known of its cells, by their hashes; the others are looked at.
    """
    plans, shared = plan(suite, Path()), set[str]()
    own = {one.cell.hash for one in plans}
    planted = {
        one.cell.hash: one for one in planted_plans(plans, Path()).values() if one.cell.hash not in own
    }
    looks = look_at((one.cell for one in (*plans, *planted.values())), looks)
    rows: list[Work] = []
    for scenario in suite.scenarios:
        rows += _count_scenario(scenario.name, _of(scenario.name, plans, looks), shared)
        rows += _planted(scenario.name, _of(scenario.name, planted.values(), looks))
    rows = [row for row in rows if row.calls]
    counted = [row.cost for row in rows if row.cost is not None]
    whole = Work(
        scenario=suite.name,
        part="total",
        calls=sum(row.calls for row in rows),
        cost=sum(counted, Cost()) if counted else None,
    )
    kept, canaries = bytes_of(plans, looks), bytes_of(planted.values(), looks)
    if kept + canaries:  # a capture is recorded already
        rows.append(Work(scenario=suite.name, part="disk", calls=0, unit="bytes", amount=kept + canaries))
    return (*rows, whole)


def _of(name: str, plans: Iterable[Plan], looks: Mapping[str, Outlook]) -> list[Foreseen]:
    own = [one for one in plans if one.cell.scenario.name == name]
    return [foresee(looks[one.cell.hash], one.groups) for one in own]


def _planted(name: str, cells: Sequence[Foreseen]) -> Iterator[Work]:
    """Federations of canaries, whose clients send undefended, and the attacks' calls on them."""
    simulated = _simulations(name, cells)
    yield replace(simulated, part="planted leaks: simulation")
    calls = [
        _calls(name, plugin.label or plugin.name, [(one, plugin)])
        for one in cells
        for plugin in one.scenario.attacks
    ]
    yield Work(
        scenario=name,
        part="planted leaks: attacks",
        calls=sum(one.calls for one in calls),
        cost=sum((one.cost for one in calls if one.cost is not None), Cost()),
    )


def cost_of(uses: Sequence[Use]) -> Cost:
    """What one attack costs in cells that do not rule it out, with its controls and its training."""
    rows = (_calls("", "", uses), _controls("", "", uses, set()), *_trainings("", uses, set()))
    return sum((row.cost for row in rows if row.cost is not None), Cost())


def _count_scenario(name: str, cells: Sequence[Foreseen], shared: set[str]) -> Iterator[Work]:
    yield _pretraining(name, cells, shared)
    yield _simulations(name, cells)
    labels = dict.fromkeys(a.label or a.name for one in cells for a in one.scenario.attacks)
    for label in labels:
        # Axes may change an attack's settings, or leave it out of a cell.
        uses = [
            (one, attack)
            for one in cells
            for attack in one.scenario.attacks
            if (attack.label or attack.name) == label
        ]
        yield _calls(name, label, uses)
        yield _controls(name, label, uses, shared)
        yield from _trainings(name, uses, shared)
    yield _scores(name, cells)


def _pretraining(name: str, cells: Sequence[Foreseen], shared: set[str]) -> Work:
    """Public training before round 0; cells and seeds with the same public model train it once."""
    amounts, cost = [0], Cost()
    for cell in cells:
        one, number = cell.scenario, passes(cell.scenario)
        for draw in one.draws:
            key = repr(["public model", one.model.model_dump(), one.data.model_dump(), draw.seed])
            if number and key not in shared:
                shared.add(key)
                amounts.append(number)
                cost += cell.gradient.times(number / TOGETHER, examples=TOGETHER)
    return Work(
        scenario=name,
        part="pre-training",
        calls=len(amounts) - 1,
        unit="passes of an example",
        amount=sum(amounts),
        cost=cost,
    )


def _simulations(name: str, cells: Sequence[Foreseen]) -> Work:
    """The federations that are played."""
    amount, cost = 0, Cost()
    for one in cells:
        batch, number = one.scenario.federation.batch_size, one.federations * _client_passes(one.scenario)
        amount += number
        cost += one.gradient.times(number / batch, examples=batch)
    return Work(
        scenario=name,
        part="simulation",
        calls=sum(one.federations for one in cells),
        unit="passes of an example",
        amount=amount,
        cost=cost,
    )


def _client_passes(scenario: Scenario) -> int:
    """Passes of private examples through the model in one federation, over rounds and clients."""
    federation, examples = scenario.federation, scenario.data.examples
    protocol: FederationProtocol = create(load("protocols", federation.protocol), federation.options)
    if (whole := protocol.passes(federation.rounds)) is not None:
        return whole * federation.clients * examples
    each = federation.batch_size if federation.kind == "gradient" else federation.local_epochs * examples
    return federation.rounds * federation.cohort_size * each


def _calls(name: str, label: str, uses: Sequence[Use]) -> Work:
    """All calls of one attack, over cells and seeds."""
    calls, amount, cost, unit = 0, 0, Cost(), CLOSED_FORM.unit
    for cell, plugin in uses:
        scenario, budget = cell.scenario, declared(plugin)[1] or CLOSED_FORM
        number = calls_of(scenario, plugin) * plays_of(scenario, plugin)
        images = images_of(scenario, budget) * len(scenario.draws)
        units, examples = _units(budget, number, images), _examples_per_unit(scenario, budget)
        calls, amount = calls + number, amount + units
        # A search that repeats a client's steps pays for each; its examples are in no batch together.
        steps, batches = _steps(scenario)
        at_once, stepwise = budget.gradients_of(units, steps=steps, batches=batches)
        cost += cell.gradient.times(at_once, examples=examples)
        cost += cell.gradient.times(stepwise, examples=examples / batches)
        unit = budget.unit if budget.amount else unit
    return Work(scenario=name, part=label, calls=calls, unit=unit, amount=amount, cost=cost)


def _units(budget: Budget, calls: int, images: int) -> int:
    """Units of work in ``calls`` calls of an attack, which search for so many ``images`` at most."""
    if not budget.amount:
        return calls
    if not calls or not budget.images:
        return calls * budget.units
    return images * budget.units


def _examples_per_unit(scenario: Scenario, budget: Budget) -> int:
    """Examples whose gradient one unit takes: one where the budget counts them, else those of an update."""
    federation = scenario.federation
    return 1 if budget.images else behind(scenario) * (federation.cohort_size if federation.secure_sum else 1)


def score_cost(scenario: Scenario, size: int) -> Cost:
    """The cost of one call of an attack under one metric.

    Args:
        scenario: a cell's.
        size: numbers in an example, if the attack claims examples; else 0.
    """
    return Cost(operations=PAIR * size * behind(scenario) ** 2, operators=SCORE)


def numbers_in(network: Architecture | None, attack: str) -> int:
    """The numbers in an example, where an attack's claims are compared with every private one; else 0."""
    kinds = [cast("type[Claim]", load("claims", kind)) for kind in card("attacks", attack).claims]
    ranked = network is not None and any(kind.ranked for kind in kinds)
    return math.prod(network.input_shape) if network is not None and ranked else 0


def behind(scenario: Scenario) -> int:
    """Number of examples behind an update."""
    federation = scenario.federation
    return federation.batch_size if federation.kind == "gradient" else scenario.data.examples


def _steps(scenario: Scenario) -> tuple[int, int]:
    """Local steps behind an update, and those of one pass over a client's examples."""
    federation, how = scenario.federation, scenario.federation.local
    if federation.kind == "gradient":
        return 1, 1
    size = federation.batch_size
    whole = -(-how.used(scenario.data.examples, size) // size)
    batches = max(1, -(-whole // how.accumulate))
    return how.local_steps or federation.local_epochs * batches, batches


def _controls(name: str, label: str, uses: Sequence[Use], shared: set[str]) -> Work:
    """The controls of an attack: one per distinct setting, in its easy scenario."""
    easy: list[Use] = []
    for cell, plugin in uses:
        key = f"control {control_key(plugin)}"
        one = easy_scenario(plugin) if cell.scenario.audit.controls and key not in shared else None
        if one is not None:
            shared.add(key)
            easy.append((foresee(look(one)), one.attacks[0]))
    work = _calls(name, f"control: {label}", easy)
    return Work(**{**vars(work), "calls": len(easy)})


def _trainings(name: str, uses: Sequence[Use], shared: set[str]) -> Iterator[Work]:
    """What an attack trains before its first call; cells and seeds that share it train once."""
    steps: dict[str, list[int]] = {}
    costs: dict[str, Cost] = {}
    for cell, plugin in uses:
        scenario, budget = cell.scenario, declared(plugin)[1]
        if budget is None or not budget.training or foresee_refusal(scenario, plugin) is not None:
            continue
        rounds = scenario.federation.rounds if budget.every_round else 1
        for draw in scenario.draws:
            if (key := _training_key(scenario, budget, draw.seed)) not in shared:
                shared.add(key)
                number = budget.training * rounds
                steps.setdefault(budget.trained, []).append(number)
                # What is trained is unknown here; a step of the agreed network stands for its own.
                step = cell.gradient.times(number, examples=TOGETHER)
                costs[budget.trained] = costs.get(budget.trained, Cost()) + step
    for what, numbers in steps.items():
        yield Work(
            scenario=name,
            part=f"training: {what}",
            calls=len(numbers),
            unit="steps",
            amount=sum(numbers),
            cost=costs[what],
        )


def _training_key(scenario: Scenario, budget: Budget, seed: int) -> str:
    """Equal where two cells or seeds train the same thing, as far as settings tell."""
    behind: list[Any] = [budget.trained, budget.training, sorted(map(repr, budget.recipe.items()))]
    behind += [scenario.data.model_dump(), seed]
    if "model" in budget.behind:
        behind.append(scenario.model.model_dump())
    if "sum" in budget.behind:
        behind.append(scenario.federation.cohort_size * scenario.federation.batch_size)
    if budget.every_round:
        behind += [scenario.federation.model_dump(), [d.model_dump() for d in scenario.defenses]]
    return repr(behind)


def _scores(name: str, cells: Sequence[Foreseen]) -> Work:
    """Every claim by every metric."""
    calls, cost = 0, Cost()
    for one in cells:
        for plugin in one.scenario.attacks:
            number = calls_of(one.scenario, plugin) * len(one.scenario.audit.metrics)
            calls += number
            cost += score_cost(one.scenario, numbers_in(one.network, plugin.name)).times(number)
    return Work(scenario=name, part="scoring", calls=calls, cost=cost)


def _gradient(outlook: Outlook) -> Cost:
    """The cost of the gradient of one example through the agreed network; 0 where it cannot be counted."""
    network = outlook.agreed
    if network is None or outlook.scenario.federation.kind == "document" or fault_of(network) is not None:
        return Cost()
    return Cost(**once(["cost of a gradient", repr(network)], lambda: vars(count_gradient(network))))


def count_gradient(network: Architecture) -> Cost:
    """The cost of the gradient of one example, by torch's counters.

    Zero for a large network whose computation depends on values, which tensors without contents lack.
    """
    counter, calls = FlopCounterMode(display=False), _Operators()
    try:
        with without_memory(network), torch.no_grad():
            model, blank = build(network).eval(), network.inputs.blank(1)
            with counter, calls:
                model(blank)
    except NotImplementedError:
        return Cost()
    return Cost(operations=GRADIENT * counter.get_total_flops(), operators=GRADIENT * calls.count)


@final
class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch ships no annotation
    """Counts the operators that run within the block."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch ships no annotation
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and count it."""
        del types
        self.count += 1
        return func(*args, **(kwargs or {}))


def measure_speed(seconds: float = SECONDS) -> Speed:
    """The speed of one core of this machine, on convolutions and on operators of a few numbers."""
    images, kernel, few = torch.zeros(4, 16, 32, 32), torch.zeros(16, 16, 5, 5), torch.zeros(8)

    def convolve() -> Tensor:
        return nn.functional.conv2d(images, kernel, padding=2)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with FlopCounterMode(display=False) as counter:
            convolve()
        rates = []
        for work in (convolve, lambda: few + few):
            started, rounds = time.perf_counter(), 0
            while time.perf_counter() - started < seconds / 2:
                work()
                rounds += 1
            rates.append(rounds / (time.perf_counter() - started))
    finally:
        torch.set_num_threads(threads)
    return Speed(operations=rates[0] * counter.get_total_flops(), operators=rates[1] / OVERHEAD)


def magnitude(seconds: float) -> str:
    """An order of magnitude of a duration, in words.

    Examples:
        >>> magnitude(2), magnitude(70), magnitude(1100), magnitude(40_000)
        ('some seconds', 'about a minute', 'some 20 minutes', 'some 11 hours')
    """
    if seconds < 30:
        return "some seconds"
    unit, size = ("minute", 60) if seconds < 3600 else ("hour", 3600) if seconds < 86_400 else ("day", 86_400)
    number = seconds / size
    if number < 1.5:
        return f"about {'an' if unit == 'hour' else 'a'} {unit}"
    # Minutes above a quarter of an hour in tens: nothing finer is known.
    step = 10 if unit == "minute" and number >= 15 else 1
    return f"some {step * math.floor(number / step + 0.5)} {unit}s"
