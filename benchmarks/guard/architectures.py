"""Honest architectures of many kinds for pictures of 3 x 16 x 16 and ten classes, all of them small."""

from collections.abc import Callable, Mapping
from typing import Final

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F

SIDE, CLASSES = 16, 10
Make = Callable[[], nn.Module]


class Sum(nn.Module):
    """A residual branch."""

    def __init__(self, *parts: nn.Module, around: nn.Module | None = None) -> None:
        super().__init__()
        self.inside, self.around = nn.Sequential(*parts), around or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.around(x) + self.inside(x)
        return out


class Apply(nn.Module):
    """A function without parameters."""

    def __init__(self, what: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.what = what

    def forward(self, x: Tensor) -> Tensor:
        return self.what(x)


class Last(nn.Module):
    """The outputs of a recurrent layer, or their mean."""

    def __init__(self, layer: nn.Module, *, mean: bool = False) -> None:
        super().__init__()
        self.layer, self.mean = layer, mean

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)[0]
        return out.mean(1) if self.mean else out[:, -1]


class Squeeze(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(width, width // 4), nn.Linear(width // 4, width)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.up(F.relu(self.down(x.mean((2, 3))))))[:, :, None, None]


class Gate(nn.Module):
    """Gated linear units: one half opens the other."""

    def __init__(self, inside: int, width: int, opens: Callable[[Tensor], Tensor] = torch.sigmoid) -> None:
        super().__init__()
        self.value, self.gate, self.opens = nn.Linear(inside, width), nn.Linear(inside, width), opens

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.value(x) * self.opens(self.gate(x))
        return out


class Places(nn.Module):
    """Adds a learned position, and a class token if asked for."""

    def __init__(self, count: int, width: int, *, token: bool = False) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, width)) if token else None
        self.place = nn.Parameter(0.02 * torch.randn(1, count + token, width))

    def forward(self, x: Tensor) -> Tensor:
        if self.token is not None:
            x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1)
        return x + self.place


class Experts(nn.Module):
    """A soft mixture of experts."""

    def __init__(self, inside: int, width: int, count: int) -> None:
        super().__init__()
        self.gate = nn.Linear(inside, count)
        self.experts = nn.ModuleList(nn.Linear(inside, width) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x).softmax(-1)
        return sum(w[:, None] * e(x) for w, e in zip(weights.T, self.experts, strict=True))


class Unet(nn.Module):
    """Down, up, and a bridge."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Conv2d(16, 8, 3, padding=1)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        first = F.relu(self.down(x))
        back = self.up(F.relu(self.deep(F.max_pool2d(first, 2))))
        out: Tensor = self.head(F.relu(self.out(torch.cat([first, back], dim=1))).mean((2, 3)))
        return out


class Highway(nn.Module):
    """A layer that lets its input pass by a gate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.change, self.gate = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        t = torch.sigmoid(self.gate(x))
        return t * F.relu(self.change(x)) + (1 - t) * x


