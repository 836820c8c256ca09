"""The input of all estimators: the features of every round's sum, and the distribution of features.

Shape letters: n rounds, N clients, t features, z numbers in an update, H held-out shadow clients of a kind.

In every round, shadow clients are trained from its broadcast, and a detector is fitted on most of them. The
others (fixed for the run, with auxiliary examples that no detector is trained on) give the distribution of
its features with and without the property. The feature of a sum is the sum of its clients' features. All
detectors are applied to all sums (``kernel``), which gradient disaggregation needs.

Source: Kerkouche et al. 2023, arXiv:2303.03908, section 5.2. Where we differ: 400 pairs instead of 5,000 (the
detector is nearly as good), L-BFGS instead of SGD, and held-out shadow clients that share no example with the
detector's (the paper splits updates, not examples, and with SGD selects the epoch on the test part).
"""

from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal, final

import torch
from torch import Tensor

from glasshouse.errors import BadValue
from glasshouse.limits import Count, Natural, Positive, Share, check_ranges


@final
@dataclass(frozen=True, kw_only=True)
class Method:
    """Settings of shadow clients and detectors.

    Args:
        pairs: shadow clients of each kind per round.
        held: share of the pairs, and of the auxiliary examples, that is held out from the detector.
        pool: number of auxiliary examples from which the shadow clients of a round draw: a new subset every
            round for the detector's, the same in all rounds for the held-out ones; 0: all of them.
        detector: ``lbfgs``, the paper's ``sgd``, or ``discriminant``: exact for clients of a single step, and
            the pull of the first step for others.
        skewed: shadow clients hold examples of few or many classes, at random from one to all, for
            federations in which nobody says how classes are spread; False: as the auxiliary data have them.
        penalty: of L-BFGS.
        iterations: of L-BFGS.
        epochs: of SGD.
        learning_rate: of SGD.
        batch_size: of SGD.
        shrinkage: of the discriminant, as a share of the trace of the covariance.
        features: t; the coordinates are split into this many contiguous blocks, with a detector each.
        seed: of the shadow clients.
    """

    pairs: Count = 400
    held: Share = 0.2
    pool: Natural = 1500
    detector: Literal["lbfgs", "sgd", "discriminant"] = "lbfgs"
    skewed: bool = False
    penalty: Positive = 0.1
    iterations: Count = 15
    epochs: Count = 50
    learning_rate: Positive = 0.01
    batch_size: Count = 16
    shrinkage: Positive = 1e-5
    features: Count = 1
    seed: Natural = 0

    @property
    def held_pairs(self) -> int:
        """Number of pairs that are held out."""
        return round(self.pairs * self.held)

    def __post_init__(self) -> None:
        check_ranges(self, "shadow clients and detector")
        several = self.features > 1 and self.detector == "discriminant"
        if min(self.held_pairs, self.pairs - self.held_pairs) < 2 or several:
            raise BadValue(
                "shadow clients and detector",
                needs="held in (0, 1) with at least 2 pairs on either side, features = 1 with the "
                "discriminant",
                got=str(self),
                fix="try pairs = 400, held = 0.2",
            )


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """Features of all rounds; float64.

    Attributes:
        rounds: their numbers.
        participation: (n, N), 1 for clients in the sum.
        count: (n,), number of clients in the sum.
        kernel: (t, n, n); entry (k, r, j) is the direction of feature k of round j, applied to the sum of
            round r, without offset.
        offset: (n, t), of a single update.
        heldout: (n, 2, H, t), features of the held-out shadow clients, without (0) and with the property (1).
        norm: (n, t), ‖α‖ of the detector.
    """

    rounds: tuple[int, ...]
    participation: Tensor
    count: Tensor
    kernel: Tensor
    offset: Tensor
    heldout: Tensor
    norm: Tensor

    @property
    def features(self) -> Tensor:
        """Features of the sums, (n, t): G."""
        return self.kernel.diagonal(dim1=1, dim2=2).T + self.count[:, None] * self.offset

    @property
    def mean(self) -> Tensor:
        """Mean of the features, without and with the property: (n, 2, t)."""
        return self.heldout.mean(2)

    @property
    def variance(self) -> Tensor:
        """Population variance of the features, (n, 2, t); never 0."""
        return self.heldout.var(2, unbiased=False).clamp_min(1e-12)

    @property
    def overlap(self) -> Tensor:
        """Overlap of the two normal distributions, (n, t), in [0, 1]."""
        return torch.tensor(
            [
                [
                    NormalDist(m0, v0**0.5).overlap(NormalDist(m1, v1**0.5))
                    for m0, m1, v0, v1 in zip(*mean, *variance, strict=True)
                ]
                for mean, variance in zip(self.mean.tolist(), self.variance.tolist(), strict=True)
            ],
            dtype=torch.float64,
        )

    @property
    def accuracy(self) -> Tensor:
        """Share of the held-out shadow clients whose summed features are on the correct side of 0, (n,)."""
        side = self.heldout.sum(3) > 0
        return torch.stack([~side[:, 0], side[:, 1]], dim=1).double().mean((1, 2))

    def upto(self, count: int) -> "Evidence":
        """The first ``count`` rounds."""
        firsts = {name: values[:count] for name, values in vars(self).items()}
        return Evidence(**firsts | {"kernel": self.kernel[:, :count, :count]})
