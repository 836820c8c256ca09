"""A verdict on a single victim: does the claim match its own example better than held-out ones?"""

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import ArrayLike

from glasshouse.errors import BadValue, Undefined

__all__ = ["FEWEST", "Rank", "rank_of", "rank_p_value"]

FEWEST = 199
"""Held-out examples: the smallest p-value is then 0.005, which Holm leaves below 0.05 for up to 9 victims."""
ALPHA = 0.05
"""Family-wise error rate over all victims: the chance that any is named although nothing leaked."""


@final
@dataclass(frozen=True, kw_only=True)
class Rank:
    """Rank of the true example among held-out ones.

    Attributes:
        rank: number of held-out examples that match the claim as well or better.
        compared: M, the number of held-out examples.
    """

    rank: int
    compared: int

    @property
    def p(self) -> float:
        """``(1 + rank) / (1 + compared)``."""
        return rank_p_value(self.rank, self.compared)


def rank_p_value(rank: int, compared: int) -> float:
    """One-sided p-value of "the claim matches its victim no better than a held-out example".

    Exact where the victim and the held-out examples come from one distribution: without information, all
    ranks from 0 to M are equally likely. Ties count against the attack.

    Args:
        rank: number of held-out examples that match the claim as well or better, 0 … M.
        compared: M, the number of held-out examples.

    Raises:
        Undefined: fewer than ``FEWEST`` held-out examples.
        BadValue: ``rank`` is not in 0 … M.

    Source:
        Phipson & Smyth 2010, "Permutation p-values should never be zero", arXiv:1603.05766.

    Examples:
        >>> rank_p_value(0, 199)
        0.005
    """
    if compared < FEWEST:
        raise Undefined(
            "verdict on a single victim",
            needs=f"at least {FEWEST} held-out examples to compare with",
            got=f"{compared}",
            fix=f"set data.heldout to {FEWEST} or more",
        )
    if not 0 <= rank <= compared:
        raise BadValue(
            "verdict on a single victim",
            needs="0 <= rank <= compared",
            got=f"rank {rank} of {compared}",
            fix="count the held-out examples that match as well or better",
        )
    return (1 + rank) / (1 + compared)


def comparisons_for(victims: int) -> int:
    """Held-out examples needed so that one of ``victims`` can be named after Holm's correction.

    Examples:
        >>> comparisons_for(1), comparisons_for(20)
        (199, 400)
    """
    return max(FEWEST, round(victims / ALPHA))


def rank_of(score: float, others: ArrayLike, *, higher_leaks: bool = True) -> Rank:
    """The rank of the true example's score among the same claim's scores against held-out examples.

    Args:
        score: of the claim against its own victim.
        others: ``(M,)``, of the same claim against each held-out example.
        higher_leaks: False for errors and distances.

    Raises:
        BadValue: a score is not finite.

    Examples:
        >>> rank_of(20.0, [11.0, 20.0, 9.0])
        Rank(rank=1, compared=3)
    """
    x = np.asarray(others, dtype=np.float64)
    if x.ndim != 1 or not (np.isfinite(x).all() and np.isfinite(score)):
        raise BadValue(
            "verdict on a single victim",
            needs="one finite score per held-out example",
            got=f"shape {x.shape}, {int((~np.isfinite(x)).sum())} not finite, own score {score}",
            fix="leave the victim without a verdict",
        )
    better = x >= score if higher_leaks else x <= score
    return Rank(rank=int(better.sum()), compared=len(x))