class Adapted(nn.Module):
    """A frozen layer with an adapter of rank 4."""

    def __init__(self, inside: int, width: int) -> None:
        super().__init__()
        self.base = nn.Linear(inside, width).requires_grad_(requires_grad=False)
        self.down, self.up = nn.Linear(inside, 4, bias=False), nn.Linear(4, width, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + self.up(self.down(x))
        return out


class Masked(nn.Module):
    """A parametrisation that leaves a fixed random half of a matrix."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.register_buffer("mask", (torch.rand(rows, columns) < 0.5).float())

    def forward(self, weight: Tensor) -> Tensor:
        mask: Tensor = self.mask  # type: ignore[assignment]  # a registered buffer
        return weight * mask


def _parametrised(layer: nn.Module, parametrisation: nn.Module) -> nn.Module:
    nn.utils.parametrize.register_parametrization(layer, "weight", parametrisation)
    return layer


class Tied(nn.Module):
    """Encodes and decodes with one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(768, 64), nn.Linear(768, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.layer(x.flatten(1)))
        out: Tensor = self.head(torch.sigmoid(hidden @ self.layer.weight))
        return out


class Dense(nn.Module):
    """Each layer reads all before it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(3 + 8 * k, 8, 3, padding=1) for k in range(3))
        self.head = nn.Linear(27, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, F.relu(layer(x))], dim=1)
        out: Tensor = self.head(x.mean((2, 3)))
        return out


class Fourier(nn.Module):
    """Random features in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("along", torch.randn(768, 64) / 8)
        self.layer, self.head = nn.Linear(128, 64), nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        angles = x.flatten(1) @ self.along
        out: Tensor = self.head(F.relu(self.layer(torch.cat([angles.sin(), angles.cos()], dim=1))))
        return out


class Normalised(nn.Module):
    """Takes a mean off and divides, as many pipelines do in the model."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.register_buffer("mean", torch.full((3, 1, 1), 0.47))
        self.register_buffer("std", torch.full((3, 1, 1), 0.25))
        self.inside = nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inside((x - self.mean) / self.std)
        return out


class Branches(nn.Module):
    """Two towers on the picture and on its mirror image."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(768, 48), nn.Linear(768, 48), nn.Linear(96, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        both = torch.cat([self.left(x.flatten(1)), self.right(x.flip(3).flatten(1))], dim=1)
        out: Tensor = self.head(F.relu(both))
        return out


class Library(nn.Module):
    """A network of the transformers library, made from its configuration."""

    def __init__(self, name: str, **settings: object) -> None:
        super().__init__()
        config = getattr(transformers, f"{name}Config")(num_labels=CLASSES, **settings)
        self.inside = getattr(transformers, f"{name}ForImageClassification")(config)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inside(pixel_values=x).logits
        return out


class Pair(nn.Module):
    """A bilinear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.pair = nn.Linear(768, 24), nn.Bilinear(24, 24, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.enter(x.flatten(1)))
        out: Tensor = self.pair(hidden, hidden)
        return out


class FunctionalDropout(nn.Module):
    """Dropout that is no module."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(768, 64), nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(F.dropout(F.relu(self.first(x.flatten(1))), 0.3, self.training))
        return out


def _flat(*parts: nn.Module) -> Make:
    return lambda: nn.Sequential(nn.Flatten(), *parts)


def _rows(*parts: nn.Module) -> nn.Sequential:
    """On the 16 rows of a picture as tokens of 48 numbers."""
    return nn.Sequential(Apply(lambda x: x.permute(0, 2, 1, 3).flatten(2)), *parts)


def _patches(width: int, *parts: nn.Module) -> nn.Sequential:
    """On 16 patches as tokens."""
    return nn.Sequential(nn.Conv2d(3, width, 4, stride=4), nn.Flatten(2), Apply(lambda x: x.mT), *parts)


def _head(width: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES)]


def _mean(width: int) -> list[nn.Module]:
    return [Apply(lambda x: x.mean(1)), nn.Linear(width, CLASSES)]


def _mlp(activation: Make, width: int = 96, *, last: int = 32, norm: Make | None = None) -> Make:
    def make() -> nn.Module:
        norms = [norm()] if norm else []
        tail = [nn.Linear(width, last), activation(), nn.Linear(last, CLASSES)]
        return nn.Sequential(nn.Flatten(), nn.Linear(768, width), *norms, activation(), *tail)

    return make


def _conv(norm: Callable[[int], nn.Module], activation: Make = nn.ReLU, **settings: object) -> Make:
    def make() -> nn.Module:
        first = nn.Conv2d(3, 16, 3, padding=1, **settings)  # type: ignore[arg-type]  # names of its own
        second = nn.Conv2d(16, 16, 3, stride=2)
        return nn.Sequential(first, norm(16), activation(), second, norm(16), activation(), *_head(16))

    return make


def _block(width: int, *, post: bool = False, activation: str = "gelu") -> nn.Module:
    return nn.TransformerEncoderLayer(
        width, 4, 2 * width, 0.0, activation, batch_first=True, norm_first=not post
    )


def _mixer(tokens: int, width: int) -> nn.Module:
    def across(size: int) -> list[nn.Module]:
        return [nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, size)]

    turn = Apply(lambda x: x.mT)
    return nn.Sequential(
        Sum(nn.LayerNorm(width), turn, *across(tokens), turn), Sum(nn.LayerNorm(width), *across(width))
    )


def _inverted(width: int) -> nn.Module:
    wide = 3 * width
    return Sum(
        *(nn.Conv2d(width, wide, 1), nn.BatchNorm2d(wide), nn.ReLU6()),
        *(nn.Conv2d(wide, wide, 3, padding=1, groups=wide), nn.BatchNorm2d(wide), nn.ReLU6()),
        *(nn.Conv2d(wide, width, 1), nn.BatchNorm2d(width)),
    )


def _next(width: int) -> nn.Module:
    return Sum(
        nn.Conv2d(width, width, 7, padding=3, groups=width),
        *(Apply(lambda x: x.permute(0, 2, 3, 1)), nn.LayerNorm(width)),
        *(nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width)),
        Apply(lambda x: x.permute(0, 3, 1, 2)),
    )


