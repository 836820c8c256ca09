"""Rows of a table: typed columns, encoded as the vector that enters a network.

A number is mapped from its declared range to [0, 1]; a category is one-hot; a binary column is 0 or 1; a
column that may be missing has one more entry, 1 where the value is missing. Ranges and levels come from a
schema, never from private rows.

Shape letters: B rows, R candidates, N originals, F entries of an encoded row, C columns.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Final, Literal, final

import torch
from torch import Tensor

from glasshouse.errors import BadValue
from glasshouse.examples import Batch
from glasshouse.modalities import guesses
from glasshouse.modalities.base import Display, Modality, Null, Wanted
from glasshouse.modalities.columns import Columns
from glasshouse.modalities.likeness import correlation
from glasshouse.outside import limits
from glasshouse.registry import Card
from glasshouse.rng import Rng

__all__ = ["KINDS", "Column", "ColumnKind", "Row"]

ColumnKind = Literal["continuous", "integer", "categorical", "binary"]
KINDS: Final[tuple[ColumnKind, ...]] = ("continuous", "integer", "categorical", "binary")
COLUMNS: Final = 4096
"""Largest number of columns of a table."""
FEWEST_NUMBERS: Final = 3
"""Numbers of a row from which their correlation with another's says something: any two are on a line."""
GROUPS: Final = 32
"""Parts at most in which rows are compared with one another."""
STEP: Final = 2e-7
"""Of a number's range: up to this, numbers are the same; a decoded float32 is exact to 1e-7 of the range."""
HALF: Final = 0.5
"""From this resolution on, neighbouring whole numbers cannot be told apart."""
SLACK: Final = 1e-4
"""Tolerated excess over [0, 1] of an encoded entry: rounding of a normalisation that was undone."""


