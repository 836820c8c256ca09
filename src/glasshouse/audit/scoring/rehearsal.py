"""Time the scoring of synthetic claims, from which ``glasshouse check`` estimates the time of scoring."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, cast, final

import torch

from glasshouse.attacks.base import (
    About,
    Claim,
    ClassRepresentatives,
    ClientScores,
    Reconstruction,
    Representations,
)
from glasshouse.audit.attacking.claims import Outcome, Unit
from glasshouse.audit.attacking.isolation import call_plugin
from glasshouse.audit.scoring.cell import AttackScores, score_attack
from glasshouse.audit.scoring.evidence import illustrate
from glasshouse.audit.scoring.federation_judge import judge_of
from glasshouse.audit.scoring.judge import Judge
from glasshouse.audit.scoring.score import Run
from glasshouse.audit.scoring.tasks import CellTask
from glasshouse.audit.simulation.group import Group
from glasshouse.audit.simulation.record import read_record
from glasshouse.audit.simulation.rehearsal import metric_of
from glasshouse.errors import GlasshouseError
from glasshouse.registry import load
from glasshouse.scenario.axes import cells
from glasshouse.scenario.spec import Scenario

DEAR: Final = 0.6
"""CPU seconds of a first rehearsal above which one-time costs of a process are negligible."""
DEAREST: Final = 1.0
"""CPU seconds of a first rehearsal that is not repeated: scoring the null adversaries is most of it."""
VICTIMS: Final = 2
"""Number of victims with a synthetic claim of each kind."""


@final
@dataclass(frozen=True, kw_only=True)
class Scoring:
    """CPU seconds of scoring by one metric.

    Attributes:
        first: one-time cost of a process.
        new: of opening a federation and choosing the null adversary, and of each claim.
        known: the same if the null adversaries' scores are cached from another cell.
        estimated: it was not timed to the end, and more seconds may be needed.
    """

    first: float
    new: tuple[float, float]
    known: tuple[float, float]
    estimated: bool = False

    @classmethod
    def at_least(cls, seconds: float, metrics: int) -> "Scoring":
        """A federation's scoring by all metrics that was stopped after this many seconds."""
        return cls(first=0.0, new=(seconds / metrics, 0.0), known=(0.0, 0.0), estimated=True)

    def of(self, federations: int, claims: int, *, known: bool = False) -> float:
        """Seconds of scoring ``claims`` claims in ``federations`` federations."""
        opening, each = self.known if known else self.new
        return federations * opening + claims * each


def time_scoring(scenario: Scenario, folder: Path) -> Scoring | None:
    """Time the scoring of synthetic claims: first, again, and with cached scores of null adversaries.

    Args:
        scenario: without axes; its metrics are timed.
        folder: of a simulated group of it.

    Returns:
        None if no metric scores a claim that can be synthesised.
    """
    try:
        cold = _rehearse(scenario, folder, keep=True)
        known = replace(cold, first=cold.again)
        if cold.whole < DEAREST:
            known = _rehearse(scenario, folder, keep=True)
        new = _rehearse(scenario, folder, keep=False) if cold.whole < DEAR else cold
    except GlasshouseError:
        return None
    if not new.claims:
        return None
    return Scoring(first=max(0.0, cold.whole - new.whole), new=new.prices, known=known.prices)


@final
@dataclass(frozen=True, kw_only=True)
class _Rehearsal:
    """CPU seconds of opening and drawing a federation, of first and repeated scoring; counts of scores."""

    opening: float
    first: float
    again: float
    metrics: int
    claims: int

    @property
    def whole(self) -> float:
        return self.opening + self.first

    @property
    def prices(self) -> tuple[float, float]:
        """CPU seconds per metric of opening a federation, and per claim."""
        return (self.opening + max(0.0, self.first - self.again)) / self.metrics, self.again / self.claims


