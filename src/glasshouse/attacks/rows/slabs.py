"""Rows out of sums over slabs: a row that is alone in one is read, taken off the others, and so on.

A group of neurons shares one direction a and has ascending cuts c. The gradients of two neighbours differ by
the sum over the rows x with c_k < a·x <= c_{k+1}, each times its own signal s. Where the slab holds one row,
the bias says s and the weights say s x. The row then lies in a known slab of every other group, and is
subtracted there, which leaves further rows alone: with three groups nearly all of B rows come out of 1.3 B
slabs, as keys do of an invertible Bloom lookup table.

Source of peeling: Goodrich & Mitzenmacher 2011, "Invertible
Bloom Lookup Tables", arXiv:1101.2245, section 2. The certificate is our own: a row counts as proved if no
other number of rows has its signal, it is a valid row of the schema, it lies in the slab in which it was
found, and what is left in the slabs that are empty after all shows errors below the columns' tolerance.

Shape letters: G groups, M slabs of a group, F entries of an encoded row, R rows found.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final, final

import numpy as np
import torch
from numpy.typing import NDArray

from glasshouse.modalities.row import Column, Row

Floats = NDArray[np.float64]

NEAR: Final = 1e-6
"""Share of a projection's terms up to which float32 may err when it decides on the side of a cut."""
VALID: Final = 2e-2
"""Largest error of an entry that must be 0 or 1."""
STEPS: Final = 128
"""Largest number of steps of a whole number that tests a row."""
SAFE: Final = 6.0
"""Standard errors of a number within which its value must be certain."""
ROUNDED: Final = 1e-7
"""Least error of an entry: a float32's."""
LEFT: Final = 1e-3
"""Largest entry, in units of one row, that rows may leave of their slabs."""
RANK: Final = 1e-6
"""Share of the largest singular value below which the slabs say nothing of a combination of rows."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Slabs:
    """What the neurons measure, in units of encoded rows.

    Attributes:
        directions: a of each group, (G, F).
        cuts: c of each neuron, ascending in each group, (G, M); all rows lie above the first.
    """

    directions: Floats
    cuts: Floats

    def place(self, row: Floats, error: Floats) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The slab of a row (F,) in each group, (G,), and whether it lies too near a cut to say so, (G,).

        ``error``: standard error of each entry, (F,).
        """
        at = self.directions @ row
        slab = (self.cuts < at[:, None]).sum(1) - 1
        unsure = SAFE * np.sqrt(np.square(self.directions) @ np.square(NEAR * np.abs(row) + error))
        return slab, (np.abs(self.cuts - at[:, None]) <= unsure[:, None]).any(1) | (slab < 0)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Read:
    """Rows that were alone in a slab, at once or after others had been taken off.

    Attributes:
        rows: (R, F), encoded and valid.
        targets: the second sum of each row's slab, such as its target's signal, (R,).
        proved: (R,).
    """

    rows: Floats
    targets: Floats
    proved: NDArray[np.bool_]


def inside(total: Floats) -> Floats:
    """Sums above each cut (G, M, ...), as sums between neighbouring ones (the last slab is open)."""
    return np.asarray(total - np.concatenate([total[:, 1:], np.zeros_like(total[:, :1])], 1))


