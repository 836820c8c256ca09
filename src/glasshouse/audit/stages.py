"""The pieces of an audit by room: plug-ins run first, then search certificates, then scoring.

Within a room a piece waits only for its own input: the attacks on a federation start as soon as that
federation is recorded.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, final

from glasshouse.audit.attacking.call import Piece as Calls
from glasshouse.audit.attacking.call import pieces, refuse_lost, run_apart, settle_apart
from glasshouse.audit.attacking.call import run_piece as run_calls
from glasshouse.audit.attacking.needs import calls_of
from glasshouse.audit.captured.group import record
from glasshouse.audit.log import RunLog
from glasshouse.audit.plan import Plan, attack_tasks, group_tasks
from glasshouse.audit.remaining import Remaining
from glasshouse.audit.scoring.cell import score_family
from glasshouse.audit.scoring.judging.certificate import certificate_pieces, certify_together
from glasshouse.audit.scoring.judging.control import (
    ControlTask,
    judge_control,
    lost_control,
    run_control,
    run_control_apart,
    settle_control,
)
from glasshouse.audit.scoring.judging.power import with_powers
from glasshouse.audit.scoring.tasks import CellResult, CellTask, Family
from glasshouse.audit.sealed import foreign_package
from glasshouse.audit.simulation.group import Group, has_use_for_crew
from glasshouse.audit.simulation.planted import HOW, OWN
from glasshouse.audit.simulation.record import read_record
from glasshouse.cache import LOCKS, digest
from glasshouse.errors import BadValue
from glasshouse.executors.base import Answer, Piece, Workers
from glasshouse.progress import Counters, forecast
from glasshouse.registry import load
from glasshouse.results.records import Control
from glasshouse.results.rows import grouped
from glasshouse.results.strength import EmpiricalEpsilon, Search
from glasshouse.scenario.axes import Cell
from glasshouse.scenario.table import Plugin
from glasshouse.store import read_json, write_json
from glasshouse.wire import Refusal

FEDERATIONS, ATTACKS, CONTROLS, CANARIES = "federations", "attacks", "controls", "canaries"
SEARCHES, JUDGED, SCORES, FIGURES = "searches checked", "controls judged", "scores", "figures"


@final
@dataclass(kw_only=True)
class Stages:
    """One audit on the workers of an executor.

    Args:
        workers: the workers that run the pieces.
        run: folder of the run, absolute.
        device: of attacks, their controls and certificates.
        log: of the run.
        peak_mb: peak memory of any process so far.
        spent: CPU seconds so far, by kind of piece.
        shares: the same seconds by part of the audit; controls are a separate part.
        unseen: CPU seconds of them that the process tree of this process lacks.
    """

    workers: Workers
    run: Path
    device: str
    log: RunLog
    peak_mb: float = 0.0
    spent: dict[str, float] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)
    unseen: float = 0.0
    _remaining: Remaining = field(init=False)
    _bars: Counters = field(init=False, default_factory=Counters)
    _name: str = field(init=False, default="")

    def __post_init__(self) -> None:
        self._remaining = Remaining(jobs=self.workers.jobs)

    def run_plugins(self, plans: Sequence[Plan], controls: Sequence[ControlTask]) -> None:
        """Run all pieces with plug-ins: federations, attacks on each once recorded, controls, canaries.

        Raises:
            BadValue: no federation could be simulated; with the parts of the first refusal.
        """
        # Federations of equal settings are simulated once; their twins copy the record.
        groups = {g.folder: (p, g) for p in plans for g in p.groups}
        to_play = sum(not group.same_as for _, group in groups.values())
        self._remaining.expect(_expected_steps(plans, len(groups), len(controls)))
        tried = grouped(controls, key=lambda control: _package_of(control.plugin))
        theirs: dict[str, list[tuple[str, Calls]]] = {}
        spare = max(1, min(self.workers.cores, self.workers.jobs // max(1, to_play)))
        with self._room("plug-ins"):
            for planned, group in groups.values():
                if not group.same_as:
                    processes = spare if has_use_for_crew(planned.cell.scenario) else 1
                    self._record(planned, replace(group, processes=processes))
            for planned in plans:
                if planned.cell.scenario.audit.epsilon.claimed:
                    task = planned.cell, self._epsilon_file(planned.cell)
                    self._submit(_file_epsilon, task, CANARIES, planned.part, lock=str(task[1]))
            for control in tried.pop("", ()):
                self._control(run_control, control)
            # A federation that is recorded lets its attacks begin, while others are still simulated.
            for piece, answer in self._finished():
                if piece.label != FEDERATIONS:
                    continue
                for twin in (g for g in groups.values() if g[1].same_as == answer.value):
                    self._record(*twin)
                planned, group = groups[answer.value]
                for calls in pieces(group_tasks(planned.cell.scenario, group, self.device)):
                    if package := _package_of(calls[0].plugin):
                        theirs.setdefault(package, []).append((planned.part, calls))
                    else:
                        self._attack(run_calls, calls, planned.part)
                if not self._bars.left(FEDERATIONS):
                    _check_some_ran([g for _, g in groups.values()])
        self._run_apart(theirs, tried)

    def _control(self, work: Callable[[ControlTask], Any], control: ControlTask) -> None:
        """Submit the control of an attack."""
        where: dict[str, Any] = {"device": self.device, "if_lost": lost_control}
        self._submit(work, control, CONTROLS, CONTROLS, lock=control.folder, **where)

    def _attack(self, work: Callable[[Calls], Any], calls: Calls, part: str) -> None:
        """Submit calls of an attack that run together."""
        where: dict[str, Any] = {"device": self.device, "if_lost": refuse_lost}
        self._submit(work, calls, ATTACKS, part, lock=calls[0].out, **where)

    def _run_apart(
        self, theirs: Mapping[str, Sequence[tuple[str, Calls]]], tried: Mapping[str, Sequence[ControlTask]]
    ) -> None:
        """Run the attacks of other packages and their controls, each package in processes of its own.

        What one does to the process that it attacks in is no concern of anybody else's attack.
        """
        for package in dict.fromkeys((*tried, *theirs)):
            with self._room(f"plug-ins of {package}"):
                for control in tried.get(package, ()):
                    self._control(run_control_apart, control)
                for part, calls in theirs.get(package, ()):
                    self._attack(run_apart, calls, part)
                for piece, answer in self._finished():
                    if piece.label == CONTROLS:
                        settle_control(piece.task)
                    else:
                        settle_apart(piece.task, answer.value if isinstance(answer.value, str) else "")

    def _record(self, planned: Plan, group: Group) -> None:
        """Submit the simulation of a group's federation, or the copy of another's that is recorded."""
        where: dict[str, Any] = {"device": self.device, "processes": group.processes}
        self._submit(record, group, FEDERATIONS, planned.part, lock=group.folder, **where)

    def epsilons(self, plans: Sequence[Plan]) -> list[tuple[Cell, EmpiricalEpsilon | Refusal]]:
        """The results of :meth:`run_plugins` for every cell that claims an ε: a bound or a refusal."""
        claiming = {p.cell.hash: p.cell for p in plans if p.cell.scenario.audit.epsilon.claimed}
        answers = [(cell, read_json(self._epsilon_file(cell))) for cell in claiming.values()]
        return [(c, Refusal(**raw) if "subject" in raw else EmpiricalEpsilon(**raw)) for c, raw in answers]

    def certify(self, plans: Sequence[Plan]) -> dict[str, tuple[Search, ...]]:
        """Certificates by the folder of a unit's claims; with a note for each reason why a loss failed.

        Runs after all claims are written: attacks' losses see the ground truth, but no attack runs any more.
        """
        by_call: dict[str, tuple[Search, ...]] = {}
        with self._room("certificates"):
            pieces = [
                (planned.part, piece)
                for planned in plans
                for piece in certificate_pieces(attack_tasks(planned, self.device))
            ]
            self._submit_by_part(certify_together, pieces, SEARCHES, device=self.device)
            for _, answer in self._finished():
                for out, rows in chain.from_iterable(answer.value):
                    for reason in sorted({row.reason for row in rows if row.reason}):
                        self.log.write("note", note=f"search certificate of {rows[0].name}: {reason}")
                    by_call[out] = rows
        return by_call

    def score(
        self,
        plans: Sequence[Plan],
        controls: Sequence[ControlTask],
        searches: Mapping[str, tuple[Search, ...]],
        shown: Mapping[str, Plan] = MappingProxyType({}),
    ) -> dict[str, CellResult]:
        """Score cells, in processes that ran no attack; results by the cell's hash.

        Args:
            plans: of the cells.
            controls: of their attacks.
            searches: certificates by the folder of a unit's claims.
            shown: where leaks are in the open, by the hash of the cell whose attacks' power this shows.
        """
        with self._room("scores"):
            for control in controls:
                self._submit(judge_control, control, JUDGED, CONTROLS)
            judged: dict[str, Control | None] = dict(answer.value for _, answer in self._finished())

            def task(planned: Plan) -> CellTask:
                return CellTask(
                    cell=planned.cell,
                    groups=planned.groups,
                    run=str(self.run),
                    controls=judged,
                    searches={t.out: searches[t.out] for t in attack_tasks(planned, self.device)},
                )

            own = {one.cell.hash for one in plans}
            families: list[tuple[str, Family]] = []
            for first, *rest in _families(plans, shown):
                how = OWN if first.cell.hash in own else HOW
                families.append((first.part, Family(shown=task(first), how=how, rest=tuple(map(task, rest)))))
            if len(families) >= 2 * self.workers.jobs:
                return self._score(families)
            # So few would leave processes without work: first what shows the power, then all others at once.
            scored = self._score([(part, replace(family, rest=())) for part, family in families])
            others = [
                (part, Family(shown=one))
                for part, family in families
                for one in with_powers(family, scored[family.shown.cell.hash].findings)
            ]
            return scored | self._score(others)

    def _score(self, families: Sequence[tuple[str, Family]]) -> dict[str, CellResult]:
        """Score the cells of families, each with its part; what figures took is none of the scores' time."""
        self._submit_by_part(score_family, families, SCORES)
        scored: dict[str, CellResult] = {}
        for _, answer in self._finished():
            results = dict(chain.from_iterable(answer.value))
            drawing = sum(one.drawing for one in results.values())
            self.spent[SCORES] -= drawing
            self.spent[FIGURES] = self.spent.get(FIGURES, 0.0) + drawing
            scored |= results
        return scored

    @contextmanager
    def _room(self, name: str) -> Iterator[None]:
        """Show progress bars for one room; log one line for each kind of piece in it."""
        self._bars, self._name = Counters(), name
        try:
            yield
        finally:
            done = self._bars.close()
        for label, count in done.items():
            self.log.write(label, pieces=count)

    def _submit(
        self, work: Callable[[Any], Any], task: Any, label: str, part: str, *, lock: str = "", **where: Any
    ) -> None:
        """Submit a piece; ``where``: its device, number of processes, and what answers if it is lost."""
        self._bars.expect(label)
        file = str(self.run / LOCKS / digest(lock)[:24]) if lock else ""
        piece = Piece(work=work, task=task, label=label, room=self._name, lock=file, part=part, **where)
        self.workers.submit(piece)

    def _submit_by_part(
        self,
        work: Callable[[Any], Any],
        tasks: Sequence[tuple[str, Any]],
        label: str,
        **where: Any,
    ) -> None:
        """Submit tasks, each with its part of the audit; a piece answers with a list.

        Where there are two parts per process or more, each is one piece: its tasks read the same files and
        judge the same nulls, which several processes would do again.
        """
        parts = list(grouped(tasks, key=lambda task: task[0]).values())
        for piece in parts if len(parts) >= 2 * self.workers.jobs else [[task] for task in tasks]:
            self._submit(_run_each, (work, [task for _, task in piece]), label, piece[0][0], **where)

    def _finished(self) -> Iterator[tuple[Piece, Answer]]:
        for piece, answer in self.workers.finished():
            self.peak_mb = max(self.peak_mb, answer.peak_mb)
            for table, name in ((self.spent, piece.label), (self.shares, piece.part)):
                table[name] = table.get(name, 0.0) + answer.cpu_seconds
            self.unseen += answer.unseen
            self._bars.advance(piece.label)
            self._remaining.finish(_kind_of(piece), answer.cpu_seconds, steps=_steps_of(piece))
            if (seconds := self._remaining.seconds) is not None:
                forecast(seconds)
            yield piece, answer

    def _epsilon_file(self, cell: Cell) -> Path:
        return self.run / "epsilons" / f"{cell.hash}.json"


