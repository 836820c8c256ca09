"""The five target models of the Scale-MIA paper at CIFAR size: encoder, then three linear layers.

Source: Shi et al. 2025 (NDSS), arXiv:2311.05808, Section VI-A and Table V; the shapes of layers are those of
the authors' experiments. Where we differ: logits have no final ReLU (with the crafted head it changes
nothing, in honest training it costs accuracy); widths and depths adapt to the image size, so that 28 × 28,
64 × 64 and the 8 × 8 digits work too.

Every model has ``features`` (``encoder``, ``fc1``, ``fc2`` with ReLUs in between) and ``head``, one linear
layer. The input of ``fc1`` is the paper's latent representation. Shape letters: B examples, C channels,
H and W pixels, D latent entries.
"""

from collections.abc import Iterable
from typing import final

import torch
from torch import Tensor, nn

from glasshouse.limits import Count
from glasshouse.models.base import Shape, SplitModel, chain, check_shape, check_width, flat_size, with_head
from glasshouse.models.zoo.resnet import stem_and_stages
from glasshouse.registry import Card

_SOURCE = "Shi et al. 2025, arXiv:2311.05808"


@final
class Attention(nn.Module):
    """Pre-norm multi-head self-attention with a residual."""

    def __init__(self, width: int, *, heads: int, head_width: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * heads * head_width, bias=False)
        self.out = nn.Linear(heads * head_width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, tokens, width) → the same shape."""
        batch, tokens, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1)
        mixed = (weights @ v).transpose(1, 2).reshape(batch, tokens, -1)
        out: Tensor = x + self.out(mixed)
        return out


@final
class Mixer(nn.Module):
    """Pre-norm two-layer perceptron with a residual, per token."""

    def __init__(self, width: int, *, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, tokens, width) → the same shape."""
        out: Tensor = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        return out


@final
class TokenEncoder(nn.Module):
    """A small vision transformer; its class token, without an activation, is the latent representation."""

    def __init__(self, input_shape: Shape, *, patch: int, width: int, depth: int) -> None:
        super().__init__()
        channels, height, across = input_shape
        entries = channels * patch**2
        self.patches = nn.Unfold(patch, stride=patch)
        self.embed = nn.Sequential(nn.LayerNorm(entries), nn.Linear(entries, width), nn.LayerNorm(width))
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, (height // patch) * (across // patch) + 1, width))
        blocks = [
            (Attention(width, heads=2, head_width=64), Mixer(width, hidden=width)) for _ in range(depth)
        ]
        self.blocks = nn.Sequential(*(part for pair in blocks for part in pair))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) → (B, width)."""
        tokens = self.embed(self.patches(x).transpose(1, 2))
        tokens = torch.cat((self.token.expand(len(x), -1, -1), tokens), dim=1) + self.position
        out: Tensor = self.norm(self.blocks(tokens))[:, 0]
        return out


@final
class Convolutions(nn.Sequential):
    """A sequence of layers in channels-last memory format: the same result, trained in half the time."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) → output of the last layer."""
        x = x.contiguous(memory_format=torch.channels_last)
        for layer in self:
            x = layer(x)
        return x


