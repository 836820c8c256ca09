"""What a tree's sums say: derivatives at a known margin, and from them whole numbers of rows.

A logistic tree is fitted to g = p − y and h = p (1 − p) at the margin of the trees before it. With H = Σh
and G = Σg over the rows of a node its weight is w = −G / (H + λ), and a leaf adds η w. Where all rows of a
node have the same margin, as before the first tree, H and G are whole numbers in disguise: n = H / h, and n
p − G rows of label 1.

Source: Chen & Guestrin 2016, "XGBoost", arXiv:1603.02754, equations 5 and 6.

Shape letters: L leaves of a tree, C cells, N rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from glasshouse.errors import Inapplicable
from glasshouse.formats.records import TreeEnsemble
from glasshouse.wire import Value

Floats = NDArray[np.float64]
Margins = NDArray[np.floating[Any]]
"""In float32 where a library sums them so."""
Ints = NDArray[np.int64]
WHOLE: Final = 0.02
"""Largest distance of a count from a whole number: float32 sums are exact to 1e-6 of a count."""
GAIN: Final = 1e-4
"""Share by which a stated gain may miss that of the sums: float32 leaves 4e-7, LightGBM's six digits 5e-6."""


@final
@dataclass(frozen=True, kw_only=True)
class Configuration:
    """The public settings of boosting.

    Attributes:
        eta: learning rate.
        reg_lambda: of the L2 penalty on weights.
        reg_alpha: of the L1 penalty; only 0 is undone.
        subsample: share of the rows that a tree sees; only 1 is undone.
        base_score: the probability before the first tree, where the file does not say it.
    """

    eta: float = 0.3
    reg_lambda: float = 1.0
    reg_alpha: float = 0.0
    subsample: float = 1.0
    base_score: float | None = None

    @classmethod
    def of(
        cls, options: Mapping[str, Value], *, subject: str, trees: TreeEnsemble | None = None
    ) -> "Configuration":
        """Those in the terms of a federation; what is missing has XGBoost's defaults.

        Args:
            options: of the protocol.
            subject: for errors.
            trees: the document; the settings that it states itself count.

        Raises:
            Inapplicable: settings under which sums are not those of all rows.
        """
        if trees is not None and trees.unusual:
            raise Inapplicable(
                subject,
                needs="leaves whose values are one step on the sums of their rows",
                got=f"a document that states {', '.join(trees.unusual)}",
                fix="audit clients that leave these settings at their defaults",
            )
        settings = {**options, **(trees.settings if trees is not None else {})}
        known = {name: settings[name] for name in cls.__dataclass_fields__ if name in settings}
        made = cls(**known)  # type: ignore[arg-type]  # the protocol has checked its options
        if made.reg_alpha or made.subsample != 1:
            raise Inapplicable(
                subject,
                needs="trees that see every row, without an L1 penalty",
                got=f"subsample = {made.subsample}, reg_alpha = {made.reg_alpha}",
                fix="audit subsample = 1: sums of a sample count the sample, not the client",
            )
        return made


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Sums:
    """What a document says of the leaves of one tree.

    Attributes:
        leaves: their nodes, (L,).
        lower: lower ends of their boxes, (L, F).
        upper: upper ends, (L, F).
        hessian: H, (L,); NaN where the file has none.
        gradient: G, (L,); NaN likewise.
        count: rows, (L,); NaN where the file has none.
    """

    leaves: Ints
    lower: Floats
    upper: Floats
    hessian: Floats
    gradient: Floats
    count: Floats


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Counted:
    """Rows of every leaf of the first tree.

    Attributes:
        sums: of the leaves.
        counts: rows of label 0 and 1, (L, 2).
        base: probability of label 1 before the tree.
        shift: what the tree's values hold of the margin before it (LightGBM's prior).
    """

    sums: Sums
    counts: Ints
    base: float
    shift: float = 0.0


def sums_of(trees: TreeEnsemble, tree: int, how: Configuration, *, shift: float = 0.0) -> Sums:
    """The sums of a tree's leaves; ``shift``: what its values contain besides weights (LightGBM's prior)."""
    nodes = trees.trees[tree]
    leaves, lower, upper = trees.boxes(tree)
    unknown = np.full(len(leaves), np.nan)
    hessian = unknown if nodes.hessian is None else nodes.hessian[leaves]
    weights = (nodes.value[leaves] - shift) / how.eta
    return Sums(
        leaves=leaves,
        lower=lower,
        upper=upper,
        hessian=hessian,
        gradient=-weights * (hessian + how.reg_lambda),
        count=unknown if nodes.count is None else nodes.count[leaves],
    )


