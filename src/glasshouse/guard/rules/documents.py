"""What a site gives away in a document: small cells, own values, raw patients, masks that hide nothing.

The site asks with its own rows at hand, so that it sees what no outsider sees: which cells are small.

Shape letters: N rows, F features, C joint cells.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from glasshouse.errors import BadValue
from glasshouse.formats.base import read_document
from glasshouse.formats.records import (
    LEAF,
    Histograms,
    Newton,
    Statistics,
    Survival,
    Tree,
    TreeEnsemble,
    Vectors,
)
from glasshouse.wire import Inspection

Floats = NDArray[np.float64]
NAME: Final = "document guard"
FEWEST: Final = 5
"""Rows of a cell below which a document is not sent: the "< 5" of health statistics."""
HIDDEN: Final = 2
"""Patients that one step of a survival curve's last digit is at least: with one, some deaths are certain."""
DIGITS: Final = 2
"""Most digits of a survival curve, however many its patients are: more was not measured."""
APART: Final = 1e-6
"""Relative difference of two weights from which the sums of their nodes are determined in float32."""


def inspect_document(
    document: bytes, rows: Floats | None = None, *, fewest: int = FEWEST, before: bytes | None = None
) -> Inspection:
    """Reasons not to send a document. Without a finding it passes these rules, which is no proof of privacy.

    Args:
        document: as it would be sent.
        rows: the site's own rows (N, F) as the trees see them; None: rules about cells and values are left
        out.
        fewest: k, the smallest number of people that a number may be about.
        before: the document that was sent last, to compare counts; None: none.

    Raises:
        BadFile: no document that can be read.
        BadValue: rows that do not fit the trees, or ``fewest`` below 2.
    """
    if fewest < 2:
        raise BadValue(NAME, needs="fewest >= 2", got=str(fewest), fix="5 is usual in health statistics")
    _, record = read_document(document)
    if isinstance(record, TreeEnsemble):
        return _of_trees(record, rows, fewest)
    earlier = None if before is None else read_document(before)[1]
    if isinstance(record, Statistics):
        last = earlier if isinstance(earlier, Statistics) else None
        return _of_statistics(record, last, fewest)
    if isinstance(record, Survival):
        return _of_survival(record, fewest)
    if isinstance(record, Histograms):
        return _of_histograms(record, fewest)
    if isinstance(record, Vectors):
        return _of_vectors(record)
    return _of_newton(record, rows, fewest)


def _of_trees(trees: TreeEnsemble, rows: Floats | None, fewest: int) -> Inspection:
    findings, values = [], {}
    masked = determined(trees)
    if not np.isnan(masked):
        values["determined"] = masked
        if masked > 0:
            findings.append(
                f"sums of second derivatives are masked, but weights and gains of splits determine them in "
                f"{masked:.0%} of the splits: drop base_weights and loss_changes as well"
            )
    counted = [sum(counts) for table in trees.tables for counts in table.counts.values()]
    if counted:
        small = sum(0 < count < fewest for count in counted)
        values |= {"categories": float(len(counted)), "small_categories": float(small)}
        findings.append(
            f"{len(counted)} counts of categories of your rows stand beside the trees, {small} of them below "
            f"{fewest}: set one_hot_max_size above the number of levels, so that no table is kept"
        )
    by_category = any(tree.categories for tree in trees.trees)
    if rows is None or by_category:  # the site's rows are numbers, and such splits ask for names
        return Inspection(guard=NAME, findings=tuple(findings), values=values)
    if rows.ndim != 2 or rows.shape[1] != trees.features:
        raise BadValue(
            NAME,
            needs=f"rows (N, {trees.features})",
            got=f"shape {rows.shape}",
            fix="give the rows of training",
        )
    paths = np.stack([trees.reach(t, rows) for t in range(len(trees.trees))], 1)
    smallest = int(np.unique(paths, axis=0, return_counts=True)[1].min())
    values["smallest_cell"] = float(smallest)
    if smallest < fewest:
        findings.append(
            f"a joint cell of {len(trees.trees)} trees holds {smallest} of your rows, fewer than {fewest}: "
            "raise min_child_weight, or send fewer or shallower trees"
        )
    cuts, own = _cuts_at_values(trees, rows)
    values |= {"cuts": float(cuts), "cuts_at_own_values": float(own)}
    if own:
        findings.append(
            f"{own} of {cuts} thresholds are values that occur in your rows: lower max_bin, round the "
            "columns, or cut at public values"
        )
    return Inspection(guard=NAME, findings=tuple(findings), values=values)


def determined(trees: TreeEnsemble) -> float:
    """Share of the splits whose masked sums still follow from weights and gain; NaN: nothing is masked.

    With w, w_l, w_r of a split and its children, conservation of G and the gain are two linear equations in
    H_l + λ and H_r + λ, with determinant (w_l − w)(w_r − w)(w_r − w_l): they have one solution unless two
    weights are equal.

    Source: own derivation from Chen & Guestrin 2016, arXiv:1603.02754, equations 5 to 7.
    """
    splits = hidden = 0
    for tree in trees.trees:
        if tree.hessian is None or not _is_masked(tree):
            continue
        nodes = np.flatnonzero(tree.feature != LEAF)
        splits += len(nodes)
        if tree.weight is None or tree.gain is None or not tree.gain[nodes].any():
            continue
        w, left, right = tree.weight[nodes], tree.weight[tree.left[nodes]], tree.weight[tree.right[nodes]]
        size = np.maximum.reduce([np.abs(w), np.abs(left), np.abs(right)])
        gaps = np.minimum.reduce([np.abs(left - w), np.abs(right - w), np.abs(left - right)])
        hidden += int((gaps > APART * size).sum())
    return hidden / splits if splits else float("nan")


