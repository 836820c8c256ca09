"""How far a search for a client's images would come, foretold by a short one, before the update is sent.

Preflight looks for images that stand in an update, and searches for none. Gradient inversion does: it moves
images until their gradient is the one received, for thousands of iterations. A client cannot spend that on
every update. But it knows its images, and so it can tell from the first iterations how well the search does.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor, nn

from glasshouse.api.attack import attack, view
from glasshouse.attacks.base import Reconstruction
from glasshouse.errors import BadValue
from glasshouse.images import mse
from glasshouse.metrics.match import assign, mse_table

__all__ = ["Forecast", "forecast_search"]

ITERATIONS: Final = 40
TV: Final = 0.1
_LEAST: Final = 1e-10  # mean squared error, pixels: the cap of images.psnr


@final
@dataclass(frozen=True, kw_only=True)
class Forecast:
    """How far a short search came.

    Attributes:
        gains: of each example, dB: the squared error of a flat image in its colour over that of the claimed
            image; below 0, the flat one is nearer.
        iterations: of the search.
    """

    gains: tuple[float, ...]
    iterations: int

    @property
    def leak(self) -> float:
        """The predicted leak: the mean of ``gains``, dB. It ranks updates; a long search gains more."""
        return sum(self.gains) / len(self.gains)

    @property
    def summary(self) -> str:
        """Two sentences."""
        side = "above" if self.leak >= 0 else "below"
        return (
            f"After {self.iterations} iterations a search for your images is {abs(self.leak):.1f} dB {side} "
            f"a flat picture (best of {len(self.gains)}: {max(self.gains):+.1f} dB). This predicts how "
            "updates rank under long searches, and is no bound: another search may come further."
        )


def forecast_search(
    update: Mapping[str, Tensor],
    model: nn.Module,
    batch: tuple[Tensor, Tensor],
    *,
    iterations: int = ITERATIONS,
    tv: float = TV,
    seed: int = 0,
    device: str = "cpu",
) -> Forecast:
    """Search shortly for a client's images in its update, by ``inverting_gradients``, and judge what comes.

    The search is given the labels, which servers mostly infer from small batches. It costs seconds for a
    few images and a small network; it is meant for batches up to about 8, beyond which searches rarely
    succeed.

    Args:
        update: by name of the parameter, after all defences: the gradient of one step. Of a change of the
            parameters in one step of plain SGD, its negative: the search does not mind a factor.
        model: as received.
        batch: the images behind the update, (B, C, H, W) in [0, 1], and their classes, (B,).
        iterations: of the search; the forecast was judged with the default.
        tv: weight of smoothness in the search.
        seed: of its start.
        device: where it runs.

    Raises:
        BadValue: what is behind the update are no images in [0, 1], or the update does not fit the model.
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
        'After 5 iterations a search for your images is ... dB ...'
    """
    images, labels = batch
    if images.ndim != 4 or not len(images) or float(images.min()) < 0 or float(images.max()) > 1:
        raise BadValue(
            "forecast of a search",
            needs="images (B, C, H, W) in [0, 1], B > 0",
            got=f"{tuple(images.shape)} in [{float(images.min()):.2g}, {float(images.max()):.2g}]"
            if images.numel()
            else f"{tuple(images.shape)}",
            fix="give images before they are normalised, and a network that normalises them itself",
        )
    shape = (images.shape[1], images.shape[2], images.shape[3])
    seen = view(model, update, input_shape=shape, examples=len(images), labels=labels.tolist())
    search = attack("inverting_gradients", tv=tv, search={"iterations": iterations, "restarts": 1})
    (claim,) = search(seen, seed=seed, device=device)
    assert isinstance(claim, Reconstruction)
    return Forecast(gains=tuple(_gains(images, claim.inputs).tolist()), iterations=iterations)


def _gains(images: Tensor, claimed: Tensor) -> Tensor:
    """(B,), dB over a flat image of the same colour; a flat image is known at once, and its gain is 0."""
    found = claimed[torch.from_numpy(assign(mse_table(images, claimed)))]
    flat = mse(images, images.mean((2, 3), keepdim=True).expand_as(images))
    return 10 * torch.log10(flat.clamp_min(_LEAST) / mse(images, found).clamp_min(_LEAST))
