"""Refine images in the features of an inner stage of the generator, beyond what its latent space can draw.

Source: Fang et al. 2023, "GIFD: A Generative Gradient Inversion Method with Feature Domain Optimization",
ICCV. Where we differ: one stage, chosen, instead of one after another; features start where a search in the
latent space ended and move freely, by Adam with a falling rate, instead of within a ball.

Shape letters: R trials, B images of one trial, C channels, H and W pixels.
"""

from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

import torch
from torch import Tensor

from glasshouse.attacks.inversion.ggl.objective import Fit
from glasshouse.errors import Inapplicable
from glasshouse.limits import Natural, Positive, check_ranges
from glasshouse.progress import track


@runtime_checkable
class Staged(Protocol):
    """A generator that can be entered at an inner stage."""

    depth: int
    """Number of stages; features of stage 0 are nearest to the latent vector."""

    def features(self, latent: Tensor, labels: Tensor, *, stage: int) -> Tensor:
        """Features (N, ...) at ``stage`` of latent vectors (N, D) and labels (N,)."""

    def draw(self, features: Tensor, *, stage: int) -> Tensor:
        """Pixels (N, C, H, W) in [0, 1] of features at ``stage``."""


@final
@dataclass(frozen=True, kw_only=True)
class Refinement:
    """Settings of the refinement: the table ``refinement`` of GGL.

    Attributes:
        steps: of Adam per trial; 0: no refinement, as in GGL's paper.
        learning_rate: of Adam; it falls to zero in equal steps.
        stage: whose features are searched; 0 is the one nearest to the latent vector.
    """

    steps: Natural = 0
    learning_rate: Positive = 0.02
    stage: Natural = 0

    def __post_init__(self) -> None:
        check_ranges(self, "refinement in a generator's features")


def refine(fit: Fit, points: Tensor, how: Refinement, *, victim: int) -> Tensor:
    """The refined images of one victim's trials, (R, B, C, H, W), detached: of each trial the best evaluated.

    Args:
        fit: the loss; its regularizer, which is on latent vectors, is left out.
        points: (R, B * D), where the trials ended.
        how: the settings; at least one step.
        victim: whose update is matched.

    Raises:
        Inapplicable: the generator has no inner stages, or not so many.
    """
    generator, labels = fit.prior, fit.labels[victim].expand(len(points), -1)
    depth = generator.depth if isinstance(generator, Staged) else 0
    if not isinstance(generator, Staged) or how.stage >= depth:
        raise Inapplicable(
            "attack 'ggl' with refinement",
            needs=f"a generator with more than {how.stage} stages (features, draw and depth)",
            got=f"{type(generator).__name__}, which has {depth}",
            fix="set refinement.steps = 0, or a lower refinement.stage",
        )
    vectors = points.to(labels.device).reshape(-1, fit.latent)
    with torch.no_grad():
        start = generator.features(vectors, labels.flatten(), stage=how.stage)
    features, best = start.clone().requires_grad_(), start
    lowest = torch.full((len(points),), torch.inf, device=start.device)
    optimizer = torch.optim.Adam([features], lr=how.learning_rate)
    victims = (victim,) * len(points)
    with torch.enable_grad():
        for i in track(range(how.steps), "refining in the generator's features"):
            images = fit.pixels(generator.draw(features, stage=how.stage), labels)
            losses = fit.shares(images, labels, differentiable=True, victims=victims)
            (features.grad,) = torch.autograd.grad(losses.sum(), [features])
            better = losses.detach() < lowest  # False for NaN
            lowest = torch.where(better, losses.detach(), lowest)
            each = better.repeat_interleave(labels.shape[1]).reshape(-1, *[1] * (features.dim() - 1))
            best = torch.where(each, features.detach(), best)
            optimizer.param_groups[0]["lr"] = how.learning_rate * (1 - i / how.steps)
            optimizer.step()
    with torch.no_grad():
        return fit.pixels(generator.draw(best, stage=how.stage), labels)