def _is_masked(tree: Tree) -> bool:
    """All sums are the same number, which those of parents and children cannot be."""
    return tree.hessian is not None and len(tree.hessian) > 1 and len(np.unique(tree.hessian)) == 1


def _cuts_at_values(trees: TreeEnsemble, rows: Floats) -> tuple[int, int]:
    """Distinct cuts, and how many of them are a value of a column with more than two values."""
    cuts = {
        (int(tree.feature[node]), float(tree.threshold[node]))
        for tree in trees.trees
        for node in np.flatnonzero(tree.feature != LEAF).tolist()
    }
    columns = {column: np.unique(rows[:, column]) for column, _ in cuts}
    own = [c for column, c in cuts if len(columns[column]) > 2 and _near(columns[column], c)]
    return len(cuts), len(own)


def _near(values: Floats, cut: float) -> bool:
    return bool((np.abs(values - cut) <= 1e-6 * np.maximum(np.abs(cut), 1e-30)).any())


def _of_statistics(now: Statistics, last: Statistics | None, fewest: int) -> Inspection:
    findings = []
    small = [n for n in now.numbers if n.name in ("count", "bin") and 0 < n.value < fewest]
    if small:
        findings.append(
            f"{len(small)} counts are below {fewest}: merge bins or subsets, and suppress a second one "
            "of each margin"
        )
    if any(n.name in ("minimum", "maximum") for n in now.numbers):
        findings.append("a minimum or maximum is the value of one person: send a quantile of public bounds")
    # Both counts may be large enough, and their difference be three people.
    moved = 0
    for n in now.select(name="count"):
        earlier = (
            () if last is None else last.select(name="count", site=n.site, column=n.column, subset=n.subset)
        )
        moved += any(0 < abs(n.value - e.value) < fewest for e in earlier)
    if moved:
        findings.append(
            f"{moved} counts moved by fewer than {fewest} since the last message: the difference of the "
            "sums is those people; wait until more have come"
        )
    return Inspection(
        guard=NAME, findings=tuple(findings), values={"small": float(len(small)), "moved": float(moved)}
    )


def _of_survival(table: Survival, fewest: int) -> Inspection:
    if table.events is None or table.censored is None:
        return _of_curve(table)
    each = table.events + table.censored
    small = int(((each > 0) & (each < fewest)).sum())
    found = (
        f"{small} of {len(each)} times are those of fewer than {fewest} patients, which is raw follow-up: "
        "send counts per quarter"
    )
    return Inspection(guard=NAME, findings=(found,) if small else (), values={"small": float(small)})


def _of_curve(table: Survival) -> Inspection:
    """A step of the last digit must be that of ``HIDDEN`` patients of all, else deaths can be counted off."""
    shown = np.inf if table.digits is None else table.digits
    fits = min(DIGITS, len(str(table.patients // HIDDEN)) - 1)
    remedy = f"round it to {fits} digit{'s' * (fits > 1)}" if fits else "send none"
    found = f"a curve of {table.patients} patients at this precision shows single deaths: {remedy}"
    return Inspection(guard=NAME, findings=(found,) if shown > fits else (), values={"digits": float(shown)})


def _of_newton(sums: Newton, rows: Floats | None, fewest: int) -> Inspection:
    """Few rows stand in the range of the Hessian, and small class sums of a category are people."""
    at_zero = not sums.theta.any()
    count = len(rows) if rows is not None else round(4 * float(sums.hessian[0, 0])) if at_zero else None
    values = {} if count is None else {"rows": float(count)}
    if count is None:
        return Inspection(guard=NAME, findings=(), values=values)
    rank = int(np.linalg.matrix_rank(sums.hessian))
    values["rank"] = float(rank)
    findings = []
    # As many rows as independent numbers: the sums are a system with one solution.
    if count <= rank:
        findings.append(
            f"sums of {count} rows, no more than the {rank} independent numbers of a row: the rows follow; "
            "wait for more rows, or send only sums over several sites"
        )
    # At coefficients of 0 every row weighs a quarter, so that the sums are counts.
    if at_zero:
        positive = sums.gradient + 2 * sums.hessian[0]
        counts = np.concatenate([positive, 4 * sums.hessian[0] - positive])
        whole = np.abs(counts - np.round(counts)) < 1e-6
        small = int((whole & (counts > 0.5) & (counts < fewest)).sum())
        values["small"] = float(small)
        if small:
            findings.append(
                f"{small} class sums are counts of fewer than {fewest} people: merge levels, or start from "
                "other coefficients than 0"
            )
    return Inspection(guard=NAME, findings=tuple(findings), values=values)


def _of_vectors(sent: Vectors) -> Inspection:
    """Every vector is about one person; nothing here says how much of it comes back."""
    told = (
        f"{len(sent.vectors)} {sent.what} of single people: whoever knows some of them reads others; "
        "send sums over several people, or noise above their spread"
    )
    return Inspection(guard=NAME, findings=(told,), values={"people": float(len(sent.vectors))})


def _of_histograms(sent: Histograms, fewest: int) -> Inspection:
    """Bins and nodes of few rows; h is at most 1/4, so that a bin of sum H holds at least 4 H rows."""
    p = sent.base * (1 - sent.base)
    small = bins = 0
    for node in sent.nodes:
        for hessian in node.hessian:
            rows = hessian / (p if sent.tree == 0 else 0.25)
            bins += int((rows > 1e-9).sum())
            small += int(((rows > 1e-9) & (rows < fewest - 1e-6)).sum())
    told = (
        f"{small} of {bins} bins hold fewer than {fewest} of your rows: lower max_bin and max_depth, or let "
        "only the sum over all sites be seen"
    )
    return Inspection(
        guard=NAME, findings=(told,) if small else (), values={"small": float(small), "bins": float(bins)}
    )
