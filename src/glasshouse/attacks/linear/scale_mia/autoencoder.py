"""The surrogate autoencoder: the target model's own encoder, trained with a decoder on auxiliary images.

Source: Shi et al. 2025, arXiv:2311.05808, Section IV-B (mean squared error) and Appendix C (VAE). Where we
differ: Adam with a one-cycle schedule, which reaches the authors' error in a fraction of their epochs;
images are mirrored at random. For the VAE the latent representation is the posterior mean, and the
posterior's standard deviation is one learned number per entry, so that the encoder keeps its architecture.

Shape letters: B images, D latent entries.
"""

from dataclasses import asdict, dataclass
from typing import final

import torch
from torch import Tensor, nn

from glasshouse.attacks.linear.scale_mia.decoders import decoder_for, reader
from glasshouse.attacks.parts.readout.linear_tail import LinearTail, latents
from glasshouse.cache import Checkpoint, digest, load_or_make
from glasshouse.limits import Count, NotNegative, Positive, check_ranges
from glasshouse.models.build import build
from glasshouse.progress import track
from glasshouse.rng import Rng
from glasshouse.tensors import (
    FUSED,
    descend,
    device_of,
    map_tensors,
    optimizer_tensors,
    restore_optimizer,
    take_prefix,
    with_prefix,
)
from glasshouse.wire import Architecture

_VERSION = 2
_SAVE_EVERY = 500


@final
@dataclass(frozen=True, kw_only=True)
class AutoencoderTraining:
    """Settings of the autoencoder's training.

    Attributes:
        steps: optimizer steps.
        batch_size: images per step.
        learning_rate: peak of the one-cycle schedule.
        mirror: mirror each image with probability one half.
        variational: weight of the VAE's KL term per latent entry; 0 for a plain autoencoder.
        bfloat16: train in mixed precision, channels last: twice as fast for the large models on a CPU that
            supports the format, and no gain for the small CNN.
    """

    steps: Count = 24_000
    batch_size: Count = 64
    learning_rate: Positive = 0.012
    mirror: bool = True
    variational: NotNegative = 0.0
    bfloat16: bool = False

    def __post_init__(self) -> None:
        check_ranges(self, "attack 'scale_mia': training")


@final
class Autoencoder(nn.Module):
    """An encoder and a decoder, freshly initialised.

    Attributes:
        model: the target architecture; the layers before ``tail.names[0]`` are the encoder.
        decoder: (B, D) → (B, C, H, W).
        tail: of ``model``.
    """

    def __init__(self, architecture: Architecture, tail: LinearTail, *, rng: Rng) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(rng.child("decoder").seed())
            decoder = decoder_for(architecture, tail.latent)
        self.model, self.decoder, self.tail = build(architecture, rng=rng.child("encoder")), decoder, tail

    def encode(self, images: Tensor, *, chunk: int = 256) -> Tensor:
        """Latent representations (B, D), without gradients."""
        before = latents(self.model, self.tail.names[0])
        with torch.no_grad():
            return torch.cat([before(part) for part in torch.split(images, chunk)])


def train_autoencoder(
    architecture: Architecture, images: Tensor, *, tail: LinearTail, recipe: AutoencoderTraining
) -> Autoencoder:
    """The autoencoder in evaluation mode, from the cache or trained now on ``images`` (B, C, H, W).

    The order of the images does not matter.
    """
    device, images = images.device, _sorted(images)
    key = {
        "version": _VERSION,
        "architecture": [architecture.name, list(architecture.input_shape), dict(architecture.arguments)],
        "images": images,
        "recipe": {name: value for name, value in asdict(recipe).items() if name != "bfloat16" or value},
    }
    rng = Rng.root(0).child("scale_mia/autoencoder")

    def make(checkpoint: Checkpoint) -> dict[str, Tensor]:
        fresh = Autoencoder(architecture, tail, rng=rng).to(device)
        _train(fresh, images.to(device), recipe=recipe, rng=rng, checkpoint=checkpoint)
        return map_tensors(fresh.state_dict(), lambda t: t.detach().clone())

    pair = Autoencoder(architecture, tail, rng=rng)
    pair.load_state_dict(load_or_make("autoencoder", key, make))
    return pair.to(device).eval()


def _sorted(images: Tensor) -> Tensor:
    """Sort images by content, so that the cache key does not depend on their order."""
    images = images.cpu()
    marks = [digest(image) for image in images]
    return images[torch.tensor(sorted(range(len(marks)), key=marks.__getitem__))]


def restore_decoder(architecture: Architecture, latent: int, tensors: dict[str, Tensor]) -> nn.Module:
    """The decoder with the given weights, in evaluation mode, optimised for inference."""
    with torch.random.fork_rng(devices=[]):  # the initial weights are overwritten
        decoder = decoder_for(architecture, latent)
    decoder.load_state_dict(tensors)
    return reader(decoder.eval(), device_of(tensors)).eval()


def _train(
    pair: Autoencoder, images: Tensor, *, recipe: AutoencoderTraining, rng: Rng, checkpoint: Checkpoint
) -> None:
    pair.train()
    if recipe.bfloat16:
        pair.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    device = images.device
    # log of the posterior's deviation
    spread = nn.Parameter(torch.full((pair.tail.latent,), -2.0, device=device))
    head = tuple(f"model.{name}." for name in pair.tail.names)
    weights = [p for name, p in pair.named_parameters() if not name.startswith(head)]
    weights += [spread] if recipe.variational else []
    optimizer = torch.optim.Adam(weights, lr=recipe.learning_rate, fused=device.type in FUSED)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=recipe.learning_rate, total_steps=recipe.steps + 1, cycle_momentum=False
    )
    begin = 0
    if (saved := checkpoint.load()) is not None:
        tensors, begin = saved
        pair.load_state_dict(take_prefix(tensors, "pair."))
        with torch.no_grad():
            spread.copy_(tensors["spread"])
        for _ in range(begin):
            optimizer._opt_called = True  # type: ignore[attr-defined]  # the schedule warns when it runs ahead
            schedule.step()
        restore_optimizer(optimizer, take_prefix(tensors, "adam."))
    before = latents(pair.model, pair.tail.names[0])
    for step in track(range(begin, recipe.steps), "training the autoencoder", total=recipe.steps - begin):
        stream = rng.child(f"step/{step}")
        rows = torch.randint(len(images), (min(recipe.batch_size, len(images)),), generator=stream.torch())
        batch = images[rows.to(device)]
        if recipe.mirror:
            flip = torch.rand(len(batch), generator=stream.child("mirror").torch()).to(device) < 0.5
            batch = torch.where(flip[:, None, None, None], batch.flip(3), batch)
        with torch.autocast(device.type, torch.bfloat16, enabled=recipe.bfloat16):
            latent = before(batch)
            loss = torch.zeros((), device=device)
            if recipe.variational:
                noise = torch.randn(latent.shape, generator=stream.child("posterior").torch()).to(device)
                divergence = (latent.square() + (2 * spread).exp() - 2 * spread - 1).mean() / 2
                loss, latent = loss + recipe.variational * divergence, latent + spread.exp() * noise
            images_again = pair.decoder(latent)
        loss = loss + nn.functional.mse_loss(images_again.float(), batch)
        descend(optimizer, loss)
        schedule.step()
        if (step + 1) % _SAVE_EVERY == 0 and step + 1 < recipe.steps:
            now = with_prefix("pair.", pair.state_dict()) | {"spread": spread}
            now |= with_prefix("adam.", optimizer_tensors(optimizer))
            checkpoint.save(map_tensors(now, lambda t: t.detach().clone()), step + 1)