@final
@dataclass(kw_only=True, eq=False)
class Peeling:
    """The search: sums that shrink as rows are found.

    Attributes:
        table: of the rows.
        slabs: what was measured.
        weight: Σ s x of every slab, (G, M, F), in units in which a row's s is of order 1.
        signal: Σ s, (G, M).
        target: Σ t of a second number of every row, (G, M): its label's signal.
        single: every s that a row may have.
        near: distance within which no other number of rows than one has such a signal, and only none has 0.
        most: number of rows behind the sums.
    """

    table: Row
    slabs: Slabs
    weight: Floats
    signal: Floats
    target: Floats
    single: Floats
    near: float
    most: int
    rows: list[Floats] = field(default_factory=list)
    targets: list[float] = field(default_factory=list)
    sizes: list[float] = field(default_factory=list)
    places: list[NDArray[np.int64]] = field(default_factory=list)

    def read(self) -> Read:
        """Peel until no slab holds a single row."""
        whole, doubt = self.weight.copy(), np.zeros(self.signal.shape)
        spoiled = np.zeros(self.signal.shape, dtype=np.bool_)
        free = [c.numeric and not tests(c) for c, place in self.table.places() for _ in range(c.width)]
        # First in, first out: what stands on few other rows is read before what stands on many.
        waiting = deque(np.ndindex(*self.signal.shape))
        while waiting and len(self.rows) < self.most:
            here = waiting.popleft()
            size = float(self.signal[here])
            if spoiled[here] or np.abs(size - self.single).min() > self.near:
                continue
            entries = self.weight[here] / size
            row = valid_row(entries, self.table)
            if row is None:
                continue
            # Numbers that no step corrects keep the error of all rows taken off before, and add their own.
            error = np.zeros(len(row))
            error[free] = (doubt[here] / size**2 + max(np.abs(entries - row).max(), ROUNDED) ** 2) ** 0.5
            at, unsure = self.slabs.place(row, error)
            if at[here[0]] != here[1] or unsure[here[0]]:  # a mixture hardly lies where its parts do
                continue
            self.rows.append(row)
            self.targets.append(float(self.target[here]))
            self.sizes.append(size)
            self.places.append(at)
            for other, slab in enumerate(at.tolist()):
                if unsure[other]:  # it stands in this slab or in a neighbour: neither is read any more
                    spoiled[other, max(slab - 1, 0) : slab + 2] = True
                    continue
                self.weight[other, slab] -= size * row
                self.signal[other, slab] -= size
                self.target[other, slab] -= self.targets[-1]
                doubt[other, slab] += (size * error.max()) ** 2
                waiting.append((other, slab))
        return self._refined(whole, ~spoiled & (np.abs(self.signal) < self.near))

    def _refined(self, whole: Floats, empty: NDArray[np.bool_]) -> Read:
        """Numbers by least squares over all slabs of which every row is known, and which rows are proved."""
        rows = np.array(self.rows).reshape(-1, self.table.shape[0])
        if not len(rows):
            return Read(rows=rows, targets=np.zeros(0), proved=np.zeros(0, dtype=np.bool_))
        sums = np.zeros((*empty.shape, len(rows)))
        for r, (at, size) in enumerate(zip(self.places, self.sizes, strict=True)):
            sums[np.arange(len(at)), at, r] = size
        sums, values = sums[empty], whole[empty]
        numbers, allowed = numeric_entries(self.table)
        found, error = fit(sums, values[:, numbers])
        fitted = rows.copy()
        fitted[:, numbers] = np.where(np.isfinite(error), found, rows[:, numbers])
        refined = [valid_row(row, self.table) for row in fitted]
        rows = np.array([row if new is None else new for row, new in zip(rows, refined, strict=True)])
        # What the rows leave of their own slabs: a row in the wrong place would show in two of them.
        left = np.abs(values - sums @ rows).max(1, initial=0.0)
        worst = np.array([left[column != 0].max(initial=0.0) for column in sums.T]) / np.abs(self.sizes)
        certain = (SAFE * error <= allowed).all(1) & (worst < LEFT)
        valid = np.array([row is not None for row in refined], dtype=np.bool_)
        return Read(rows=rows, targets=np.array(self.targets), proved=certain & valid)


def fit(sums: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Least squares of ``sums`` (S, R) times X (R, C) = ``values`` (S, C): X, and its standard errors (R, C).

    An error is infinite where X is not determined, or nothing is left to measure errors by.

    Examples:
        >>> found, error = fit(np.array([[1.0], [1.0]]), np.array([[3.0], [3.2]]))
        >>> found.round(2).tolist(), error.round(2).tolist()
        ([[3.1]], [[0.1]])
    """
    left, sizes, right = np.linalg.svd(sums, full_matrices=False)
    rank = int((sizes > RANK * sizes.max(initial=0.0)).sum())
    inverse = right[:rank].T / sizes[:rank]
    found = inverse @ (left[:, :rank].T @ values)
    over = len(sums) - rank
    spread = (
        np.sqrt(np.square(values - sums @ found).sum(0) / over) if over else np.full(values.shape[1], np.inf)
    )
    error = np.sqrt(np.square(inverse).sum(1))[:, None] * spread
    error[np.square(right[:rank]).sum(0) < 1 - RANK] = np.inf
    return found, error


def valid_row(entries: Floats, table: Row) -> Floats | None:
    """The encoded row whose entries (F,) these are but for their error; None: no valid row is near."""
    row = entries.copy()
    for column, place in table.places():
        own, near = entries[place], VALID
        if column.numeric and not column.missing:
            row[place] = np.clip(own, 0, 1)
            steps = column.high - column.low
            if column.kind == "integer":
                row[place] = np.round(row[place] * steps) / steps
                near = min(VALID, 0.2 / steps) if tests(column) else VALID
        else:
            row[place] = table_entries(own, column)
        if np.abs(row[place] - own).max() > near:
            return None
    return row


def tests(column: Column) -> bool:
    """Whether its values are whole numbers with steps that are larger than any error."""
    return column.kind == "integer" and column.high - column.low <= STEPS


def table_entries(own: Floats, column: Column) -> Floats:
    """The nearest entries of a column that is no plain number."""
    return np.asarray(column.encode(column.decode(torch.from_numpy(own[None]))).double()[0].numpy())


def numeric_entries(table: Row) -> tuple[NDArray[np.int64], Floats]:
    """Entries that hold numbers, (C,), and the error of each below which its value is certain, (C,)."""
    places, allowed = [], []
    for column, place in table.places():
        if column.numeric:
            step = 0.5 if column.kind == "integer" else 0.0
            # A decoded float32 is exact to 1e-7 of the range, which counts as the same value.
            places.append(place.start)
            allowed.append(max(step, column.tolerance) / (column.high - column.low) or 2e-7)
    return np.array(places, dtype=np.int64), np.array(allowed)
