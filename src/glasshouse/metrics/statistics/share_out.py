"""What share of victims can come out, given how many of those that were tried did.

An attack that rebuilds a tenth of all examples exactly and fails on the rest moves a mean hardly at all. What
a client wants to know is the share, and its exact upper end: with none of n victims out, at most
1 - .025^(1/n) of such victims would come out, at 97.5 % confidence.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Final, Literal, final

import numpy as np
from annotated_types import Gt, Lt
from numpy.typing import ArrayLike

from glasshouse.errors import BadValue, Undefined
from glasshouse.limits import Fix, check_value
from glasshouse.metrics.statistics.shares import proportion_interval

__all__ = ["MARGIN", "Equivalence", "equivalence", "most_that_come_out", "victims_needed"]

MARGIN: Final = 0.1
"""The share of victims that may come out before a setting counts as leaking, where a scenario names no
other."""


@final
@dataclass(frozen=True, kw_only=True)
class Equivalence:
    """Whether the share of victims that come out is known to be below a margin, above it, or neither.

    Attributes:
        state: "below": the whole interval lies at or under the margin; "above": over it; "open": it crosses
            it.
        share: of the victims tried.
        low: exact 95 % interval of the share, lower end.
        high: its upper end.
        n: independent victims.
        margin: as the scenario declares it.
        needed: victims at least for "below" if none came out; more than ``n`` says what would show it.
    """

    state: Literal["below", "above", "open"]
    share: float
    low: float
    high: float
    n: int
    margin: float
    needed: int


def most_that_come_out(
    came_out: int, n: int, clusters: ArrayLike | None = None, *, level: float = 0.95
) -> float:
    """The exact upper end of the share of victims that come out.

    Args:
        came_out: number of victims that came out, 0 … n; with ``clusters`` at most their number.
        n: victims tried, at least 1.
        clusters: ``(n,)``, victims with equal numbers are too alike, or from one client, and count as one: n
            is then the number of clusters, and ``came_out`` counts clusters of which any member came out.
        level: of the two-sided interval to which the upper end belongs.

    Raises:
        Undefined: n is 0.
        BadValue: ``came_out`` is not in 0 … n, or clusters are of another length.

    Source:
        Clopper & Pearson 1934, Biometrika 26(4), 404-413; at none of n, 1 - ((1 - level) / 2)^(1/n).

    Examples:
        >>> round(most_that_come_out(0, 20), 3), round(most_that_come_out(0, 36), 3)
        (0.168, 0.097)
    """
    return proportion_interval(came_out, _independent(n, clusters), level=level).high


def equivalence(
    came_out: int, n: int, *, margin: float = MARGIN, clusters: ArrayLike | None = None, level: float = 0.95
) -> Equivalence:
    """Compare the share of victims that come out with a margin, in both directions.

    Each direction is a test at (1 - level) / 2: "below" is wrong in at most 2.5 % of audits, and so is
    "above".

    Args:
        came_out: as :func:`most_that_come_out`.
        n: as :func:`most_that_come_out`.
        margin: share of victims, in (0, 1).
        clusters: as :func:`most_that_come_out`.
        level: of the interval.

    Raises:
        BadValue: the margin is not in (0, 1), or as :func:`most_that_come_out`.
        Undefined: n is 0.

    Source:
        Schuirmann 1987, "A comparison of the two one-sided tests procedure", J. Pharmacokinet. Biopharm.
        15(6). We differ in the exact binomial interval in the place of Student's.

    Examples:
        >>> equivalence(0, 20).state, equivalence(0, 36).state, equivalence(8, 20).state
        ('open', 'below', 'above')
    """
    needed = victims_needed(margin, level=level)
    interval = proportion_interval(came_out, _independent(n, clusters), level=level)
    below, above = interval.high <= margin, interval.low > margin
    return Equivalence(
        state="below" if below else "above" if above else "open",
        share=interval.value,
        low=interval.low,
        high=interval.high,
        n=interval.n,
        margin=margin,
        needed=needed,
    )


def victims_needed(margin: float = MARGIN, *, level: float = 0.95) -> int:
    """The smallest n of which none may come out for the share to be known below ``margin``.

    Args:
        margin: share of victims, in (0, 1).
        level: of the two-sided interval.

    Raises:
        BadValue: the margin is not in (0, 1).

    Examples:
        >>> victims_needed(0.1), victims_needed(0.2)
        (36, 17)
    """
    check_value("share of victims", "margin", margin, Annotated[float, Gt(0), Lt(1), Fix("0.1 for a tenth")])
    return math.ceil(math.log((1 - level) / 2) / math.log1p(-margin) - 1e-9)


def _independent(n: int, clusters: ArrayLike | None) -> int:
    """The number of victims, or of clusters of them."""
    if n == 0:
        raise Undefined("share of victims", needs="at least 1 victim", got="none", fix="judge more victims")
    if clusters is None:
        return n
    numbers = np.asarray(clusters)
    if numbers.shape != (n,):
        raise BadValue(
            "share of victims",
            needs=f"the cluster of each of {n} victims",
            got=f"shape {numbers.shape}",
            fix="give one number per victim, equal for victims that count as one",
        )
    return len(np.unique(numbers))
