"""Statistics by column in the units of a table: sums, levels and labels, and the one row that they may be."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, final

import torch
from torch import Tensor

from glasshouse.formats.records import Statistic
from glasshouse.modalities.row import Column, Row

STEP: Final = 2e-7
"""Share of a column's range within which an entry in float32 is the value that was encoded."""
TARGET: Final = "target="
"""Begins the name of the subset of one label."""


@final
@dataclass(frozen=True, kw_only=True)
class Stated:
    """What one document says of all rows.

    Attributes:
        count: rows; None: not said.
        sums: by column, value and largest distance from the true sum.
        levels: by column and level, the rows that have it.
        labels: by label, its rows.
    """

    count: int | None
    sums: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    levels: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    labels: Mapping[int, int] = field(default_factory=dict)

    def less(self, before: "Stated") -> "Stated":
        """What the people who came since are, as if they alone had been asked."""
        assert self.count is not None
        assert before.count is not None
        shared = [name for name in self.sums if name in before.sums]
        return Stated(
            count=self.count - before.count,
            sums={
                name: (self.sums[name][0] - before.sums[name][0], self.sums[name][1] + before.sums[name][1])
                for name in shared
            },
            levels={
                name: {level: n - before.levels[name].get(level, 0) for level, n in levels.items()}
                for name, levels in self.levels.items()
                if name in before.levels
            },
            labels={k: n - before.labels.get(k, 0) for k, n in self.labels.items() if before.labels},
        )


def stated(numbers: Sequence[Statistic], table: Row) -> Stated:
    """The numbers about all rows, by column; what the schema does not know is left out."""
    kinds = {column.name: column for column in table.columns}
    counts = [round(n.value) for n in numbers if n.name == "count" and not n.column and not n.subset]
    count = counts[0] if counts else None
    sums: dict[str, tuple[float, float]] = {}
    levels: dict[str, dict[str, int]] = {}
    labels: dict[int, int] = {}
    for n in numbers:
        column = kinds.get(n.column)
        if n.name == "count" and not n.column and n.subset.startswith(TARGET):
            label = n.subset.removeprefix(TARGET)
            labels |= {int(label): round(n.value)} if label.isdigit() else {}
        elif column is None:
            continue
        elif n.name == "count" and n.subset in column.levels:
            levels.setdefault(n.column, {})[n.subset] = round(n.value)
        elif n.name in ("sum", "mean") and not n.subset and column.numeric and not column.missing:
            if n.name == "mean" and count is None:
                continue
            times = 1 if n.name == "sum" else int(count or 0)
            # The rows are float32 entries of the range: their sum may be off by as much.
            error = times * n.slack + (count or 0) * STEP * (column.high - column.low) + 1e-9 * abs(n.value)
            sums.setdefault(n.column, (times * n.value, error))
    return Stated(count=count, sums=sums, levels=levels, labels=labels)


def one_row(of: Stated, table: Row) -> tuple[Tensor, int] | None:
    """The encoded row (1, F) and label of the one person whom statistics are about; None: not determined.

    Every column must follow to within its tolerance, and be valid: else they are not of one person.

    Examples:
        >>> age = Column(name="age", kind="integer", low=0, high=100)
        >>> one = Stated(count=1, sums={"age": (40.0, 0.1)}, labels={0: 0, 1: 1})
        >>> row, label = one_row(one, Row(columns=(age,)))
        >>> round(float(row), 6), label
        (0.4, 1)
    """
    values = [value_of(of, column) for column in table.columns]
    picked = [label for label, n in of.labels.items() if n == 1]
    if of.count != 1 or any(value is None for value in values):
        return None
    if len(picked) != 1 or sorted(of.labels.values()) != [0] * (len(of.labels) - 1) + [1]:
        return None
    return table.encode(torch.tensor([values], dtype=torch.float64)), picked[0]


def value_of(of: Stated, column: Column) -> float | None:
    """The one person's value of a column, or the code of its level; None: it does not follow."""
    if column.missing:
        return None
    if not column.numeric:
        counts = of.levels.get(column.name, {})
        full = [counts.get(level) for level in column.levels]
        whole = None not in full and sorted(n for n in full if n is not None) == [0] * (len(full) - 1) + [1]
        return float(full.index(1)) if whole else None
    if column.name not in of.sums:
        return None
    value, error = of.sums[column.name]
    if column.kind == "integer":
        nearest = float(round(value))
        sure = error < 0.5 and abs(value - nearest) <= error + 1e-6
        value = nearest
    else:
        sure = error <= column.tolerance
    return value if sure and column.low - error <= value <= column.high + error else None
