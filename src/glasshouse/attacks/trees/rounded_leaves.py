"""Rounded leaves: rows per leaf and label of a client's first tree from its leaf values alone.

The adaptive attack on files that are stripped to what predicts, and whose leaf values are rounded
(``strip_trees``); it is told the number of digits. A leaf of n rows, n₁ of them of label 1, has the value
v = −η (n p − n₁) / (n p (1 − p) + λ) with the public base score p, η and λ. A rounded value leaves a list of
pairs (n, n₁) per leaf; over all leaves they add up to the announced number of rows, and n₁ to the share of
positives where the base score is one. A dynamic program over the leaves counts the data sets that are left,
says which pairs are the only ones, and finds the likeliest data set under public rows.

Source: own; the values are those of Chen & Guestrin 2016, arXiv:1603.02754, equation 5.

Breaks when: as ``leaf_algebra``. Coarse values leave many data sets: the claim is then that of public rows
which fit, and nothing is unique.

Shape letters: L leaves, K pairs of one leaf.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, final

import numpy as np
import torch
from annotated_types import Ge, Le
from numpy.typing import NDArray
from scipy.special import gammaln

from glasshouse.attacks.base import Claim, Labels, Needs
from glasshouse.attacks.parts.documents import ON_CLINIC, as_certain, first_trees, needs
from glasshouse.attacks.tabular import Certainty, leaves_of
from glasshouse.attacks.trees.algebra import Configuration, Floats, Ints, Sums, sums_of
from glasshouse.attacks.trees.boxes import Background, Cells, public_in
from glasshouse.attacks.trees.joint_cells import background_of
from glasshouse.errors import Inapplicable
from glasshouse.formats.records import TreeEnsemble
from glasshouse.limits import Fix, check_ranges
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.transcript.view import View

SUBJECT: Final = "attack 'rounded_leaves'"
FLOAT: Final = 3e-7
"""Relative error of a value that XGBoost stores in float32."""
ROWS: Final = 2_000
"""Largest client: the program's table has a cell for every number of rows and of positives."""


@final
@dataclass(frozen=True, kw_only=True)
class RoundedLeaves:
    """Counts from leaf values that are known to some digits.

    Args:
        digits: decimals that leaf values were rounded to.
    """

    card: ClassVar[Card] = Card(
        title="Rounded leaves",
        summary="rows per leaf and label from the rounded leaf values of a stripped file",
        source="our own; values as in Chen & Guestrin 2016, arXiv:1603.02754",
        claims=("leaves", "labels"),
        threat="server, sees single documents, is told the digits",
        control={**ON_CLINIC, "metric": "leaves_exact", "fits": {"digits": 17}},
    )
    needs: ClassVar[Needs] = needs("auxiliary")
    budget: ClassVar[None] = None

    digits: Annotated[int, Ge(0), Le(17), Fix("those of strip_trees")] = 3

    def __post_init__(self) -> None:
        check_ranges(self, SUBJECT)

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """The likeliest counts; unique where no other data set gives the file.

        Raises:
            Inapplicable: the base score is not known, the client is too large, or no counts fit.
        """
        del rng  # deterministic
        got, trees = first_trees(view, subject=SUBJECT)
        how = Configuration.of(view.terms.options, subject=SUBJECT, trees=trees)
        table, smallest = view.terms.architecture.inputs, view.terms.options.get("min_child_weight", 1.0)
        told = Told(
            rows=got.update.examples,
            digits=self.digits,
            smallest=float(smallest),
            shared=not view.terms.options.get("base_score", 0.0),
        )
        found = count_rounded(trees, how, told, background_of(table, view.grants.auxiliary))
        unique = as_certain(view, Certainty.UNIQUE)
        level = np.where(found.only[:, None], int(unique), int(Certainty.GUESSED))
        sums = found.sums
        return (
            leaves_of(
                got.about, sums.lower, sums.upper, found.counts, np.repeat(level, 2, 1), within=table.range
            ),
            Labels(about=got.about, counts=torch.from_numpy(found.counts.sum(0))),
        )


