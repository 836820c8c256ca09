"""Rows of a table in a given linear span, found column by column: a category has exactly one 1.

A row x = z B of the span meets every equation that a choice of its categories sets, up to the error of the
basis, and z is as long as x, which is at most the root of the number of columns. So a choice stays as long as
the least of ``|B x - z|² / error² + |z|²`` is that small: no equation is solved on its own, no small
singular value is divided by, and the rows themselves are never lost. Numbers then follow one by one from
their conditional mean and its error: of a number that is determined one value stays, of others several.

Shape letters: r rank of the span, F entries of an encoded row, K choices, N numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from glasshouse.modalities.row import Row

Floats = NDArray[np.float64]

SLACK: Final = 1.2
"""Length of a row and its error, on the largest length that a row can have."""
LEAST: Final = 1e-6
"""Smallest error of a basis that is reckoned with, so that squares keep their digits."""
STEPS: Final = 200
"""Largest number of steps of a whole number whose values are tried one by one."""
KNOWN: Final = 0.1
"""Largest error of a number, on its range, at which it is determined at all."""
CHOICES: Final = 200_000
"""Choices of all categories beyond which the search ends unfinished."""
POINTS: Final = 1_000_000
"""Choices of all whole numbers as well."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Spanned:
    """Rows in a span.

    Attributes:
        templates: every choice of all categories, numbers 0, (K, F).
        at: the template of each row, (R,).
        numbers: its numbers, (R, N).
        errors: how far each number may be from the truth, 0 of those that were tried one by one, (R, N).
        places: the entries of these numbers, (N,).
        finished: every choice was followed to its end, and every number is determined.
    """

    templates: Floats
    at: NDArray[np.int64]
    numbers: Floats
    errors: Floats
    places: NDArray[np.int64]
    finished: bool

    def __len__(self) -> int:
        return len(self.at)

    def rows(self, part: slice = slice(None)) -> Floats:
        """Encoded rows, (R, F)."""
        rows = self.templates[self.at[part]]
        rows[:, self.places] = self.numbers[part]
        return rows


def rows_in(
    basis: Floats, table: Row, *, error: float, longest: float = 0.0, low: Sequence[int] = ()
) -> Spanned:
    """The valid rows of ``table`` that are combinations of a ``basis`` (r, F).

    Args:
        basis: of the span; orthonormal unless ``longest`` is given.
        table: the columns.
        error: largest distance of a row from the span, on the length of its coefficients.
        longest: largest length of a row's coefficients, its error included; 0: of a row.
        low: entries that are 0, the low ends of their columns.

    Examples:
        >>> from glasshouse.modalities.row import Column
        >>> smokes = Column(name="smokes", kind="categorical", levels=("no", "yes"))
        >>> drinks = Column(name="drinks", kind="categorical", levels=("no", "yes", "often"))
        >>> table = Row(columns=(smokes, drinks))
        >>> two = np.array([[1.0, 0, 0, 1, 0], [0, 1, 1, 0, 0]]) / 2**0.5
        >>> rows_in(two, table, error=1e-6).rows().tolist()
        [[0.0, 1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 1.0, 0.0]]
    """
    radius = longest or SLACK * len(table.columns) ** 0.5
    search = _Search(basis=basis, error=max(error, LEAST), radius=radius, steps=_steps(table))
    chosen = search.categories(_choices(table)) if len(basis) else np.zeros((0, basis.shape[1]))
    places = np.array(list(search.steps), dtype=np.int64)
    if chosen is None or not len(chosen):
        found = _Numbers.none(len(places), finished=chosen is not None)
        chosen = np.zeros((0, basis.shape[1]))
    else:
        found = search.numbers(chosen, low)
    return Spanned(
        templates=chosen,
        at=found.at,
        numbers=found.values,
        errors=found.errors,
        places=places,
        finished=found.finished,
    )


def _choices(table: Row) -> list[tuple[slice, Floats]]:
    """Entries that can have only a few values, and these (K, k): the largest first, as they cut most."""
    blocks = []
    for column, place in table.places():
        width = place.stop - place.start
        if column.kind == "categorical":  # missing is one more level
            blocks.append((place, np.eye(width)))
        elif column.kind == "binary":
            blocks.append((place, np.concatenate([np.zeros((1, width)), np.eye(width)])))
        elif column.missing:
            blocks.append((slice(place.stop - 1, place.stop), np.array([[0.0], [1.0]])))
    return sorted(blocks, key=lambda block: -len(block[1]))


