"""What an audit will cost, before anything long starts: counts of its work, and seconds if measured."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from glasshouse import registry
from glasshouse.attacks.base import Attack
from glasshouse.attacks.budget import Budget
from glasshouse.audit.attacking.needs import attack_of, foresee_refusal
from glasshouse.federation.setting import FederationProtocol
from glasshouse.registry import create, load
from glasshouse.scenario.axes import Cell, cells
from glasshouse.scenario.passes import passes
from glasshouse.scenario.spec import Scenario
from glasshouse.scenario.suite import Suite
from glasshouse.scenario.table import Plugin

CONTROL_VICTIMS = 6
"""Victims of a control: its easy setting has so many clients."""
Row = dict[str, Any]
"""``scenario``, ``part`` (an attack's label, or what else takes time), ``calls``, ``unit``, ``evaluations``
(how many units), ``seconds`` (None: not measured). The last row is the total."""


class Timer(Protocol):
    """Measures short pieces of a scenario without axes; each answer is in CPU seconds of one unit."""

    def attack(self, scenario: Scenario, plugin: Plugin, budget: Budget) -> float | None:
        """One unit of an attack's budget, on one image where the budget goes by images; None: not timed."""
        ...

    def pretraining(self, scenario: Scenario) -> float:
        """One image's pass through the model and back."""
        ...

    def simulation(self, scenario: Scenario) -> float:
        """The same within a client's training, with what the federation does around it."""
        ...

    def scoring(self, scenario: Scenario) -> tuple[float, float] | None:
        """One metric on claims: what the first of a federation adds, and each of them; None: not timed."""
        ...


def costs(suite: Suite, *, timer: Timer | None = None) -> list[Row]:
    """Every scenario's rows, and one total."""
    rows = [row for scenario in suite.scenarios for row in cost(scenario, timer=timer)]
    return [*rows, total(suite.name, rows)]


def cost(scenario: Scenario, *, timer: Timer | None = None) -> list[Row]:
    """One row for each part of one scenario's audit, over all of its cells and seeds; no total."""
    every = cells(scenario)
    rows = [_pretraining(every, timer), _simulation(every, timer)]
    trainings: dict[tuple[str, str], int] = {}
    for label, uses in _by_label(every).items():
        row = _attack(scenario.name, label, uses, timer)
        rows += [row, _controls(label, uses, row)]
        trainings |= dict(_trainings(uses))
    for what in dict.fromkeys(words for words, _ in trainings):
        counts = [number for (words, _), number in trainings.items() if words == what]
        rows.append(_row(scenario.name, f"training: {what}", len(counts), ("steps", sum(counts))))
    rows.append(_scoring(every, timer))
    return [row for row in rows if row["calls"]]


def total(name: str, rows: Sequence[Row]) -> Row:
    """The total of calls and of measured seconds; ``unmeasured`` names the parts without a measurement."""
    measured = [row["seconds"] for row in rows if row["seconds"] is not None]
    calls = sum(row["calls"] for row in rows)
    row = _row(name, "total", calls, ("", None), sum(measured) if measured else None)
    unmeasured = dict.fromkeys(row["part"] for row in rows if row["seconds"] is None)
    return {**row, "unmeasured": list(unmeasured) if measured else []}


def _row(
    scenario: str, part: str, calls: int, work: tuple[str, int | None], seconds: float | None = None
) -> Row:
    unit, evaluations = work
    return {
        "scenario": scenario,
        "part": part,
        "calls": calls,
        "unit": unit,
        "evaluations": evaluations,
        "seconds": seconds,
    }


def _by_label(every: Sequence[Cell]) -> dict[str, list[tuple[Scenario, Plugin]]]:
    """The cells in which each attack runs; axes may change its arguments, or the list of attacks."""
    uses: dict[str, list[tuple[Scenario, Plugin]]] = {}
    for cell in every:
        for plugin in cell.scenario.attacks:
            uses.setdefault(plugin.label or plugin.name, []).append((cell.scenario, plugin))
    return uses


def _repeats(scenario: Scenario) -> int:
    return max(1, len(scenario.audit.seeds))


def _attack(name: str, label: str, uses: Sequence[tuple[Scenario, Plugin]], timer: Timer | None) -> Row:
    calls = work = 0
    unit, seconds = "evaluations", None
    for number, (scenario, plugin) in enumerate(uses):
        attack = attack_of(plugin.name, plugin.arguments)
        budget, here = attack.budget, calls_of(scenario, plugin, attack) * _repeats(scenario)
        calls += here
        work += _units(scenario, budget, here)
        unit = "evaluations" if budget is None or not budget.amount else budget.unit
        if number == 0 and timer is not None and budget is not None and here:
            seconds = timer.attack(scenario, plugin, budget)
    return _row(name, label, calls, (unit, work), None if seconds is None else seconds * work)


def _units(scenario: Scenario, budget: Budget | None, calls: int) -> int:
    if budget is None or not budget.amount:
        return calls
    if not calls or not budget.images:
        return calls * budget.units
    return images_of(scenario, budget) * _repeats(scenario) * budget.units


def images_of(scenario: Scenario, budget: Budget) -> int:
    """The largest number of images to search for in one run: the examples behind the attacked rounds."""
    federation = scenario.federation
    behind = federation.batch_size if federation.kind == "gradient" else scenario.data.examples
    clients_seen, together = federation.cohort_size, 1
    if federation.secure_sum:
        clients_seen, together = together, clients_seen
    return len(scenario.audit.rounds) * clients_seen * min(budget.images, behind * together)


def calls_of(scenario: Scenario, plugin: Plugin, attack: Attack) -> int:
    """Calls in one run; none where the attack will refuse."""
    if foresee_refusal(scenario, plugin) is not None:
        return 0
    rounds = len(scenario.audit.rounds)
    per_scope = {
        "run": 1,
        "round": rounds,
        "update": min(scenario.audit.victims, rounds * scenario.federation.cohort_size),
    }
    return per_scope[attack.needs.scope]


def _controls(label: str, uses: Sequence[tuple[Scenario, Plugin]], row: Row) -> Row:
    """One control for each different setting of an attack, in seconds that its units take in the audit."""
    different: dict[str, int] = {}
    for scenario, plugin in uses:
        if scenario.audit.controls and registry.card("attacks", plugin.name).control:
            budget = attack_of(plugin.name, plugin.arguments).budget
            units = budget.units if budget is not None and budget.amount else 1
            different[repr(plugin.arguments)] = CONTROL_VICTIMS * units
    work = sum(different.values())
    seconds = None
    if row["seconds"] is not None and row["evaluations"]:
        seconds = row["seconds"] / row["evaluations"] * work
    return _row(row["scenario"], f"control: {label}", len(different), (row["unit"], work), seconds)


def _trainings(uses: Sequence[tuple[Scenario, Plugin]]) -> Iterator[tuple[tuple[str, str], int]]:
    """What attacks train beforehand: once for each model, data and seed, whichever attack asks first."""
    for scenario, plugin in uses:
        budget = attack_of(plugin.name, plugin.arguments).budget
        if budget is None or not budget.training or foresee_refusal(scenario, plugin) is not None:
            continue
        steps = budget.training * (scenario.federation.rounds if budget.every_round else 1)
        behind = [scenario.model.model_dump(), scenario.data.model_dump(), budget.training]
        if budget.every_round:
            behind += [scenario.federation.model_dump(), [d.model_dump() for d in scenario.defenses]]
        for seed in scenario.audit.seeds or (scenario.seed,):
            yield (budget.trained, repr([behind, seed])), steps


def _pretraining(every: Sequence[Cell], timer: Timer | None) -> Row:
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
    if timer is not None and first is not None:
        seconds = timer.pretraining(first) * sum(counts)
    return _row(every[0].scenario.name, "pre-training", len(counts), ("image passes", sum(counts)), seconds)


def _simulation(every: Sequence[Cell], timer: Timer | None) -> Row:
    """Federations: one for all passive attacks of a cell and seed, and one for each active attack."""
    calls = work = 0
    for cell in every:
        one = cell.scenario
        active = sum(bool(attack_of(a.name, a.arguments).needs.changes) for a in one.attacks)
        groups = (active + (active < len(one.attacks))) * _repeats(one)
        calls += groups
        work += groups * client_passes(one)
    first = every[0].scenario
    seconds = None if timer is None else timer.simulation(first) * work
    return _row(first.name, "simulation", calls, ("image passes", work), seconds)


def client_passes(scenario: Scenario) -> int:
    """Private images times passes through the model in one federation, over all rounds and clients."""
    federation, examples = scenario.federation, scenario.data.examples
    protocol: FederationProtocol = create(load("protocols", federation.protocol), federation.options)
    if (whole := protocol.passes(federation.rounds)) is not None:
        return whole * federation.clients * examples
    each = federation.batch_size if federation.kind == "gradient" else federation.local_epochs * examples
    return federation.rounds * federation.cohort_size * each


def _scoring(every: Sequence[Cell], timer: Timer | None) -> Row:
    """Scoring every claim with every metric, including the comparison with nulls and other victims."""
    calls = federations = 0
    for cell in every:
        one = cell.scenario
        for plugin in one.attacks:
            attack = attack_of(plugin.name, plugin.arguments)
            claims = calls_of(one, plugin, attack)
            calls += claims * _repeats(one) * len(one.audit.metrics)
            federations += bool(claims) * _repeats(one) * len(one.audit.metrics)
    first = every[0].scenario
    timed = None if timer is None or not calls else timer.scoring(first)
    seconds = None if timed is None else timed[0] * federations + timed[1] * calls
    return _row(first.name, "scoring", calls, ("scores", calls), seconds)
