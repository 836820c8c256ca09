"""What a federation that prunes, or rounds to few levels, shows in every model."""

from scipy.stats import nbinom
from torch import Tensor

from glasshouse.guard.vectors import BIN

CHANCE = 1e-5
"""Share of honest models of a federation in which more is odd than the limit allows."""


def most_by_sparsity(count: int, weight: Tensor) -> int:
    """How many odd rows or kernels one may expect where an honest ``weight`` has ``count``.

    None, if no entry of it is zero. Otherwise they are counts of what lost all its entries by chance: the
    predictive distribution under Jeffreys's prior says how many more the next model may have.
    """
    if not bool((weight.double().abs() <= BIN).any()):
        return 0
    return int(nbinom.isf(CHANCE, count + 0.5, 0.5))
