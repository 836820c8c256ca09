"""The plan of a run: its cells, the groups of each, and every call of an attack."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from glasshouse.audit.attacking.call import AttackTask, units_of
from glasshouse.audit.attacking.needs import attack_of, federation_of, threat_of
from glasshouse.audit.scoring.judging.control import ControlTask
from glasshouse.audit.scoring.tasks import attack_key, control_key
from glasshouse.audit.simulation.group import Group, federation_digest
from glasshouse.audit.simulation.planted import is_undefended, planted_scenario, undefended
from glasshouse.audit.simulation.record import read_record
from glasshouse.cache import digest
from glasshouse.scenario.axes import Cell, cells
from glasshouse.scenario.spec import Scenario
from glasshouse.scenario.suite import Suite
from glasshouse.truth.record import read_truth

PLANTED: Final = "planted"
"""Folder of the run below which canaries are simulated; removed after the run."""


@final
@dataclass(frozen=True, kw_only=True)
class Plan:
    """One cell with its groups, as ``audit`` will run them."""

    cell: Cell
    system: str
    groups: tuple[Group, ...]

    @property
    def part(self) -> str:
        """The part of the audit that its time is charged to: its system, or else its scenario."""
        return self.system or self.cell.scenario.name


def plan(suite: Suite, out: Path, *, device: str = "cpu") -> tuple[Plan, ...]:
    """All cells of all scenarios with the groups that each needs; ``device``: of the audit."""
    played: dict[tuple[str, int], str] = {}
    return tuple(
        Plan(cell=cell, system=member.system, groups=tuple(_groups(cell, out, device, played)))
        for member in suite.members
        for cell in cells(member.scenario)
    )


def _groups(
    cell: Cell, out: Path, device: str, played: dict[tuple[str, int], str], *, folder: str = "cells"
) -> Iterator[Group]:
    """The groups of a cell; adds their folders to ``played``, by federation and seed."""
    scenario = cell.scenario
    federation = federation_digest(scenario)
    several = len(scenario.draws) > 1 or bool(scenario.audit.seeds)
    for draw in scenario.draws:
        seed, victims = draw.seed, draw.victims
        repeat = f"-s{seed}" if several else ""
        active = [i for i in range(len(scenario.attacks)) if federation_of(scenario, i) is not None]
        if len(active) < len(scenario.attacks) or not scenario.attacks:
            place = str(out / folder / f"{cell.hash}{repeat}")
            first = place if scenario.captured else played.setdefault((federation, seed), place)
            same_as = first if first != place else ""
            yield Group(folder=place, seed=seed, victims=victims, device=device, same_as=same_as)
        for position in active:
            name = f"{cell.hash}{repeat}-{position}-{scenario.attacks[position].name}"
            yield Group(
                folder=str(out / folder / name), seed=seed, victims=victims, active=position, device=device
            )


def planted_plans(plans: Sequence[Plan], out: Path, *, device: str = "cpu") -> dict[str, Plan]:
    """The cells that show what attacks find where nothing is defended, by the hash of whom they stand for.

    An undefended cell stands for itself, and for those of the run that differ from it by defences alone; for
    other cells canaries are planned, once for all that would have the same ones.
    """
    own = {
        digest(p.cell.scenario.model_dump(mode="json")): p for p in plans if is_undefended(p.cell.scenario)
    }
    planned: dict[str, Plan] = {}
    result = {}
    for one in plans:
        scenario = one.cell.scenario
        if (same := own.get(digest(undefended(scenario).model_dump(mode="json")))) is not None:
            result[one.cell.hash] = same
        elif (planted := planted_scenario(scenario)) is not None:
            key = digest(planted.model_dump(mode="json"))
            if key not in planned:
                cell = Cell(scenario=planted, axes=one.cell.axes, hash=f"planted-{key[:16]}")
                groups = tuple(_groups(cell, out, device, {}, folder=PLANTED))
                planned[key] = Plan(cell=cell, system=one.system, groups=groups)
            result[one.cell.hash] = planned[key]
    return result


def attack_tasks(planned: Plan, device: str) -> Iterator[AttackTask]:
    """Every call of every attack in one cell, for groups whose federation ran."""
    for group in planned.groups:
        yield from group_tasks(planned.cell.scenario, group, device)


def group_tasks(scenario: Scenario, group: Group, device: str) -> Iterator[AttackTask]:
    """Every call of every attack on one recorded group; none if its federation was refused."""
    attacked = frozenset(r % scenario.federation.rounds for r in scenario.audit.rounds)
    trust_factory = any(":" in m.name for m in (scenario.model, *scenario.federation.client_models))
    if (task := scenario.data.task) is not None:  # a loss of the user's own
        trust_factory |= any(":" in value for value in task.arguments.values() if isinstance(value, str))
    folder = Path(group.folder)
    if read_record(folder).refusal is not None:
        return
    known = read_truth(folder / "truth").used if scenario.captured else ()
    for position, spec in enumerate(scenario.attacks):
        attack = attack_of(spec)
        if group.active != federation_of(scenario, position):
            continue
        for unit in units_of(attack, folder, victims=group.victims, attacked=attacked, existing=known):
            yield AttackTask(
                folder=group.folder,
                out=str(folder / "claims" / attack_key(position, spec) / unit.name),
                plugin=spec,
                threat=threat_of(scenario),
                attack_seed=scenario.attack_seed,
                unit=unit,
                device=device,
                trust_factory=trust_factory,
            )


def control_tasks(plans: tuple[Plan, ...], place: Path, device: str) -> list[ControlTask]:
    """One control per attack and settings, in folders below ``place``."""
    specs = [s for p in plans if p.cell.scenario.audit.controls for s in p.cell.scenario.attacks]
    return [
        ControlTask(
            key=key,
            plugin=spec,
            folder=str(place / digest(key)[:16]),
            device=device,
            shared=str(place / "federations"),
        )
        for key, spec in {control_key(s): s for s in specs}.items()
    ]
