"""Everything that is drawn of one cell; what is drawn is decided elsewhere."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from glasshouse.attacks.base import Reconstruction
from glasshouse.audit.attacking.claims import Outcome
from glasshouse.audit.figures.classes import class_exhibits, federation_exhibits
from glasshouse.audit.figures.clients import client_exhibits
from glasshouse.audit.figures.gallery import Place, gallery
from glasshouse.audit.figures.generative import generative_exhibits
from glasshouse.audit.figures.received import received_exhibits
from glasshouse.audit.figures.sums import sum_exhibits
from glasshouse.audit.scoring.judge import Judge
from glasshouse.audit.scoring.score import Run
from glasshouse.audit.scoring.tasks import CellTask, attack_key
from glasshouse.audit.simulation.accuracy import accuracy_exhibits
from glasshouse.audit.simulation.record import GroupRecord
from glasshouse.results.records import Exhibit

Runs = Mapping[int, Sequence[Run]]
"""By the attack's position in the scenario."""


def exhibits(task: CellTask, records: Sequence[GroupRecord], runs: Runs) -> list[Exhibit]:
    """What the report shows of a cell beside its numbers."""
    cell, drawn = task.cell, []
    by_label: dict[str, dict[str, list[Outcome]]] = {}
    judges: dict[str, Judge] = {}
    for position, attack in enumerate(cell.scenario.attacks):
        label = attack.label or attack.name
        outcomes = {run.folder: run.outcomes for run in runs[position]}
        own = {run.folder: run.judge for run in runs[position]}
        by_label[label] = outcomes
        judges |= own
        drawn += _gallery(task, position, outcomes, own)
        drawn += generative_exhibits(task.run, cell, position, outcomes, own)
        drawn += sum_exhibits(cell, label, outcomes, own)
        drawn += class_exhibits(task.run, cell, label, outcomes, own)
    drawn += federation_exhibits(cell, records[0]) if records else []
    drawn += accuracy_exhibits(cell, records)
    drawn += client_exhibits(cell, by_label, judges)
    drawn += received_exhibits(cell, by_label, records, _active_folders(task, records))
    return drawn


def _active_folders(task: CellTask, records: Sequence[GroupRecord]) -> dict[str, str]:
    """The first folder of each active attack whose federation ran, by the attack's label."""
    folders: dict[str, str] = {}
    for group, record in zip(task.groups, records, strict=True):
        if group.active is not None and record.refusal is None:
            attack = task.cell.scenario.attacks[group.active]
            folders.setdefault(attack.label or attack.name, group.folder)
    return folders


def _gallery(
    task: CellTask, position: int, outcomes: Mapping[str, Sequence[Outcome]], judges: Mapping[str, Judge]
) -> list[Exhibit]:
    attack = task.cell.scenario.attacks[position]
    for folder, every in outcomes.items():
        claims = [c for o in every for c in o.claims if isinstance(c, Reconstruction)]
        if claims:
            path = Path(folder) / "truth" / f"gallery-{attack_key(position, attack)}.npz"
            place = Place(run=Path(task.run), path=path)
            return gallery(place, attack.label or attack.name, claims, judge=judges[folder], cell=task.cell)
    return []
