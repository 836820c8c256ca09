"""Histogram boosting over sites: each sends sums of derivatives per node, column and bin, the server splits.

Source: NVIDIA FLARE, XGBoost with horizontal histograms (an all-reduce of Chen & Guestrin 2016,
arXiv:1603.02754, algorithm 1 by histograms). The library's federated plug-in is not in its wheels, so that
trees are grown here. Cuts are public: even over the schema's range, one per value of a whole number with few
values.

Shape letters: B rows, F entries of a row, K bins of a column.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.errors import BadValue
from glasshouse.federation.protocols.documents.base import as_agreed, broadcast, check, send, table_of
from glasshouse.federation.setting import Setting
from glasshouse.formats.carried import NAME, tensor_of
from glasshouse.formats.records import LEAF, Histograms, Node
from glasshouse.formats.tabular import document_of
from glasshouse.interfaces import Recorder, Tamper, Traits
from glasshouse.limits import Fraction, NotNegative
from glasshouse.modalities.row import Row
from glasshouse.progress import track
from glasshouse.registry import Card
from glasshouse.rng import Rng

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
STEP = 1.5e-7
"""Entries are float32: a value this close below a cut is at the cut."""


@final
@dataclass(frozen=True, kw_only=True)
class XgbHistogram:
    """One tree per round. Its fields are public settings, which are read from ``Terms.options``.

    Args:
        max_depth: of a tree; the nodes of the last level are leaves, and no histogram is sent of them.
        eta: learning rate.
        reg_lambda: of the L2 penalty on weights.
        min_child_weight: smallest sum of second derivatives, over all sites, in a leaf.
        base_score: the probability before the first tree.
        max_bin: most bins of a column.
    """

    card: ClassVar[Card] = Card(
        summary="trees grown together: each site sends histograms of derivatives of every node",
        source="NVIDIA FLARE, XGBoost with horizontal histograms",
    )
    traits: ClassVar[Traits] = Traits(
        sends="document", advice="let only the sum of all sites' histograms be seen"
    )

    max_depth: int = 4
    eta: Fraction = 0.3
    reg_lambda: NotNegative = 1.0
    min_child_weight: NotNegative = 1.0
    base_score: float = 0.5
    max_bin: int = 64

    def __post_init__(self) -> None:
        if not (1 <= self.max_depth <= 8 and 2 <= self.max_bin <= 1024 and 0 < self.base_score < 1):
            raise BadValue(
                "protocol 'xgb_histogram'",
                needs="max_depth from 1 to 8, max_bin from 2 to 1024, base_score in (0, 1)",
                got=f"{self.max_depth}, {self.max_bin}, {self.base_score}",
                fix="correct federation.options",
            )

    def passes(self, rounds: int) -> int:
        """Number of passes over a client's private data in a run: one per tree."""
        return rounds

    def play(
        self, setting: Setting, *, recorder: Recorder, rng: Rng, tamper: Tamper | None = None
    ) -> dict[str, Tensor]:
        """Run all rounds. See ``FederationProtocol.play``.

        Raises:
            BadValue: another model than boosted trees, no table, or settings that documents do not have.
        """
        del rng
        check(setting, tamper, model="boosted_trees")
        how = as_agreed(self, setting.terms.options)
        cuts = cuts_of(table_of(setting), how.max_bin)
        sites = [Site.of(setting, client, cuts, how.base_score) for client in range(setting.terms.clients)]
        trees: list[dict[str, Any]] = []
        common = b""
        for number in track(range(setting.rounds), "federation", total=setting.rounds):
            broadcast(setting, number, common, recorder)
            for site in sites:
                site.start()
            # One tree a round: sums of gradients travel before anybody knows it.
            tree = how.grow(sites, cuts)
            for client, site in enumerate(sites):
                sent = Histograms(tree=number, base=how.base_score, cuts=cuts, nodes=tuple(site.sent))
                send(setting, number, client, document_of(sent), recorder)
            trees.append(tree)
            common = how.model(trees, len(cuts))
        return {**setting.start, NAME: tensor_of(common, setting.start[NAME].numel())}

    def grow(self, sites: "Sequence[Site]", cuts: tuple[Floats, ...]) -> dict[str, Any]:
        """A tree from the sums of all sites' histograms, level by level; sites keep their margins."""
        bins = np.array([len(one) for one in cuts])
        tree: dict[str, Any] = {key: [] for key in ("feature", "threshold", "left", "right", "value")}
        waiting = [(self._add(tree), np.zeros(len(cuts), dtype=np.int64), bins, 0)]
        while waiting:
            node, first, last, depth = waiting.pop(0)
            inside = [site.inside(first, last) for site in sites]
            # Every site tells its sums of a node, until nothing is worth a split: then they are summed once
            # more, for the leaf.
            split = None
            if depth < self.max_depth:
                told = [site.tell(first, last, own) for site, own in zip(sites, inside, strict=True)]
                split = self._best(told)
            if split is None:
                g = sum(float(s.gradient[own].sum()) for s, own in zip(sites, inside, strict=True))
                h = sum(float(s.hessian[own].sum()) for s, own in zip(sites, inside, strict=True))
                value = -self.eta * g / (h + self.reg_lambda)
                tree["value"][node] = value
                for site, own in zip(sites, inside, strict=True):
                    site.margin[own] += value
                continue
            column, cut = split
            tree["feature"][node] = column
            tree["threshold"][node] = float(np.nextafter(cuts[column][cut] - STEP, -np.inf))
            # A child is a box of bins: rows find it by their bins alone.
            for side, key in ((0, "left"), (1, "right")):
                tree[key][node] = child = self._add(tree)
                low, high = first.copy(), last.copy()
                if side:
                    low[column] = cut + 1
                else:
                    high[column] = cut
                waiting.append((child, low, high, depth + 1))
        return tree

    @staticmethod
    def _add(tree: dict[str, Any]) -> int:
        for key, empty in (
            ("feature", 0),
            ("threshold", 0.0),
            ("left", LEAF),
            ("right", LEAF),
            ("value", 0.0),
        ):
            tree[key].append(empty)
        return len(tree["left"]) - 1

    def _best(self, told: Sequence[Node]) -> tuple[int, int] | None:
        """Column and number of the cut of largest gain; None: none has any."""
        best, found = 1e-9, None
        for column in range(len(told[0].gradient)):
            g = np.sum([one.gradient[column] for one in told], axis=0)
            h = np.sum([one.hessian[column] for one in told], axis=0)
            left_g, left_h = np.cumsum(g)[:-1], np.cumsum(h)[:-1]
            right_g, right_h = g.sum() - left_g, h.sum() - left_h
            gain = (
                left_g**2 / (left_h + self.reg_lambda)
                + right_g**2 / (right_h + self.reg_lambda)
                - g.sum() ** 2 / (h.sum() + self.reg_lambda)
            )
            gain[(left_h < self.min_child_weight) | (right_h < self.min_child_weight)] = 0
            if len(gain) and gain.max() > best:
                best, found = float(gain.max()), (column, int(gain.argmax()))
        return found

    def model(self, trees: Sequence[dict[str, Any]], features: int) -> bytes:
        """All trees so far as a document."""
        head = {"format": "sklearn-trees", "objective": "logistic", "features": features}
        return json.dumps({**head, "base": self.base_score, "trees": list(trees)}).encode()


