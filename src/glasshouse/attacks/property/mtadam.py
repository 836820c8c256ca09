"""MTAdam: Adam for a sum of losses whose gradients are rescaled to a common norm in every step.

Shape letters: L losses, E numbers in a parameter, P independent problems solved side by side.

A moving average tracks the norm of each loss's gradient, and the gradient is scaled to the average of the
first loss; each loss has its own moments; the step uses the largest second moment. P problems share the
arrays but nothing else: norms are computed per problem.

Source: Malkiel & Wolf 2020, "MTAdam: Automatic Balancing of Multiple Training Loss Terms", arXiv:2006.14683,
Algorithm 1. As in the authors' code, the anchor is the first loss whose average has not vanished.
"""

from typing import final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

VANISHED = 1e-10
RATE, EPSILON = 1e-3, 1e-8
FIRST, SECOND, THIRD = 0.9, 0.999, 0.9
"""Decay of the two moments, as in Adam, and of the norms."""


@final
class MTAdam:
    """Steps for one parameter.

    Args:
        size: E.
        losses: L.
        starts: (P,), index of each problem's first number in the parameter; problems are contiguous.
    """

    def __init__(self, size: int, losses: int, starts: NDArray[np.int64]) -> None:
        self._starts = starts
        self._lengths = np.diff(np.append(starts, size))
        self._m = np.zeros((losses, size))
        self._v = np.zeros((losses, size))
        self._norms: Floats | None = None
        self._step = 0

    def step(self, gradients: Floats) -> Floats:
        """The change to subtract from the parameter, (E,); the losses' gradients (L, E) are overwritten."""
        self._step += 1
        norms = np.sqrt(np.add.reduceat(gradients * gradients, self._starts, axis=1))  # (L, P)
        self._norms = norms if self._norms is None else THIRD * self._norms + (1 - THIRD) * norms
        alive = self._norms > VANISHED
        anchor = np.take_along_axis(self._norms, alive.argmax(0)[None], 0)
        scales = np.where(alive, anchor / np.where(alive, self._norms, 1.0), 1.0)  # (L, P)
        gradients *= scales if len(self._starts) == 1 else np.repeat(scales, self._lengths, axis=1)
        self._m *= FIRST
        self._m += (1 - FIRST) * gradients
        self._v *= SECOND
        gradients *= gradients
        self._v += (1 - SECOND) * gradients
        widest = np.sqrt(self._v.max(0))
        widest /= np.sqrt(1 - SECOND**self._step)
        widest += EPSILON
        change: Floats = self._m.sum(0)
        change *= RATE / (1 - FIRST**self._step)
        change /= widest
        return change
