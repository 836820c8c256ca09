"""Joint cells: in which intersection of leaves each row of a client lies, and rows from public ones.

Source: Kotsiantis et al. 2025, "TimberStrike", PETS, arXiv:2506.07605; how we differ stands in
:mod:`.cells`. Rows are completed by public rows that lie in the same box, so that what they have above a
guess is the message's.

Breaks when: the solver does not end, beyond some three trees of some hundred rows: then the claim is a guess.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Final, final

import numpy as np
import torch
from torch import Tensor

from glasshouse.attacks.base import Claim, Needs, Reconstruction
from glasshouse.attacks.budget import Budget
from glasshouse.attacks.parts.documents import ON_CLINIC, Received, as_certain, first_trees, needs
from glasshouse.attacks.tabular import Certainty, leaves_of
from glasshouse.attacks.trees.algebra import Configuration, check_gains, check_total, count_rows, sums_of
from glasshouse.attacks.trees.boxes import Background, Possible
from glasshouse.attacks.trees.cells import Solution, count_cells
from glasshouse.attacks.trees.programs import Effort
from glasshouse.errors import Inapplicable
from glasshouse.formats.records import TreeEnsemble
from glasshouse.modalities.base import Modality
from glasshouse.modalities.row import Row
from glasshouse.registry import Card, Offer
from glasshouse.rng import Rng
from glasshouse.transcript.view import View
from glasshouse.wire import Batch, Terms

SUBJECT: Final = "attack 'joint_cells'"


@final
@dataclass(frozen=True, kw_only=True)
class JointCells:
    """Cells by integer programs, rows by public data.

    Args:
        effort: of the search.
    """

    card: ClassVar[Card] = Card(
        title="Joint cells",
        summary="the joint cell and label of every row by integer programs on the sums of all leaves",
        source="after TimberStrike, PETS 2025, arXiv:2506.07605",
        claims=("leaves", "reconstruction"),
        threat="server, sees single documents",
        control={**ON_CLINIC, "metric": "leaves_exact"},
        offers=(Offer(strength=0.7, seconds=20),),
    )
    needs: ClassVar[Needs] = needs("auxiliary")

    effort: Effort = field(default_factory=Effort)

    @property
    def budget(self) -> Budget:
        """Integer programs: one for what fits, one for what is nearest, and at most those that certify."""
        return Budget(unit="programs", amount=2 + self.effort.certify)

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """Counts per joint cell and label; with auxiliary data also rows.

        Raises:
            Inapplicable: as ``leaf_algebra``.
        """
        got, trees = first_trees(view, subject=SUBJECT)
        table = view.terms.architecture.inputs
        public = view.grants.auxiliary
        solution = solve_cells(
            trees,
            view.terms,
            announced=got.update.examples,
            effort=self.effort,
            subject=SUBJECT,
            public=public,
        )
        unique = as_certain(view, Certainty.UNIQUE)
        level = np.where(solution.certain, int(unique), int(Certainty.GUESSED))
        cells, within = solution.cells, table.range
        leaves = leaves_of(got.about, cells.lower, cells.upper, solution.counts, level, within=within)
        return (leaves,) if public is None else (leaves, complete(got, solution, public, rng.child("rows")))


def solve_cells(
    trees: TreeEnsemble, terms: Terms, *, announced: int, effort: Effort, subject: str, public: Batch | None
) -> Solution:
    """Rows of each label per joint cell of a client's first trees, under the terms' configuration.

    ``announced``: rows of the client; 0: it says nothing. Of all numbers that fit, those nearest to
    ``public`` rows.

    Raises:
        Inapplicable: as ``leaf_algebra``.
    """
    if unread := [t for t, tree in enumerate(trees.trees) if None in tree.categories.values()]:
        raise Inapplicable(
            subject,
            needs="splits that the document determines",
            got=f"tree {unread[0]} splits by a statistic of classes, or of several columns",
            fix="leaf_algebra adds the leaves of such a split up",
        )
    how = Configuration.of(terms.options, subject=subject, trees=trees)
    counted = count_rows(trees, how, subject=subject)
    check_total(counted, trees, announced=announced, subject=subject)
    later = [sums_of(trees, t, how) for t in range(1, len(trees.trees))]
    for t, sums in enumerate(later, 1):
        check_gains(trees, t, sums, how, subject=subject)
    return count_cells(
        trees,
        counted,
        later,
        reg_lambda=how.reg_lambda,
        effort=effort,
        background=background_of(terms.architecture.inputs, public),
    )


def background_of(inputs: Modality, public: Batch | None) -> Background:
    """What is known of rows of a table, and of these."""
    possible = possible_in(inputs) if isinstance(inputs, Row) else None
    if public is None:
        return Background(possible=possible)
    labels = np.asarray(public.labels.cpu().numpy(), dtype=np.int64)
    return Background(possible=possible, rows=public.inputs.cpu().double().numpy(), labels=labels)


def possible_in(table: Row) -> Possible:
    """Which boxes hold a valid row: one 1 in every category, a whole number between the ends."""

    def possible(lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
        good = np.ones(len(lower), dtype=np.bool_)
        for column, place in table.places():
            low, high = lower[:, place], upper[:, place]
            if column.kind == "categorical":
                # An entry must be 1 where 0 is excluded, and cannot be 1 where the box ends at or before it.
                must, can = (low > 0).sum(1), (high > 1).any(1)
                good &= (must <= 1) & can & ~((low > 0) & (high <= 1)).any(1)
            elif column.kind in ("integer", "binary") and not column.missing:
                steps = column.high - column.low if column.kind == "integer" else 1.0
                # One step of float32 may lie between a whole number's entry and a threshold.
                first = np.ceil(np.clip(low[:, 0], 0, 1) * steps - 1e-4)
                good &= first / steps < high[:, 0] + 1e-7
        return good

    return possible


def complete(got: Received, solution: Solution, public: Batch, rng: Rng) -> Reconstruction:
    """A public row for every row of every cell: one that lies in its box, of its label where there is one.

    Cells in which no public row lies take the public row that violates the fewest ends.
    """
    rows, labels = public.inputs.cpu().double().numpy(), public.labels.cpu().numpy()
    draws = np.random.default_rng(rng.seed())
    picked, said, confidence = [], [], []
    for cell, label in np.argwhere(solution.counts > 0):
        outside = (rows < solution.cells.lower[cell]) | (rows >= solution.cells.upper[cell])
        away = outside.sum(1) + 0.5 * (labels != label)
        nearest = draws.permutation(np.flatnonzero(away == away.min()))
        for turn in range(int(solution.counts[cell, label])):
            picked.append(int(nearest[turn % len(nearest)]))
            said.append(int(label))
            confidence.append(1.0 + float(solution.certain[cell, label]))
    chosen: Tensor = public.inputs[torch.tensor(picked, dtype=torch.int64)]
    return Reconstruction(
        about=got.about, inputs=chosen, labels=torch.tensor(said), confidence=torch.tensor(confidence)
    )