def count_rows(trees: TreeEnsemble, how: Configuration, *, subject: str) -> Counted:
    """How many rows of each label lie in every leaf of the first tree.

    Raises:
        Inapplicable: the file has neither sums nor counts, the base score is unknown, or the numbers are not
            whole: rows have weights, or a tree before this one is missing; or as :func:`check_gains`.

    Examples:
        >>> from glasshouse.formats.records import Tree
        >>> nodes = {"left": np.array([1, -1, -1]), "right": np.array([2, -1, -1])}
        >>> stump = Tree(
        ...     feature=np.array([0, -1, -1]),
        ...     threshold=np.array([0.5, np.nan, np.nan]),
        ...     **nodes,
        ...     missing_left=np.zeros(3, bool),
        ...     value=np.array([np.nan, -0.5, 0.5]),
        ...     hessian=np.array([2.0, 1, 1]),
        ... )
        >>> said = {"objective": "logistic", "features": 1, "strict": True, "exact_cuts": True}
        >>> model = TreeEnsemble(base=0.5, trees=(stump,), **said)
        >>> count_rows(model, Configuration(eta=0.5), subject="example").counts.tolist()
        [[4, 0], [0, 4]]
    """
    if trees.objective != "logistic" or not trees.trees:
        raise _refusal(
            subject, "a logistic model with a tree", f"{trees.objective}, {len(trees.trees)} trees"
        )
    first, shift = trees.trees[0], 0.0
    if first.hessian is not None and len(first.hessian) > 1 and len(np.unique(first.hessian)) == 1:
        # NVIDIA FLARE writes ones. What they hide is the defence check's business, with the remedy.
        raise _refusal(subject, "sums of second derivatives", "a mask in their place (glasshouse defenses)")
    if first.count is not None and first.positives is not None:  # forests state the share of every class
        sums = sums_of(trees, 0, how)
        positives, total = first.positives[sums.leaves], sums.count
        base = float(positives.sum() / total.sum())
    else:
        base, shift = _before(trees, how, subject)
        sums = sums_of(trees, 0, how, shift=shift)
        spread = base * (1 - base)
        total = sums.hessian / spread if np.isnan(sums.count).any() else sums.count
        if np.isnan(sums.gradient).any():  # no H in the file: it follows from the counts
            gradient = -(first.value[sums.leaves] - shift) / how.eta * (total * spread + how.reg_lambda)
        else:
            gradient = sums.gradient
        positives = total * base - gradient
        check_gains(trees, 0, sums, how, subject=subject)
        # Where a file states both H and rows (LightGBM's), each of them is a second statement on the other.
        if (np.abs(sums.hessian - total * spread) > GAIN * total * spread).any():
            raise _refusal(subject, "sums of second derivatives of the rows that are counted", "others")
    if np.isnan(total).any() or np.isnan(positives).any():
        raise _refusal(subject, "sums of second derivatives or counts in the document", "neither")
    counts = np.stack([total - positives, positives], 1)
    away = np.abs(counts - np.round(counts)).max()
    if away > WHOLE or (np.round(counts) < 0).any():
        raise _refusal(
            subject, "sums that are whole numbers of rows", f"counts {away:.2g} from whole numbers"
        )
    whole = np.round(counts).astype(np.int64)
    return _merged(Counted(sums=sums, counts=whole, base=base, shift=shift))


