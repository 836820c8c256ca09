"""Does an update show the noise that the site requires?

Under cross-entropy the columns of the last layer's gradient sum to zero over the classes, and so do sums of
such gradients (:func:`glasshouse.privacy.marks.zero_sums` is the same mark on torch tensors). Independent
noise breaks that: the sums, divided by √K, have the noise's standard deviation. The mark proves that noise is
there, not whose: an app can add noise that its server can compute.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

ALARM: Final = 1e-3
"""Share of honest messages, with exactly the required noise, that the rule refuses."""
FEWEST: Final = 8
"""Columns below which half of the required noise could not be told from all of it."""


def noise_ceiling(change: NDArray[Any]) -> float | None:
    """Upper confidence limit on the standard deviation of the noise in a last layer's change (K, F).

    None: it cannot be told from fewer than ``FEWEST`` columns or two classes. A message is refused if even
    this limit, at confidence 1 - ``ALARM``, is below the required noise. (A rule that asks for the *lower*
    limit would refuse nearly every client that adds exactly what is required.)

    Examples:
        >>> honest = np.array([[1.0] * 50, [-1.0] * 50])
        >>> noise_ceiling(honest)
        0.0
        >>> noise_ceiling(honest[:, :3]) is None
        True
    """
    if change.ndim != 2 or len(change) < 2 or change.shape[1] < FEWEST:
        return None
    sums = change.astype(np.float64).sum(0) / len(change) ** 0.5
    freedom = change.shape[1]
    return float(np.sqrt((sums**2).sum() / chi2.ppf(ALARM, freedom)))