@dataclass(kw_only=True, eq=False)
class Site:
    """One site's rows as bins, with their margins, and what it sent of the tree that grows.

    Attributes:
        at: bin of every row in every column, (B, F).
        bins: number of bins by column.
        labels: (B,).
        margin: (B,).
        gradient: (B,).
        hessian: (B,).
        sent: its nodes.
    """

    at: Ints
    bins: tuple[int, ...]
    labels: Floats
    margin: Floats
    gradient: Floats = field(default_factory=lambda: np.zeros(0))
    hessian: Floats = field(default_factory=lambda: np.zeros(0))
    sent: list[Node] = field(default_factory=list)

    @classmethod
    def of(cls, setting: Setting, client: int, cuts: tuple[Floats, ...], base: float) -> "Site":
        """A client's rows."""
        rows = setting.shard(client)
        inputs = rows.inputs.double().numpy() + STEP
        at = [np.searchsorted(one, inputs[:, i], side="right") for i, one in enumerate(cuts)]
        start = np.full(len(rows), np.log(base / (1 - base)))
        return cls(
            at=np.stack(at, 1).astype(np.int64), bins=tuple(len(one) + 1 for one in cuts),
            labels=rows.labels.double().numpy(), margin=start,
        )  # fmt: skip

    def start(self) -> None:
        """Derivatives at the margins, for a new tree."""
        p = 1 / (1 + np.exp(-self.margin))
        self.gradient, self.hessian, self.sent = p - self.labels, p * (1 - p), []

    def inside(self, first: Ints, last: Ints) -> NDArray[np.bool_]:
        """Which rows lie in a box of bins, (B,)."""
        return np.asarray(((self.at >= first) & (self.at <= last)).all(1))

    def tell(self, first: Ints, last: Ints, inside: NDArray[np.bool_]) -> Node:
        """Send the histograms of a node."""
        sums = [
            tuple(
                np.bincount(self.at[inside, i], weights[inside], minlength=size).astype(np.float64)
                for i, size in enumerate(self.bins)
            )
            for weights in (self.gradient, self.hessian)
        ]
        self.sent.append(Node(first=first, last=last, gradient=sums[0], hessian=sums[1]))
        return self.sent[-1]


def cuts_of(table: Row, most: int) -> tuple[Floats, ...]:
    """Public cuts of every entry: between the two values of a category, even over a number's range."""
    cuts: list[Any] = []
    for column, place in table.places():
        steps = column.high - column.low
        for offset in range(place.stop - place.start):
            if not column.numeric or offset >= column.entries:
                cuts.append(np.array([0.5]))
            elif column.kind == "integer" and steps < most:
                cuts.append((np.arange(1, int(steps) + 1) - 0.5) / steps)
            else:
                cuts.append(np.arange(1, most) / most)
    return tuple(cuts)
