"""Scores of units (examples, claims) by the victim to whom they belong."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


def means_of(values: Sequence[Numbers]) -> Numbers:
    """The mean score of every victim."""
    alike = len({len(v) for v in values}) == 1
    return np.stack(values).mean(1) if alike else np.array([v.mean() for v in values])


def cluster(values: Sequence[Numbers]) -> tuple[Numbers, NDArray[np.int64]]:
    """The scores of all victims, and the position of the victim of each."""
    return np.concatenate(values), np.repeat(np.arange(len(values)), [len(v) for v in values])
