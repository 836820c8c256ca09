"""Metrics of what a claimed row says about a person: one sensitive value, and who it is.

Both look at columns by name: ``attribute`` at one that is sensitive, ``reidentified`` at those that a public
register holds. Shape letters: B private rows, R claimed, N others, F entries of an encoded row, L values.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.errors import BadValue, Undefined
from glasshouse.examples import Batch
from glasshouse.metrics.base import Hits, Requirement, ScoreContext, rate_wording
from glasshouse.metrics.match import UNMATCHED, assign
from glasshouse.metrics.tables.rows import OfRows, rows_of
from glasshouse.modalities.row import Column, Row
from glasshouse.registry import Card

Floats = NDArray[np.float64]
PENALTIES: Final = (1e-3, 1e-2, 1e-1, 1.0, np.inf)
"""Of the null's linear model, per public row; under the last one it says the most common value."""
VALUES: Final = 256
"""Number of values of a column among which the null's model chooses."""


@final
@dataclass(frozen=True, kw_only=True)
class Attribute(Hits):
    """1 for every private row whose value in one column is claimed right, else 0.

    Claims and private rows are paired by the *other* columns; a private row without a claim is a miss. The
    null has the other columns of every private row as they are, and predicts this one by a linear model of
    public rows.

    Args:
        column: name of the sensitive column; empty: the last one of the table.
    """

    card = Card(summary="share of the private rows whose value in one column is claimed right")
    wording = rate_wording(
        label="sensitive value read",
        sentence="read the sensitive value of {} of the private rows",
        explanation="Share of the private rows whose value in one sensitive column was claimed right: higher "
        "is worse. Guessing has all other columns of the row, and a model of public rows.",
        severity="images",
        order=63,
        chance="what a model of public rows predicts from the other columns: see the null baseline",
    )
    null_name: ClassVar[str] = "a model of public rows that has the other columns"

    column: str = ""

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> Floats:
        rows = rows_of("attribute", claimed, truth, context)
        place = self._place(rows)
        hits = np.zeros(len(truth))
        if len(claimed):
            others = [i for i in range(len(rows.columns)) if i != place]
            left, right = rows.decode(truth), rows.decode(claimed.to(truth.device))
            pairing = assign(_apart(rows, left, right, others))
            have = np.flatnonzero(pairing != UNMATCHED)
            said, true = right[torch.from_numpy(pairing[have]), place], left[torch.from_numpy(have), place]
            hits[have] = _same(rows.columns[place], said, true)
        return hits

    def null(self, truth: Tensor, auxiliary: Batch | None, *, context: ScoreContext) -> Floats | None:
        if auxiliary is None or len(auxiliary) < 2:
            return None
        rows = rows_of("attribute", auxiliary.inputs, truth, context)
        place = self._place(rows)
        column, entries = list(rows.places())[place]
        public, own = auxiliary.inputs.cpu(), truth.cpu()
        values, true = rows.decode(public)[:, place], rows.decode(own)[:, place]
        known = [_without(part, entries) for part in (public, own)]
        levels = _levels(values)
        # What saying each of the values would have been worth on each public row.
        worth = _same(column, levels[None], values[:, None])
        said = levels[torch.from_numpy(_expected(known[0], worth, known[1]).argmax(1))]
        return _same(column, said, true)

    def pairwise(self, candidates: Tensor, examples: Tensor, *, context: ScoreContext) -> Floats | None:
        rows = rows_of("attribute", candidates, examples, context)
        place = self._place(rows)
        said, true = (rows.decode(side.cpu())[:, place] for side in (candidates, examples))
        return _same(rows.columns[place], said[:, None], true[None])

    def _place(self, rows: Row) -> int:
        return _places("attribute", rows, [self.column] if self.column else [])[-1]


@final
@dataclass(frozen=True, kw_only=True)
class Reidentified(OfRows):
    """Whether a claimed row leads to the person whom it is about, in a register of M people, per private row.

    The register holds the private row's person and M - 1 others, who are held-out rows, with the public
    columns only. The claim points to whoever is nearest in these (mean over the columns, as Gower); of people
    who are equally near the right one gets an equal share, so that a claim without information reaches 1/M.
    Claims are paired with private rows by all columns. A private row without a claim leads to nobody: 0.

    Args:
        columns: names of the public columns, the quasi-identifiers; empty: all columns of the table.
    """

    card = Card(
        summary="share of the private rows whose claim leads to its person among M in a public register",
        source="linkage by quasi-identifiers: Sweeney 2002; nearest rows: Gower 1971",
    )
    wording = rate_wording(
        label="people found again",
        sentence="led to the right person in a public register for {} of the private rows",
        explanation="How often the claimed row leads to its person among many in a register that holds some "
        "of the columns: higher is worse; guessing finds 1 in as many as there are people.",
        severity="images",
        order=61,
        chance="1/M, M = distractors + 1",
    )
    requires: ClassVar[frozenset[Requirement]] = frozenset({"distractors"})

    columns: tuple[str, ...] = ()

    def chance(self, context: ScoreContext) -> float | None:
        return None if context.distractors is None else 1 / (len(context.distractors) + 1)

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> Floats:
        rows = rows_of("reidentified", claimed, truth, context)
        found = np.zeros(len(truth))
        if len(claimed):
            pairing = assign(rows.distance(truth, claimed).cpu().numpy())
            have = np.flatnonzero(pairing != UNMATCHED)
            chosen = claimed[torch.from_numpy(pairing[have]).to(claimed.device)]
            found[have] = self.compare(
                chosen, truth[torch.from_numpy(have).to(truth.device)], context=context
            )
        return found

    def compare(self, left: Tensor, right: Tensor, *, context: ScoreContext) -> Floats:
        rows = rows_of("reidentified", left, right, context)
        places = _places("reidentified", rows, self.columns)
        said, true, others = (rows.decode(part.cpu()) for part in (left, right, _register(context)))
        own = sum(_gap(rows.columns[i], said[:, i], true[:, i]) for i in places) / len(places)
        return _found(np.asarray(own)[:, None], _apart(rows, said, others, places))[:, 0]

    def pairwise(self, candidates: Tensor, examples: Tensor, *, context: ScoreContext) -> Floats | None:
        rows = rows_of("reidentified", candidates, examples, context)
        places = _places("reidentified", rows, self.columns)
        said, true, others = (rows.decode(part.cpu()) for part in (candidates, examples, _register(context)))
        return _found(_apart(rows, said, true, places), _apart(rows, said, others, places))


