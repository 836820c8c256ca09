"""Draw the figures of one cell from its claims, their ground truth and its federations."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from glasshouse.audit import guarded
from glasshouse.audit.attacking.call import adversary_side
from glasshouse.audit.attacking.needs import attack_of, threat_of
from glasshouse.audit.scoring.read import Run
from glasshouse.audit.scoring.score import score_outcomes
from glasshouse.audit.scoring.tasks import CellTask, attack_key
from glasshouse.audit.simulation.record import GroupRecord
from glasshouse.figures.base import (
    AttackEvidence,
    CellEvidence,
    Federation,
    GroupEvidence,
    GuardDecision,
    PartyAccuracy,
    PluginSettings,
    PublicModel,
    Share,
)
from glasshouse.figures.drawing import Drawings, draw_cell
from glasshouse.metrics.base import Metric
from glasshouse.registry import create, flat_settings, load
from glasshouse.results.exhibits import Place
from glasshouse.results.records import Finding
from glasshouse.scenario.spec import Scenario
from glasshouse.scenario.table import Plugin
from glasshouse.tokens.tokenizers import read_tokenizer
from glasshouse.transcript.cut import cut
from glasshouse.transcript.view import View


def illustrate(
    task: CellTask,
    records: Sequence[GroupRecord],
    runs: Mapping[int, Sequence[Run]],
    findings: Mapping[int, Sequence[Finding]],
) -> Drawings:
    """The drawings of a cell for the report; the figure plug-ins decide what is drawn.

    Args:
        task: the cell.
        records: of its groups.
        runs: by the attack's position in the scenario.
        findings: by the attack's position in the scenario.
    """
    scenario = task.cell.scenario
    # Read once: all attacks of the cell are drawn beside the same federations.
    federations = {
        group.folder: _federation(scenario, Path(group.folder), record)
        for group, record in zip(task.groups, records, strict=True)
    }
    evidence = CellEvidence(
        place=Place(scenario=scenario.name, axes=dict(task.cell.axes), run=Path(task.run)),
        defenses=tuple(_settings("defenses", defense) for defense in scenario.defenses),
        metrics={
            m.label or m.name: create(load("metrics", m.name), m.arguments) for m in scenario.audit.metrics
        },
        auxiliary_given=scenario.grants.auxiliary,
        attacks=tuple(
            AttackEvidence(
                key=attack_key(i, attack),
                label=attack.label or attack.name,
                settings=_settings("attacks", attack),
                attack=attack_of(attack),
                groups=tuple(_group(scenario, federations[run.folder], run) for run in runs[i]),
                findings=tuple(findings[i]),
            )
            for i, attack in enumerate(scenario.attacks)
        ),
        federations=tuple(federations.values()),
    )
    return draw_cell(evidence, guarded.call)


def _federation(scenario: Scenario, folder: Path, record: GroupRecord) -> Federation:
    """The record of one simulated federation, read from its files."""
    attack = None if record.active is None else scenario.attacks[record.active]
    active = "" if attack is None else attack.label or attack.name
    if record.refusal is not None:
        return Federation(folder=folder, active=active, ran=False)
    public = record.facts.pretrained
    return Federation(
        folder=folder,
        active=active,
        rounds=record.rounds,
        attacked=frozenset(r % scenario.federation.rounds for r in scenario.audit.rounds),
        curve=record.curve,
        accuracy=None if record.utility is None else record.utility["value"],
        sent=None if record.sent is None else Share(**record.sent),
        public_model=PublicModel(**public) if public else None,
        parties=tuple(PartyAccuracy(**row) for row in record.parties),
        entropies=record.entropies,
        guard=tuple(GuardDecision(**{**row, "findings": tuple(row["findings"])}) for row in record.guard),
    )


def _group(scenario: Scenario, federation: Federation, run: Run) -> GroupEvidence:
    ground, book = run.ground, run.book

    def null_scores(name: str, metric: Metric) -> tuple[NDArray[np.float64], ...] | None:
        scored = score_outcomes(name, metric, run.outcomes, ground, book)
        return None if scored is None else scored.nulls

    # Figures see no more of the wire than the attack did; its own and remembered tensors stay out.
    def view(rounds: tuple[int, ...], client: int | None) -> View:
        side = adversary_side(str(federation.folder), trust_factory=True)
        return cut(
            side.transcript,
            threat=threat_of(scenario),
            grants=side.grants,
            own={},
            memory={},
            rounds=rounds,
            client=client,
        )

    return GroupEvidence(
        federation=federation,
        claims=tuple(claim for outcome in run.outcomes for claim in outcome.claims),
        truth=ground.truth,
        context=ground.context,
        rng=book.rng,
        auxiliary=book.auxiliary,
        prior_samples=book.draws,
        further=book.further,
        null_scores=null_scores,
        view=view,
        decode=None if ground.context.vocabulary is None else read_tokenizer(scenario.data.tokenizer).decode,
    )


def _settings(group: str, plugin: Plugin) -> PluginSettings:
    """All arguments of a plug-in, defaults included."""
    settings = flat_settings(load(group, plugin.name), plugin.arguments)
    return PluginSettings(name=plugin.name, arguments=settings)
