"""Who holds a known row, and what its unknown cell is, from the numbers of rows in joint cells.

A client has n rows, k of them in the joint cell and with the label of the row in question, where a share q of
public rows lies. If the client holds the row, k - 1 of the other n - 1 rows are there, else k of n, so that

    P(k | it holds the row) / P(k | it does not) = Bin(k - 1; n - 1, q) / Bin(k; n, q) = k / (n q).

Of a row that the client is known to hold, the same ratio at each possible value of an unknown cell, times
what a public model says of that value given the other cells, is the posterior of that cell.

Source: our own; the cells are those of :mod:`.joint_cells`. Half a row is added to both sides of the ratio,
because counts without a certificate may be wrong.

Breaks when: as ``joint_cells``. Where many people share the cell, k is about n q and says nothing.

Shape letters: R rows, F entries of an encoded row, N public rows.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Final, final

import numpy as np

from glasshouse.attacks.base import Claim, Needs
from glasshouse.attacks.budget import Budget
from glasshouse.attacks.parts.documents import BOOSTED
from glasshouse.attacks.trees.algebra import Floats, Ints
from glasshouse.attacks.trees.cells import Solution
from glasshouse.attacks.trees.joint_cells import solve_cells
from glasshouse.attacks.trees.known_row import half_hold_it, needs_row, score_clients
from glasshouse.attacks.trees.programs import Effort
from glasshouse.examples import Batch
from glasshouse.formats.records import TreeEnsemble
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.transcript.view import View
from glasshouse.wire import Update

SUBJECT: Final = "attack 'cell_membership'"
HALF: Final = 0.5
"""Rows added to the number that is counted and to the one that is expected."""


@final
@dataclass(frozen=True, kw_only=True)
class CellMembership:
    """Score clients by how many more rows than expected lie where the known row lies.

    Args:
        effort: of the search for cells.
    """

    card: ClassVar[Card] = Card(
        title="Cell membership",
        summary="who holds a known row, by the number of rows in its joint cell of the trees",
        source="our own",
        claims=("clients",),
        threat="server, sees single documents, knows a row",
        control=half_hold_it(
            "two trees of depth 4", "xgb_bagging", {"trees": 2, "max_depth": 4, "min_child_weight": 0.5}
        ),
    )
    needs: ClassVar[Needs] = needs_row(BOOSTED)

    effort: Effort = field(default_factory=lambda: Effort(certify=0))

    @property
    def budget(self) -> Budget:
        """Integer programs of each client: one for what fits, one for what is nearest."""
        return Budget(unit="programs", amount=2)

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """One claim about the first round; clients that sent nothing are no members.

        Raises:
            Inapplicable: as ``leaf_algebra``.
        """
        del rng  # deterministic
        challenge, auxiliary = view.grants.challenge, view.grants.auxiliary
        assert challenge is not None  # needs.grants
        assert auxiliary is not None
        row, label = _floats(challenge), _labels(challenge)

        def score(trees: TreeEnsemble, update: Update) -> float:
            solved = solve_cells(
                trees,
                view.terms,
                announced=update.examples,
                effort=self.effort,
                subject=SUBJECT,
                public=auxiliary,
            )
            return float(log_odds(solved, row, label, auxiliary).mean())

        return (score_clients(view, score, nobody=float(np.log(HALF / (1 + HALF))), subject=SUBJECT),)


def log_odds(solved: Solution, rows: Floats, labels: Ints, public: Batch) -> Floats:
    """The log of k / (n q) of each of ``rows`` (R, F), with half a row added to k and to n q, (R,).

    Above 0: the client holds more such rows than its size and public rows let expect.
    """
    total, known = int(solved.counts.sum()), _labels(public)
    lower, upper = solved.cells.lower, solved.cells.upper
    others, found = _floats(public), np.zeros(len(rows))
    for r, (row, label) in enumerate(zip(rows, labels.tolist(), strict=True)):
        cell = np.flatnonzero(((row >= lower) & (row < upper)).all(1))
        counted = int(solved.counts[cell, label].sum())
        within = np.zeros(len(others), dtype=np.bool_)
        for c in cell:
            within |= ((others >= lower[c]) & (others < upper[c])).all(1) & (known == label)
        found[r] = np.log((counted + HALF) / (total * within.mean() + HALF))
    return found


def _floats(batch: Batch) -> Floats:
    return np.asarray(batch.inputs.cpu().double().numpy())


def _labels(batch: Batch) -> Ints:
    return np.asarray(batch.labels.cpu().numpy(), dtype=np.int64)
