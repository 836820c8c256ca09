"""Accuracy of the labels that an attack infers for a batch. K classes, B private examples."""

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from glasshouse.errors import BadValue
from glasshouse.metrics.base import Hits, ScoreContext, Scores, rate_wording
from glasshouse.registry import Card


@final
@dataclass(frozen=True, kw_only=True)
class LabelAccuracy(Hits):
    """Share of the batch's labels that the claim contains, as multisets: order does not matter.

    The overlap is ``Σ min(claimed, true)`` over classes, divided by B. Of the B numbers returned the first
    ones, as many as the overlap, are 1, the rest 0 (a claim does not assign labels to examples). With R > B
    claimed labels each hit counts B / R, so that claiming every class gains nothing.
    """

    card = Card(summary="share of a batch's labels that were inferred, as a multiset")
    wording = rate_wording(
        label="labels read",
        sentence="read {} of the private labels right",
        explanation="Share of the private labels that the attack knew: higher is worse. Guessing from "
        "public data reaches what the labels' frequencies give away.",
        severity="labels",
        order=400,
        chance="depends on the labels: see the null baseline",
    )
    claim = "labels"
    reads = "counts"
    against = "counts"

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> Scores:
        """One number per private example; both arguments are counts per class, ``(K,)``."""
        del context
        good = claimed.shape == truth.shape and claimed.ndim == 1
        whole = not (claimed.is_floating_point() or truth.is_floating_point())
        if not good or not whole or bool((claimed < 0).any() | (truth < 0).any()) or int(truth.sum()) == 0:
            raise BadValue(
                "metric 'label_accuracy'",
                needs="counts per class (K,), whole, not negative, at least one true label",
                got=f"claimed {claimed.tolist()}, true {truth.tolist()}",
                fix="turn labels into counts with torch.bincount(labels, minlength=K)",
            )
        size, claims = int(truth.sum()), int(claimed.sum())
        overlap = int(torch.minimum(claimed.cpu(), truth.cpu()).sum())
        hits = np.zeros(size)
        hits[:overlap] = min(1.0, size / claims) if claims else 0.0
        return hits