def _register(context: ScoreContext) -> Tensor:
    if context.distractors is None or not len(context.distractors):
        raise Undefined(
            "metric 'reidentified'",
            needs="at least one other row, as 'distractors' of the score context",
            got="none",
            fix="set audit.distractors and data.heldout, or drop the metric",
        )
    return context.distractors


def _places(name: str, rows: Row, names: Sequence[str]) -> list[int]:
    """Positions of columns by their names; all of them where none is named.

    Raises:
        BadValue: the table has no such column.
    """
    known = [column.name for column in rows.columns]
    if absent := [name for name in names if name not in known]:
        raise BadValue(
            f"metric '{name}'",
            needs=f"columns of the table: {', '.join(known)}",
            got=", ".join(f"'{one}'" for one in absent),
            fix="correct the name in audit.metrics",
        )
    return [known.index(one) for one in names] or list(range(len(known)))


def _gap(column: Column, left: Tensor, right: Tensor) -> Floats:
    return np.asarray(column.distance(left, right).cpu().numpy(), dtype=np.float64)


def _same(column: Column, left: Tensor, right: Tensor) -> Floats:
    """1 where two values are the same within the column's tolerance, else 0."""
    return np.asarray(_gap(column, left, right) == 0, dtype=np.float64)


def _apart(rows: Row, left: Tensor, right: Tensor, places: Sequence[int]) -> Floats:
    """Mean distance of decoded rows (R, C) and (N, C) over some columns, (R, N); 0 over none."""
    total = np.zeros((len(left), len(right)))
    for i in places:
        total += _gap(rows.columns[i], left[:, i, None], right[None, :, i])
    return total / max(1, len(places))


def _found(own: Floats, others: Floats) -> Floats:
    """Share of the right person, at distances (R, N), among the nearest, beside others at (R, M - 1)."""
    own, others = own.round(12), others.round(12)  # sums over columns in another order are ties, too
    found = np.zeros_like(own)
    for r, far in enumerate(others):
        ties = (far[None] == own[r, :, None]).sum(1)
        found[r] = np.where(far.min() < own[r], 0.0, 1 / (1 + ties))
    return found


def _without(inputs: Tensor, entries: slice) -> Floats:
    """Encoded rows (B, F) without the entries of one column."""
    kept = torch.cat([inputs[:, : entries.start], inputs[:, entries.stop :]], 1)
    return np.asarray(kept.double().numpy(), dtype=np.float64)


def _levels(values: Tensor) -> Tensor:
    """The values that occur, (L,); of many, some at even steps of their order. Missing is one of them."""
    present = torch.from_numpy(np.unique(values[~values.isnan()].numpy()))
    if len(present) > VALUES:
        present = present[torch.linspace(0, len(present) - 1, VALUES).round().long()]
    return torch.cat([present, values[values.isnan()][:1]])


def _expected(public: Floats, worth: Floats, private: Floats) -> Floats:
    """The worth (B, L) of private rows (B, F) by a linear model of public rows (N, F) and theirs (N, L).

    Of the penalties the one under which the values it would choose are worth most on public rows left out.
    """
    centre, level = public.mean(0), worth.mean(0)
    left, sizes, right = np.linalg.svd(public - centre, full_matrices=False)
    kept = sizes > 1e-9 * max(1.0, float(sizes.max(initial=0.0)))
    left, sizes, right = left[:, kept], sizes[kept], right[kept]
    projected, count = left.T @ (worth - level), len(public)
    best, chosen = -1.0, np.zeros_like(sizes)
    for penalty in PENALTIES:
        shrink = sizes**2 / (sizes**2 + penalty * count)
        fitted = level + (left * shrink) @ projected
        # The residual without a row's own influence, in closed form.
        influence = np.clip(1 / count + (left**2 * shrink).sum(1), 0, 1 - 1e-9)
        without = worth - (worth - fitted) / (1 - influence)[:, None]
        value = float(worth[np.arange(count), without.argmax(1)].mean())
        if value >= best:  # of equals the simpler model
            best, chosen = value, shrink
    factors = np.where(sizes > 0, chosen / np.where(sizes > 0, sizes, 1), 0)
    return np.asarray(level + ((private - centre) @ right.T * factors) @ projected)