@final
@dataclass(frozen=True, kw_only=True)
class Told:
    """What is known beside the file.

    Attributes:
        rows: of the client, announced.
        digits: of leaf values.
        smallest: sum of second derivatives that a leaf has at least (min_child_weight).
        shared: the base score is the client's share of positives.
    """

    rows: int
    digits: int
    smallest: float
    shared: bool


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Rounded:
    """Counts that fit rounded leaves.

    Attributes:
        sums: boxes of the leaves.
        counts: of the likeliest data set, rows of label 0 and 1, (L, 2).
        only: no other pair occurs in a data set that fits, (L,).
        data_sets: number of counts of all leaves that fit.
    """

    sums: Sums
    counts: Ints
    only: NDArray[np.bool_]
    data_sets: float


def count_rounded(trees: TreeEnsemble, how: Configuration, told: Told, background: Background) -> Rounded:
    """Counts of the first tree's leaves from their values.

    Raises:
        Inapplicable: as :meth:`RoundedLeaves.run`.
    """
    if trees.objective != "logistic" or not trees.trees or trees.base is None or not 0 < trees.base < 1:
        raise _refusal("a logistic model with a tree and a base score", f"{trees.objective}, {trees.base}")
    if not 0 < told.rows <= ROWS:
        raise _refusal(f"at most {ROWS:,} rows", f"{told.rows:,}")
    sums, base = sums_of(trees, 0, how), trees.base
    positives = round(told.rows * base) if told.shared else None
    pairs = [fitting_pairs(v, base, how, told) for v in trees.trees[0].value[sums.leaves].tolist()]
    if (sums.hessian > 0).all():  # strip_trees writes zeros, other files nothing
        # Where the file states H as well, a pair must have it: with weights one may fit the value by chance.
        half = 0.5 * base * (1 - base)
        pairs = [
            some[np.abs(some[:, 0] * base * (1 - base) - stated) < half]
            for some, stated in zip(pairs, sums.hessian.tolist(), strict=True)
        ]
    if (sums.count >= 0).all():
        pairs = [some[some[:, 0] == n] for some, n in zip(pairs, sums.count.tolist(), strict=True)]
    if any(not len(some) for some in pairs):
        raise _refusal("leaf values that whole numbers of rows have", "a leaf without any")
    cells = Cells(
        lower=sums.lower, upper=sums.upper,
        paths=np.arange(len(pairs))[:, None], margins=np.zeros((len(pairs), 2)),
    )  # fmt: skip
    # Among all that fits, public rows say what is likely; half a row each keeps empty leaves possible.
    public = public_in(cells, background) + 0.5
    shares = np.log(public / public.sum())
    weights = [_likelihood(some, share) for some, share in zip(pairs, shares, strict=True)]
    ways = _ways(pairs, told.rows)
    end = ways[-1][told.rows] if positives is None else ways[-1][told.rows, [positives]]
    if not end.any():
        raise _refusal(f"leaves that add up to the {told.rows} rows that are announced", "none that do")
    return Rounded(
        sums=sums,
        counts=_likeliest(pairs, weights, told.rows, positives),
        only=_only(pairs, ways, told.rows, positives),
        data_sets=float(end.sum()),
    )


def fitting_pairs(value: float, base: float, how: Configuration, told: Told) -> Ints:
    """All (n, n₁) whose leaf value is ``value`` within its rounding, (K, 2).

    Examples:
        >>> told = Told(rows=20, digits=3, smallest=1.0, shared=True)
        >>> fitting_pairs(0.257, 0.5, Configuration(), told).tolist()
        [[10, 8], [17, 13]]
    """
    n, ones = np.meshgrid(np.arange(1, told.rows + 1), np.arange(told.rows + 1), indexing="ij")
    hessian = n * base * (1 - base)
    values = -how.eta * (n * base - ones) / (hessian + how.reg_lambda)
    slack = 0.5 * 10.0**-told.digits + FLOAT * (1 + np.abs(values))
    # The root is a leaf where nothing can be split, whatever its sum is.
    heavy = (hessian >= told.smallest * (1 - 1e-6)) | (n == told.rows)
    fits = (ones <= n) & heavy & (np.abs(values - value) <= slack)
    return np.stack([n[fits], ones[fits]], 1).astype(np.int64)


