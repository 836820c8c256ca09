"""Metrics of claimed table rows: rows read exactly, and cells read.

Rows are paired by optimal assignment of the modality's distance, each claim once; a private row without a
claim is a miss. What counts as the same value is the schema's tolerance.

Shape letters: B private rows, R claimed ones, F entries of an encoded row, C columns.
"""

from dataclasses import dataclass
from typing import ClassVar, Final, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.errors import BadValue
from glasshouse.examples import Batch
from glasshouse.metrics.base import Hits, Metric, ScoreContext, rate_wording
from glasshouse.metrics.match import UNMATCHED, assign
from glasshouse.modalities.row import Row
from glasshouse.registry import Card

PENALTY: Final = 1e-3
"""Of the linear model of public rows, per row."""


class OfRows(Metric):
    """Base class of metrics that pair claimed rows with private ones by the table's own distance."""

    def costs(self, originals: Tensor, candidates: Tensor, *, context: ScoreContext) -> NDArray[np.float64]:
        rows = rows_of(self.wording.label, candidates.flatten(0, 1), originals.flatten(0, 1), context)
        left, right = (
            rows.decode(x.flatten(0, 1)).reshape(*x.shape[:2], -1) for x in (originals, candidates)
        )
        return np.asarray(rows.between(left[:, :, None], right[:, None]).cpu().numpy(), dtype=np.float64)


@final
@dataclass(frozen=True, kw_only=True)
class RowsExact(OfRows, Hits):
    """1 for every private row of which all cells are claimed right, else 0; each claim counts once."""

    card = Card(
        summary="share of the private rows claimed with all cells right, within the schema's tolerance"
    )
    wording = rate_wording(
        label="rows read exactly",
        sentence="read {} of the private rows with every cell right",
        explanation="Share of the private rows of which the attack wrote down every cell, numbers within the "
        "tolerance of the schema: higher is worse. Guessing reaches about 0 %, unless people share a row.",
        severity="images",
        order=4,
    )

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> NDArray[np.float64]:
        return np.asarray(right_cells("rows_exact", claimed, truth, context).all(1), dtype=np.float64)

    def compare(self, left: Tensor, right: Tensor, *, context: ScoreContext) -> NDArray[np.float64]:
        rows = rows_of("rows_exact", left, right, context)
        return np.asarray(rows.cells(left, right).all(1).cpu().numpy(), dtype=np.float64)

    def pairwise(
        self, candidates: Tensor, examples: Tensor, *, context: ScoreContext
    ) -> NDArray[np.float64] | None:
        return np.asarray(_shared(candidates, examples, context) >= 1, dtype=np.float64)


@final
@dataclass(frozen=True, kw_only=True)
class Cells(OfRows):
    """Share of a private row's cells that the paired claim has right, per row."""

    card = Card(summary="share of the private cells that are claimed right, after pairing rows")
    wording = rate_wording(
        label="cells read",
        sentence="read {} of the cells of the private rows",
        explanation="Share of the cells of the private rows that the paired claims have right: higher is "
        "worse. Guessing reaches what common values give away, often more than half.",
        severity="images",
        order=67,
    )

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> NDArray[np.float64]:
        share: NDArray[np.float64] = right_cells("row_cells", claimed, truth, context).mean(1)
        return share

    def compare(self, left: Tensor, right: Tensor, *, context: ScoreContext) -> NDArray[np.float64]:
        share: NDArray[np.float64] = (
            rows_of("row_cells", left, right, context).cells(left, right).cpu().numpy().mean(1)
        )
        return share

    def pairwise(
        self, candidates: Tensor, examples: Tensor, *, context: ScoreContext
    ) -> NDArray[np.float64] | None:
        return _shared(candidates, examples, context)