def check_gains(trees: TreeEnsemble, tree: int, sums: Sums, how: Configuration, *, subject: str) -> None:
    """Refuse a tree whose splits gained another amount than the sums of its leaves say.

    Whole numbers may come out of wrong settings by chance; a gain is a second statement on every split. It
    differs where a leaf's value is not G / (H + λ) times η: bounded steps, an L1 penalty, constraints,
    another η or λ than is stated. Nothing is refused where the file states no gains, but a first tree of one
    leaf, which has no second statement in any file.

    Raises:
        Inapplicable: another gain, or no split in the first tree.
    """
    nodes = trees.trees[tree]
    if tree == 0 and not (nodes.feature >= 0).any():
        raise _refusal(
            subject,
            "a first tree with a split, whose gain is a second statement on the sums of its leaves",
            "a tree of one leaf: a bounded step may give whole numbers by chance",
        )
    if nodes.gain is None or not nodes.gain[nodes.feature >= 0].any() or np.isnan(sums.hessian).any():
        return
    whole = np.zeros((len(nodes.feature), 2))
    whole[sums.leaves] = np.stack([sums.gradient, sums.hessian], 1)
    splits, todo = [], [0]
    while todo:
        node = todo.pop()
        if nodes.feature[node] >= 0:
            splits.append(node)
            todo += [int(nodes.left[node]), int(nodes.right[node])]
    for node in reversed(splits):
        below = whole[[nodes.left[node], nodes.right[node]]]
        whole[node] = below.sum(0)
        parts = [g * g / (h + how.reg_lambda) for g, h in (*below, whole[node])]
        gain = parts[0] + parts[1] - parts[2]
        if abs(gain - nodes.gain[node]) > GAIN * sum(parts):
            raise _refusal(
                subject,
                "splits whose gains are those of the sums",
                f"{nodes.gain[node]:.4g} in tree {tree} for {gain:.4g}: steps are bounded or constrained, or "
                "eta, reg_lambda or reg_alpha are others than stated",
            )


def check_total(counted: Counted, trees: TreeEnsemble, *, announced: int, subject: str) -> None:
    """Refuse leaves that do not add up to the rows that the client announced: rows may have weights.

    Twice every weight is twice every sum, and no whole number shows it. Where nothing is announced, the
    document itself must count rows, and state the settings under which these are all of them.

    Raises:
        Inapplicable: another total.
    """
    total = int(counted.counts.sum())
    stated = trees.trees[0].count is not None and trees.settings
    if total != announced and not (stated and not announced):
        raise Inapplicable(
            subject,
            needs=f"sums of the {announced} rows that are announced",
            got=f"{total}",
            fix="state eta, reg_lambda and subsample in federation.options; rows with weights are not read",
        )


def _merged(counted: Counted) -> Counted:
    """Leaves of one box as one: they differ by a question that the document does not determine."""
    sums = counted.sums
    boxes, which = np.unique(np.concatenate([sums.lower, sums.upper], 1), axis=0, return_inverse=True)
    if len(boxes) == len(sums.leaves):
        return counted
    first = np.array([np.flatnonzero(which == box)[0] for box in range(len(boxes))])

    def added(parts: NDArray[Any]) -> NDArray[Any]:
        whole = np.zeros((len(boxes), *parts.shape[1:]), dtype=parts.dtype)
        np.add.at(whole, which, parts)
        return whole

    together = replace(
        sums,
        leaves=sums.leaves[first],
        lower=sums.lower[first],
        upper=sums.upper[first],
        hessian=added(sums.hessian),
        gradient=added(sums.gradient),
        count=added(sums.count),
    )
    return replace(counted, sums=together, counts=added(counted.counts))


def _before(trees: TreeEnsemble, how: Configuration, subject: str) -> tuple[float, float]:
    """Probability before the first tree, and what that tree's values contain of it."""
    base = trees.base if trees.base is not None else how.base_score
    if base is not None:
        return base, 0.0
    # LightGBM adds the prior's margin to the first tree. At the prior all gradients of all rows add up to 0.
    first = trees.trees[0]
    if first.hessian is None:
        raise _refusal(subject, "the base score", "none in the document or the terms")
    leaves = first.leaves
    weight = first.hessian[leaves] + how.reg_lambda
    margin = float((first.value[leaves] * weight).sum() / weight.sum())
    return float(sigmoid(np.array(margin))), margin


def sigmoid(margin: Margins) -> Floats:
    """The probability at a margin."""
    return np.asarray(1 / (1 + np.exp(-np.clip(margin, -50, 50))), dtype=np.float64)


def derivatives(margin: Margins) -> tuple[Floats, Floats]:
    """Probability p of a row with this margin, and p (1 - p), rounded to float32 as XGBoost has them.

    Summed over the rows of a leaf, doubles would be off by some millionths of H from the tenth tree on:
    all rows of a cell are off by the same.
    """
    # The exponential in double, rounded once, is that of a good float32 library.
    one, shrunk = np.float32(1), np.exp(-np.minimum(margin, 88.7)).astype(np.float32)
    p = one / (shrunk + one)
    return p.astype(np.float64), (p * (one - p)).astype(np.float64)


def margin_of(base: float) -> float:
    """The margin of a probability."""
    return float(np.log(base / (1 - base)))


def _refusal(subject: str, needs: str, got: str) -> Inapplicable:
    return Inapplicable(subject, needs=needs, got=got, fix="see docs/documents.md for what each file says")
