"""Newton's sums: counts and class sums at any size, whole rows of small sites, with a certificate.

At coefficients of 0 every p is ½, so that 4 H = Σ x̃ x̃ᵀ and G = Σ (y − ½) x̃ with x̃ = (1, x): n, the sum of
every column and the sums of the rows of label 1 follow exactly. The rows lie in the range of 4 H; while there
are fewer of them than independent entries of a row, the search by categories (:mod:`.onehot`) lists all valid
rows of that space. Non-negative least squares Σ c x̃ x̃ᵀ = 4 H says which of them are there and how often, and
since the rows are independent, G then gives every label.

Source: the sums are NVIDIA FLARE's hello-lr; the reading and its certificate are our own. A certificate
needs that the search ended, that no other whole multiplicities of the candidates fit (:func:`only_these`),
and whole multiplicities and labels.

Breaks when: coefficients are not 0 (refused), or the site has as many rows as a row has independent entries:
then counts and sums remain.

Shape letters: R candidates, F entries of an encoded row, D = F + 1.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, final

import numpy as np
import torch
from scipy.optimize import linprog, nnls

from glasshouse.attacks.base import Claim, Labels, Needs, Reconstruction
from glasshouse.attacks.parts.documents import as_certain, needs, received, table_in
from glasshouse.attacks.rows.onehot import Floats, rows_in
from glasshouse.attacks.tabular import Certainty, CertifiedRows, Fact, What, facts_of
from glasshouse.errors import Inapplicable
from glasshouse.formats.records import Newton
from glasshouse.modalities.row import Row
from glasshouse.registry import Card, Offer
from glasshouse.rng import Rng
from glasshouse.transcript.view import View

SUBJECT: Final = "attack 'newton_rows'"
RANK: Final = 1e-11
"""Share of the largest eigenvalue of the sum of squares above which an eigenvalue is a row's, in float64."""
SHARP: Final = 1e-16
"""Error of float64 on the largest eigenvalue."""
SHARE: Final = 1e-3
"""Distance of a row's share of the sums from 1 up to which it may be there."""
CHUNK: Final = 16_384
"""Candidates whose shares are computed at a time."""
CANDIDATES: Final = 800
"""Candidates above which they are more than the independent entries of small sites' sums."""
INDEPENDENT: Final = 1e-7
"""Smallest eigenvalue of the Gram matrix of the rows found, normed, at which they are independent."""
EQUAL: Final = 1e-6
"""Largest error of the sums on their largest one: float32 entries of whole numbers are exact to 1e-7."""
FITS: Final = 1e-5
"""Share of the sums that may be left over: a number that is off by more would not fit."""
HALF: Final = 0.5
"""Rows beside those found from which there may be another one."""
WHOLE: Final = 1e-3
"""Distance from a whole number: least squares in float64 leave 1e-8."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Moments:
    """What the sums at coefficients of 0 say.

    Attributes:
        count: rows.
        squares: Σ x̃ x̃ᵀ, (D, D).
        positive: Σ x̃ over the rows of label 1, (D,).
    """

    count: int
    squares: Floats
    positive: Floats


@final
@dataclass(frozen=True, kw_only=True)
class NewtonRows:
    """Rows from the sums of one Newton step. No iterations, no randomness, no prior."""

    card: ClassVar[Card] = Card(
        title="Newton's sums",
        summary="counts and class sums from gradient and Hessian of logistic regression; rows of small sites",
        source="our own; the sums are those of NVIDIA FLARE, hello-lr",
        claims=("facts", "labels", "certified_rows", "reconstruction"),
        threat="server, sees single documents",
        offers=(Offer(strength=0.9, seconds=5),),
        control={
            "setting": "a Newton step on 4 rows of a made-up clinic",
            "scenario": {
                "data": {"source": "clinic", "examples": 4, "auxiliary": 300},
                "model": {"name": "coefficients"},
                "federation": {"protocol": "newton", "batch_size": 4},
            },
            "metric": "rows_certified",
        },
    )
    needs: ClassVar[Needs] = needs(protocols=frozenset({"newton"}))
    budget: ClassVar[None] = None

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """Counts, sums, and the rows where they are proved.

        Raises:
            Inapplicable: no such sums, or coefficients that are not 0.
        """
        del rng
        got, table = received(view, subject=SUBJECT), table_in(view, subject=SUBJECT)
        moments = moments_of(got.document, table)
        rows, labels = read_rows(moments, table)
        inputs = torch.from_numpy(rows).float()
        inputs = table.project(inputs) if len(inputs) else inputs.reshape(0, *table.shape)
        level = as_certain(view, Certainty.PROVED)
        levels = torch.full((len(inputs),), float(level))
        positives = round(float(moments.positive[0]))
        return (
            facts_of(got.about, [replace(fact, certainty=level) for fact in _facts(moments, table)]),
            Labels(about=got.about, counts=torch.tensor([moments.count - positives, positives])),
            Reconstruction(
                about=got.about, inputs=inputs, labels=torch.from_numpy(labels), confidence=levels
            ),
            CertifiedRows.proved(got.about, inputs if level == Certainty.PROVED else inputs[:0]),
        )


def moments_of(document: object, table: Row) -> Moments:
    """The moments behind a document.

    Raises:
        Inapplicable: no sums of a Newton step at coefficients of 0, of another table, or of weighted rows.
    """
    size = table.shape[0] + 1
    if not isinstance(document, Newton) or len(document.theta) != size or document.theta.any():
        got = (
            "another document" if not isinstance(document, Newton) else f"{len(document.theta)} coefficients"
        )
        raise Inapplicable(
            SUBJECT,
            needs=f"sums of a Newton step at {size} coefficients of 0",
            got=got + (", not all 0" if isinstance(document, Newton) and document.theta.any() else ""),
            fix="set audit.rounds = [0]; later steps weigh every row by its own p",
        )
    squares = 4 * document.hessian
    positive = document.gradient + squares[0] / 2
    numbers = np.array([squares[0, 0], positive[0]])
    if (np.abs(numbers - np.round(numbers)) > WHOLE).any() or round(float(numbers[0])) < 1:
        raise Inapplicable(
            SUBJECT,
            needs="whole numbers of rows and positives",
            got=f"{numbers[0]:.4g} and {numbers[1]:.4g}",
            fix="rows have weights, or the sums were changed",
        )
    return Moments(count=round(float(numbers[0])), squares=squares, positive=positive)


def _facts(moments: Moments, table: Row) -> list[Fact]:
    """Counts of rows, of labels, of every category with each label, and sums of numbers."""
    n, sums = moments.count, moments.squares[0]
    facts = [Fact(what=What.COUNT, value=float(n))]
    facts.append(Fact(what=What.COUNT, value=float(round(float(moments.positive[0]))), label=1))
    for column, place in table.places():
        for entry in range(place.start, place.start + column.entries):
            both, ones = float(sums[entry + 1]), float(moments.positive[entry + 1])
            if column.numeric:
                facts.append(Fact(what=What.SUM, value=both, column=entry, error=1e-5))
                facts.append(Fact(what=What.SUM, value=ones, column=entry, label=1, error=1e-5))
                continue
            for value, label in ((round(ones), 1), (round(both) - round(ones), 0)):
                facts.append(
                    Fact(what=What.COUNT, value=float(value), column=entry, low=0.5, high=1.0, label=label)
                )
    return facts


def read_rows(moments: Moments, table: Row) -> tuple[Floats, np.ndarray]:
    """The rows (R, F) and their labels, each as often as it occurs; none where the certificate fails."""
    nothing = np.zeros((0, table.shape[0])), np.zeros(0, dtype=np.int64)
    candidates = candidates_of(moments, table)
    if candidates is None:
        return nothing
    atoms = np.concatenate([np.ones((len(candidates), 1)), candidates], 1)
    # A candidate's matrix in coordinates of the range: r (r + 1) / 2 numbers instead of D².
    space = np.linalg.svd(atoms, full_matrices=False)[2][: np.linalg.matrix_rank(atoms)]
    upper = np.triu_indices(len(space))
    inner = atoms @ space.T
    columns = np.stack([np.outer(row, row)[upper] for row in inner], 1)
    target = (space @ moments.squares @ space.T)[upper]
    times, rest = nnls(columns, target)
    counts = np.round(times).astype(np.int64)
    if rest > FITS * np.linalg.norm(target) or np.abs(times - counts).max() > WHOLE:
        return nothing
    # What the candidates do not span is no part of the target, and must be nothing.
    whole = (atoms * counts[:, None]).T @ atoms
    if np.abs(whole - moments.squares).max() > EQUAL * np.abs(moments.squares).max():
        return nothing
    there = counts > 0
    if counts.sum() != moments.count or not only_these(columns, target, there):
        return nothing
    # Rows that occur are independent, so that their class sums give the number of positives of each.
    positives, _, rank, _ = np.linalg.lstsq(atoms[there].T, moments.positive, rcond=None)
    ones: Any = np.round(positives).astype(np.int64)
    sure = np.abs(positives - ones).max() <= WHOLE and (ones >= 0).all() and (ones <= counts[there]).all()
    if rank < there.sum() or not sure:
        return nothing
    labels = [[1] * one + [0] * (total - one) for one, total in zip(ones, counts[there], strict=True)]
    return np.repeat(candidates[there], counts[there], 0), np.concatenate(labels).astype(np.int64)


def candidates_of(moments: Moments, table: Row) -> Floats | None:
    """All rows (R, F) that may be among those of the sums; None: they are not listed, or too many.

    Of rows that occur c times, and are independent of all others, xᵀ (Σ x xᵀ)⁺ x is 1 / c: of any row that is
    there it is at most 1, and just 1 where the rank is the number of rows.
    """
    values, vectors = np.linalg.eigh(moments.squares[1:, 1:])
    signal = values > RANK * values[-1]
    basis, values, noise = vectors[:, signal].T, values[signal], np.abs(values[~signal])
    if not len(basis) or len(basis) > moments.count:
        return None  # of rows that are zero in all entries the counts say everything
    error = 2 * max(noise.max(initial=0), SHARP * values[-1]) / values[0]
    # In these coordinates the length of a row is the root of its share.
    spanned = rows_in(np.sqrt(values)[:, None] * basis, table, error=error, longest=1 + SHARE)
    if not spanned.finished or not len(spanned):
        return None
    kept = []
    for start in range(0, len(spanned), CHUNK):
        rows = spanned.rows(slice(start, start + CHUNK))
        share = ((rows @ basis.T) ** 2 / values).sum(1)
        fits = share < 1 + SHARE if len(basis) < moments.count else np.abs(share - 1) < SHARE
        kept.append(rows[fits])
    rows = np.concatenate(kept)
    rows = table.project(torch.from_numpy(rows).float()).double().numpy()
    return rows if 0 < len(rows) <= CANDIDATES else None


def only_these(columns: Floats, target: Floats, there: np.ndarray) -> bool:
    """Whether no other whole multiplicities of the candidates give the target than of those that are there.

    Others would hold at least one row beside these, or these in other numbers. The first is excluded where
    a linear program finds no more than half a row beside them, the second by their independence.
    """
    normed = columns[:, there] / np.linalg.norm(columns[:, there], axis=0)
    if np.linalg.eigvalsh(normed.T @ normed)[0] < INDEPENDENT:
        return False
    if there.all():
        return True
    error = EQUAL * float(np.abs(target).max())
    bounds = np.concatenate([target + error, error - target])
    most = linprog(-(~there).astype(float), A_ub=np.concatenate([columns, -columns]), b_ub=bounds)
    return bool(most.status == 0 and most.fun is not None and -most.fun < HALF)
