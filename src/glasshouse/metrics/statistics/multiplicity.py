"""Correction of p-values for multiple testing."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from glasshouse.errors import BadValue

__all__ = ["benjamini_hochberg", "holm"]


def holm(p_values: ArrayLike) -> NDArray[np.float64]:
    """Holm-adjusted p-values, all of which may be compared with one α: is *anyone* among them?

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
    p = _check("Holm's adjustment", p_values)
    order = np.argsort(p, kind="stable")
    steps = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)) if len(p) else p
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(steps, 1.0)
    return adjusted


def benjamini_hochberg(p_values: ArrayLike) -> NDArray[np.float64]:
    """Adjusted p-values for the question *which* of them: α is then the share of false ones among the named.

    Valid where the tests are independent or positively dependent, as ranks among shared held-out examples are
    (Bates et al. 2023). If no null hypothesis is false, the chance to name anyone is at most α, as with
    Holm's.

    Args:
        p_values: ``(m,)``, in any order.

    Returns:
        ``(m,)``, in the same order, each at least as large as its p-value and at most 1.

    Raises:
        BadValue: a p-value is not in [0, 1].

    Source:
        Benjamini & Hochberg 1995, JRSS B 57(1), 289-300; Bates, Candès, Lei, Romano & Sesia 2023, "Testing
        for outliers with conformal p-values", Annals of Statistics 51(1), Theorem 2.

    Examples:
        >>> benjamini_hochberg([0.01, 0.04, 0.03]).round(3).tolist()
        [0.03, 0.04, 0.04]
    """
    p = _check("Benjamini and Hochberg's adjustment", p_values)
    if not len(p):
        return p
    # From the largest down: none is adjusted to more than the next larger one.
    down = np.argsort(p)[::-1]
    adjusted = np.empty_like(p)
    adjusted[down] = np.minimum.accumulate(p[down] * (len(p) / np.arange(len(p), 0, -1.0)))
    return np.clip(adjusted, 0.0, 1.0)


def _check(subject: str, p_values: ArrayLike) -> NDArray[np.float64]:
    p = np.asarray(p_values, dtype=np.float64)
    if p.ndim != 1 or not ((p >= 0) & (p <= 1)).all():
        raise BadValue(
            subject,
            needs="p-values (m,), each in [0, 1]",
            got=f"shape {p.shape}: {p.tolist()}",
            fix="leave out findings that have no p-value",
        )
    return p
