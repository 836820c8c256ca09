"""Columns of a table: which of them claimed rows have right, beside the most common values of public rows.

Shape letters: B private rows, R claimed ones, F entries of an encoded row, C columns.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.attacks.base import Reconstruction
from glasshouse.errors import Undefined
from glasshouse.figures.base import AttackEvidence, CellEvidence, GroupEvidence
from glasshouse.metrics.statistics.shares import share_interval
from glasshouse.metrics.tables.rows import right_cells
from glasshouse.modalities.base import Wanted
from glasshouse.modalities.row import Row
from glasshouse.registry import Card
from glasshouse.results.exhibits import table
from glasshouse.results.records import Exhibit

Floats = NDArray[np.float64]
NOTHING: Final = "–"
MOST: Final = 60
"""Columns that are shown; those that were read best come first."""
TITLE: Final = "Which columns were read?"
CAPTION: Final = (
    "Share of the private rows whose value in a column is claimed right, mean over victims with its 95 % "
    "interval; beside it the most common value of public rows, the same for every row."
)


@final
@dataclass(frozen=True, kw_only=True)
class ColumnsFigure:
    """Every column's share of right values, by attack, with its interval and what guessing reaches."""

    card: ClassVar[Card] = Card(summary="which columns of private rows were claimed right")
    reads: ClassVar[frozenset[type]] = frozenset({Reconstruction})

    def draw(self, cell: CellEvidence) -> Iterator[Exhibit]:
        for attack in cell.attacks:
            rows = _rows(attack)
            if rows:
                heads = ["attack", "column", "right", "low", "high", "victims", "most common value"]
                yield table(cell.place, TITLE, CAPTION, columns=heads, rows=rows, join="columns")


def _rows(attack: AttackEvidence) -> list[list[object]]:
    """One row a column, those read best first; none where the data are no table or nothing was claimed."""
    schema = next((group.context.inputs for group in attack.groups), None)
    if not isinstance(schema, Row):
        return []
    victims = [cells for group in attack.groups for cells in _victims(group, schema)]
    if not victims:
        return []
    claimed, guessed = (np.concatenate(side) for side in zip(*victims, strict=True))
    owners = np.repeat(np.arange(len(victims)), [len(right) for right, _ in victims])
    rows: list[list[object]] = []
    for place in np.argsort(-claimed.mean(0), kind="stable")[:MOST].tolist():
        share, guess = float(claimed[:, place].mean()), float(guessed[:, place].mean())
        low, high = _interval(claimed[:, place], owners)
        null = NOTHING if np.isnan(guess) else round(guess, 3)
        name = schema.columns[place].name
        rows.append([attack.label, name, round(share, 3), low, high, len(victims), null])
    return rows


def _interval(hits: Floats, owners: NDArray[np.int64]) -> tuple[object, object]:
    """Ends of the interval of a share over victims; dashes where there is only one."""
    try:
        interval = share_interval(hits, owners)
    except Undefined:
        return NOTHING, NOTHING
    return round(interval.low, 3), round(interval.high, 3)


def _victims(group: GroupEvidence, schema: Row) -> Iterator[tuple[Floats, Floats]]:
    """For every claim, which cells of its victim are right: as claimed, and as guessed, (B, C) each.

    The guess is that of the null adversary of the domain that is the same for every row; NaN without public
    rows.
    """
    public = group.auxiliary if group.auxiliary is not None and len(group.auxiliary) else None
    null = next(null for null in schema.nulls() if null.knows == "domain" and null.steady)
    for claim in group.longest(Reconstruction):
        truth, _ = group.truth.batch(claim.about.rounds[0], claim.about.client)
        claimed = _cells(claim.inputs, truth.inputs, group)
        if public is None:
            yield claimed, np.full_like(claimed, np.nan)
            continue
        guess = null.guess(public, Wanted(count=len(truth)), group.rng.child("columns"))
        yield claimed, _cells(guess.inputs, truth.inputs, group)


def _cells(claimed: Tensor, truth: Tensor, group: GroupEvidence) -> Floats:
    return np.asarray(right_cells("columns", claimed, truth, group.context), dtype=np.float64)