def _shared(candidates: Tensor, examples: Tensor, context: ScoreContext) -> NDArray[np.float64]:
    """Share of the cells that each of R rows has in common with each of N others, (R, N)."""
    rows = context.inputs
    assert isinstance(rows, Row)  # only claims about rows are compared
    left, right = rows.decode(candidates), rows.decode(examples.to(candidates.device))
    same = torch.zeros(len(left), len(right), dtype=torch.int64)
    for i, column in enumerate(rows.columns):
        same += (column.distance(left[:, i, None], right[None, :, i]) == 0).cpu()
    return np.asarray(same.double().numpy() / len(rows.columns))


@final
@dataclass(frozen=True, kw_only=True)
class RowLabelsRight(Hits):
    """1 for every private row whose label is claimed right, else 0; rows and claims are in the same order.

    The null has the rows, too, and predicts their labels from public rows: a linear model of the entries.
    """

    card = Card(summary="share of the private rows, which the adversary has, whose label it claims right")
    wording = rate_wording(
        label="labels of rows right",
        sentence="read the label of {} of the rows that it has",
        explanation="Share of the rows whose label the other party read right: higher is worse. A model of "
        "public rows reaches what the columns give away by themselves.",
        severity="labels",
        order=395,
    )
    claim: ClassVar[str] = "row_labels"
    reads: ClassVar[str] = "labels"
    against: ClassVar[str] = "examples"
    null_name: ClassVar[str] = "a model of public rows"

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> NDArray[np.float64]:
        del context
        said = np.asarray(claimed.cpu().numpy(), dtype=np.float64)
        size = min(len(said), len(truth))  # another victim may have more rows
        right = np.zeros(len(truth))
        right[:size] = said[:size] == truth[:size, -1].cpu().numpy()
        return right

    def blind(
        self, claimed: Tensor, truth: Tensor, auxiliary: Batch | None, *, context: ScoreContext
    ) -> NDArray[np.float64] | None:
        del claimed, context
        if auxiliary is None or not len(auxiliary):
            return None
        public, rows = (
            np.concatenate([part.double().cpu().numpy(), np.ones((len(part), 1))], 1)
            for part in (auxiliary.inputs, truth[:, :-1])
        )
        labels = np.asarray(auxiliary.labels.numpy(), dtype=np.float64)
        penalty = PENALTY * len(public) * np.eye(public.shape[1])
        weights = np.linalg.solve(public.T @ public + penalty, public.T @ (2 * labels - 1))
        return np.asarray((rows @ weights > 0) == (truth[:, -1].cpu().numpy() == 1), dtype=np.float64)


def rows_of(name: str, claimed: Tensor, truth: Tensor, context: ScoreContext) -> Row:
    """The table of which claimed and true rows are.

    Raises:
        BadValue: the context describes no table, or these are no rows of it.
    """
    rows = context.inputs
    if not isinstance(rows, Row):
        raise BadValue(
            f"metric '{name}'",
            needs="rows of a table",
            got="no table" if rows is None else rows.nouns,
            fix="choose metrics of these data: glasshouse list metrics",
        )
    for word, side in (("claimed", claimed), ("true", truth)):
        rows.check(side, subject=f"metric '{name}', {word} rows")
    return rows


def right_cells(name: str, claimed: Tensor, truth: Tensor, context: ScoreContext) -> NDArray[np.bool_]:
    """Which cells of the private rows (B, F) the paired claims (R, F) have right, (B, C).

    Raises:
        BadValue: the context describes no table, or these are no rows of it.
    """
    rows = rows_of(name, claimed, truth, context)
    right = np.zeros((len(truth), len(rows.columns)), dtype=np.bool_)
    if len(claimed):
        true, said = rows.decode(truth), rows.decode(claimed.to(truth.device))
        pairing = assign(rows.between(true[:, None], said[None]).cpu().numpy())
        have = np.flatnonzero(pairing != UNMATCHED)
        paired = said[torch.from_numpy(pairing[have]).to(said.device)]
        right[have] = rows.same_cells(paired, true[torch.from_numpy(have).to(true.device)]).cpu().numpy()
    return right
