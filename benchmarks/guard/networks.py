"""Small networks of all common kinds: those of the zoo, transformers, recurrent networks on image rows."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glasshouse.models import build as models
from glasshouse.wire import Architecture

Shape = tuple[int, int, int]


class Attention(nn.Module):
    """Two-head self-attention with linear projections, as in the Transformers library."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, width) → (B, T, width)."""
        parts = (
            layer(x).unflatten(2, (2, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        mixed: Tensor = self.out(F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))
        return mixed


class Transformer(nn.Module):
    """A vision transformer: square patches, two blocks, the mean of the tokens."""

    def __init__(self, shape: Shape, classes: int, *, width: int = 32, blocks: int = 2) -> None:
        super().__init__()
        channels, height, side = shape
        patch = max(2, side // 7)
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.place = nn.Parameter(torch.randn((height // patch) * (side // patch), width) * 0.02)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * blocks))
        self.attention = nn.ModuleList(Attention(width) for _ in range(blocks))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(blocks)
        )
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) → (B, K)."""
        x = self.patches(images).flatten(2).transpose(1, 2) + self.place
        for i, (attention, mlp) in enumerate(zip(self.attention, self.mlp, strict=True)):
            x = x + attention(self.norms[2 * i](x))
            x = x + mlp(self.norms[2 * i + 1](x))
        logits: Tensor = self.head(x.mean(1))
        return logits


class Recurrent(nn.Module):
    """An LSTM over the rows of an image, and a two-layer head on its last state."""

    def __init__(self, shape: Shape, classes: int, *, width: int = 48) -> None:
        super().__init__()
        self.cells = nn.LSTM(shape[0] * shape[2], width, batch_first=True)
        self.hidden = nn.Linear(width, width)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) → (B, K)."""
        states, _ = self.cells(images.transpose(1, 2).flatten(2))
        logits: Tensor = self.head(self.hidden(states[:, -1]).relu())
        return logits


class LowRank(nn.Module):
    """A frozen linear layer with a low-rank adapter (Hu et al. 2022, arXiv:2106.09685)."""

    def __init__(self, base: nn.Linear, *, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(requires_grad=False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """The output of the frozen layer plus that of the adapter."""
        out: Tensor = self.base(x) + self.up(self.down(x))
        return out


def lora(shape: Shape, classes: int) -> nn.Module:
    """The transformer with adapters in its attention; only they and the head are trained."""
    model = Transformer(shape, classes).requires_grad_(requires_grad=False)
    for block in model.attention:
        block.query, block.value = LowRank(block.query), LowRank(block.value)
    model.head.requires_grad_(requires_grad=True)
    return model


def vgg(shape: Shape, classes: int) -> nn.Module:
    """Convolutions with batch normalisation and pooling, a wide linear layer, dropout."""
    flat = 32 * (shape[1] // 4) * (shape[2] // 4)
    return nn.Sequential(
        *(nn.Conv2d(shape[0], 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(flat, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, classes)),
    )


def plain_mlp(shape: Shape, classes: int) -> nn.Module:
    """512 hidden units on unnormalised pixels."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 512), nn.ReLU(), nn.Linear(512, classes))


def mixer(shape: Shape, classes: int) -> nn.Module:
    """A network with GELU, group normalisation and tanh instead of ReLU and batch norm."""
    return nn.Sequential(
        *(nn.Conv2d(shape[0], 24, 3, stride=2, padding=1), nn.GroupNorm(4, 24), nn.GELU()),
        *(nn.Conv2d(24, 24, 3, padding=1, groups=4), nn.Tanh(), nn.Flatten()),
        nn.Linear(24 * math.ceil(shape[1] / 2) * math.ceil(shape[2] / 2), 64),
        *(nn.LeakyReLU(0.1), nn.Linear(64, classes)),
    )


def of_zoo(name: str, **arguments: object) -> Callable[[Shape, int], nn.Module]:
    """A model of the zoo."""
    return lambda shape, classes: models.build(Architecture.of(name, shape, classes, arguments))


NETWORKS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "mlp-512-plain": plain_mlp,
    "mlp-512": of_zoo("mlp", hidden=512),
    "mlp-128-64": of_zoo("mlp"),
    "lenet5": of_zoo("lenet5"),
    "lenet-sigmoid": of_zoo("lenet_sigmoid"),
    "lenet-dropout": of_zoo("lenet_dropout"),
    "convnet": of_zoo("convnet", width=8),
    "shallow": of_zoo("shallow_cnn"),
    "maui-cnn": of_zoo("maui_cnn", width=16, hidden=128),
    "resnet18": of_zoo("resnet18", width=8),
    "vgg": vgg,
    "mixer": mixer,
    "transformer": Transformer,
    "lstm": Recurrent,
    "lora": lora,
}