def _expected_steps(plans: Sequence[Plan], federations: int, controls: int) -> dict[str, float]:
    """Steps of every kind in the whole run, before anything has run: attacks are counted in calls."""
    calls = dict[str, float]()
    for scenario in (planned.cell.scenario for planned in plans):
        for attack in scenario.attacks:
            kind = _attack_kind(attack.name)
            calls[kind] = calls.get(kind, 0) + calls_of(scenario, attack)
    steps = {FEDERATIONS: federations, CONTROLS: controls, SEARCHES: sum(calls.values())}
    return {**steps, **calls, JUDGED: controls, SCORES: len(plans)}


def _attack_kind(name: str) -> str:
    """Attacks differ a thousandfold in time: each is a kind of work of its own."""
    return f"{ATTACKS}: {name}"


def _kind_of(piece: Piece) -> str:
    """The kind of work that a piece is, for the time that is left."""
    return _attack_kind(piece.task[0].attack) if piece.label == ATTACKS else piece.label


def _steps_of(piece: Piece) -> float:
    """Steps in a piece: calls of an attack, or tasks that run together."""
    if piece.label == ATTACKS:
        return float(len(piece.task))
    if piece.work is _run_each:
        return float(sum(map(len, piece.task[1])))
    return 1.0


def _run_each(piece: tuple[Callable[[Any], Any], Sequence[Any]]) -> list[Any]:
    work, tasks = piece
    return [work(task) for task in tasks]


