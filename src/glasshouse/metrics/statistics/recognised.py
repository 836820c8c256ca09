"""Are claims most like their own examples, more often than luck puts them there?

Shape letters: k comparisons, each of a claim's own examples with others of their label.
"""

import numpy as np
from numpy.typing import ArrayLike

__all__ = ["recognised_p"]


def recognised_p(first: ArrayLike, chances: ArrayLike) -> float:
    """The p-value of "a claim is most like its own examples no more often than by luck".

    The number of claims whose own example comes first is a sum of independent trials, each with the chance
    that one of the own examples is the largest of all that were compared.

    Args:
        first: ``(k,)``, whether an own example is more like the claim than every other one.
        chances: ``(k,)``, own examples as a share of all that were compared, in [0, 1].

    Returns:
        The one-sided p-value; 1 where nothing was compared.

    Source:
        Wang 1993, "On the number of successes in independent trials", Statistica Sinica 3(2), 295-312 (the
        Poisson binomial distribution).

    Examples:
        >>> round(recognised_p([True, True, False], [0.1, 0.1, 0.1]), 4)
        0.028
    """
    hits, probabilities = np.asarray(first, dtype=bool), np.asarray(chances, dtype=np.float64)
    distribution = np.ones(1)
    for chance in probabilities:
        distribution = np.convolve(distribution, (1 - chance, chance))
    return float(min(1.0, distribution[int(hits.sum()) :].sum()))
