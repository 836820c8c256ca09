"""Curious Abandon Honesty: trap weights, with which a row of a linear layer is active for about one example.

Source: Boenisch et al. 2023, "When the Curious Abandon Honesty: Federated Learning Is Not Private", EuroS&P,
arXiv:2112.02918. In every row a random half of the weights is negative, and the other half positive with the
same magnitudes in another order, scaled down a little: for pixels in [0, 1] most images have a negative sum.
If a row is active for a single example, its weight gradient divided by its bias gradient is exactly that
example. Convolutions before the layer pass the image through, by one identity kernel per channel.

Where we differ: the scale of the positive half is chosen on auxiliary images so that a row is active for
``fires`` examples of a round on average; the read-out is blind: images that several rows agree on come first,
then those whose pixels are whole multiples of 1/255, then others in the image range, which are mixtures.

Breaks when: the first linear layer does not receive the whole image (pooling, strides); the images of a round
are very similar, or one of them activates every row that another one activates; clients take several steps.
Images are not attributed to clients.

Shape letters: B images, R rows, D entries of an image, C channels, N auxiliary images.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from glasshouse.attacks.base import Claim, Needs
from glasshouse.attacks.inversion.linear_input import PASSIVE
from glasshouse.attacks.parts.readout import summed
from glasshouse.attacks.parts.replica import normalization
from glasshouse.errors import Inapplicable
from glasshouse.limits import NotNegative, Positive, check_ranges
from glasshouse.models.build import build
from glasshouse.registry import Card, Offer
from glasshouse.rng import Rng
from glasshouse.transcript.view import View
from glasshouse.wire import Architecture, Crafted

SUBJECT = "attack 'cah'"
FAINT = 1e-6
"""A row below this share of the strongest bias gradient counts as inactive."""
ALIKE, OUTSIDE, OFF_GRID = 1e-4, 1e-3, 0.1
"""Root mean squared difference below which rows agree; tolerance on pixels outside the image range; mean
distance from multiples of 1/255, in such steps, below which pixels count as bytes (of a mixture: 0.25)."""
_ROWS, _HALVINGS = 256, 30  # of the search for the scale


@final
@dataclass(frozen=True, kw_only=True)
class CuriousAbandonHonesty:
    """The attack and its settings.

    Args:
        fires: examples of a round for which a row is active, on average over auxiliary images.
        scale: of the positive half; 0: chosen by ``fires``.
    """

    card: ClassVar[Card] = Card(
        title="Curious Abandon Honesty",
        summary="trap weights: rows of the first linear layer that fire for about one example of a round",
        source="Boenisch et al. 2023, arXiv:2112.02918",
        claims=("reconstruction",),
        threat="malicious server: sets parameters, keeps the architecture, sees only the sum",
        grants=("auxiliary",),
        details={"attribution": "none: it cannot say whose image it is", "structure": "unchanged"},
        control=summed.crafting_control("parameters", model={"name": "mlp", "hidden": "512,32"}),
        offers=(Offer(strength=0.6, seconds=1),),
    )
    needs: ClassVar[Needs] = summed.crafting_needs("parameters")
    budget: ClassVar[None] = None

    fires: Positive = 3.0
    scale: NotNegative = 0.0

    def __post_init__(self) -> None:
        check_ranges(self, SUBJECT)

    def check_model(self, architecture: Architecture) -> None:
        """Refuse models whose first linear layer does not receive the whole image."""
        _find_layer(architecture)

    def craft(self, view: View, *, rng: Rng) -> Crafted | None:
        """The honest model with trap weights in one layer, and convolutions that pass images through."""
        auxiliary, one = view.grants.auxiliary, view.rounds[-1]
        assert auxiliary is not None  # needs.grants
        layer = _find_layer(view.terms.architecture)
        tensors = {name: t.cpu() for name, t in one.broadcast.tensors.items()}
        tensors |= layer.pass_on(tensors)
        entries = auxiliary.inputs[0].numel()
        agreed = tensors[f"{layer.name}.weight"]
        share = min(0.5, self.fires / (view.terms.cohort * view.terms.batch_size))
        ratio = self.scale or find_scale(auxiliary.inputs.flatten(1).cpu(), share, rng=rng)
        rows = trap_rows(len(agreed), entries, scale=ratio, rng=rng.child("rows"))
        weight = torch.zeros_like(agreed)
        scale, shift = (of.repeat_interleave(entries // len(of)) for of in layer.unit)
        rows = rows * float(agreed.std() / rows.std())
        weight[:, :entries] = rows * scale
        tensors |= {f"{layer.name}.weight": weight, f"{layer.name}.bias": rows @ shift}
        return Crafted(
            default=replace(one.broadcast, tensors=tensors),
            memory={f"trapped.{one.round}": torch.stack((scale, shift))},
        )

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """The images of every crafted round; confidence: the number of rows that agree."""
        del rng  # deterministic
        name, terms = _find_layer(view.terms.architecture).name, view.terms
        names = (f"{name}.weight", f"{name}.bias")
        claims: list[Claim] = []
        for one in view.rounds:
            if f"trapped.{one.round}" not in view.memory:
                continue
            total = summed.sum_of_round(one, terms=terms, names=names, subject=SUBJECT)
            scale, shift = view.memory[f"trapped.{one.round}"].double().cpu()
            weight, bias = (total.gradient[n].cpu() for n in names)
            weight = weight[:, : len(scale)] * scale
            inputs, rows = read_traps(
                weight, bias, shift, limit=total.examples, range_=terms.architecture.inputs.range
            )
            claims.append(summed.claim_of_round(one, inputs, terms=terms, confidence=rows))
        return tuple(claims)


def trap_rows(rows: int, entries: int, *, scale: float, rng: Rng) -> Tensor:
    """Weights (R, D): a random half of every row negative, the other half of equal size times ``scale``."""
    generator = rng.torch()
    half = entries // 2
    size = torch.randn(rows, half, generator=generator).abs()
    other = size.gather(1, torch.rand(rows, half, generator=generator).argsort(1)) * scale
    middle = size.new_zeros(rows, entries - 2 * half)
    order = torch.rand(rows, entries, generator=generator).argsort(1)
    return torch.cat((-size, other, middle), dim=1).gather(1, order)


def find_scale(pixels: Tensor, share: float, *, rng: Rng) -> float:
    """The scale at which trap rows are active for a ``share`` of auxiliary images (N, D), by bisection."""
    low, high = 0.5, 1.5
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        rows = trap_rows(_ROWS, pixels.shape[1], scale=middle, rng=rng.child("scale"))
        fires = float((pixels @ rows.T > 0).float().mean())
        low, high = (middle, high) if fires < share else (low, middle)
    return (low + high) / 2


def read_traps(
    weight: Tensor, bias: Tensor, shift: Tensor, *, limit: int, range_: tuple[float, float]
) -> tuple[Tensor, Tensor]:
    """Images from the summed gradient of a layer with trap weights, without knowing the true images.

    Args:
        weight: (R, D) float64, in units in which pixel = weight / bias + shift.
        bias: (R,) float64.
        shift: of pixels, (D,).
        limit: maximum number of images.
        range_: of pixels.

    Returns:
        Images (L, D), the most confident first; the number of rows that agree on each, plus 0.5 if its pixels
        are bytes, (L,).
    """
    fired = bias.abs() > FAINT * bias.abs().max()
    images = weight[fired] / bias[fired, None] + shift
    inside = ((images > range_[0] - OUTSIDE) & (images < range_[1] + OUTSIDE)).all(1)
    images = images[inside]
    near = torch.cdist(images, images) < ALIKE * images.shape[1] ** 0.5
    steps = (images - range_[0]) / (range_[1] - range_[0]) * 255
    whole = (steps - steps.round()).abs().mean(1) < OFF_GRID
    sure = near.sum(1).double() + whole.double() * 0.5
    chosen: list[int] = []
    for i in sure.argsort(descending=True, stable=True).tolist():
        if not bool(near[chosen, i].any()):
            chosen.append(i)
    return images[chosen[:limit]], sure[chosen[:limit]]


@final
@dataclass(frozen=True, kw_only=True)
class _Layer:
    """The first linear layer, and the path of images to it.

    Attributes:
        name: without ``.weight``.
        convolutions: before it, in order.
        normalized: scale and shift, (C,), with pixel = model input * scale + shift.
    """

    name: str
    convolutions: tuple[str, ...]
    normalized: tuple[Tensor, Tensor]

    @property
    def unit(self) -> tuple[Tensor, Tensor]:
        """Scale and shift, (C,), with pixel = input of the layer * scale + shift."""
        scale, shift = self.normalized
        return (torch.ones_like(scale), torch.zeros_like(shift)) if self.convolutions else self.normalized

    def pass_on(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Weights with which the convolutions pass every channel through unchanged, in pixels."""
        passing: dict[str, Tensor] = {}
        scale, shift = self.normalized
        for i, name in enumerate(self.convolutions):
            kernel = torch.zeros_like(tensors[f"{name}.weight"])
            bias = torch.zeros(len(kernel))
            middle = (kernel.shape[2] // 2, kernel.shape[3] // 2)
            for channel in range(min(*kernel.shape[:2], len(scale))):
                kernel[channel, channel, *middle] = 1.0 if i else scale[channel]
                bias[channel] = 0.0 if i else shift[channel]
            passing |= {f"{name}.weight": kernel, f"{name}.bias": bias}
        return passing


def _find_layer(architecture: Architecture) -> _Layer:
    """The layer that gets trap weights.

    Raises:
        Inapplicable: the layers before it cannot pass whole images through, or it has no bias.
    """
    model = build(architecture)
    channels, height, width = architecture.input_shape
    convolutions: list[str] = []
    for name, module in model.named_modules():
        # Containers do nothing themselves, and ReLUs and reshapes let a positive image through.
        if list(module.children()) or name == "normalize" or isinstance(module, (*PASSIVE, nn.ReLU)):
            continue
        if isinstance(module, nn.Conv2d) and _passes(module, channels):
            convolutions.append(name)
            continue
        linear = module if isinstance(module, nn.Linear) and module.bias is not None else None
        # Behind convolutions that pass the image on, each map of the layer is a channel of it.
        maps, rest = divmod(linear.in_features, height * width) if linear is not None else (0, 0)
        if maps >= channels and not rest:
            scale, shift = (t[0, :, 0, 0] for t in normalization(model, architecture.input_shape))
            return _Layer(name=name, convolutions=tuple(convolutions), normalized=(scale, shift))
        raise Inapplicable(
            SUBJECT,
            needs="a linear layer with a bias behind nothing but convolutions that can pass the image on",
            got=f"'{name}', a {type(module).__name__}",
            fix="audit a model without poolings, strides and batch norm before its first linear layer (mlp)",
        )
    raise Inapplicable(SUBJECT, needs="a linear layer", got="none", fix="audit another model")


def _passes(convolution: nn.Conv2d, channels: int) -> bool:
    """Whether it preserves height and width, and has enough channels for an image."""
    sizes = zip(convolution.padding, convolution.kernel_size, strict=True)
    same = all(k % 2 == 1 and p == k // 2 for p, k in sizes)
    plain = convolution.stride == (1, 1) and convolution.dilation == (1, 1) and convolution.groups == 1
    enough = min(convolution.in_channels, convolution.out_channels) >= channels
    return same and plain and enough and convolution.bias is not None
