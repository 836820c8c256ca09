"""Draw the figures of one cell; the figure plug-ins decide what is drawn."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from glasshouse.audit.scoring.evidence import attack_evidence, cell_evidence, federation_of
from glasshouse.audit.scoring.score import Run
from glasshouse.audit.scoring.tasks import CellTask
from glasshouse.audit.simulation.record import GroupRecord
from glasshouse.figures.drawing import Drawings, draw_cell
from glasshouse.results.records import Finding


def illustrate(
    task: CellTask,
    records: Sequence[GroupRecord],
    runs: Mapping[int, Sequence[Run]],
    findings: Mapping[int, Sequence[Finding]],
) -> Drawings:
    """The drawings of a cell for the report.

    Args:
        task: the cell.
        records: of its groups.
        runs: by the attack's position in the scenario.
        findings: by the attack's position in the scenario.
    """
    scenario = task.cell.scenario
    federations = {
        group.folder: federation_of(scenario, Path(group.folder), record)
        for group, record in zip(task.groups, records, strict=True)
    }
    attacks = [
        attack_evidence(
            scenario,
            position,
            runs[position],
            federations=federations,
            findings=findings[position],
        )
        for position in range(len(scenario.attacks))
    ]
    return draw_cell(cell_evidence(task.cell, task.run, attacks, list(federations.values())))
