"""Who attacks against what can come out: one cell each, also where nothing was tested.

Computed here alone; the report's first screen and the annex both show it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, final

from glasshouse.report import numbers
from glasshouse.report.readings import (
    ACTS,
    BYSTANDER,
    CLIENT,
    EXAMPLES,
    MODEL,
    ORDER,
    READS,
    SUMS,
    Reading,
    Readings,
    Threat,
    worst,
)
from glasshouse.results.judgement import OUT

State = Literal["came out", "at most", "no leak found", "not shown", "not tested"]
STATES: Final[tuple[State, ...]] = ("came out", "not shown", "no leak found", "at most", "not tested")
"""The worst first; a cell has the worst state of its findings."""

LEGEND: Final[Mapping[State, tuple[str, str]]] = {
    "came out": ("Came out", "in the worst set-up that was tried."),
    "at most": ("At most x %", "of such victims, by these attacks."),
    "no leak found": (
        "No leak found",
        "the gain of these attacks is negligible; known leaks were found.",
    ),
    "not shown": ("Not shown", "it was tried, and neither a leak nor its absence could be shown."),
    "not tested": ("Not tested", "nobody looked, so nothing is known."),
}

THREATS: Final = (READS, ACTS, CLIENT, SUMS, BYSTANDER, MODEL)
ALWAYS: Final = THREATS[:4]
"""Rows of the first screen; the others stand there only where they were tested."""

LABELS, PEOPLE, GROUP = "labels", "who takes part", "facts about the group"
OTHERS, DESCRIPTIONS = "other examples", "inner descriptions"
KINDS: Final = (*EXAMPLES, LABELS, PEOPLE, GROUP)
"""Columns; :data:`OTHERS` and :data:`DESCRIPTIONS` are added where a finding is about them."""


class Cell(NamedTuple):
    """One threat and one kind of private data.

    Attributes:
        state: what is known.
        most: for ``at most``: the largest share of victims that would come out, in [0, 1].
        worst: the reading of the worst finding; None: not tested.
        out: number of findings that show a leak.
        total: number of findings.
    """

    state: State
    most: float | None = None
    worst: Reading | None = None
    out: int = 0
    total: int = 0

    @property
    def text(self) -> str:
        """The state in words, with its number."""
        return self.state if self.most is None else f"at most {numbers.percent(self.most)}{numbers.NBSP}%"

    @property
    def detail(self) -> str:
        """How many tests say so; empty where nothing was tested."""
        if not self.total:
            return ""
        tests = f"{self.total} test{'' if self.total == 1 else 's'}"
        if self.out:
            return f"in {self.out} of {tests}"
        return f"{tests}: cannot tell" if self.state == "not shown" else tests


class Row(NamedTuple):
    """A threat and its cells, one per kind."""

    threat: str
    cells: tuple[Cell, ...]


@final
@dataclass(frozen=True, kw_only=True)
class Matrix:
    """Threats against kinds of private data.

    Attributes:
        kinds: the columns.
        rows: one per threat of :data:`THREATS`; no cell is missing.
    """

    kinds: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def first(self) -> tuple[Row, ...]:
        """The rows of the first screen: those that are always there, and others that were tested."""
        return tuple(row for row in self.rows if row.threat in ALWAYS or any(c.total for c in row.cells))

    @property
    def texts(self) -> dict[tuple[str, str], str]:
        """The state of each (threat, kind), in words."""
        return {
            (row.threat, kind): cell.text
            for row in self.rows
            for kind, cell in zip(self.kinds, row.cells, strict=True)
        }

    @property
    def coverage(self) -> str:
        """How many cells of the first screen were tested, in a sentence."""
        return _coverage(self.first)

    @property
    def whole_coverage(self) -> str:
        """How many of all cells were tested, in a sentence."""
        return _coverage(self.rows)

    @property
    def legend(self) -> list[tuple[str, str]]:
        """The states that occur on the first screen, each with what it means."""
        there = {cell.state for row in self.first for cell in row.cells}
        return [said for state, said in LEGEND.items() if state in there]


def _coverage(rows: Sequence[Row]) -> str:
    cells = [cell for row in rows for cell in row.cells]
    tested = sum(cell.total > 0 for cell in cells)
    return f"{tested} of {len(cells)} combinations of attacker and data were tested; the others were not."


def matrix(readings: Readings) -> Matrix:
    """The matrix of a result, from the findings that decide its verdict and from no others."""
    named = {id(r) for r in readings.named}
    cells: dict[tuple[str, str], list[tuple[Reading, bool]]] = {}
    for r in readings.deciding:
        threat = readings.threats.get(r.finding.scenario)
        for kind, shown in _kinds(r, threat, out=r.finding.verdict in OUT or id(r) in named):
            cells.setdefault((threat.who if threat else "", kind), []).append((r, shown))
    others = tuple(extra for extra in (OTHERS, DESCRIPTIONS) if any(kind == extra for _, kind in cells))
    kinds = (*EXAMPLES, *others, *KINDS[len(EXAMPLES) :])

    def row(who: str) -> Row:
        return Row(who, tuple(_cell(cells.get((who, kind), [])) for kind in kinds))

    return Matrix(kinds=kinds, rows=tuple(map(row, THREATS)))


def column(severity: str, threat: Threat | None) -> str:
    """The column that a finding was meant for.

    Args:
        severity: kind of private data that its metric is about.
        threat: of its scenario, which says what its examples are; None: unknown.
    """
    if severity == "images":
        return threat.things if threat is not None and threat.things in EXAMPLES else OTHERS
    return {"membership": PEOPLE, "labels": LABELS, "descriptions": DESCRIPTIONS}.get(severity, GROUP)


def _kinds(r: Reading, threat: Threat | None, *, out: bool) -> Iterator[tuple[str, bool]]:
    """The columns of a finding, and whether a leak of that kind is shown.

    Of an attack on examples that got the label alone, the label came out, and no example is shown to.
    """
    kind = column(r.card.severity, threat)
    if r.finding.verdict == "label leak" and kind != LABELS:
        yield LABELS, True
        out = False
    yield kind, out


def _cell(tests: Sequence[tuple[Reading, bool]]) -> Cell:
    """A cell has the worst state of its findings."""
    total, leaking = len(tests), [r for r, out in tests if out]
    if not tests:
        return Cell("not tested")
    if leaking:
        return Cell("came out", worst=worst(leaking), out=len(leaking), total=total)
    if any(r.finding.verdict != "no leak found" for r, _ in tests):
        first = min((r for r, _ in tests), key=lambda r: ORDER.index(r.finding.verdict))
        return Cell("not shown", worst=first, total=total)
    quietest = worst(r for r, _ in tests)
    shares = [r.finding.share.most for r, _ in tests if r.finding.share is not None]
    if len(shares) < total:
        return Cell("no leak found", worst=quietest, total=total)
    return Cell("at most", most=max(shares), worst=quietest, total=total)