@final
@dataclass(frozen=True, kw_only=True)
class Column:
    """One column.

    Args:
        name: as in the file's header.
        kind: ``continuous`` or ``integer`` (both with a range), ``categorical`` (with levels), ``binary``
            (with two levels).
        low: smallest possible number.
        high: largest possible number.
        levels: the possible values, as written in the file.
        tolerance: largest difference of two numbers that count as the same, in the column's unit.
        missing: a value may be missing.
    """

    name: str
    kind: ColumnKind
    low: float = 0.0
    high: float = 1.0
    levels: tuple[str, ...] = ()
    tolerance: float = 0.0
    missing: bool = False

    def __post_init__(self) -> None:
        count = len(self.levels)
        if self.numeric:
            fits = math.isfinite(self.high - self.low) and self.low < self.high and self.tolerance >= 0
            fits = fits and not count
        else:
            fits = len(set(self.levels)) == count and (count == 2 if self.kind == "binary" else count >= 2)
        if self.kind not in KINDS or not fits:
            raise BadValue(
                f"column '{self.name}'",
                needs="numbers with low < high, categories with distinct levels, binary ones with two",
                got=f"{self.kind}, low = {self.low}, high = {self.high}, {count} levels",
                fix="correct the schema: glasshouse schema drafts one",
            )
        if self.kind == "integer" and self.tolerance < self.resolution >= HALF:
            raise BadValue(
                f"column '{self.name}'",
                needs=f"a tolerance of at least {math.ceil(self.resolution)}: neighbouring whole numbers of "
                "so wide a range are one entry in float32",
                got=f"tolerance = {self.tolerance:g}, for whole numbers from {self.low:g} to {self.high:g}",
                fix='set it, narrow the range, or set role = "ignored" for a number of a record',
            )

    @property
    def numeric(self) -> bool:
        """Whether its values are numbers."""
        return self.kind in ("continuous", "integer")

    @property
    def resolution(self) -> float:
        """Up to which difference two numbers may be one entry, or one float64."""
        return max(STEP * (self.high - self.low), math.ulp(max(abs(self.low), abs(self.high))))

    @property
    def same(self) -> float:
        """Up to which difference two numbers are the same value."""
        return max(self.tolerance, STEP * (self.high - self.low))

    @property
    def entries(self) -> int:
        """Number of entries of an encoded row that it takes, without the one of missing values."""
        return len(self.levels) if self.kind == "categorical" else 1

    @property
    def width(self) -> int:
        """Number of entries of an encoded row that it takes."""
        return self.entries + self.missing

    def encode(self, values: Tensor) -> Tensor:
        """Numbers, or positions among the levels, (B,) float64, NaN where missing: as entries (B, width)."""
        absent = values.isnan()
        if self.kind == "categorical":
            codes = torch.nan_to_num(values).long()
            entries = torch.nn.functional.one_hot(codes, self.entries).double()
        elif self.kind == "binary":
            entries = torch.nan_to_num(values)[:, None]
        else:
            entries = ((torch.nan_to_num(values, nan=self.low) - self.low) / (self.high - self.low))[:, None]
        if self.missing:
            entries = torch.cat([entries.masked_fill(absent[:, None], 0.0), absent[:, None].double()], 1)
        return entries.float()

    def decode(self, entries: Tensor) -> Tensor:
        """The valid value nearest to entries (B, width): (B,) float64, NaN where missing."""
        entries = entries.double()
        own = entries[:, : self.entries]
        if self.kind == "categorical":
            values = own.argmax(1).double()
        elif self.kind == "binary":
            values = (own[:, 0] > 0.5).double()
        else:
            values = own[:, 0].clamp(0, 1) * (self.high - self.low) + self.low
            values = values.round() if self.kind == "integer" else values
        if self.missing:
            # Of a category, missing is one more level; of a number, its entry decides alone.
            rival = own.max(1).values if self.kind == "categorical" else torch.full_like(values, 0.5)
            values = values.masked_fill(entries[:, -1] > rival, math.nan)
        return values

    def distance(self, left: Tensor, right: Tensor) -> Tensor:
        """0 for the same value up to 1, elementwise; a missing value is as far as can be from any other."""
        if self.numeric:
            gap = (left - right).abs()
            same = gap <= self.same
            apart = gap.div_(self.high - self.low).clamp_max_(1).masked_fill_(same, 0.0)
        else:
            apart = (left != right).double()
        if not self.missing:  # then nothing is decoded as missing, and most tables end here
            return apart.double()
        absent = left.isnan(), right.isnan()
        apart = torch.where(absent[0] ^ absent[1], 1.0, apart)
        return torch.where(absent[0] & absent[1], 0.0, apart).double()

    def write(self, value: float) -> str:
        """A value as text."""
        if math.isnan(value):
            return "missing"
        if not self.numeric:
            return self.levels[int(value)]
        return f"{value:.0f}" if self.kind == "integer" else f"{value:.6g}"


