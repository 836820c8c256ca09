"""Noisy leaves: rows per joint cell and label of private trees, by least squares under the noise.

The adaptive attack on ``dp_bagging``, whose noise it is told by the terms. The sums of every leaf are linear
in the numbers of rows per joint cell and label, and their errors are Gaussian with a known deviation; public
rows say how many to expect, with the deviation of a count. The numbers of largest posterior are those of a
non-negative least-squares problem, rounded so that they add up to the announced number.

Source: own; the equations are those of :mod:`glasshouse.attacks.trees.programs`, after TimberStrike, PETS
2025, arXiv:2506.07605.

Breaks when: trees stand on top of others' trees. Under much noise the claim is that of public rows.

Shape letters: C cells, L leaves of a tree.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, final

import numpy as np
import torch
from annotated_types import Ge, Le
from scipy.optimize import nnls
from scipy.sparse import csr_array

from glasshouse.attacks.base import Claim, Labels, Needs
from glasshouse.attacks.parts.documents import first_trees, needs
from glasshouse.attacks.tabular import Certainty, leaves_of
from glasshouse.attacks.trees.algebra import Counted, Floats, Ints, Sums, sigmoid
from glasshouse.attacks.trees.boxes import Background, Cells, public_in, refine, start
from glasshouse.attacks.trees.joint_cells import background_of
from glasshouse.attacks.trees.private.noise import Noise, noise_of
from glasshouse.formats.records import TreeEnsemble
from glasshouse.limits import Fix, check_ranges
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.transcript.view import View

SUBJECT: Final = "attack 'noisy_leaves'"
PRIVATE: Final = frozenset({"dp_bagging"})


@final
@dataclass(frozen=True, kw_only=True)
class NoisyLeaves:
    """Cells by least squares.

    Args:
        trees: whose joint cells are counted, from the first one on.
    """

    card: ClassVar[Card] = Card(
        title="Noisy leaves",
        summary="rows per joint cell and label of differentially private trees, by least squares",
        source="our own; equations after TimberStrike, PETS 2025, arXiv:2506.07605",
        claims=("leaves", "labels"),
        threat="server, sees single documents, knows the noise",
        control={
            "setting": "two trees of depth 3 with hardly any noise on 60 rows of a made-up clinic",
            "scenario": {
                "data": {"source": "clinic", "examples": 60, "auxiliary": 600},
                "model": {"name": "boosted_trees"},
                "federation": {
                    "protocol": "dp_bagging",
                    "batch_size": 60,
                    "options": {"trees": 2, "max_depth": 3, "noise_multiplier": 0.01},
                },
            },
            "metric": "leaves_exact",
        },
    )
    needs: ClassVar[Needs] = needs("auxiliary", protocols=PRIVATE)
    budget: ClassVar[None] = None

    trees: Annotated[int, Ge(1), Le(3), Fix("one to three: cells multiply")] = 1

    def __post_init__(self) -> None:
        check_ranges(self, SUBJECT)

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """Counts per joint cell and label, all of them guesses.

        Raises:
            Inapplicable: no trees that a client boosted from nothing.
        """
        del rng  # deterministic
        got, trees = first_trees(view, subject=SUBJECT)
        table, noise = view.terms.architecture.inputs, noise_of(view.terms)
        background = background_of(table, view.grants.auxiliary)
        cells, counts = count_noisy(
            trees, noise, rows=got.update.examples, first=self.trees, background=background
        )
        level = np.full(counts.shape, int(Certainty.GUESSED))
        return (
            leaves_of(got.about, cells.lower, cells.upper, counts, level, within=table.range),
            Labels(about=got.about, counts=torch.from_numpy(counts.sum(0))),
        )


def count_noisy(
    trees: TreeEnsemble, noise: Noise, *, rows: int, first: int, background: Background
) -> tuple[Cells, Ints]:
    """The joint cells of the first trees, and the likeliest rows of each label in them, (C, 2)."""
    each = [noise.sums(trees, t) for t in range(min(first, len(trees.trees)))]
    values = [trees.trees[t].value[s.leaves] for t, s in enumerate(each)]
    nobody = Counted(sums=each[0], counts=np.zeros((len(values[0]), 2), np.int64), base=noise.base)
    cells = start(nobody, values[0], background.possible)
    for sums, value in zip(each[1:], values[1:], strict=True):
        cells = refine(cells, sums, value, background.possible)
    public = public_in(cells, background) + 0.5
    expected = (rows * public / public.sum()).T.ravel()
    matrix, wanted = _equations(cells, each, noise)
    # A count has about its own expectation as variance; the announced number is exact.
    spread = 1 / np.sqrt(expected + 0.5)
    exact = np.full((1, len(expected)), 1e3)
    every = np.concatenate([matrix, np.diag(spread), exact])
    found, _ = nnls(every, np.concatenate([wanted, spread * expected, [1e3 * rows]]), maxiter=10**5)
    return cells, _whole(found, rows).reshape(2, -1).T


def _equations(cells: Cells, each: list[Sums], noise: Noise) -> tuple[Floats, Floats]:
    """Sums of all leaves in rows of label 0 of all cells, then of label 1, each on its noise."""
    size, blocks, wanted = len(cells), [], []
    cell = np.arange(size)
    for tree, sums in enumerate(each):
        p, at = sigmoid(cells.margins[:, tree]), cells.paths[:, tree]
        where = (np.concatenate([at, at]), np.concatenate([cell, size + cell]))
        shape = (len(sums.leaves), 2 * size)
        h = p * (1 - p)
        for part, told, spread in (
            (np.concatenate([p, p - 1]), sums.gradient, noise.gradient),
            (np.concatenate([h, h]), sums.hessian, noise.hessian),
        ):
            blocks.append(csr_array((part / spread, where), shape=shape).toarray())
            wanted.append(told / spread)
    return np.concatenate(blocks), np.concatenate(wanted)


def _whole(found: Floats, rows: int) -> Ints:
    """Whole numbers that add up to ``rows``: largest remainders first."""
    found = found * rows / max(found.sum(), 1e-9)
    whole = np.floor(found).astype(np.int64)
    rest = rows - int(whole.sum())
    whole[np.argsort(whole - found, kind="stable")[:rest]] += 1
    return whole
