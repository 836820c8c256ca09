"""Differencing: two sets of sums that differ by one person are that person's row.

(a) Sums of two rounds: every column's difference is the value, exact to their rounding. (b) Two rows behind
n, Σx and Σx²: both values. (c) An AUC with n: the number of positives P, because 2·AUC·P·(n − P) is a whole
number.

Source: Denning & Schlörer 1979, "The tracker", ACM TODS 4(1) for (a); (b) and (c) are elementary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from glasshouse.errors import Inapplicable
from glasshouse.formats.records import Statistic, Statistics

SUBJECT: Final = "differencing of statistics"


@final
@dataclass(frozen=True, kw_only=True)
class Difference:
    """What the people who joined or left add up to.

    Attributes:
        people: how many more there are; below 0: fewer.
        sums: by column, what they add up to: with one person, that person's values.
        errors: by column, the largest distance from the truth, by the rounding of what was sent.
    """

    people: int
    sums: dict[str, float]
    errors: dict[str, float]


def difference(statistics: Statistics, *, site: int, before: int, after: int) -> Difference:
    """The sums of those who came (or went) between two rounds of one site.

    Args:
        statistics: of the site in both rounds: a count, and sums or means.
        site: whose.
        before: the earlier round.
        after: the later round.

    Raises:
        Inapplicable: a round without a count, or no column in both.

    Examples:
        >>> numbers = (
        ...     Statistic(name="count", value=2, round=0),
        ...     Statistic(name="sum", value=80, column="age", round=0),
        ...     Statistic(name="count", value=3, round=1),
        ...     Statistic(name="mean", value=40, column="age", round=1),
        ... )
        >>> found = difference(Statistics(numbers=numbers), site=0, before=0, after=1)
        >>> found.people, found.sums
        (1, {'age': 40})
    """
    both = [_sums(statistics.select(site=site, round=number)) for number in (before, after)]
    (first, earlier), (second, later) = both
    shared = [column for column in earlier if column in later]
    if not shared:
        raise Inapplicable(
            SUBJECT,
            needs="sums or means of one column in both rounds",
            got=f"columns {', '.join(earlier) or 'none'} and {', '.join(later) or 'none'}",
            fix="compare rounds in which the same columns were sent",
        )
    people = second - first
    sign = -1 if people < 0 else 1
    return Difference(
        people=people,
        sums={c: sign * (later[c][0] - earlier[c][0]) for c in shared},
        errors={c: later[c][1] + earlier[c][1] for c in shared},
    )


def _sums(numbers: Sequence[Statistic]) -> tuple[int, dict[str, tuple[float, float]]]:
    """The number of rows, and the sum of every column with its error."""
    counts = [n.value for n in numbers if n.name == "count" and not n.subset]
    if not counts:
        raise Inapplicable(
            SUBJECT, needs="the number of rows", got="no count", fix="take it from the number of examples"
        )
    count = round(counts[0])
    sums: dict[str, tuple[float, float]] = {}
    for n in numbers:
        if n.subset or n.name not in ("sum", "mean"):
            continue
        times = count if n.name == "mean" else 1
        sums.setdefault(n.column, (times * n.value, times * n.slack))
    return count, sums


def two_values(total: float, squares: float) -> tuple[float, float]:
    """The two numbers with this sum and this sum of squares, the smaller first.

    Raises:
        Inapplicable: no two real numbers have them.

    Examples:
        >>> two_values(10.0, 58.0)
        (3.0, 7.0)
    """
    spread = 2 * squares - total**2
    if spread < -1e-9 * max(1.0, abs(squares)):
        raise Inapplicable(
            SUBJECT,
            needs="sums of two real numbers",
            got=f"Σx = {total:g}, Σx² = {squares:g}",
            fix="check which subset they are of",
        )
    half = float(np.sqrt(max(spread, 0.0))) / 2
    return total / 2 - half, total / 2 + half


def positives_of_auc(auc: float, count: int, *, slack: float = 1e-9) -> tuple[int, ...]:
    """Numbers of positives of ``count`` rows at which an AUC is possible: 2 AUC P (n − P) is whole.

    Args:
        auc: in [0, 1], with ties counted as one half.
        count: n.
        slack: largest distance of ``auc`` from the true one.

    Examples:
        >>> positives_of_auc(0.5 + 1 / 42, 10)
        (3, 7)
    """
    found = []
    for positives in range(1, count):
        pairs = 2 * positives * (count - positives)
        if abs(auc * pairs - round(auc * pairs)) <= slack * pairs + 1e-9:
            found.append(positives)
    return tuple(found)