def _stem(width: int) -> nn.Module:
    return nn.Conv2d(3, width, 3, stride=2, padding=1)


_NORM: Final = nn.utils.parametrizations
ARCHITECTURES: Final[Mapping[str, Make]] = {
    "logistic regression": _flat(nn.Linear(768, CLASSES)),
    "MLP ReLU": _mlp(nn.ReLU, 256),
    "MLP GELU": _mlp(nn.GELU),
    "MLP SiLU": _mlp(nn.SiLU),
    "MLP sigmoid": _mlp(nn.Sigmoid),
    "MLP tanh": _mlp(nn.Tanh),
    "MLP ELU": _mlp(nn.ELU),
    "MLP leaky": _mlp(lambda: nn.LeakyReLU(0.1)),
    "MLP PReLU": _mlp(nn.PReLU),
    "MLP hard swish": _mlp(nn.Hardswish),
    "MLP softplus": _mlp(nn.Softplus),
    "MLP bottleneck": _mlp(nn.ReLU, 8, last=4),
    "MLP batch norm": _mlp(nn.ReLU, 96, norm=lambda: nn.BatchNorm1d(96)),
    "MLP layer norm": _mlp(nn.ReLU, 96, norm=lambda: nn.LayerNorm(96)),
    "MLP dropout": _mlp(nn.ReLU, 96, norm=lambda: nn.Dropout(0.3)),
    "MLP functional dropout": FunctionalDropout,
    "MLP residual": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(768, 64), *(Sum(nn.Linear(64, 64), nn.ReLU()) for _ in range(3)),
        nn.Linear(64, CLASSES),
    ),
    "highway": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(768, 48), Highway(48), Highway(48), nn.Linear(48, CLASSES)
    ),
    "gated units": lambda: nn.Sequential(nn.Flatten(), Gate(768, 64), nn.Linear(64, CLASSES)),
    "SwiGLU": lambda: nn.Sequential(nn.Flatten(), Gate(768, 64, F.silu), nn.Linear(64, CLASSES)),
    "mixture of experts": lambda: nn.Sequential(
        nn.Flatten(), Experts(768, 32, 4), nn.ReLU(), nn.Linear(32, CLASSES)
    ),
    "tied weights": Tied,
    "two towers": Branches,
    "random features": Fourier,
    "normalises itself": lambda: Normalised(nn.Flatten(), nn.Linear(768, 64), nn.ReLU(), nn.Linear(64, 10)),
    "weight norm": lambda: nn.Sequential(
        nn.Flatten(), _NORM.weight_norm(nn.Linear(768, 48)), nn.ReLU(), nn.Linear(48, CLASSES)
    ),
    "spectral norm": lambda: nn.Sequential(
        nn.Flatten(), _NORM.spectral_norm(nn.Linear(768, 48)), nn.ReLU(), nn.Linear(48, CLASSES)
    ),
    "orthogonal": lambda: nn.Sequential(
        nn.Flatten(), _NORM.orthogonal(nn.Linear(768, 32)), nn.ReLU(), nn.Linear(32, CLASSES)
    ),
    "square orthogonal": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(768, 48), nn.ReLU(), _NORM.orthogonal(nn.Linear(48, 48)), nn.ReLU(),
        nn.Linear(48, CLASSES),
    ),
    "own parametrisation": lambda: nn.Sequential(
        nn.Flatten(), _parametrised(nn.Linear(768, 64), Masked(64, 768)), nn.ReLU(), nn.Linear(64, CLASSES)
    ),
    "LoRA": lambda: nn.Sequential(nn.Flatten(), Adapted(768, 64), nn.ReLU(), nn.Linear(64, CLASSES)),
    "frozen features": lambda: nn.Sequential(
        _stem(16).requires_grad_(requires_grad=False), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 32),
        nn.ReLU(), nn.Linear(32, CLASSES),
    ),
    "bilinear": Pair,
    "CNN": _conv(lambda _: nn.Identity()),
    "CNN batch norm": _conv(nn.BatchNorm2d),
    "CNN group norm": _conv(lambda n: nn.GroupNorm(4, n)),
    "CNN instance norm": _conv(lambda n: nn.InstanceNorm2d(n, affine=True)),
    "CNN SiLU": _conv(lambda _: nn.Identity(), nn.SiLU),
    "CNN sigmoid": _conv(lambda _: nn.Identity(), nn.Sigmoid),
    "CNN circular": _conv(lambda _: nn.Identity(), padding_mode="circular"),
    "CNN dilated": _conv(lambda _: nn.Identity(), dilation=2),
    "LeNet": lambda: nn.Sequential(
        nn.Conv2d(3, 6, 5, padding=2), nn.Sigmoid(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Sigmoid(),
        nn.Flatten(), nn.Linear(256, 60), nn.Sigmoid(), nn.Linear(60, CLASSES),
    ),
    "VGG": lambda: nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 64),
        nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, CLASSES),
    ),
    "ResNet": lambda: nn.Sequential(
        _stem(16), nn.BatchNorm2d(16), nn.ReLU(),
        Sum(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1)),
        nn.ReLU(), *_head(16),
    ),
    "ResNeXt": lambda: nn.Sequential(
        _stem(16), Sum(nn.Conv2d(16, 16, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1, groups=4), nn.ReLU(),
        nn.Conv2d(16, 16, 1)), nn.ReLU(), *_head(16),
    ),
    "squeeze and excitation": lambda: nn.Sequential(
        _stem(16), nn.ReLU(), Squeeze(16), nn.Conv2d(16, 16, 3), nn.ReLU(), *_head(16)
    ),
    "MobileNet": lambda: nn.Sequential(_stem(8), nn.ReLU6(), _inverted(8), *_head(8)),
    "ConvNeXt": lambda: nn.Sequential(_stem(12), _next(12), *_head(12)),
    "ConvMixer": lambda: nn.Sequential(
        nn.Conv2d(3, 16, 4, stride=4), nn.GELU(),
        Sum(nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.GELU()), nn.Conv2d(16, 16, 1), nn.GELU(),
        *_head(16),
    ),
    "DenseNet": Dense,
    "U-Net": Unet,
    "transposed convolution": lambda: nn.Sequential(
        nn.ConvTranspose2d(3, 8, 3), nn.ReLU(), nn.AvgPool2d(3), nn.Flatten(), nn.Linear(288, CLASSES)
    ),
    "convolution in three dimensions": lambda: nn.Sequential(
        Apply(lambda x: x[:, None]), nn.Conv3d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(2),
        Apply(lambda x: x.mean(2)), nn.Linear(8, CLASSES),
    ),
    "maxout": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(768, 128), Apply(lambda x: x.unflatten(1, (2, 64)).amax(1)),
        nn.Linear(64, CLASSES),
    ),
    "Fourier mixing": lambda: _rows(
        nn.Linear(48, 32), Apply(lambda x: torch.fft.fft2(x).real), nn.LayerNorm(32),
        nn.Linear(32, 32), nn.GELU(), *_mean(32),
    ),
    "GRU": lambda: _rows(Last(nn.GRU(48, 24, batch_first=True)), nn.Linear(24, CLASSES)),
    "LSTM": lambda: _rows(Last(nn.LSTM(48, 24, batch_first=True)), nn.Linear(24, CLASSES)),
    "LSTM both ways": lambda: _rows(
        Last(nn.LSTM(48, 16, batch_first=True, bidirectional=True), mean=True), nn.Linear(32, CLASSES)
    ),
    "RNN": lambda: _rows(Last(nn.RNN(48, 24, batch_first=True)), nn.Linear(24, CLASSES)),
    "TextCNN on rows": lambda: _rows(
        Apply(lambda x: x.mT), nn.Conv1d(48, 24, 3), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(),
        nn.Linear(24, CLASSES),
    ),
    "transformer": lambda: _rows(nn.Linear(48, 32), Places(16, 32), _block(32), *_mean(32)),
    "transformer post-norm ReLU": lambda: _rows(
        nn.Linear(48, 32), Places(16, 32), _block(32, post=True, activation="relu"), *_mean(32)
    ),
    "ViT with a class token": lambda: _patches(
        32, Places(16, 32, token=True), _block(32), _block(32), Apply(lambda x: x[:, 0]),
        nn.Linear(32, CLASSES),
    ),
    "MLP-Mixer": lambda: _patches(24, _mixer(16, 24), nn.LayerNorm(24), *_mean(24)),
    "transformers ViT": lambda: Library(
        "ViT", image_size=16, patch_size=4, hidden_size=24, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=48,
    ),
    "transformers ResNet": lambda: Library(
        "ResNet", embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic"
    ),
    "transformers ConvNext": lambda: Library(
        "ConvNext", patch_size=2, hidden_sizes=[8, 12], depths=[1, 1], num_stages=2
    ),
    "MLP ReLU 1,024": _mlp(nn.ReLU, 1024),
}  # fmt: skip
"""By name."""
