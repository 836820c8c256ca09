"""The generators to choose from: a WGAN-GP trained on auxiliary images, BigGAN, or the user's own.

Every generator maps latent vectors (N, D), N(0, 1) a priori, and labels (N,) to pixels (N, C, H, W) in
[0, 1]. Shape letters: N images, D latent entries, K classes, C channels, H and W pixels.
"""

from typing import Final

import torch
from torch import nn

from glasshouse.attacks.inversion.ggl import wgan
from glasshouse.attacks.inversion.ggl.wgan import GeneratorTraining
from glasshouse.errors import BadValue, GlasshouseError, Inapplicable
from glasshouse.registry import import_factory
from glasshouse.wire import Architecture, Batch

WGAN: Final = "wgan_gp"
BIGGAN: Final = "biggan"
_BIGGAN_FACTORY = "glasshouse.attacks.inversion.ggl.biggan:biggan"

Prior = nn.Module
"""Latent vectors (N, D) and labels (N,) → pixels (N, C, H, W) in [0, 1]."""


def needs_data(name: str) -> bool:
    """Whether this generator is trained on the adversary's auxiliary images."""
    return name == WGAN


def generator(
    name: str,
    architecture: Architecture,
    training: GeneratorTraining,
    *,
    latent: int,
    auxiliary: Batch | None,
) -> Prior:
    """The generator called ``name``, frozen and in ``eval()`` mode.

    Args:
        name: ``wgan_gp``, ``biggan``, or ``module:factory``, called as ``factory(input_shape, classes,
            latent=D)``.
        architecture: of the attacked model: gives the image shape, and K.
        training: of ``wgan_gp``.
        latent: D.
        auxiliary: training images of ``wgan_gp``.

    Raises:
        Inapplicable: ``wgan_gp`` without auxiliary images, ``biggan`` without its weights or its classes.
        NotInstalled: a package or a module is missing.
        BadFile: a package or a module is missing.
        BadValue: the user's factory does not generate images of the right size.
    """
    if name == WGAN:
        if auxiliary is None:
            raise Inapplicable(
                "attack 'ggl' with generator 'wgan_gp'",
                needs="auxiliary images to train on",
                got="none",
                fix="set data.auxiliary and grants.auxiliary, or give generator = 'module:factory'",
            )
        return wgan.train_generator(auxiliary, classes=architecture.classes, latent=latent, training=training)
    network = import_factory(_BIGGAN_FACTORY if name == BIGGAN else name, f"generator '{name}'")(
        architecture.input_shape, architecture.classes, latent=latent
    )
    _check(name, network, architecture, latent)
    frozen_network: nn.Module = network.eval().requires_grad_(False)
    return frozen_network


def _check(name: str, network: object, architecture: Architecture, latent: int) -> None:
    subject, shape = f"generator '{name}'", (2, *architecture.input_shape)
    if not isinstance(network, nn.Module):
        raise BadValue(
            subject, needs="a torch.nn.Module", got=f"a {type(network).__name__}", fix="correct the factory"
        )
    try:
        with torch.no_grad():
            images = network.eval()(torch.zeros(2, latent), torch.zeros(2, dtype=torch.int64))
    except GlasshouseError:
        raise
    except (RuntimeError, ValueError, TypeError, LookupError) as error:
        raise BadValue(
            subject,
            needs=f"forward(latent (N, {latent}), labels (N,))",
            got=f"{type(error).__name__}: {str(error).splitlines()[0]}",
            fix="set the attack's latent to the size that the generator takes",
        ) from error
    if tuple(images.shape) != shape or float(images.min()) < 0 or float(images.max()) > 1:
        raise BadValue(
            subject,
            needs=f"images {shape} in [0, 1]",
            got=f"{tuple(images.shape)} in [{float(images.min()):.3g}, {float(images.max()):.3g}]",
            fix="resize and scale inside its forward",
        )