def _likelihood(pairs: Ints, share: Floats) -> Floats:
    """Log of a pair's weight in a multinomial of rows with these log shares of label 0 and 1, (K,)."""
    zeros, ones = pairs[:, 0] - pairs[:, 1], pairs[:, 1]
    return np.asarray(zeros * share[0] + ones * share[1] - gammaln(zeros + 1.0) - gammaln(ones + 1.0))


def _ways(pairs: Sequence[Ints], rows: int) -> list[Floats]:
    """Numbers of choices of the first 0, 1, ... leaves with so many rows and positives, (rows + 1,) * 2."""
    now = np.zeros((rows + 1, rows + 1))
    now[0, 0] = 1.0
    tables = [now]
    for some in pairs:
        after = np.zeros_like(now)
        for n, ones in some.tolist():
            after[n:, ones:] += now[: rows + 1 - n, : rows + 1 - ones]
        tables.append(now := after)
    return tables


def _only(pairs: Sequence[Ints], before: list[Floats], rows: int, positives: int | None) -> NDArray[np.bool_]:
    """Whether one pair alone of each leaf occurs in a data set that fits, (L,)."""
    ends = slice(None) if positives is None else slice(positives, positives + 1)
    behind = np.zeros((rows + 1, rows + 1), dtype=np.bool_)
    behind[rows, ends] = True  # totals from which the leaves behind reach the end
    alone = []
    for some, ahead in zip(reversed(pairs), reversed(before[:-1]), strict=True):
        reached, fitting = np.zeros_like(behind), 0
        for n, ones in some.tolist():
            start = behind[n:, ones:]
            reached[: rows + 1 - n, : rows + 1 - ones] |= start
            fitting += bool((start & (ahead[: rows + 1 - n, : rows + 1 - ones] > 0)).any())
        behind = reached
        alone.append(fitting == 1)
    return np.array(alone[::-1], dtype=np.bool_)


def _likeliest(pairs: Sequence[Ints], weights: Sequence[Floats], rows: int, positives: int | None) -> Ints:
    """Rows of label 0 and 1 of each leaf in the data set of largest weight that fits, (L, 2)."""
    now = np.full((rows + 1, rows + 1), -np.inf)
    now[0, 0] = 0.0
    chosen = []
    # Leaf by leaf, the best way to every number of rows and positives so far ...
    for some, weight in zip(pairs, weights, strict=True):
        after, picks = np.full_like(now, -np.inf), np.zeros(now.shape, dtype=np.int32)
        for k, (n, ones) in enumerate(some.tolist()):
            place = after[n:, ones:]
            tried = now[: rows + 1 - n, : rows + 1 - ones] + weight[k]
            better = tried > place
            place[better] = tried[better]
            picks[n:, ones:][better] = k
        now = after
        chosen.append(picks)
    # ... and back from the announced numbers, by what was chosen on the way.
    at = (rows, int(now[rows].argmax()) if positives is None else positives)
    counts = []
    for some, picks in zip(reversed(pairs), reversed(chosen), strict=True):
        n, ones = some[picks[at]].tolist()
        counts.append((n - ones, ones))
        at = (at[0] - n, at[1] - ones)
    return np.array(counts[::-1], dtype=np.int64)


def _refusal(needs_: str, got: str) -> Inapplicable:
    return Inapplicable(SUBJECT, needs=needs_, got=got, fix="give the digits of strip_trees")
