"""What attacks state about private rows, as a table: counts under five as "< 5", values of people hidden."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, final

import numpy as np
from numpy.typing import NDArray

from glasshouse.attacks.tabular import ANY, Certainty, Facts, What
from glasshouse.figures.base import AttackEvidence, CellEvidence
from glasshouse.modalities.row import Column, Row
from glasshouse.registry import Card
from glasshouse.results.exhibits import table
from glasshouse.results.records import Exhibit

SMALL: Final = 5
"""Counts below this are shown as "< 5": few people are single people."""
MOST: Final = 40
"""Facts that are shown of an attack: those of its first claim."""
TITLE: Final = "What was stated about one client's rows"
CAPTION: Final = (
    "The facts of the first claim of each attack, as stated. Counts of fewer than five people are shown as "
    '"< 5", '
    "values that occur and sums are not shown. Whether facts are true is in the findings."
)
WORDS: Final = {Certainty.PROVED: "proved", Certainty.UNIQUE: "the only one that fits"}


@final
@dataclass(frozen=True, kw_only=True)
class FactsFigure:
    """One table per attack that states facts."""

    card: ClassVar[Card] = Card(summary="facts that attacks stated, counts under five as < 5")
    reads: ClassVar[frozenset[type]] = frozenset({Facts})

    def draw(self, cell: CellEvidence) -> Iterator[Exhibit]:
        for attack in cell.attacks:
            if rows := _rows(attack):
                heads = ["attack", "about", "which rows", "number", "how sure"]
                yield table(cell.place, TITLE, CAPTION, columns=heads, rows=rows, join="facts")


def _rows(attack: AttackEvidence) -> list[list[object]]:
    """The facts of the first claim that states any; none where the data are no table."""
    schema = next((group.context.inputs for group in attack.groups), None)
    claims = [claim for claim in attack.of(Facts) if len(claim.facts)]
    if not isinstance(schema, Row) or not claims:
        return []
    columns = {entry: (column, entry - place.start) for column, place in schema.places()
               for entry in range(place.start, place.stop)}  # fmt: skip
    rows: list[list[object]] = []
    for fact in claims[0].facts.numpy()[:MOST]:
        what, label = What(int(fact[0])), int(fact[5])
        about, which = "all rows", "all"
        if int(fact[2]) != ANY and int(fact[2]) in columns:
            column, offset = columns[int(fact[2])]
            about, which = column.name, _which(column, offset, fact, what)
        if label != ANY:
            which += f", label {label}"
        sure = WORDS.get(Certainty(int(fact[7])), "guessed")
        rows.append([attack.label, about, which, number_of(what, float(fact[1])), sure])
    return rows


def _which(column: Column, offset: int, fact: NDArray[np.float64], what: What) -> str:
    """The rows that a fact is about: a level or, for counts, a range of numbers."""
    if column.kind == "categorical" and offset < len(column.levels):
        return column.levels[offset]
    if column.kind == "binary":
        return column.levels[int(fact[3] >= 0.25)]
    if what != What.COUNT:
        return "all"
    span = column.high - column.low
    low, high = (column.low + span * float(np.clip(end, 0, 1)) for end in fact[3:5])
    return f"{low:.4g} to {high:.4g}"


def number_of(what: What, value: float) -> str:
    """A fact's number as it may be shown.

    Examples:
        >>> number_of(What.COUNT, 3.0), number_of(What.COUNT, 60.0), number_of(What.OCCURS, 0.0)
        ('< 5', '60', 'a value (not shown)')
    """
    if what == What.COUNT:
        return "< 5" if 0 < value < SMALL else f"{value:,.0f}"
    return "a value (not shown)" if what == What.OCCURS else "a sum (not shown)"