def _rehearse(scenario: Scenario, folder: Path, *, keep: bool) -> _Rehearsal:
    """Score synthetic claims once; ``keep``: cache the null adversaries' scores for the next rehearsal."""
    group = Group(folder=str(folder), seed=scenario.seed)
    task = CellTask(cell=cells(scenario)[0], groups=(group,), run=str(folder), controls={})
    marks = [time.process_time()]
    judge = judge_of(folder, scenario)
    judge = judge if keep else replace(judge, networks="")
    kinds = {metric_of(plugin).claim for plugin in scenario.audit.metrics}
    units = [(unit, Outcome(claims=tuple(_claims(unit, kinds, judge)))) for unit in _units(judge, scenario)]
    runs = [Run(folder=str(folder), units=[one for one in units if one[1].claims], judge=judge)]
    marks.append(time.process_time())
    scores = score_attack(task, scenario.attacks[0], runs)
    numbers = scores.numbers.values()
    marks.append(time.process_time())
    score_attack(task, scenario.attacks[0], runs)
    marks.append(time.process_time())
    _draw(task, runs, scores)
    marks.append(time.process_time())
    opening, first, again, drawing = (after - before for before, after in pairwise(marks))
    claims = sum(len(scored.values) or len(scored.clients) for scored in numbers)
    return _Rehearsal(
        opening=opening + drawing, first=first, again=again, metrics=len(numbers), claims=claims
    )


def _draw(task: CellTask, runs: Sequence[Run], scores: AttackScores) -> None:
    """Draw the figures of a cell; those that cannot be drawn from synthetic claims are skipped."""
    nothing: dict[int, tuple[Any, ...]] = dict.fromkeys(range(len(task.cell.scenario.attacks)), ())
    every, findings = {**nothing, 0: runs}, {**nothing, 0: scores.findings}
    records = [read_record(Path(group.folder)) for group in task.groups]
    call_plugin(lambda: illustrate(task, records, every, findings), subject="figures of made-up claims")


def _units(judge: Judge, scenario: Scenario) -> list[Unit]:
    """The whole run, and the first updates or rounds."""
    units = [(r, None if scenario.federation.secure_sum else c) for r, c in sorted(judge.truth.used)]
    return [Unit(), *(Unit(rounds=(r,), client=c) for r, c in list(dict.fromkeys(units))[:VICTIMS])]


def _claims(unit: Unit, kinds: set[str], judge: Judge) -> Iterator[Claim]:
    """One claim of each kind that fits such a unit, as large as an attack's."""
    rounds = unit.rounds or tuple(sorted({number for number, _ in judge.truth.used}))
    about = About(rounds=rounds, client=unit.client)
    for name in sorted(kinds):
        kind = cast("type[Claim]", load("claims", name))
        if kind.grows == bool(unit.rounds):
            continue
        make = _MAKERS.get(name)
        if make is not None:
            yield make(about, judge)
        elif judge.terms is not None and (silence := kind.silence(about, judge.terms)) is not None:
            yield silence


def _images(about: About, judge: Judge) -> Reconstruction:
    batch = judge.target(about.rounds[0], about.client).batch
    noise = torch.rand(batch.inputs.shape, generator=torch.Generator().manual_seed(0))
    source = torch.zeros_like(batch.labels)
    return Reconstruction(
        about=about, inputs=noise, labels=batch.labels, confidence=torch.zeros(len(noise)), source=source
    )


def _vectors(about: About, judge: Judge) -> Representations:
    assert judge.context.features is not None  # every judge builds the broadcast model
    return Representations(about=about, vectors=judge.context.features(_images(about, judge).inputs))


def _classes(about: About, judge: Judge) -> ClassRepresentatives:
    gallery = judge.context.gallery
    labels = torch.arange(0 if gallery is None else gallery.targets)
    inputs = judge.truth.private.inputs[:1].expand(len(labels), -1, -1, -1)
    return ClassRepresentatives(about=about, inputs=inputs, labels=labels, source=torch.zeros_like(labels))


def _clients(about: About, judge: Judge) -> ClientScores:
    assert judge.terms is not None  # every judge reads them from the transcript
    scores = torch.arange(judge.terms.clients).float()
    return ClientScores(about=about, scores=scores, decisions=scores < len(scores) / 2)


_MAKERS: Final[Mapping[str, Callable[[About, Judge], Claim]]] = {
    "reconstruction": _images,
    "representations": _vectors,
    "class_representatives": _classes,
    "clients": _clients,
}
"""For kinds whose empty claim is smaller than a real one."""