def _small_convolutions(channels: int, plan: Iterable[tuple[int, bool]], *, norm: bool) -> Convolutions:
    """3 × 3 convolutions with ReLUs, then a flat output; ``plan``: channels, and whether pooling follows."""
    layers: list[nn.Module] = []
    for outward, pool in plan:
        layers += [nn.Conv2d(channels, outward, 3, padding=1)]
        layers += [nn.BatchNorm2d(outward), nn.ReLU()] if norm else [nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if pool else []
        channels = outward
    return Convolutions(*layers, nn.Flatten())


def _assemble(
    encoder: nn.Module, input_shape: Shape, classes: int, *, bins: int, second: int, name: str
) -> SplitModel:
    check_width(bins, model=name)
    features = chain(
        encoder=encoder,
        fc1=nn.Linear(flat_size(encoder, input_shape), bins),
        relu1=nn.ReLU(),
        fc2=nn.Linear(bins, second),
        relu2=nn.ReLU(),
    )
    return with_head(features, second, classes, mean=0.0, std=1.0)


@Card(summary="strided CNN with three linear layers, Scale-MIA's main target", source=_SOURCE)
def scale_mia_cnn(input_shape: Shape, classes: int, *, bins: Count = 1024) -> SplitModel:
    """Strided 4 × 4 convolutions down to 4 × 4 positions, then ``bins``, ``bins / 2`` and K units.

    Channels 12, 32, 64 (three convolutions, the second 3 × 3) for sides of 16 to 47 pixels; 16 to 128 (four)
    from 48 pixels on; one convolution with 64 channels for images below 16 pixels.
    """
    check_shape(input_shape, classes, model="scale_mia_cnn")
    side = min(input_shape[1:])
    if side < 16:
        widths, kernels = [64], [4]
    elif side < 48:
        widths, kernels = [12, 32, 64], [4, 3, 4]
    else:
        widths, kernels = [16, 32, 64, 128], [4, 4, 4, 4]
    layers: list[nn.Module] = []
    inward = input_shape[0]
    for position, (outward, kernel) in enumerate(zip(widths, kernels, strict=True)):
        padding = 2 if position == 0 and side == 28 else 1  # 28 → 15 → 8 → 4 instead of 14 → 7 → 3
        layers += [nn.Conv2d(inward, outward, kernel, stride=2, padding=padding), nn.ReLU()]
        inward = outward
    encoder = Convolutions(*layers, nn.Flatten())
    return _assemble(encoder, input_shape, classes, bins=bins, second=max(bins // 2, 2), name="scale_mia_cnn")


@Card(summary="AlexNet at CIFAR size with three linear layers (Scale-MIA, 512 bins)", source=_SOURCE)
def scale_mia_alexnet(input_shape: Shape, classes: int, *, bins: Count = 512) -> SplitModel:
    """Five 3 × 3 convolutions with 64 to 384 channels, three max-poolings; no dropout."""
    check_shape(input_shape, classes, model="scale_mia_alexnet")
    plan = ((64, True), (192, True), (384, False), (256, False), (256, True))
    encoder = _small_convolutions(input_shape[0], plan, norm=False)
    return _assemble(encoder, input_shape, classes, bins=bins, second=120, name="scale_mia_alexnet")


@Card(summary="VGG-11 with batch norm at CIFAR size, three linear layers (Scale-MIA)", source=_SOURCE)
def scale_mia_vgg(input_shape: Shape, classes: int, *, bins: Count = 1024) -> SplitModel:
    """Eight 3 × 3 convolutions with batch norm; without VGG-11's last two poolings (4 × 4 remain)."""
    check_shape(input_shape, classes, model="scale_mia_vgg")
    plan = ((64, True), (128, True), (256, False), (256, True), *4 * [(512, False)])
    encoder = _small_convolutions(input_shape[0], plan, norm=True)
    return _assemble(encoder, input_shape, classes, bins=bins, second=200, name="scale_mia_vgg")


@Card(summary="ResNet without global pooling, three linear layers (Scale-MIA, 512 bins)", source=_SOURCE)
def scale_mia_resnet(input_shape: Shape, classes: int, *, bins: Count = 512) -> SplitModel:
    """Four stages of two blocks with 32 to 256 channels; the first linear layer sees 4 × 4 positions.

    Where we differ: shortcuts are 1 × 1 convolutions (the zoo's blocks), not 3 × 3.
    """
    check_shape(input_shape, classes, model="scale_mia_resnet")
    encoder = Convolutions(*stem_and_stages(input_shape[0], 32), nn.Flatten())
    return _assemble(encoder, input_shape, classes, bins=bins, second=120, name="scale_mia_resnet")


@Card(summary="small vision transformer, three linear layers (Scale-MIA, 512 bins)", source=_SOURCE)
def scale_mia_vit(
    input_shape: Shape,
    classes: int,
    *,
    bins: Count = 512,
    patch: Count = 8,
    width: Count = 512,
) -> SplitModel:
    """Patches of 8 × 8, depth 2, two heads of 64, class token of 512 entries (any sign)."""
    check_shape(input_shape, classes, model="scale_mia_vit", width=width)
    encoder = TokenEncoder(input_shape, patch=patch, width=width, depth=2)
    return _assemble(encoder, input_shape, classes, bins=bins, second=120, name="scale_mia_vit")
