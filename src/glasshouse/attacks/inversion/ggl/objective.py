"""The loss over the latent space: distance of gradients plus a regularizer on the latent vector.

Source: Li et al. 2022 (GGL), equations 5 to 9. Shape letters: V victims, R candidates, B images of one
candidate, D latent entries, C channels, H and W pixels.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, final

import torch
from torch import Tensor

from glasshouse.attacks.inversion.ggl.generators import Prior
from glasshouse.attacks.parts.matching.distance import Objective
from glasshouse.attacks.parts.search.rows import Rows
from glasshouse.rng import Rng

TYPICAL: Final = 32
"""Draws of the prior whose median distance is the unit of a victim's distances."""
TINY: Final = 1e-30
RegularizerName = Literal["kl", "norm", "none"]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Fit:
    """Points (R, B * D) → losses (R,); a :class:`~glasshouse.attacks.inversion.ggl.search.LatentLoss`.

    Attributes:
        distance: of the candidates' updates from the received ones.
        prior: the generator.
        labels: (V, B), of every victim.
        latent: D.
        scales: what the distance is divided by, for every victim, or one number for all.
        regularizer: on the latent vectors.
        strength: weight of the regularizer.
        image_range: of the model's input pixels; the generator's are in [0, 1].
    """

    distance: Objective
    prior: Prior
    labels: Tensor
    latent: int
    scales: tuple[float, ...] = (1.0,)
    regularizer: RegularizerName = "kl"
    strength: float = 0.1
    image_range: tuple[float, float] = (0.0, 1.0)

    @property
    def dimension(self) -> int:
        """Coordinates of a point: B * D."""
        return self.labels.shape[1] * self.latent

    def __call__(self, points: Tensor, *, differentiable: bool = False, rows: Rows | None = None) -> Tensor:
        points = points.to(self.labels.device)
        victims = Rows.of(points, victims=len(self.labels)).victims if rows is None else rows.victims
        labels = self._labels_of(victims)
        with torch.set_grad_enabled(differentiable):
            images = self.images(points, labels)
        loss = self.shares(images, labels, differentiable=differentiable, victims=victims)
        if self.regularizer == "none":
            return loss
        penalty = kl(points) if self.regularizer == "kl" else norm_penalty(points, self.latent)
        return loss + self.strength * penalty

    def shares(
        self, images: Tensor, labels: Tensor, *, differentiable: bool, victims: tuple[int, ...]
    ) -> Tensor:
        """(R,) distances of images (R, B, C, H, W) in units of their victims' ``scales``."""
        distances = self.distance(images, labels, create_graph=differentiable, victims=victims)
        if len(self.scales) == 1:
            return distances / self.scales[0]
        return distances / torch.tensor([self.scales[v] for v in victims]).to(distances)

    def scaled(self, rngs: Sequence[Rng]) -> "Fit":
        """The same loss with every victim's distances as shares of that of a typical draw of the prior.

        How far the updates of two images are apart depends on the network's weights (57-fold between draws of
        them) and on the defence; so a weight of the regularizer means the same only beside such a share.

        Args:
            rngs: a stream for every victim.
        """
        scales = []
        for victim, rng in enumerate(rngs):
            points = torch.randn(TYPICAL, self.dimension, generator=rng.torch()).to(self.labels.device)
            labels = self.labels[victim].expand(TYPICAL, -1)
            with torch.no_grad():
                images = self.images(points, labels)
            distances = self.distance(images, labels, create_graph=False, victims=(victim,) * TYPICAL)
            typical = float(distances.detach().nanmedian())
            scales.append(max(typical, TINY) if math.isfinite(typical) else 1.0)
        return replace(self, scales=tuple(scales))

    def _labels_of(self, victims: tuple[int, ...]) -> Tensor:
        """Labels (R, B) of candidates for these victims."""
        each = len(victims) // len(self.labels)
        if victims == tuple(v for v in range(len(self.labels)) for _ in range(each)):
            return self.labels.repeat_interleave(each, 0)
        return self.labels[list(victims)]

    def images(self, points: Tensor, labels: Tensor | None = None) -> Tensor:
        """(R, B, C, H, W) of points (R, B * D), in pixel units; labels (R, B), or those of the victims."""
        if labels is None:
            labels = self._labels_of(Rows.of(points, victims=len(self.labels)).victims)
        vectors = points.to(self.labels.device).reshape(-1, self.latent)
        return self.pixels(self.prior(vectors, labels.flatten()), labels)

    def pixels(self, images: Tensor, labels: Tensor) -> Tensor:
        """(R, B, C, H, W) in pixel units of the generator's (R * B, C, H, W) in [0, 1]; labels (R, B)."""
        low, high = self.image_range
        return (low + (high - low) * images).reshape(*labels.shape, *images.shape[1:])


def kl(points: Tensor) -> Tensor:
    """(R,) divergence of N(mean, variance of a point's coordinates) from N(0, 1): 0 at mean 0, variance 1.

    Examples:
        >>> kl(torch.tensor([[1.0, -1.0], [2.0, 0.0]])).round(decimals=3).tolist()
        [0.0, 0.5]
    """
    variance, mean = torch.var_mean(points, dim=1, correction=0)
    return 0.5 * (variance + mean.square() - 1 - (variance + 1e-10).log())


def norm_penalty(points: Tensor, latent: int) -> Tensor:
    """(R,) (|z|² - D)² averaged over the B vectors: |z|² is about D for z from N(0, 1).

    Examples:
        >>> norm_penalty(torch.tensor([[1.0, 1.0], [2.0, 0.0]]), 2).tolist()
        [0.0, 4.0]
    """
    lengths = points.reshape(len(points), -1, latent).square().sum(-1)
    return (lengths - latent).square().mean(1)
