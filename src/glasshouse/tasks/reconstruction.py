"""Rebuild the input itself, as an autoencoder does; of a variational one with the pull of its latents.

Shape letters: B examples, D numbers of an example, Z latents.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, final

import torch
from torch import Tensor
from torch.nn import functional as F

from glasshouse.errors import BadValue
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.tasks.base import Task, Unknown

CRITERIA: Final = ("squared", "absolute", "binary")


@final
@dataclass(frozen=True, kw_only=True)
class Reconstruction(Task):
    """The distance of what a network rebuilds from its own input; no label enters the loss.

    The outputs of a variational autoencoder are one tensor, (B, D + 2 Z): what is rebuilt, then the means and
    the logarithms of the variances of its latents. ``glasshouse.adapt(net, logits=...)`` joins a tuple so.

    Args:
        size: the shape of one example, as it enters the network.
        criterion: ``squared`` (as ``torch.nn.MSELoss``), ``absolute`` (``L1Loss``), or ``binary``
            (``BCEWithLogitsLoss``), whose targets are in [0, 1].
        reduce: the loss of an example is the mean or the sum over its D numbers, and over its Z latents.
        mean: of the normalisation of the target: the loss compares with (input - mean) / std.
        std: likewise.
        latent: Z; 0: the network is not variational.
        kl: weight of the Kullback-Leibler divergence of the latents from a standard normal distribution.
        spread: public standard deviation of the targets, the unit in which errors are scored.
        classes: of the examples, which the loss does not use; known to nulls.

    Examples:
        >>> task = Reconstruction(size=(1, 2, 2))
        >>> float(task.losses(torch.zeros(1, 4), torch.zeros(1).long(), torch.ones(1, 1, 2, 2)))
        1.0
    """

    card: ClassVar[Card] = Card(summary="the input itself: autoencoders, plain and variational")
    name: ClassVar[str] = "reconstruction"
    utility: ClassVar[str] = "R2"
    unknown: ClassVar[Unknown] = "unused"
    shares: ClassVar[bool] = False

    size: tuple[int, ...]
    criterion: str = "squared"
    reduce: Literal["mean", "sum"] = "mean"
    mean: float = 0.0
    std: float = 1.0
    latent: int = 0
    kl: float = 1.0
    spread: float = 1.0
    classes: int = 0

    def __post_init__(self) -> None:
        sized = bool(self.size) and min(self.size) >= 1 and self.latent >= 0
        scaled = self.std > 0 and self.spread > 0 and self.kl >= 0
        if not (sized and scaled and self.criterion in CRITERIA and self.reduce in ("mean", "sum")):
            raise BadValue(
                "task 'reconstruction'",
                needs=f"size like (1, 28, 28), criterion {', '.join(CRITERIA)}, reduce mean or sum, "
                "std > 0, spread > 0, latent >= 0, kl >= 0",
                got=f"size = {self.size}, criterion = {self.criterion!r}, reduce = {self.reduce!r}, "
                f"std = {self.std}, spread = {self.spread}, latent = {self.latent}, kl = {self.kl}",
                fix="correct the task",
            )

    @property
    def outputs(self) -> tuple[int, ...]:
        """(D + 2 Z,)."""
        return (math.prod(self.size) + 2 * self.latent,)

    @property
    def target_shape(self) -> tuple[int, ...]:
        """The class of an example, which the loss does not use."""
        return ()

    def accepts(self, shape: tuple[int, ...]) -> bool:
        """Also in the shape of the example."""
        return math.prod(shape) == self.outputs[0] and (len(shape) == 1 or not self.latent)

    def violation(self, labels: Tensor) -> tuple[str, str] | None:
        """One whole number per example."""
        if labels.ndim == 1 and not labels.is_floating_point():
            return None
        return "labels (B,), whole numbers", f"shape {tuple(labels.shape)} of {labels.dtype}"

    def losses(self, outputs: Tensor, labels: Tensor, inputs: Tensor) -> Tensor:
        """Distance from the input, plus ``kl`` times the divergence of the latents, (B,)."""
        del labels
        rebuilt, latents = self._parts(outputs)
        wanted = self._wanted(inputs).to(rebuilt.dtype)
        if self.criterion == "squared":
            each = (rebuilt - wanted).square()
        elif self.criterion == "absolute":
            each = (rebuilt - wanted).abs()
        else:
            each = F.binary_cross_entropy_with_logits(rebuilt, wanted, reduction="none")
        losses = self._reduced(each)
        if not self.latent:
            return losses
        means, logs = latents.chunk(2, 1)
        divergence = (means.square() + logs.exp() - 1 - logs) / 2
        return losses + self.kl * self._reduced(divergence)

    def scores(self, outputs: Tensor, labels: Tensor, inputs: Tensor) -> Tensor:
        """1 minus the squared error in units of ``spread``, (B,)."""
        del labels
        rebuilt, _ = self._parts(outputs)
        rebuilt = rebuilt.sigmoid() if self.criterion == "binary" else rebuilt
        return 1 - ((rebuilt.double() - self._wanted(inputs).double()) / self.spread).square().mean(1)

    def constant(self, labels: Tensor, inputs: Tensor) -> float:
        """The score of always answering the mean example."""
        del labels
        wanted = self._wanted(inputs).double()
        return float(1 - ((wanted - wanted.mean(0)) / self.spread).square().mean())

    def guess(self, labels: Tensor, count: int, *, rng: Rng) -> Tensor:
        """Classes drawn from the public ones."""
        return labels[torch.randint(len(labels), (count,), generator=rng.torch())]

    def _parts(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """What is rebuilt (B, D), and the latents' means and logarithms of variances (B, 2 Z)."""
        flat, numbers = outputs.flatten(1), math.prod(self.size)
        if flat.shape[1] != self.outputs[0]:
            raise BadValue(
                "task 'reconstruction'",
                needs=f"outputs (B, {self.outputs[0]}): {numbers} rebuilt numbers, and {self.latent} means "
                "and variances of latents",
                got=f"(B, {flat.shape[1]})",
                fix="join them: glasshouse.adapt(net, logits=lambda o: torch.cat([o[0].flatten(1), o[1], "
                "o[2]], 1))",
            )
        return flat[:, :numbers], flat[:, numbers:]

    def _wanted(self, inputs: Tensor) -> Tensor:
        return (inputs.flatten(1) - self.mean) / self.std

    def _reduced(self, each: Tensor) -> Tensor:
        return each.mean(1) if self.reduce == "mean" else each.sum(1)
