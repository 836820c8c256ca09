"""The input and output of scoring one cell."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

from glasshouse.audit.simulation.group import Group
from glasshouse.audit.simulation.record import Facts
from glasshouse.figures.drawing import Drawings
from glasshouse.results.records import Contrast, Control, Finding, Power, Refused, Utility
from glasshouse.results.strength import Proofs, Search
from glasshouse.scenario.axes import Cell
from glasshouse.scenario.table import Plugin


@final
@dataclass(frozen=True, kw_only=True)
class CellTask:
    """One cell to score, as plain data.

    Attributes:
        cell: the scenario without axes.
        groups: its federations.
        run: the run's folder.
        controls: by attack with its settings as JSON.
        searches: certificates by the folder of a unit's claims.
        powers: planted leaks that were found in this cell, by :func:`power_key`.
    """

    cell: Cell
    groups: tuple[Group, ...]
    run: str
    controls: Mapping[str, Control | None]
    searches: Mapping[str, tuple[Search, ...]] = field(default_factory=dict)
    powers: Mapping[str, Power] = field(default_factory=dict)


@final
@dataclass(frozen=True, kw_only=True)
class CellResult:
    """The results of one cell.

    Attributes:
        findings: one per attack and metric that scores its claims.
        refusals: of federations, attacks and metrics.
        utility: held-out accuracy, per federation.
        drawings: of its figures.
        contrasts: between attacks.
        facts: of the first federation; None: none ran.
        notes: on victims that could not be judged, for the log.
        proofs: what was proved, held against the truth.
        drawing: CPU seconds spent on the figures.
    """

    findings: tuple[Finding, ...] = ()
    refusals: tuple[Refused, ...] = ()
    utility: tuple[Utility, ...] = ()
    drawings: Drawings = field(default_factory=Drawings)
    contrasts: tuple[Contrast, ...] = ()
    facts: Facts | None
    notes: tuple[str, ...] = ()
    proofs: tuple[Proofs, ...] = ()
    drawing: float = 0.0


@final
@dataclass(frozen=True, kw_only=True)
class Family:
    """Cells that differ by their defences alone, with the one that shows what attacks find without any.

    They have the same victims and the same auxiliary data, so that one process judges the null adversaries
    once for all of them.

    Attributes:
        shown: where nothing is defended.
        how: how leaks were planted there, in words.
        rest: cells whose power it shows.
    """

    shown: CellTask
    how: str = ""
    rest: tuple[CellTask, ...] = ()

    def __len__(self) -> int:
        return 1 + len(self.rest)


def attack_key(position: int, attack: Plugin) -> str:
    """Name of an attack's folder below ``claims/``."""
    return f"{position:02d}-{attack.name}"


def control_key(attack: Plugin) -> str:
    """A key for an attack with its settings."""
    return f"{attack.name} {json.dumps(attack.arguments, sort_keys=True)}"


def power_key(attack: Plugin, claim: str) -> str:
    """A key for the claims of one kind that an attack with its settings makes."""
    return f"{control_key(attack)} {claim}"
