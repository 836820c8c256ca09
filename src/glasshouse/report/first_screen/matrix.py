"""Who attacks against what can come out: one cell each, also where nothing was tested.

Computed here alone; the report's first screen and the annex both show it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, final

from glasshouse.report import numbers
from glasshouse.report.cards import Cards
from glasshouse.report.verdicts.choice import ORDER, Choice
from glasshouse.results.cards import ThreatCard
from glasshouse.results.judgement import OUT
from glasshouse.results.records import Finding, Result
from glasshouse.results.vocabulary import SEES

State = Literal["came out", "at most", "no leak found", "not shown", "not tested"]
STATES: Final[tuple[State, ...]] = ("came out", "not shown", "no leak found", "at most", "not tested")
"""The worst first; a cell has the worst state of its findings."""

READS, ACTS = "a server that only reads", "a server that manipulates what it sends"
CLIENT, SUMS = "another client", "whoever sees only sums of updates"
BYSTANDER, MODEL = "a bystander who sees what is sent", "whoever gets the finished model"
THREATS: Final = (READS, ACTS, CLIENT, SUMS, BYSTANDER, MODEL)
ALWAYS: Final = THREATS[:4]
"""Rows of the first screen; the others stand there only where they were tested."""

LABELS, PEOPLE, GROUP = "labels", "who takes part", "facts about the group"
OTHERS, DESCRIPTIONS = "other examples", "inner descriptions"
EXAMPLES: Final = ("pictures", "rows", "sentences")
"""What examples can be; as modalities name them."""
KINDS: Final = (*EXAMPLES, LABELS, PEOPLE, GROUP)
"""Columns; :data:`OTHERS` and :data:`DESCRIPTIONS` are added where a finding is about them."""


class Cell(NamedTuple):
    """One threat and one kind of private data.

    Attributes:
        state: what is known.
        most: for ``at most``: the largest share of victims that would come out, in [0, 1].
        worst: the worst finding; None: not tested.
        out: number of findings that show a leak.
        total: number of findings.
    """

    state: State
    most: float | None = None
    worst: Finding | None = None
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
        return f"in {self.out} of {tests}" if self.out else tests


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
        """How many cells were tested, in a sentence."""
        cells = [cell for row in self.rows for cell in row.cells]
        tested = sum(cell.total > 0 for cell in cells)
        return f"{tested} of {len(cells)} combinations of threat and kind were tested; the others were not."


def matrix(result: Result, choice: Choice) -> Matrix:
    """The matrix of a result, from the findings that decide its verdict and from no others."""
    cards = {card.scenario: card for card in result.threats}
    threats = {name: threat_of(card) for name, card in cards.items()}
    named = {id(f) for f in choice.with_victims_out()}
    findings: dict[tuple[str, str], list[tuple[Finding, bool]]] = {}
    for f in choice.findings:
        for kind, out in _kinds(f, choice.cards, cards, out=f.verdict in OUT or id(f) in named):
            findings.setdefault((threats.get(f.scenario, ""), kind), []).append((f, out))
    others = tuple(extra for extra in (OTHERS, DESCRIPTIONS) if any(kind == extra for _, kind in findings))
    kinds = (*EXAMPLES, *others, *KINDS[len(EXAMPLES) :])
    rows = [Row(t, tuple(_cell(findings.get((t, kind), []), choice) for kind in kinds)) for t in THREATS]
    return Matrix(kinds=kinds, rows=tuple(rows))


def threat_of(card: ThreatCard) -> str:
    """The row of a scenario: its adversary's role, whether it acts, and whether it sees single updates.

    A server that acts stands in its own row, also where it sees sums alone.
    """
    role = card.adversary.split()[1] if len(card.adversary.split()) > 1 else ""
    if role in ("client", "bystander"):
        return CLIENT if role == "client" else BYSTANDER
    if card.changes:
        return ACTS
    return SUMS if SEES["aggregate"] in card.sees and SEES["update"] not in card.sees else READS


def column(finding: Finding, cards: Cards, threats: Mapping[str, ThreatCard]) -> str:
    """The column that a finding was meant for."""
    severity = cards.metric(finding.metric).severity
    if severity == "images":
        card = threats.get(finding.scenario)
        return card.things if card is not None and card.things in EXAMPLES else OTHERS
    return {"membership": PEOPLE, "labels": LABELS, "descriptions": DESCRIPTIONS}.get(severity, GROUP)


def _kinds(
    f: Finding, cards: Cards, threats: Mapping[str, ThreatCard], *, out: bool
) -> Iterator[tuple[str, bool]]:
    """The columns of a finding, and whether a leak of that kind is shown.

    Of an attack on examples that got the label alone, the label came out, and no example is shown to.
    """
    kind = column(f, cards, threats)
    if f.verdict == "label leak" and kind != LABELS:
        yield LABELS, True
        out = False
    yield kind, out


def _cell(findings: Sequence[tuple[Finding, bool]], choice: Choice) -> Cell:
    if not findings:
        return Cell("not tested")
    leaking = [f for f, out in findings if out]
    worst = choice.worst(leaking or [f for f, _ in findings])
    assert worst is not None
    total = len(findings)
    if leaking:
        return Cell("came out", worst=worst, out=len(leaking), total=total)
    if any(f.verdict != "no leak found" for f, _ in findings):
        worst = min((f for f, _ in findings), key=lambda f: ORDER.index(f.verdict))
        return Cell("not shown", worst=worst, total=total)
    shares = [f.share.most for f, _ in findings if f.share is not None]
    if len(shares) < total:
        return Cell("no leak found", worst=worst, total=total)
    return Cell("at most", most=max(shares), worst=worst, total=total)
