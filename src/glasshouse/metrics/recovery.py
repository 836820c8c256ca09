"""Recovery rates: the share of private examples reconstructed above a PSNR threshold.

``RateBlind`` pairs by least total squared error, each once; ``RatePaper`` uses the papers' convention. An
original without a pair is a miss. Shape letters as in ``base``.
"""

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.images import psnr
from glasshouse.metrics.base import Hits, ScoreContext, Scores, check_images, rate_wording
from glasshouse.metrics.match import UNMATCHED, assign, best, mse_table, take
from glasshouse.metrics.reconstruction import as_array
from glasshouse.registry import Card


@final
@dataclass(frozen=True, kw_only=True)
class RateBlind(Hits):
    """1 where an original was recovered: its reconstruction is better than ``threshold`` dB; else 0.

    Pairs by optimal assignment, so every reconstruction recovers at most one original.

    Args:
        threshold: PSNR above which (not at which) an image counts as recovered, dB.
    """

    card = Card(summary="share of originals recovered at PSNR > 18 dB, each original and each candidate once")
    wording = rate_wording(
        label="examples recovered",
        headline="{} rebuilt",
        sentence="recovered {} of the private examples",
        explanation="Share of the private images rebuilt at PSNR above 18 dB, each original and each "
        "rebuilt image counted once: higher is worse, guessing reaches about 0 %.",
        severity="images",
        order=10,
    )

    threshold: float = 18.0

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> Scores:
        check_images("rate_blind", claimed, truth)
        return _recovery_hits(claimed, truth, assign(mse_table(truth, claimed)), self.threshold, context)

    def compare(self, left: Tensor, right: Tensor, *, context: ScoreContext) -> Scores:
        return _above(left, right, self.threshold, context)


@final
@dataclass(frozen=True, kw_only=True)
class RatePaper(Hits):
    """As ``rate_blind``, but every original is paired with its best candidate, with reuse.

    The convention of the linear-leakage papers, for comparison with their tables. It is an upper bound on
    what a blind attacker can claim: two originals that fell into the same bin may both count.

    Args:
        threshold: PSNR above which (not at which) an image counts as recovered, dB.
    """

    card = Card(
        summary="share of originals with some candidate at PSNR > 18 dB, candidates reused (the papers' way)",
        source="Shi et al. 2023, arXiv:2311.05808 (reconstruction rate)",
    )
    wording = rate_wording(
        label="examples recovered (paper's count)",
        sentence="recovered {} of the private examples, counted as the paper does",
        explanation="As 'examples recovered', but one rebuilt image may stand for several originals, as "
        "papers count: higher is worse, and more than a blind attacker could claim.",
        severity="images",
        order=250,
    )

    threshold: float = 18.0

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> Scores:
        check_images("rate_paper", claimed, truth)
        return _recovery_hits(claimed, truth, best(mse_table(truth, claimed)), self.threshold, context)


def _recovery_hits(
    claimed: Tensor, truth: Tensor, pairing: NDArray[np.int64], threshold: float, context: ScoreContext
) -> Scores:
    hits = _above(take(claimed.double(), pairing, grey=context.grey), truth.double(), threshold, context)
    return np.asarray(hits * (pairing != UNMATCHED), dtype=np.float64)


def _above(left: Tensor, right: Tensor, threshold: float, context: ScoreContext) -> Scores:
    quality = as_array(psnr(left, right.to(left.device), data_range=context.data_range))
    return np.asarray(quality > threshold, dtype=np.float64)
