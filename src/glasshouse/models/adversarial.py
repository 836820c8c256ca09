"""Adversarial perturbations for training and for measuring robust accuracy.

Source: Madry et al. 2018, arXiv:1706.06083 (projected gradient ascent on the loss); Wong, Rice & Kolter 2020,
arXiv:2001.03994 (one step from a random start, with a step of 1.25 times the radius); Dabholkar et al. 2025
(Maui: ten steps of half the radius). Where we differ: the perturbed image is clipped to the image range
[0, 1], and there is no early stopping.

Shape letters: B images, C channels, H and W pixels.
"""

from dataclasses import dataclass
from typing import Annotated, Final, Literal, final

import torch
from torch import Tensor, nn

from glasshouse.errors import Undefined
from glasshouse.interfaces import task_of
from glasshouse.limits import Count, Fix, Positive, Probability, check_ranges
from glasshouse.models.base import evaluated
from glasshouse.rng import Rng
from glasshouse.wire import Batch

Method = Literal["fgsm", "pgd"]
STEP: Final[dict[Method, float]] = {"fgsm": 1.25, "pgd": 0.5}
"""Default step size of each method, as a share of the radius."""


@final
@dataclass(frozen=True, kw_only=True)
class Ascent:
    """Signed gradient ascent on the loss within a radius: a ``models.fit.Perturb``.

    Attributes:
        method: ``fgsm``: one signed step from a random start; ``pgd``: ``steps`` signed steps from one.
        radius: largest change of a pixel, in units of the image range [0, 1]; > 0.
        step: step size as a share of ``radius``; None: the default of the method, :data:`STEP`.
        steps: number of steps of pgd; fgsm takes one.
    """

    method: Method = "fgsm"
    radius: Annotated[Probability, Fix("4/255 is usual")] = 4 / 255
    step: Annotated[Positive, Fix("step is a share of the radius")] | None = None
    steps: Count = 10

    def __post_init__(self) -> None:
        check_ranges(self, "adversarial perturbation")

    @property
    def share(self) -> float:
        """Step size as a share of the radius: ``step``, or the method's default."""
        return STEP[self.method] if self.step is None else self.step

    @property
    def taken(self) -> int:
        """Number of steps, each a forward and a backward pass."""
        return 1 if self.method == "fgsm" else self.steps

    def __call__(
        self, model: nn.Module, inputs: Tensor, labels: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Adversarial images (B, C, H, W) in [0, 1], within ``radius`` of ``inputs``."""
        shape = inputs.shape
        noise = torch.rand(shape, generator=generator, device=inputs.device) * 2 - 1
        adversarial = (inputs + self.radius * noise).clamp(0, 1)
        for _ in range(self.taken):
            adversarial = adversarial.detach().requires_grad_()
            loss = task_of(model).loss(model(adversarial).float(), labels, adversarial, reduction="sum")
            (slope,) = torch.autograd.grad(loss, adversarial)
            adversarial = adversarial.detach() + self.share * self.radius * slope.sign()
            adversarial = (inputs + (adversarial - inputs).clamp(-self.radius, self.radius)).clamp(0, 1)
        return adversarial.detach()


PGD10 = Ascent(method="pgd", radius=4 / 255, step=0.5, steps=10)
"""The reference attack for robust accuracy: ten steps of 2/255 within 4/255."""


def robust_accuracy(
    model: nn.Module, batch: Batch, *, attack: Ascent = PGD10, rng: Rng, batch_size: int = 250
) -> float:
    """Share of ``batch`` classified correctly after ``attack``, in [0, 1]; float32, eval mode.

    Lower is less robust. A normally trained network is near 0: chance is not a lower bound.

    Raises:
        Undefined: no examples.
    """
    if not len(batch):
        raise Undefined("robust accuracy", needs="at least one example", got="none", fix="give held-out data")
    device = next(model.parameters()).device
    generator = rng.child("robust").torch(device)
    right = 0
    batches = zip(torch.split(batch.inputs, batch_size), torch.split(batch.labels, batch_size), strict=True)
    with evaluated(model):
        for x, y in batches:
            with torch.enable_grad():
                adversarial = attack(model, x.to(device), y.to(device), generator)
            right += int((model(adversarial).argmax(1) == y.to(device)).sum())
    return right / len(batch)
