"""Forecast of how well gradient inversion would recover a client's images, from a short search.

Preflight finds images that can be read directly from an update, without search. Gradient inversion searches:
it optimises images until their gradient matches the received one, over thousands of iterations. A client
cannot afford that for every update. But it knows its images, so it can measure whether the first iterations
approach them, and how much of the update they explain: where noise or pruning leaves little, no search gets
far.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glasshouse.api.attack import attack, view
from glasshouse.attacks.base import About, Reconstruction
from glasshouse.attacks.inversion.inverting_gradients import InvertingGradients
from glasshouse.errors import BadValue
from glasshouse.metrics.match import assign, mse_table
from glasshouse.rng import Rng
from glasshouse.transcript.view import View

__all__ = ["Forecast", "forecast_search"]

ITERATIONS: Final = 40
TV: Final = 0.1
_WINDOW: Final = 5
"""Side in pixels of the average filter applied before comparison: early reconstructions are coarse."""
_RANDOM: Final = 3  # batches of random images to compare with
_TINY: Final = 1e-12


@final
@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Result of a short search.

    Attributes:
        likeness: for each example, in [0, 1]: correlation of its coarse image with the claimed one; negative
            values count as 0.
        explained: relative reduction, in [0, 1], of the gradient distance to the update when random images
            are replaced by the true ones; 1 without a defence.
        iterations: number of iterations of the search.
    """

    likeness: tuple[float, ...]
    explained: float
    iterations: int

    @property
    def leak(self) -> float:
        """The predicted leak, in [0, 1]: mean likeness times ``explained`` (decision 0200)."""
        return self.explained * sum(self.likeness) / len(self.likeness)

    @property
    def summary(self) -> str:
        """Two sentences."""
        return (
            f"Predicted leak to a search: {self.leak:.2f} (after {self.iterations} iterations its images "
            f"correlate by up to {max(self.likeness):.2f} with yours, which explain {self.explained:.0%} of "
            "the update). In our tests this did not reliably say how far a long search comes: a low number "
            "is no safety."
        )


def forecast_search(
    update: Mapping[str, Tensor],
    model: nn.Module,
    batch: tuple[Tensor, Tensor],
    *,
    iterations: int = ITERATIONS,
    tv: float = TV,
    seed: int = 0,
) -> Forecast:
    """Run ``inverting_gradients`` briefly on a client's update, and compare the result with its images.

    The search is given the labels, which servers can mostly infer for small batches. A few images and a small
    network take seconds; batches of up to 4 were evaluated.

    Args:
        update: by parameter name, after all defences: the gradient of one step. For the parameter change of
            one step of plain SGD, pass its negative: the search is invariant to a positive factor.
        model: as received.
        batch: the images behind the update, (B, C, H, W) in [0, 1], and their classes, (B,).
        iterations: of the search; the forecast was evaluated with the default.
        tv: weight of the total variation in the search.
        seed: of the initial images, and of the random images.

    Raises:
        BadValue: the batch is not of images in [0, 1], or the update does not match the model.
        Inapplicable: the update is zero.

    Source:
        Geiping et al. 2020, arXiv:2003.14053, for the search.

    Examples:
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Sigmoid(), nn.Linear(16, 4))
        >>> image, label = torch.rand(1, 1, 8, 8), torch.tensor([3])
        >>> loss = nn.functional.cross_entropy(net(image), label)
        >>> names, weights = zip(*net.named_parameters())
        >>> gradient = dict(zip(names, torch.autograd.grad(loss, weights)))
        >>> forecast_search(gradient, net, (image, label), iterations=5).summary
        'Predicted leak to a search: 0... (after 5 iterations its images correlate by up to ...'
    """
    images, labels = batch
    if images.ndim != 4 or not len(images) or not bool(((images >= 0) & (images <= 1)).all()):
        ends = f" in [{float(images.min()):.2g}, {float(images.max()):.2g}]" if images.numel() else ""
        raise BadValue(
            "forecast of a search",
            needs="images (B, C, H, W) in [0, 1], B > 0",
            got=f"{tuple(images.shape)}{ends}",
            fix="give images before they are normalised, and a network that normalises them itself",
        )
    shape = (images.shape[1], images.shape[2], images.shape[3])
    seen = view(model, update, input_shape=shape, examples=len(images), labels=labels.tolist())
    search = attack("inverting_gradients", tv=tv, search={"iterations": iterations, "restarts": 1})
    (claim,) = search(seen, seed=seed)
    assert isinstance(claim, Reconstruction)
    return Forecast(
        likeness=tuple(_likeness(images, claim.inputs).tolist()),
        explained=_explained(seen, images, labels, rng=Rng.root(seed)),
        iterations=iterations,
    )


def _likeness(images: Tensor, claimed: Tensor) -> Tensor:
    """Correlation of coarse images after centring each channel, (B,); 0 for a constant image."""
    claims = claimed[torch.from_numpy(assign(mse_table(images, claimed)))]
    coarse = (
        F.avg_pool2d(t, _WINDOW, 1, _WINDOW // 2, count_include_pad=False)
        for t in (images, claims.to(images))
    )
    left, right = ((t - t.mean((2, 3), keepdim=True)).flatten(1) for t in coarse)
    return F.cosine_similarity(left, right, dim=1, eps=_TINY).clamp(0, 1)


def _explained(seen: View, images: Tensor, labels: Tensor, *, rng: Rng) -> float:
    """Relative reduction of the gradient distance to the update, from random images to the true ones."""
    searched = InvertingGradients(tv=0.0).objective(seen, About(rounds=(0,)), rng=rng)
    noise = torch.rand((_RANDOM, *images.shape), generator=rng.child("random").torch())
    true, *random = (float(searched.loss(one[None].to(images), labels[None])) for one in (images, *noise))
    usual = sum(random) / len(random)
    return min(1.0, max(0.0, 1 - true / usual)) if usual > searched.noise else 0.0