@final
@dataclass(frozen=True, kw_only=True)
class Row(Modality):
    """Rows of one table.

    Args:
        columns: in the order in which they are encoded.

    Examples:
        >>> age = Column(name="age", kind="integer", low=0, high=100)
        >>> smokes = Column(name="smokes", kind="categorical", levels=("no", "yes", "once"))
        >>> rows = Row(columns=(age, smokes))
        >>> vectors = rows.encode(torch.tensor([[50.0, 2.0]]).double())
        >>> vectors.tolist(), rows.decode(vectors).tolist()
        ([[0.5, 0.0, 0.0, 1.0]], [[50.0, 2.0]])
    """

    card: ClassVar[Card] = Card(summary="rows of a table: numbers, categories and yes-or-no values")
    name: ClassVar[str] = "row"
    noun: ClassVar[str] = "row"
    nouns: ClassVar[str] = "rows"
    metrics: ClassVar[tuple[str, ...]] = ("rows_exact", "row_cells")
    boxed: ClassVar[bool] = False
    near: ClassVar[float] = 0.05  # one column of twenty differs
    recurs: ClassVar[bool] = True

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if (
            not 1 <= len(names) <= COLUMNS
            or len(set(names)) != len(names)
            or sum(column.width for column in self.columns) > limits.IMAGE_VALUES
        ):
            raise BadValue(
                "modality 'row'",
                needs=f"1 to {COLUMNS:,} columns of different names",
                got=f"{len(names)} columns, {len(set(names))} names",
                fix="correct the schema",
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """(F,)."""
        return (sum(column.width for column in self.columns),)

    @property
    def dtype(self) -> torch.dtype:
        """float32."""
        return torch.float32

    @property
    def range(self) -> tuple[float, float]:
        """Every entry is in [0, 1]."""
        return 0.0, 1.0

    @property
    def size_words(self) -> str:
        """The number of columns."""
        return f"{len(self.columns)} columns"

    def encode(self, values: Tensor) -> Tensor:
        """Values (B, C) float64, NaN where missing, as inputs of the network (B, F) float32."""
        parts = [column.encode(values[:, i]) for i, column in enumerate(self.columns)]
        return torch.cat(parts, 1)

    def decode(self, inputs: Tensor) -> Tensor:
        """The valid rows nearest to inputs (B, F): values (B, C) float64, NaN where missing."""
        return self._together.decode(inputs)

    def places(self) -> Iterator[tuple[Column, slice]]:
        """Every column with its entries."""
        start = 0
        for column in self.columns:
            yield column, slice(start, start + column.width)
            start += column.width

    def violation(self, inputs: Tensor) -> tuple[str, str] | None:
        """Entries outside [0, 1]. Shares of a category are allowed: the largest counts."""
        if not len(inputs) or (inputs.min() >= -SLACK and inputs.max() <= 1 + SLACK):
            return None
        return "encoded rows in [0, 1]", f"[{float(inputs.min()):.3g}, {float(inputs.max()):.3g}]"

    def project(self, inputs: Tensor) -> Tensor:
        """The rows that :meth:`decode` reads, encoded."""
        return self.encode(self.decode(inputs)).to(inputs)

    def relax(self, inputs: Tensor) -> Tensor:
        """Numbers clipped to their range; each category moved to the nearest point of its simplex."""
        parts = []
        for column, place in self.places():
            own = inputs[:, place]
            parts.append(onto_simplex(own) if column.kind == "categorical" else own.clamp(0, 1))
        return torch.cat(parts, 1)

    def distance(self, candidates: Tensor, originals: Tensor) -> Tensor:
        """Mean over the columns (Gower): the difference of numbers on their range, 0 or 1 for others.

        Source: Gower 1971, "A general coefficient of similarity", Biometrics 27(4), without weights;
        differences within a column's tolerance are 0, and a missing value is at distance 1 from any other.
        """
        left, right = self.decode(candidates), self.decode(originals.to(candidates.device))
        return self.between(left[:, None], right[None])

    def between(self, left: Tensor, right: Tensor) -> Tensor:
        """The :meth:`distance` of decoded rows, (..., C) each, in one operation: as they broadcast, (...)."""
        return self._together.total(left, right) / len(self.columns)

    def likenesses(self, candidates: Tensor, originals: Tensor) -> Mapping[str, Tensor]:
        """Numbers inverted or of another scale; right in a few cells, each worth as much as it is rare."""
        left, right = self.decode(candidates), self.decode(originals.to(candidates.device))
        worth = torch.zeros(len(left), len(right), dtype=torch.float64, device=left.device)
        for i, column in enumerate(self.columns):
            same = column.distance(left[:, i, None], right[None, :, i]) == 0
            share = (1 + same.double().sum(1, keepdim=True)) / (1 + len(right))
            worth += same * -share.log()
        found = {"right in a few cells": worth}
        numbers = [place.start for column, place in self.places() if column.numeric]
        if len(numbers) >= FEWEST_NUMBERS:
            form = "its numbers inverted, or of another level and scale"
            found[form] = correlation(candidates[:, numbers], originals[:, numbers].to(candidates.device))
        return found

    def apart(self, examples: Tensor) -> Iterator[Tensor]:
        """As whole rows, then in every column; many columns in groups of neighbours."""
        yield self.distance(examples, examples)
        values, count = self.decode(examples), len(self.columns)
        for group in torch.arange(count).chunk(min(count, GROUPS)):
            each = (self.columns[i].distance(values[:, i, None], values[None, :, i]) for i in group.tolist())
            yield sum(each, torch.zeros(len(values), len(values), dtype=torch.float64)) / len(group)

    def cells(self, claimed: Tensor, originals: Tensor) -> Tensor:
        """Which cells of claimed rows (B, F) are those of the originals (B, F), row by row: (B, C) bool."""
        return self.same_cells(self.decode(claimed), self.decode(originals.to(claimed.device)))

    def same_cells(self, left: Tensor, right: Tensor) -> Tensor:
        """Which cells of decoded rows (..., C) are the same, as they broadcast: (..., C) bool."""
        return self._together.apart(left, right) == 0

    @cached_property
    def _together(self) -> Columns:
        """The columns at once."""
        return Columns(self.columns)

    def nulls(self) -> Sequence[Null]:
        """Middle and modal rows, columns drawn apart, random public rows, and those of the same label."""
        return (
            Null(name="middle row of the schema", knows="nothing", guess=self._middle, steady=True),
            Null(name="modal row", knows="domain", guess=self._modal, steady=True),
            Null(name="columns drawn one by one", knows="domain", guess=self._apart),
            *guesses.drawn(self.noun),
        )

    def _middle(self, auxiliary: Batch, wanted: Wanted, rng: Rng) -> Batch:
        middle = [(c.low + c.high) / 2 if c.numeric else 0.0 for c in self.columns]
        inputs = self.encode(torch.tensor([middle], dtype=torch.float64)).expand(wanted.count, -1)
        return Batch(inputs=inputs.contiguous(), labels=guesses.labels_for(auxiliary, wanted, rng))

    def _modal(self, auxiliary: Batch, wanted: Wanted, rng: Rng) -> Batch:
        values = self.decode(auxiliary.inputs)
        inputs = self.encode(values.mode(0).values[None]).expand(wanted.count, -1)
        return Batch(inputs=inputs.contiguous(), labels=guesses.labels_for(auxiliary, wanted, rng))

    def _apart(self, auxiliary: Batch, wanted: Wanted, rng: Rng) -> Batch:
        """Every column from another random public row."""
        draws, parts = rng.child("columns").torch(), []
        for _, place in self.places():
            rows = torch.randint(len(auxiliary), (wanted.count,), generator=draws)
            parts.append(auxiliary.inputs[rows, place])
        return Batch(inputs=torch.cat(parts, 1), labels=guesses.labels_for(auxiliary, wanted, rng))

    def probes(self, count: int, draws: torch.Generator) -> Tensor:
        """Rows of random cells."""
        return self.project(torch.rand(count, *self.shape, generator=draws))

    def display(self, example: Tensor) -> Display:
        """Name and value of every column."""
        values = self.decode(example[None])[0].tolist()
        cells = zip(self.columns, values, strict=True)
        return Display(text="; ".join(f"{column.name}: {column.write(value)}" for column, value in cells))


def onto_simplex(points: Tensor) -> Tensor:
    """The nearest points of the probability simplex, row by row, (B, K).

    Source: Held, Wolfe & Crowder 1974; the form by sorting is Duchi et al. 2008, figure 1.

    Examples:
        >>> onto_simplex(torch.tensor([[2.0, 0.0], [0.5, 0.5]])).tolist()
        [[1.0, 0.0], [0.5, 0.5]]
    """
    ordered = points.sort(1, descending=True).values
    excess = ordered.cumsum(1) - 1
    counts = torch.arange(1, points.shape[1] + 1, dtype=points.dtype, device=points.device)
    kept = (ordered - excess / counts > 0).sum(1, keepdim=True).clamp_min(1)
    return (points - excess.gather(1, kept - 1) / kept).clamp_min(0)
