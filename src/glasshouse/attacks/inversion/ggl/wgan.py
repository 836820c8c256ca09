"""A small WGAN-GP on the adversary's auxiliary images: DCGAN-like networks, trained once and cached.

Source: Gulrajani et al. 2017, "Improved Training of Wasserstein GANs", arXiv:1704.00028, algorithm 1, with
the networks of Li et al. 2022 (GGL), CVPR, section 4.1 and supplement: for 32 × 32 pixels a linear layer to
4 × 4, three transposed convolutions that halve the channels and double the sides, and a critic of three
strided convolutions without normalisation. Where we differ: the number of stages depends on the image size;
a conditional variant (one-hot labels beside the latent vector, a projection in the critic: Miyato & Koyama
2018, arXiv:1802.05637) for data whose classes the victims share; fewer and larger steps if configured.

Shape letters: N images, D latent entries, K classes, C channels, H and W pixels.
"""

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glasshouse.cache import Checkpoint, load_or_make
from glasshouse.errors import BadValue
from glasshouse.limits import Count, Positive, check_ranges
from glasshouse.progress import track
from glasshouse.rng import Rng
from glasshouse.tensors import (
    FUSED,
    map_tensors,
    optimizer_tensors,
    restore_optimizer,
    take_prefix,
    with_prefix,
)
from glasshouse.wire import Batch

_VERSION = 2
_SAVE_EVERY = 500
_FIRST_SIDE = 4
_LAYERS = 3
"""Layers of a stage: a convolution, its norm, a ReLU."""
_PENALTY = 10.0


@final
@dataclass(frozen=True, kw_only=True)
class GeneratorTraining:
    """Network sizes and training schedule.

    Attributes:
        width: channels of the generator's last stage and of the critic's first; 128 in the paper.
        conditional: the generator is conditioned on the class.
        steps: of the critic.
        batch_size: images per step.
        critic_steps: critic steps per generator step.
        learning_rate: of Adam, betas (0.5, 0.999).
        mirror: mirror images at random.
    """

    width: Count = 32
    conditional: bool = False
    steps: Count = 5000
    batch_size: Count = 64
    critic_steps: Count = 5
    learning_rate: Positive = 2e-4
    mirror: bool = False

    def __post_init__(self) -> None:
        check_ranges(self, "training of a generator")


def stages(shape: tuple[int, int, int]) -> int:
    """Number of doublings from 4 pixels to the larger side.

    Examples:
        >>> stages((3, 32, 32)), stages((1, 8, 8)), stages((1, 28, 28))
        (3, 1, 3)
    """
    return max(1, math.ceil(math.log2(max(shape[1:]) / _FIRST_SIDE)))