def _steps(table: Row) -> dict[int, int]:
    """Entries of numbers, and the number of steps of those whose values are tried; else 0."""
    steps = {}
    for column, place in table.places():
        if column.numeric:
            span = column.high - column.low
            whole = column.kind == "integer" and not column.missing and span <= STEPS
            steps[place.start] = round(span) if whole else 0
    return steps


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Search:
    basis: Floats
    error: float
    radius: float
    steps: dict[int, int]

    def categories(self, blocks: list[tuple[slice, Floats]]) -> Floats | None:
        """All choices (K, F) of categories that the span allows; None: too many."""
        rows, entries = np.zeros((1, 0)), list[int]()
        for place, choices in blocks:
            # A level that no row has is a column of zeros of the gradient: its entry cannot be 1.
            absent = np.linalg.norm(self.basis[:, place], axis=0) <= 5 * self.error
            levels = choices[~(choices[:, absent] > 0).any(1)]
            entries += range(place.start, place.stop)
            left, values, _ = np.linalg.svd(self.basis[:, entries].T, full_matrices=True)
            values = np.pad(values, (0, len(left) - len(values)))
            tests = left / np.sqrt(values**2 + self.error**2)
            before, added = rows @ tests[: rows.shape[1]], levels @ tests[rows.shape[1] :]
            size = (before**2).sum(1)[:, None] + 2 * before @ added.T + (added**2).sum(1)[None]
            row, level = np.nonzero(size <= self.radius**2)
            if len(row) > CHOICES:
                return None
            rows = np.concatenate([rows[row], levels[level]], 1)
        chosen = np.zeros((len(rows), self.basis.shape[1]))
        chosen[:, entries] = rows
        return chosen

    def numbers(self, chosen: Floats, low: Sequence[int]) -> "_Numbers":
        """The numbers that each choice may have."""
        places = list(self.steps)
        fixed = [f for f in range(chosen.shape[1]) if f not in self.steps]
        known, own = self.basis[:, fixed].T, self.basis[:, places]
        # The categories are known numbers with an error: they leave a mean and a spread for the others.
        left, values, right = np.linalg.svd(known, full_matrices=False)
        total = values**2 + self.error**2
        middle = chosen[:, fixed] @ left * (values / total) @ right
        inner = np.eye(len(self.basis)) - right.T * (values**2 / total) @ right
        rest = chosen[:, fixed] - middle @ known.T
        state = _State(
            at=np.arange(len(chosen)),
            means=middle @ own,
            spread=own.T @ inner @ own,
            used=(rest**2).sum(1) / self.error**2 + (middle**2).sum(1),
            error=self.error,
            radius=self.radius,
        )
        for place in low:
            state = state.given(places.index(place), np.zeros(len(state.at)))
        todo = {i: count for i, count in enumerate(self.steps.values()) if count}
        # Columns of few steps are tried value by value, the least open one first, as each closes the others
        # further.
        while todo:
            i = min(todo, key=lambda i: state.spread[i, i] * todo[i] ** 2)
            tried = state.tried(i, todo.pop(i))
            if tried is None:
                return _Numbers.none(len(places), finished=False)
            state = tried
        # Columns of many steps are not tried: they are read off, with an error, or they are open.
        wide = [i for i, count in enumerate(self.steps.values()) if not count]
        errors = np.zeros(state.means.shape)
        errors[:, wide] = state.left[:, None] * np.sqrt(np.maximum(np.diag(state.spread)[wide], 0))
        outside = np.maximum(-state.means, state.means - 1) - errors - self.error
        fits, determined = np.all(outside <= 0, 1), np.all(errors < KNOWN, 1)
        kept = fits & determined
        return _Numbers(
            at=state.at[kept],
            values=np.clip(state.means[kept], 0, 1),
            errors=errors[kept],
            finished=bool(np.all(determined | ~fits)),
        )


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Numbers:
    """The choice behind each row (R,), its numbers and their errors (R, N); whether nothing was left out."""

    at: NDArray[np.int64]
    values: Floats
    errors: Floats
    finished: bool

    @classmethod
    def none(cls, count: int, *, finished: bool) -> "_Numbers":
        """No row."""
        nothing = np.zeros((0, count))
        return cls(at=np.zeros(0, dtype=np.int64), values=nothing, errors=nothing, finished=finished)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _State:
    """Numbers of rows given what was chosen of them: their means and errors, and how much is used up."""

    at: NDArray[np.int64]
    means: Floats
    spread: Floats
    used: Floats
    error: float
    radius: float

    @property
    def left(self) -> Floats:
        """How far each row may still be from its mean, in standard deviations."""
        return np.sqrt(np.maximum(self.radius**2 - self.used, 0))

    def variance(self, i: int) -> float:
        """Of number ``i``, its rounding included."""
        return max(float(self.spread[i, i]), 0.0) + self.error**2

    def given(self, i: int, values: Floats, rows: Any = slice(None)) -> "_State":
        """The rows in which number ``i`` has these values."""
        variance = self.variance(i)
        gap = values - self.means[rows, i]
        used = self.used[rows] + gap**2 / variance
        means = self.means[rows] + gap[:, None] * self.spread[i] / variance
        means[:, i] = values
        spread = self.spread - np.outer(self.spread[i], self.spread[i]) / variance
        kept = used <= self.radius**2
        return _State(
            at=self.at[rows][kept],
            means=means[kept],
            spread=spread,
            used=used[kept],
            error=self.error,
            radius=self.radius,
        )

    def tried(self, i: int, steps: int) -> "_State | None":
        """The rows with every whole value of number ``i`` that they may have; None: too many."""
        half = self.left * float(np.sqrt(self.variance(i)))
        first = np.clip(np.ceil((self.means[:, i] - half) * steps), 0, None).astype(np.int64)
        last = np.clip(np.floor((self.means[:, i] + half) * steps), None, steps).astype(np.int64)
        count = np.maximum(last - first + 1, 0)
        if count.sum() > POINTS:
            return None
        rows = np.repeat(np.arange(len(count)), count)
        offset = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)
        return self.given(i, (first[rows] + offset) / steps, rows)
