"""What a document says, once it is read: frozen records of arrays, whatever file format they came in.

Shape letters: N nodes of a tree, T entries of a list of times, D features with the intercept first.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, final

import numpy as np
from numpy.typing import NDArray

from glasshouse.errors import BadValue

__all__ = [
    "Category",
    "CategoryTable",
    "Document",
    "Histograms",
    "Newton",
    "Node",
    "Statistic",
    "Statistics",
    "Survival",
    "Tree",
    "TreeEnsemble",
    "Vectors",
]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
LEAF: Final = -1


@final
@dataclass(frozen=True, kw_only=True)
class Category:
    """A split by the category of a row: one of ``values`` goes right, or left; every other the opposite way.

    Attributes:
        values: the file's numbers of categories, or entries of encoded rows.
        right: ``values`` go right; False: left.
        among: all entries of the column in encoded rows, of which one is 1; empty: ``values`` are the file's.
    """

    values: frozenset[int]
    right: bool
    among: tuple[int, ...] = ()

    def closed(self, *, right: bool) -> list[int]:
        """The entries that are 0 for every row of a side."""
        others = frozenset(self.among) - self.values
        return sorted(others if right == self.right else self.values)


@final
@dataclass(frozen=True, kw_only=True)
class CategoryTable:
    """How many rows of the training data have each category of a column.

    Attributes:
        column: position of the column.
        counts: by the file's number of a category: the rows, or the rows of each class.
        by_class: counts are those of classes.
        largest: the largest count, where the file states it.
    """

    column: int
    counts: Mapping[int, tuple[int, ...]]
    by_class: bool
    largest: int = 0


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Tree:
    """One tree as arrays over its nodes; node 0 is the root and every other node has one parent.

    Attributes:
        feature: of a split, (N,); -1 for a leaf.
        threshold: of a split, (N,); NaN for a leaf.
        left: the child of rows that pass the test, (N,); -1 for a leaf.
        right: the other child, (N,).
        missing_left: rows whose value is missing go left, (N,).
        value: what a leaf adds to the margin, (N,); NaN for a split where the file does not say it.
        weight: what each node would add as a leaf, before shrinkage for a split, (N,); None: not in the file.
        gain: of a split, (N,); None: not in the file.
        hessian: sum of second derivatives of a node's rows, (N,); None: not in the file.
        count: rows of a node, (N,); None: not in the file.
        positives: rows of class 1 of a node, (N,); None: not in the file.
        categories: of splits by a category, by node, where the threshold means nothing; None: a question that
            the file asks and does not determine.
    """

    feature: Ints
    threshold: Floats
    left: Ints
    right: Ints
    missing_left: NDArray[np.bool_]
    value: Floats
    weight: Floats | None = None
    gain: Floats | None = None
    hessian: Floats | None = None
    count: Floats | None = None
    positives: Floats | None = None
    categories: Mapping[int, Category | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        size = len(self.feature)
        fits = size and all(len(part) == size for part in (self.threshold, self.left, self.right, self.value))
        if not fits or not _is_tree(self.feature, self.left, self.right):
            raise BadValue(
                "tree of a document",
                needs="nodes that have one parent each (the first none), and two children or none",
                got=f"{size} nodes that are no such tree",
                fix="get the document again",
            )
        split = self.feature != LEAF
        if (
            (self.feature < LEAF).any()
            or not np.isfinite(self.threshold[split]).all()
            or not np.isfinite(self.value[~split]).all()
        ):
            raise BadValue(
                "tree of a document",
                needs="features from 0, finite thresholds and leaf values",
                got="a number that is none",
                fix="get the document again",
            )

    @property
    def leaves(self) -> Ints:
        """The nodes that are leaves."""
        return np.flatnonzero(self.feature == LEAF)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class TreeEnsemble:
    """Trees whose values add up to a margin.

    Attributes:
        objective: ``logistic`` or ``squared``.
        features: number of features.
        base: the probability (logistic) or the mean (squared) before the first tree; None: not in the file.
        strict: rows go left where the value is below the threshold; False: below or at it.
        exact_cuts: a threshold is a value of a row (the smallest that goes right).
        trees: in the order in which they are added.
        settings: of boosting, where the file states them: ``eta``, ``reg_lambda``, ``reg_alpha`` and
            ``subsample``.
        unusual: settings that the file states under which a leaf's value is not one step on the sums of its
            rows, as it writes them.
        tables: counts of categories that stand beside the trees.
        missing: rows with missing values went through a split, as the document shows; False: it does not.
    """

    objective: Literal["logistic", "squared"]
    features: int
    base: float | None
    strict: bool
    exact_cuts: bool
    trees: tuple[Tree, ...]
    settings: Mapping[str, float] = field(default_factory=dict)
    unusual: tuple[str, ...] = ()
    tables: tuple[CategoryTable, ...] = ()
    missing: bool = False

    def __post_init__(self) -> None:
        widest = max((int(tree.feature.max()) for tree in self.trees), default=-1)
        logistic = self.objective == "logistic"
        fits = self.base is None or (0 < self.base < 1 if logistic else np.isfinite(self.base))
        if widest >= self.features or not fits:
            raise BadValue(
                "trees of a document",
                needs=f"splits of {self.features} features, a finite base score (a probability in (0, 1))",
                got=f"a split of feature {widest}, base score {self.base}",
                fix="get the document again",
            )

    def reach(self, tree: int, rows: Floats) -> Ints:
        """The leaf of each of ``rows`` (R, F), NaN where missing: (R,).

        Raises:
            BadValue: a split by categories in the file's own numbers, or one that is not determined.
        """
        nodes = self.trees[tree]
        _require_entries(nodes)
        at = np.zeros(len(rows), dtype=np.int64)
        while (moving := nodes.feature[at] != LEAF).any():
            value = rows[np.arange(len(rows)), np.maximum(nodes.feature[at], 0)]
            below = value < nodes.threshold[at] if self.strict else value <= nodes.threshold[at]
            goes_left = np.where(np.isnan(value), nodes.missing_left[at], below)
            for node, asked in nodes.categories.items():
                assert asked is not None  # required above
                there = at == node
                goes_left[there] = (rows[there][:, sorted(asked.values)] > 0.5).any(1) != asked.right
            at = np.where(moving, np.where(goes_left, nodes.left[at], nodes.right[at]), at)
        return at

    def boxes(self, tree: int) -> tuple[Ints, Floats, Floats]:
        """Leaves (L,) and the box of each, lower and upper (L, F): ``lower <= x < upper`` for its rows.

        A missing value is in no box. Thresholds that a row may equal on the left are moved up by one step. A
        split by categories closes the entries of those that go the other way; one that the file does not
        determine leaves both sides the same box.

        Raises:
            BadValue: splits by categories in the file's own numbers.
        """
        nodes = self.trees[tree]
        if any(asked is not None and not asked.among for asked in nodes.categories.values()):
            _require_entries(nodes)
        bounds = {0: (np.full(self.features, -np.inf), np.full(self.features, np.inf))}
        waiting = [0]
        while waiting:
            node = waiting.pop()
            feature = int(nodes.feature[node])
            if feature == LEAF:
                continue
            lower, upper = bounds.pop(node)
            left, right = int(nodes.left[node]), int(nodes.right[node])
            # A category is an entry that is 0 or 1: to close it is to keep it below a half.
            if node in nodes.categories:
                asked = nodes.categories[node]
                for side, child in ((False, left), (True, right)):
                    closed = upper.copy()
                    closed[[] if asked is None else asked.closed(right=side)] = 0.5
                    bounds[child] = lower, np.minimum(upper, closed)
            else:
                # Boxes are half open: where a row may equal the threshold on the left, the cut is the next
                # number.
                cut = float(nodes.threshold[node])
                cut = cut if self.strict else float(np.nextafter(cut, np.inf))
                below, above = upper.copy(), lower.copy()
                below[feature], above[feature] = min(upper[feature], cut), max(lower[feature], cut)
                bounds[left], bounds[right] = (lower, below), (above, upper)
            waiting += [left, right]
        # What is left are the boxes of leaves: those of inner nodes were taken out on the way.
        leaves = np.array(sorted(bounds), dtype=np.int64)
        lowest = np.stack([bounds[int(leaf)][0] for leaf in leaves])
        return leaves, lowest, np.stack([bounds[int(leaf)][1] for leaf in leaves])


@final
@dataclass(frozen=True, kw_only=True)
class Statistic:
    """One number about the rows of a site.

    Attributes:
        site: who sent it.
        round: when.
        column: of what; empty: of the rows themselves.
        subset: of which rows, in the sender's words; empty: of all.
        name: ``count``, ``sum``, ``mean``, ``sum_squares``, ``minimum``, ``maximum``, ``auc``, ``accuracy``,
            ``loss``, ``bin`` (of a histogram).
        value: the number.
        digits: decimals to which it is rounded; None: as it was computed.
        low: lower end of a bin.
        high: upper end of a bin, which it contains only in the last bin.
    """

    name: str
    value: float
    site: int = 0
    round: int = 0
    column: str = ""
    subset: str = ""
    digits: int | None = None
    low: float = -np.inf
    high: float = np.inf

    @property
    def slack(self) -> float:
        """Largest distance of ``value`` from the number that was rounded."""
        return 0.0 if self.digits is None else 0.5 * 10.0**-self.digits


@final
@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Numbers about the rows of sites, in the order in which they were sent."""

    numbers: tuple[Statistic, ...]

    def select(self, **wanted: object) -> tuple[Statistic, ...]:
        """The numbers whose attributes have these values."""
        return tuple(n for n in self.numbers if all(getattr(n, k) == v for k, v in wanted.items()))


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Survival:
    """Follow-up times of patients: a table of counts, or a curve.

    Attributes:
        times: rising, (T,).
        events: deaths at each time, (T,); None: a curve alone.
        censored: patients lost at each time, (T,); None: a curve alone.
        curve: share that survives each time, falling, (T,); None: a table.
        patients: n at the start.
        digits: decimals of the curve; None: as it was computed.
        raw: the document lists patients one by one.
    """

    times: Floats
    patients: int
    events: Ints | None = None
    censored: Ints | None = None
    curve: Floats | None = None
    digits: int | None = None
    raw: bool = False


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Newton:
    """Sums that a site sends for one step of Newton's method in logistic regression.

    Attributes:
        theta: coefficients at which they were computed, the intercept first, (D,).
        gradient: Xᵀ(y − p), (D,).
        hessian: Xᵀ diag(p (1 − p)) X, (D, D).
    """

    theta: Floats
    gradient: Floats
    hessian: Floats


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Node:
    """Sums of the derivatives of one site's rows in one node of a growing tree, per column and bin.

    Attributes:
        first: lowest bin of the node's box, by column, (F,).
        last: highest bin of the node's box, by column, (F,).
        gradient: by column, sums of g per bin.
        hessian: by column, sums of h per bin.
    """

    first: Ints
    last: Ints
    gradient: tuple[Floats, ...]
    hessian: tuple[Floats, ...]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Histograms:
    """What a site sends while a tree is grown together: histograms of every node that is looked at.

    Attributes:
        tree: number of the tree, from 0.
        base: probability before the first tree.
        cuts: by column, rising; a value x is in bin k where so many cuts are at most x.
        nodes: the root first, parents before children.
    """

    tree: int
    base: float
    cuts: tuple[Floats, ...]
    nodes: tuple[Node, ...]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Vectors:
    """One vector for every person, as parties of a vertical federation exchange them.

    Attributes:
        what: ``embeddings`` of rows, ``gradients`` of the loss by embeddings, or ``known``: whole rows of
            people whom both parties know.
        vectors: in the order of the people, (N, E).
        labels: of known people, (N,); None: of others.
    """

    what: Literal["embeddings", "gradients", "known"]
    vectors: Floats
    labels: Ints | None = None


Document = TreeEnsemble | Statistics | Survival | Newton | Histograms | Vectors


def _require_entries(tree: Tree) -> None:
    """Refuse splits that are not read, or not yet in entries of encoded rows."""
    if any(asked is None or not asked.among for asked in tree.categories.values()):
        raise BadValue(
            "trees of a document",
            needs="splits at numbers, or by categories of a table that is given",
            got="splits by categories that the document names by hashes, or does not determine",
            fix="name the columns: audit the capture with its schema",
        )


def _is_tree(feature: Ints, left: Ints, right: Ints) -> bool:
    """Whether every node but the first is the child of exactly one node that is reached from the first."""
    size, split = len(feature), feature != LEAF
    children = np.concatenate([left[split], right[split]])
    if len(children) != size - 1 or (size > 1 and not np.array_equal(np.sort(children), np.arange(1, size))):
        return False
    # With one parent each, a part that the root does not reach would have to be a cycle.
    reached, waiting = 0, [0]
    while waiting:
        node = waiting.pop()
        reached += 1
        if split[node]:
            waiting += [int(left[node]), int(right[node])]
    return reached == size
