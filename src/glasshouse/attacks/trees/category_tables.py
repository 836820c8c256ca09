"""Counts of categories that a model carries beside its trees, as facts: how many rows, by category and label.

CatBoost keeps them for whoever applies the model: the statistic that a split compares with its border is
computed anew from the table of all rows that were trained on. Where the listed categories add up to all rows,
no row has another one.

Source: CatBoost, documentation of JSON models (``ctr_data``); that its tables are the client's counts is our
own observation.
"""

from collections.abc import Iterator, Sequence

from glasshouse.attacks.tabular import ANY, Fact, What
from glasshouse.formats.records import CategoryTable
from glasshouse.modalities.base import Modality
from glasshouse.modalities.row import Row


def counts_in(tables: Sequence[CategoryTable], inputs: Modality, *, rows: int) -> list[Fact]:
    """A fact for every category of the tables, and for every class where they count classes.

    Args:
        tables: over entries of encoded rows: the column is its first entry, categories are its levels.
        inputs: the columns.
        rows: number of the client's rows.
    """
    if not isinstance(inputs, Row):
        return []
    columns = {place.start: column for column, place in inputs.places()}
    facts: dict[tuple[int, int, int], Fact] = {}
    for table in tables:
        column = columns[table.column]
        complete = sum(map(sum, table.counts.values())) == rows
        nobody = (0, 0) if table.by_class else (0,)
        for level in range(len(column.levels)) if complete else sorted(table.counts):
            counted = table.counts.get(level, nobody)
            for label, count in _by_label(counted, table.by_class):
                # A category of a binary column is a half of its only entry.
                binary = column.kind == "binary"
                entry = table.column + (0 if binary else level)
                low, high = ((-0.5, 0.5), (0.5, 1.5))[level if binary else 1]
                facts[table.column, level, label] = Fact(
                    what=What.COUNT, value=float(count), column=entry, low=low, high=high, label=label
                )
    return list(facts.values())


def _by_label(counted: Sequence[int], by_class: bool) -> Iterator[tuple[int, int]]:
    """Labels and their counts; of all labels together, where only that is known."""
    if by_class:
        yield from enumerate(counted)
    yield ANY, sum(counted)
