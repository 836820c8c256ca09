"""Histogram read-out: marginals of every column with labels, and rows that stand alone in a node.

Before the first tree all rows have one p, so that every sum of a histogram is a count in disguise: n = H /
(p (1 − p)), positives n p − G. The root's histograms are exact marginals of all columns by label; a node in
which a site has one row shows that row in every column, to a bin.

Source: our own; the sums are those of Chen & Guestrin 2016, arXiv:1603.02754, algorithm 1 by histograms.

Breaks when: the server sees only the sum over sites, or the tree is not the first.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, final

import numpy as np
import torch
from torch import Tensor

from glasshouse.attacks.base import Claim, Labels, Needs, Reconstruction
from glasshouse.attacks.parts.documents import needs, received, table_in
from glasshouse.attacks.tabular import Certainty, CertifiedRows, Fact, What, facts_of, leaves_of
from glasshouse.attacks.trees.algebra import WHOLE, Floats, Ints
from glasshouse.errors import Inapplicable
from glasshouse.formats.records import Histograms, Node
from glasshouse.modalities.row import Row
from glasshouse.registry import Card, Offer
from glasshouse.rng import Rng
from glasshouse.transcript.view import View

SUBJECT: Final = "attack 'histogram_readout'"
STEP: Final = 1.5e-7
"""Entries are float32: a value this close below a cut is at the cut."""


@final
@dataclass(frozen=True, kw_only=True)
class HistogramReadout:
    """Counts from histograms. No iterations, no randomness, no prior."""

    card: ClassVar[Card] = Card(
        title="Histogram read-out",
        summary="marginals of every column by label, and rows alone in a node, from a site's histograms",
        source="our own; sums as in Chen & Guestrin 2016, arXiv:1603.02754",
        claims=("facts", "leaves", "labels", "certified_rows", "reconstruction"),
        threat="server, sees the histograms of single sites",
        offers=(Offer(strength=1.0),),
        control={
            "setting": "a tree of depth 4 grown with 24 rows of a made-up clinic, cuts of the schema",
            "scenario": {
                "data": {"source": "clinic", "examples": 24, "auxiliary": 600},
                "model": {"name": "boosted_trees"},
                "federation": {
                    "protocol": "xgb_histogram",
                    "batch_size": 24,
                    "options": {"min_child_weight": 0.25},
                },
            },
            "metric": "facts",
        },
    )
    needs: ClassVar[Needs] = needs(protocols=frozenset({"xgb_histogram"}))
    budget: ClassVar[None] = None

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """Marginals, boxes, and the rows that stand alone.

        Raises:
            Inapplicable: no histograms, those of a later tree, or sums that are no whole numbers of rows.
        """
        del rng
        got, table = received(view, subject=SUBJECT), table_in(view, subject=SUBJECT)
        sent = got.document
        if not isinstance(sent, Histograms) or sent.tree or len(sent.cuts) != table.shape[0]:
            later = isinstance(sent, Histograms) and sent.tree
            raise Inapplicable(
                SUBJECT,
                needs="histograms of the first tree, of all columns",
                got=f"tree {later}" if later else f"a document {got.media}",
                fix="set audit.rounds = [0]: later trees sum rows of different p",
            )
        counted = [_counts(node, sent.base) for node in sent.nodes]
        root = counted[0]
        total = root[0].sum(0)
        lower, upper, counts = _boxes(sent, counted)
        certain = np.full_like(counts, Certainty.PROVED)
        leaves = leaves_of(got.about, lower, upper, counts, certain, within=table.range)
        rows, labels, sure = _alone(lower, upper, counts, table)
        return (
            facts_of(got.about, list(_marginals(sent, root, table))),
            Labels(about=got.about, counts=torch.from_numpy(total)),
            leaves,
            Reconstruction(about=got.about, inputs=rows, labels=labels, confidence=1.0 + sure.float()),
            CertifiedRows.proved(got.about, rows[sure]),
        )


def _counts(node: Node, base: float) -> tuple[Ints, ...]:
    """Rows of label 0 and 1 in every bin of every column, (K, 2) each.

    Raises:
        Inapplicable: they are not whole.
    """
    counted = []
    for gradient, hessian in zip(node.gradient, node.hessian, strict=True):
        total = hessian / (base * (1 - base))
        positives = total * base - gradient
        counts = np.stack([total - positives, positives], 1)
        whole = np.round(counts)
        if np.abs(counts - whole).max() > WHOLE or (whole < 0).any():
            raise Inapplicable(
                SUBJECT,
                needs="sums that are whole numbers of rows",
                got=f"counts {np.abs(counts - whole).max():.2g} from whole numbers",
                fix="rows have weights, or the sums were changed",
            )
        counted.append(whole.astype(np.int64))
    return tuple(counted)


def _edges(cuts: Floats) -> tuple[Floats, Floats]:
    """Lower and upper ends of all bins; a value a hair below a cut is at the cut."""
    inner = cuts - STEP
    return np.concatenate([[-1.0], inner]), np.concatenate([inner, [2.0]])


def _marginals(sent: Histograms, root: tuple[Ints, ...], table: Row) -> Iterator[Fact]:
    """How many rows of each label are in every bin that somebody is in."""
    total = root[0].sum(0)
    yield Fact(what=What.COUNT, value=float(total.sum()))
    yield Fact(what=What.COUNT, value=float(total[1]), label=1)
    for column, place in table.places():
        for entry in range(place.start, place.start + column.entries):
            lower, upper = _edges(sent.cuts[entry])
            for k, label in np.argwhere(root[entry] > 0).tolist():
                if not column.numeric and k == 0:
                    continue  # that somebody has not a category is no news
                yield Fact(
                    what=What.COUNT,
                    value=float(root[entry][k, label]),
                    column=entry,
                    low=float(lower[k]) + 1e-7,
                    high=float(upper[k]) - 1e-7,
                    label=label,
                )


def _boxes(sent: Histograms, counted: list[tuple[Ints, ...]]) -> tuple[Floats, Floats, Ints]:
    """Boxes without children here, with rows by label; of one row, narrowed to its bin in every column."""
    edges = [_edges(cuts) for cuts in sent.cuts]
    firsts, lasts = (np.stack([getattr(node, key) for node in sent.nodes]) for key in ("first", "last"))
    lower, upper, counts = [], [], []
    for i, columns in enumerate(counted):
        below = (firsts >= firsts[i]).all(1) & (lasts <= lasts[i]).all(1)
        own = columns[0].sum(0)
        if below.sum() > 1 or not own.sum():
            continue  # its children say more, and share all of its rows out
        first, last = firsts[i], lasts[i]
        if own.sum() == 1:
            first = last = np.array([int(column.sum(1).argmax()) for column in columns])
        lower.append([edges[f][0][k] for f, k in enumerate(first.tolist())])
        upper.append([edges[f][1][k] for f, k in enumerate(last.tolist())])
        counts.append(own)
    width = len(sent.cuts)
    ends = [np.array(one, dtype=np.float64).reshape(-1, width) for one in (lower, upper)]
    return ends[0], ends[1], np.array(counts, dtype=np.int64).reshape(-1, 2)


def _alone(lower: Floats, upper: Floats, counts: Ints, table: Row) -> tuple[Tensor, Tensor, Tensor]:
    """Rows that stand alone in their box (R, F) with labels (R,), and which of them follow in every cell.

    A cell follows where its bin holds one valid value: a category, or a whole number with bins of its own.
    """
    single = np.flatnonzero(counts.sum(1) == 1)
    ends = [np.clip(side[single], 0.0, 1.0) for side in (lower, upper)]
    middle = (ends[0] + ends[1]) / 2
    sure = np.ones(len(single), dtype=np.bool_)
    for column, place in table.places():
        at, span = place.start, column.high - column.low
        if column.missing:
            sure[:] = False
        elif column.kind == "integer":
            # The whole numbers from the lower end up to, and without, the upper one.
            first, behind = (np.ceil(side[single, at] * span - 1e-3) for side in (lower, upper))
            first, last = np.clip(first, 0, span), np.clip(behind - 1, 0, span)
            middle[:, at] = np.floor((first + last) / 2) / span
            sure &= first == last
        elif column.numeric:
            sure &= (ends[1] - ends[0])[:, at] * span <= 2 * column.tolerance
    rows = table.project(torch.from_numpy(middle).float())
    return rows, torch.from_numpy(counts[single].argmax(1)), torch.from_numpy(sure)
