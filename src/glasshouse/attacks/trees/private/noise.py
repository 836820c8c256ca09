"""What the terms of private boosting say of its noise, and the sums of leaves that carry it.

Shape letters: L leaves of a tree, R rows.
"""

from dataclasses import dataclass
from typing import final

import numpy as np

from glasshouse.attacks.trees.algebra import Floats, Ints, Sums, margin_of, sigmoid
from glasshouse.errors import Inapplicable
from glasshouse.federation.protocols.documents.base import as_agreed
from glasshouse.federation.protocols.documents.dp_bagging import DpBagging
from glasshouse.formats.records import TreeEnsemble
from glasshouse.wire import Terms

Shares = tuple[Ints, Floats, Floats]
"""The leaf (its position), g and h of every row in one tree, (R,) each."""


@final
@dataclass(frozen=True, kw_only=True)
class Noise:
    """Public settings of private boosting that undo a leaf's value.

    Attributes:
        gradient: standard deviation of the noise of a leaf's G.
        hessian: of its H.
        eta: learning rate.
        reg_lambda: of the L2 penalty.
        base: probability before the first tree.
    """

    gradient: float
    hessian: float
    eta: float
    reg_lambda: float
    base: float

    def sums(self, trees: TreeEnsemble, tree: int) -> Sums:
        """G and H of every leaf, with their noise.

        Raises:
            Inapplicable: the document states no H.
        """
        nodes = trees.trees[tree]
        leaves, lower, upper = trees.boxes(tree)
        if nodes.hessian is None:
            raise Inapplicable(
                "attacks on private trees",
                needs="noisy sums of second derivatives, as dp_bagging writes them",
                got=f"none in tree {tree}",
                fix="audit the protocol dp_bagging",
            )
        hessian = nodes.hessian[leaves]
        gradient = -nodes.value[leaves] / self.eta * (np.maximum(hessian, 0.0) + self.reg_lambda)
        return Sums(
            leaves=leaves, lower=lower, upper=upper, hessian=hessian, gradient=gradient,
            count=np.full(len(leaves), np.nan),
        )  # fmt: skip

    def shares(self, trees: TreeEnsemble, rows: Floats, labels: Floats) -> list[Shares]:
        """What every row adds to each tree."""
        margin = np.full(len(rows), margin_of(self.base))
        found: list[Shares] = []
        for t, tree in enumerate(trees.trees):
            at = trees.reach(t, rows)
            p = sigmoid(margin)
            place = np.searchsorted(trees.boxes(t)[0], at).astype(np.int64)
            found.append((place, p - labels, p * (1 - p)))
            margin = margin + tree.value[at]
        return found


def noise_of(terms: Terms) -> Noise:
    """The noise of a federation of private trees."""
    how = as_agreed(DpBagging(), terms.options)
    gradient, hessian = how.spreads()
    return Noise(
        gradient=gradient, hessian=hessian, eta=how.eta, reg_lambda=how.reg_lambda, base=how.base_score
    )
