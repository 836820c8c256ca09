"""The sparse vector technique: send a noisy random selection of the entries above a noisy threshold.

Source: Shokri & Shmatikov 2015, "Privacy-Preserving Deep Learning", CCS, section 5.3, and Dwork & Roth 2014,
"The Algorithmic Foundations of Differential Privacy", section 3.6; the rule is that of NVIDIA FLARE's filter
``SVTPrivacy`` before 2.9 (which clips before the noise), with its settings per local step.

No guarantee is computed. Lyu, Su & Li 2017 (VLDB, arXiv:1603.01699) show that variants of the technique spend
more budget than they state: here the threshold is not redrawn after a hit, and the noise is set by the clamp,
not by the sensitivity of training.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from glasshouse.federation.defenses.base import RewritingDefense
from glasshouse.federation.defenses.laplace_noise import laplace_like
from glasshouse.federation.defenses.marks import Mark
from glasshouse.limits import Fraction, NotNegative, Positive
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.wire import Terms, Update, Value


@final
@dataclass(frozen=True, kw_only=True)
class SparseVector(RewritingDefense):
    """Of n entries send at most ⌈fraction · n⌉, noisy and clamped; the others are zero.

    Args:
        fraction: part of the entries to send, in (0, 1].
        epsilon: sets the noise of the threshold, 2·bound / epsilon, and of the comparisons; > 0.
        noise: sets the noise of what is sent, Laplace of scale 2·bound / noise; > 0.
        bound: largest magnitude that leaves the client, per local step, in units of the update; > 0.
        threshold: magnitude that an entry must reach, before noise; >= 0.
        replace: sample the entries to send with replacement, as the filter does by default: fewer are sent.
    """

    card: ClassVar[Card] = Card(
        summary="sends noisy, clamped changes that passed a noisy threshold (sparse vector); no guarantee",
        source="Shokri & Shmatikov 2015, CCS",
    )
    name: ClassVar[str] = "sparse_vector"

    fraction: Fraction = 0.1
    epsilon: Positive = 0.1
    noise: Positive = 0.1
    bound: Positive = 1e-5
    threshold: NotNegative = 1e-6
    replace: bool = True

    @classmethod
    def marks(cls, parameters: Mapping[str, Value], update: Update, terms: Terms) -> tuple[Mark, ...]:
        del terms
        zeros = None if parameters["replace"] else 1 - float(parameters["fraction"])
        bound = float(parameters["bound"]) * update.steps
        return (
            Mark(kind="total_zeros", setting="1 - fraction", value=zeros),
            Mark(kind="largest", setting="bound · steps", value=bound),
        )

    def rewrite(self, update: Update, rng: Rng, /) -> Mapping[str, Tensor]:
        """The sparse, noisy tensors."""
        tensors = update.tensors
        flat = torch.cat([t.flatten().double() for t in tensors.values()]).cpu() / update.steps
        positions = self._choose(flat, rng)
        values = torch.zeros_like(flat)
        noisy = flat[positions] + _laplace(len(positions), 2 * self.bound / self.noise, rng.child("noise"))
        values[positions] = noisy.clamp(-self.bound, self.bound) * update.steps
        parts = zip(tensors.items(), torch.split(values, [t.numel() for t in tensors.values()]), strict=True)
        return {name: part.reshape(t.shape).to(t) for (name, t), part in parts}

    def _choose(self, flat: Tensor, rng: Rng) -> Tensor:
        """Indices of the entries to send, without repetition."""
        count = math.ceil(self.fraction * len(flat))
        threshold = self.threshold + float(_laplace(1, 2 * self.bound / self.epsilon, rng.child("threshold")))
        scale = 4 * self.bound * count / (self.epsilon * (2 * count) ** (2 / 3))
        clamped = flat.abs().clamp_max(self.bound)
        open_ = torch.ones(len(flat), dtype=torch.bool)
        draws, turn = rng.child("comparisons"), 0
        while int((~open_).sum()) < count:  # every entry passes eventually: the noise is unbounded
            passed = clamped + _laplace(len(flat), scale, draws.child(str(turn))) >= threshold
            open_ &= ~passed
            turn += 1
        accepted = (~open_).nonzero().flatten()
        generator = rng.child("choice").torch()
        if self.replace:
            picks = torch.randint(len(accepted), (count,), generator=generator)
        else:
            picks = torch.randperm(len(accepted), generator=generator)[:count]
        positions: Tensor = torch.unique(accepted[picks])
        return positions


def _laplace(count: int, scale: float, rng: Rng) -> Tensor:
    return laplace_like(torch.empty(count, dtype=torch.float64), rng) * scale
