"""Allowance for federations that prune, or round to few levels: their honest models look odd too."""

import scipy
from torch import Tensor

from glasshouse.guard.parts import flat_parts
from glasshouse.guard.vectors import BIN

CHANCE = 1e-5
"""False-positive rate: share of honest models of a federation that exceed the limit."""
SPARSE = 1e-3
"""Share of zero entries from which on a weight counts as sparse; dense ones have a few in 100,000."""
CAP = 8
"""At most one row in ``CAP`` more than in the honest model is allowed: crafted models have many."""


def most_by_sparsity(count: int, weight: Tensor) -> int:
    """Largest expected number of odd rows or kernels where an honest ``weight`` has ``count``.

    0 if the weight is dense. Otherwise rows lose all their entries by chance, and the predictive distribution
    under Jeffreys's prior bounds the number in the next model.
    """
    zeros = sum(int((part.double().abs() <= BIN).sum()) for part in flat_parts(weight))
    if zeros < SPARSE * weight.numel():
        return 0
    return min(int(scipy.stats.nbinom.isf(CHANCE, count + 0.5, 0.5)), count + len(weight) // CAP)