def _file_epsilon(task: tuple[Cell, Path]) -> None:
    """Measure ε of the cell with canaries, simulated or of a capture, unless the file exists."""
    from glasshouse.audit.captured.canaries import measure_captured_epsilon  # noqa: PLC0415
    from glasshouse.audit.simulation.epsilon import measure_epsilon  # noqa: PLC0415  (needs the extra dp)

    cell, out = task
    if not out.is_file():
        measure = measure_captured_epsilon if cell.scenario.captured else measure_epsilon
        write_json(out, asdict(measure(cell)))


def _package_of(attack: Plugin) -> str:
    """The package of an attack; empty: it is ours."""
    return foreign_package(load("attacks", attack.name))


def _families(plans: Sequence[Plan], shown: Mapping[str, Plan]) -> Iterator[list[Plan]]:
    """The plans, behind the one that shows the attacks' power for them; each once."""
    families: dict[str, list[Plan]] = {}
    for planned in plans:
        first = shown.get(planned.cell.hash, planned)
        family = families.setdefault(first.cell.hash, [first])
        if planned.cell.hash != first.cell.hash:
            family.append(planned)
    yield from families.values()


def _check_some_ran(groups: list[Group]) -> None:
    """Raise if no federation could be simulated; a single failure is only a refusal.

    Raises:
        BadValue: with the parts of the first refusal.
    """
    refusals = [read_record(Path(g.folder)).refusal for g in groups]
    passive = [r for g, r in zip(groups, refusals, strict=True) if g.active is None]
    if passive and passive[0] and all(passive):
        raise BadValue(**asdict(passive[0]))
