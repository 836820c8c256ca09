"""Correction of p-values for multiple testing."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from glasshouse.errors import BadValue

__all__ = ["holm"]


def holm(p_values: ArrayLike) -> NDArray[np.float64]:
    """Holm-adjusted p-values, all of which may be compared with one α.

    The chance that any true null hypothesis falls below α is at most α, whatever the dependence of the tests.

    Args:
        p_values: ``(m,)``, in any order.

    Returns:
        ``(m,)``, in the same order, each at least as large as its p-value and at most 1.

    Raises:
        BadValue: a p-value is not in [0, 1].

    Source:
        Holm 1979, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of
        Statistics 6(2), 65-70.

    Examples:
        >>> holm([0.01, 0.04, 0.03]).round(3).tolist()
        [0.03, 0.06, 0.06]
    """
    p = np.asarray(p_values, dtype=np.float64)
    if p.ndim != 1 or not ((p >= 0) & (p <= 1)).all():
        raise BadValue(
            "Holm's adjustment",
            needs="p-values (m,), each in [0, 1]",
            got=f"shape {p.shape}: {p.tolist()}",
            fix="leave out findings that have no p-value",
        )
    order = np.argsort(p, kind="stable")
    steps = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)) if len(p) else p
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(steps, 1.0)
    return adjusted