@final
class Generator(nn.Module):
    """Latent (N, D) and labels (N,) → pixels (N, C, H, W) in [0, 1]; ``classes`` 0: labels are ignored.

    ``depth``: number of stages at which :meth:`draw` can begin; each doubles the sides.
    """

    def __init__(self, shape: tuple[int, int, int], *, latent: int, width: int, classes: int = 0) -> None:
        super().__init__()
        self.shape, self.latent, self.classes, self.depth = shape, latent, classes, stages(shape)
        top = width * 2 ** (self.depth - 1)
        self.first = nn.Linear(latent + classes, top * _FIRST_SIDE**2, bias=False)
        self.norm = nn.BatchNorm1d(top * _FIRST_SIDE**2)
        layers = OrderedDict[str, nn.Module]()
        for i in range(self.depth - 1):
            layers[f"up{i}"] = nn.ConvTranspose2d(top, top // 2, 2, stride=2, bias=False)
            layers[f"norm{i}"] = nn.BatchNorm2d(top // 2)
            layers[f"relu{i}"] = nn.ReLU()
            top //= 2
        layers["last"] = nn.ConvTranspose2d(top, shape[0], 2, stride=2)
        self.stages = nn.Sequential(layers)

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """Images; generated sides that exceed the image shape are cropped around the centre."""
        return self.draw(self.features(latent, labels, stage=0), stage=0)

    def features(self, latent: Tensor, labels: Tensor, *, stage: int) -> Tensor:
        """Features (N, channels, side, side) before ``stage``; of stage 0 the side is 4."""
        if self.classes:
            latent = torch.cat([latent, F.one_hot(labels, self.classes).to(latent.dtype)], 1)
        start = F.relu(self.norm(self.first(latent))).reshape(len(latent), -1, _FIRST_SIDE, _FIRST_SIDE)
        inner: Tensor = self.stages[: _LAYERS * stage](start)
        return inner

    def draw(self, features: Tensor, *, stage: int) -> Tensor:
        """Images of features before ``stage``, cropped like those of :meth:`forward`."""
        pixels = (self.stages[_LAYERS * stage :](features).tanh() + 1) / 2
        _, height, width = self.shape
        top, left = (pixels.shape[2] - height) // 2, (pixels.shape[3] - width) // 2
        cut: Tensor = pixels[:, :, top : top + height, left : left + width]
        return cut


@final
class Critic(nn.Module):
    """Pixels (N, C, H, W) and labels (N,) → scores (N,): higher for images of the data. No normalisation."""

    def __init__(self, shape: tuple[int, int, int], *, width: int, classes: int = 0) -> None:
        super().__init__()
        channels, layers = shape[0], OrderedDict[str, nn.Module]()
        for i in range(stages(shape)):
            layers[f"down{i}"] = nn.Conv2d(channels, width * 2**i, 3, stride=2, padding=1)
            layers[f"relu{i}"] = nn.LeakyReLU(0.01)
            channels = width * 2**i
        layers["flatten"] = nn.Flatten()
        self.stages = nn.Sequential(layers)
        with torch.no_grad():
            size = self.stages(torch.zeros(1, *shape)).shape[1]
        self.score = nn.Linear(size, 1)
        self.classes = nn.Embedding(classes, size) if classes else None
        if self.classes is not None:
            nn.init.zeros_(self.classes.weight)  # from N(0, 1) the labels would dominate for long

    def forward(self, pixels: Tensor, labels: Tensor) -> Tensor:
        features: Tensor = self.stages(2 * pixels - 1)
        score: Tensor = self.score(features).squeeze(1)
        return score if self.classes is None else score + (features * self.classes(labels)).sum(1)


def train_generator(data: Batch, *, classes: int, latent: int, training: GeneratorTraining) -> Generator:
    """The frozen generator, from the cache or trained now on ``data``, whose order does not matter.

    It is on the device of the data.

    Raises:
        BadValue: fewer than two images.
    """
    if len(data) < 2:
        raise BadValue(
            "training of a generator",
            needs="at least 2 auxiliary images",
            got=str(len(data)),
            fix="raise data.auxiliary, or give generator = 'module:factory'",
        )
    device, data = data.inputs.device, _sorted(data)
    known = classes if training.conditional else 0
    shape = (data.inputs.shape[1], data.inputs.shape[2], data.inputs.shape[3])
    rng = Rng.root(0).child("ggl/wgan")

    def make(checkpoint: Checkpoint) -> dict[str, Tensor]:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(rng.child("weights").seed())
            fresh = Generator(shape, latent=latent, width=training.width, classes=known).to(device)
            critic = Critic(shape, width=training.width, classes=known).to(device)
        own = Batch(inputs=data.inputs.to(device), labels=data.labels.to(device))
        _train((fresh, critic), own, training, rng, checkpoint)
        return map_tensors(fresh.state_dict(), Tensor.clone)

    key = {
        "version": _VERSION,
        "images": data.inputs,
        "labels": data.labels if known else None,
        "latent": latent,
        "training": asdict(training),
    }
    with torch.random.fork_rng(devices=[]):  # the initial weights are overwritten
        generator = Generator(shape, latent=latent, width=training.width, classes=known)
    generator.load_state_dict(load_or_make("generator", key, make))
    return generator.to(device).eval().requires_grad_(False)


_Parts = Mapping[str, tuple[nn.Module, torch.optim.Adam]]
"""Both networks with their optimizers, by name."""


def _state(parts: _Parts) -> dict[str, Tensor]:
    """The complete training state, as one flat table."""
    tensors: dict[str, Tensor] = {}
    for name, (net, optimizer) in parts.items():
        tensors |= with_prefix(f"{name}/", net.state_dict())
        tensors |= with_prefix(f"{name}.adam/", optimizer_tensors(optimizer, sep="/"))
    return map_tensors(tensors, lambda t: t.detach().clone())


def _train(
    pair: tuple[Generator, Critic], data: Batch, training: GeneratorTraining, rng: Rng, checkpoint: Checkpoint
) -> None:
    (generator, critic), begin = pair, 0
    device, rate = data.inputs.device, training.learning_rate
    fused, parts = device.type in FUSED, dict[str, tuple[nn.Module, torch.optim.Adam]]()
    for name, own in (("generator", generator), ("critic", critic)):
        parts[name] = own, torch.optim.Adam(own.parameters(), lr=rate, betas=(0.5, 0.999), fused=fused)
    # An interrupted training goes on where it was saved, optimizers included.
    if (saved := checkpoint.load()) is not None:
        tensors, begin = saved
        for name, (net, optimizer) in parts.items():
            net.load_state_dict(take_prefix(tensors, f"{name}/"))
            restore_optimizer(optimizer, take_prefix(tensors, f"{name}.adam/"), sep="/")
    for step in track(range(begin, training.steps), "training the generator", total=training.steps - begin):
        # Each step has a stream of its own, so that resuming changes no number.
        draws = rng.child(f"step/{step}").torch()
        rows = torch.randint(len(data), (training.batch_size,), generator=draws).to(device)
        real, labels = data.inputs[rows], data.labels[rows]
        if training.mirror:
            flip = torch.rand(len(real), generator=draws).to(device) < 0.5
            real = torch.where(flip[:, None, None, None], real.flip(3), real)
        latent = torch.randn(training.batch_size, generator.latent, generator=draws).to(device)
        mix = torch.rand(training.batch_size, 1, 1, 1, generator=draws).to(device)
        with torch.no_grad():
            fake = generator(latent, labels)
        _descend(parts, "critic", _critic_loss(critic, real, fake, labels, mix))
        # The critic must be ahead of the generator: it takes several steps for one.
        if (step + 1) % training.critic_steps == 0:
            _descend(parts, "generator", -critic(generator(latent, labels), labels).mean())
        if (step + 1) % _SAVE_EVERY == 0 and step + 1 < training.steps:
            checkpoint.save(_state(parts), step + 1)


def _critic_loss(critic: Critic, real: Tensor, fake: Tensor, labels: Tensor, mix: Tensor) -> Tensor:
    between = (mix * real + (1 - mix) * fake).requires_grad_()
    (slope,) = torch.autograd.grad(critic(between, labels).sum(), between, create_graph=True)
    # The penalty is meant for images in [-1, 1], where distances are twice those of pixels.
    penalty = (slope.flatten(1).norm(dim=1) / 2 - 1).square().mean()
    wrong, right = critic(torch.cat([fake, real]), labels.repeat(2)).chunk(2)
    loss: Tensor = wrong.mean() - right.mean() + _PENALTY * penalty
    return loss


def _descend(parts: _Parts, name: str, loss: Tensor) -> None:
    net, optimizer = parts[name]
    weights = list(net.parameters())
    for weight, slope in zip(weights, torch.autograd.grad(loss, weights), strict=True):
        weight.grad = slope
    optimizer.step()


def _sorted(data: Batch) -> Batch:
    """Sort examples by content, so that the cache key does not depend on their order."""
    data = Batch(inputs=data.inputs.cpu(), labels=data.labels.cpu())  # wherever the attack runs
    rows = torch.cat([data.inputs.flatten(1), data.labels[:, None].to(data.inputs)], 1).numpy()
    order = torch.tensor(sorted(range(len(rows)), key=[row.tobytes() for row in rows].__getitem__))
    return Batch(inputs=data.inputs[order].contiguous(), labels=data.labels[order])
