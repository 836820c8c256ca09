"""What a federation that prunes, or rounds to few levels, shows in every model."""

from scipy.stats import nbinom
from torch import Tensor

from glasshouse.guard.vectors import BIN

CHANCE = 1e-5
"""Share of honest models of a federation in which more is odd than the limit allows."""
SPARSE = 1e-3
"""Share of entries that must be zero: of a dense weight a few in 100,000 are, by chance."""
CAP = 8
"""At most one row in so many more than the honest model has: crafted ones are many."""


def most_by_sparsity(count: int, weight: Tensor) -> int:
    """How many odd rows or kernels one may expect where an honest ``weight`` has ``count``.

    None, if the weight is dense. Otherwise they are counts of what lost all its entries by chance: the
    predictive distribution under Jeffreys's prior says how many more the next model may have.
    """
    if float((weight.double().abs() <= BIN).double().mean()) < SPARSE:
        return 0
    return min(int(nbinom.isf(CHANCE, count + 0.5, 0.5)), count + len(weight) // CAP)
