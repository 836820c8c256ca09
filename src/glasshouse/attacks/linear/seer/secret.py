"""SEER's model, secret projection and reader, and the read-out of a sum.

Shape letters: B images, E features, D entries of a code, K classes, N auxiliary images.
"""

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from glasshouse.attacks.linear.seer.chosen import Property, brightness
from glasshouse.attacks.parts.readout.linear_tail import latents
from glasshouse.errors import Inapplicable
from glasshouse.models.build import build
from glasshouse.rng import Rng
from glasshouse.wire import Architecture

SUBJECT = "attack 'seer'"
SUMS, WITHOUT, BEYOND = 100, 4, 0.5
"""Number of auxiliary sums that set the floor, brightest images they lack, and the quantile of agreement."""
_STEADY = 0.05  # momentum of the standardisation's averages
_AT_ONCE = 256
_MIXING = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)


@final
class Reader(nn.Module):
    """Decode codes to images: standardise each entry, then a linear layer initialised by PCA.

    Args:
        shape: of an image.
        code: D.
    """

    def __init__(self, shape: tuple[int, ...], code: int) -> None:
        super().__init__()
        self.shape = shape
        self.standard = nn.BatchNorm1d(code, affine=False, momentum=_STEADY)
        self.pixels = nn.Linear(code, math.prod(shape))

    def forward(self, codes: Tensor) -> Tensor:
        """(B, D) → (B, C, H, W)."""
        images: Tensor = self.pixels(self.standard(codes))
        return images.reshape(-1, *self.shape)

    @torch.no_grad()
    def begin(self, images: Tensor) -> None:
        """Initialise with the mean and principal components, scaled to unit variance, of images."""
        flat = images.flatten(1)
        mean = flat.mean(0)
        _, sizes, directions = torch.linalg.svd(flat - mean, full_matrices=False)
        count = min(self.pixels.in_features, len(sizes))
        self.pixels.weight.zero_()
        self.pixels.weight[:, :count] = directions[:count].T * sizes[:count] / math.sqrt(len(flat))
        self.pixels.bias.copy_(mean)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Secret:
    """The model that is sent, and the projection and reader that are kept.

    Attributes:
        model: of the agreed architecture, in evaluation mode.
        projection: M, (D, E).
        reader: code (B, D) → images (B, C, H, W) in [0, 1], in evaluation mode.
        last: name of the last layer.
    """

    model: nn.Module
    projection: Tensor
    reader: Reader
    last: str

    def codes(self, images: Tensor) -> Tensor:
        """Codes (B, D) of images."""
        codes: Tensor = latents(self.model, self.last)(images) @ self.projection.T
        return codes

    def read(self, codes: Tensor) -> Tensor:
        """Images (B, C, H, W) of codes (B, D) of any length."""
        images: Tensor = self.reader(as_directions(codes))
        return images.clamp(0, 1)


def as_directions(codes: Tensor) -> Tensor:
    """Normalise codes (B, D) to root mean square 1."""
    return nn.functional.normalize(codes, dim=1) * math.sqrt(codes.shape[1])


def last_layer(architecture: Architecture) -> str:
    """Name of the last linear layer.

    Raises:
        Inapplicable: an example's gradient depends on others, or there is no such layer behind others.
    """
    model = build(architecture)
    linear = [name for name, m in model.named_modules() if isinstance(m, nn.Linear)]
    mixing = [name for name, m in model.named_modules() if isinstance(m, _MIXING)]
    if mixing:
        raise Inapplicable(
            SUBJECT,
            needs="a model in which an example's gradient depends on it alone",
            got=f"'{mixing[0]}', a {type(model.get_submodule(mixing[0])).__name__}",
            fix="audit a model without batch norm and drop-out (batch_norm = false)",
        )
    before = [n for n, _ in model.named_parameters() if linear and not n.startswith(f"{linear[-1]}.")]
    layer = model.get_submodule(linear[-1]) if linear else None
    if not before or not isinstance(layer, nn.Linear) or layer.out_features != architecture.classes:
        raise Inapplicable(
            SUBJECT,
            needs="a model that ends in a linear layer, with others before it",
            got=", ".join(name for name, _ in model.named_parameters()) or "a model without parameters",
            fix="audit a model with a hidden layer (mlp)",
        )
    return str(linear[-1])


def fresh(architecture: Architecture, *, code: int) -> Secret:
    """The untrained networks and projection; deterministic for an architecture.

    Raises:
        Inapplicable: see :func:`last_layer`.
    """
    rng, last = Rng.root(0).child("seer"), last_layer(architecture)
    model = build(architecture, rng=rng.child("model"))
    layer = model.get_submodule(last)
    assert isinstance(layer, nn.Linear)
    size = min(code, max(1, layer.in_features // 2))
    draws = torch.randn(layer.in_features, size, generator=rng.child("projection").torch())
    with torch.random.fork_rng(devices=[]):  # the initial weights are overwritten
        reader = Reader(architecture.input_shape, size)
    return Secret(model=model, projection=torch.linalg.qr(draws)[0].T.contiguous(), reader=reader, last=last)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """The result of reading a sum.

    Attributes:
        image: (1, C, H, W) in [0, 1].
        label: (1,).
        agreement: (1,), cosine similarity of the projected gradient and the image's own code, in [-1, 1].
    """

    image: Tensor
    label: Tensor
    agreement: Tensor


def read_out(secret: Secret, gradient: Tensor) -> Found:
    """The dominant example in the last layer's gradient (K, E): the strongest direction of its projection."""
    projected = gradient.to(secret.projection) @ secret.projection.T  # (K, D)
    projected = projected / projected.abs().max().clamp_min(torch.finfo(projected.dtype).tiny)
    classes, _, directions = torch.linalg.svd(projected, full_matrices=False)
    codes = torch.stack((directions[0], -directions[0]))
    with torch.no_grad():
        images = secret.read(codes)
        agreement = nn.functional.cosine_similarity(secret.codes(images), codes)
    best = int(agreement.argmax())
    # p - y is negative for the example's class alone
    label = (classes[:, 0] if best == 0 else -classes[:, 0]).argmin()
    return Found(image=images[best : best + 1], label=label[None], agreement=agreement[best : best + 1])


def floor_of(secret: Secret, images: Tensor, examples: int, looks_for: Property) -> float:
    """The median agreement of auxiliary sums without the brightest images: the floor for a claim."""
    generator = Rng.root(0).child("seer/floor").torch()
    size = brightness(images, looks_for)
    others = images[size <= size.double().quantile(max(0.5, 1 - WITHOUT / examples))]
    layer = secret.model.get_submodule(secret.last)
    with torch.no_grad():
        features = torch.cat([latents(secret.model, secret.last)(p) for p in torch.split(others, _AT_ONCE)])
        chances = layer(features).softmax(1)
        agreements = []
        for _ in range(SUMS):
            rows = torch.randint(len(others), (examples,), generator=generator).to(features.device)
            labels = torch.randint(chances.shape[1], (examples,), generator=generator)
            wrong = chances[rows] - nn.functional.one_hot(labels, chances.shape[1]).to(chances)
            agreements.append(read_out(secret, wrong.T @ features[rows]).agreement)
    return float(torch.cat(agreements).quantile(BEYOND))
