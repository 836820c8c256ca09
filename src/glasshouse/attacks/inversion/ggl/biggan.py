"""Published BigGAN, pre-trained on ImageNet, conditioned on the inferred label; needs the extra ``biggan``.

Source: Brock, Donahue & Simonyan 2019, arXiv:1809.11096; weights and network as in pytorch-pretrained-biggan,
which Li et al. 2022 (GGL) use too. They are not downloaded here: GLASSHOUSE_BIGGAN names their folder.
Images are downscaled by area averaging. Shape letters: N images, D = 128 latent entries, K classes.
"""

import importlib
import os
from pathlib import Path
from typing import Final, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glasshouse.errors import Inapplicable, not_installed

LATENT, CLASSES, TRUNCATION = 128, 1000, 1.0
WEIGHTS: Final = ("config.json", "pytorch_model.bin")


@final
class Pretrained(nn.Module):
    """Latent vectors (N, 128) and ImageNet labels (N,) → pixels (N, 3, H, W) in [0, 1]."""

    def __init__(self, network: nn.Module, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.network, self.shape = network, shape

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        images = self.network(latent, F.one_hot(labels, CLASSES).to(latent.dtype), TRUNCATION)
        return F.interpolate((images + 1) / 2, size=self.shape[1:], mode="area").clamp(0, 1)


def biggan(input_shape: tuple[int, int, int], classes: int, *, latent: int = LATENT) -> Pretrained:
    """The generator, with the weights from the folder ``GLASSHOUSE_BIGGAN``.

    Raises:
        Inapplicable: the attacked model does not have ImageNet's 1,000 classes, D is not 128, or the folder
            or a file in it is missing.
        NotInstalled: the package is missing.
    """
    if (input_shape[0], classes, latent) != (3, CLASSES, LATENT):
        raise Inapplicable(
            "generator 'biggan'",
            needs=f"colour images, {CLASSES} classes and latent = {LATENT}",
            got=f"{input_shape[0]} channels, {classes} classes and latent = {latent}",
            fix="use generator = 'wgan_gp' on other data",
        )
    try:  # imported here, after the checks that no installation would fix
        package = importlib.import_module("pytorch_pretrained_biggan")
    except ImportError as error:
        raise not_installed(
            "generator 'biggan'",
            "pytorch-pretrained-biggan",
            error,
            extra="biggan",
            instead="use generator = 'wgan_gp'",
        ) from error
    folder = Path(os.environ.get("GLASSHOUSE_BIGGAN", "biggan"))
    if missing := [name for name in WEIGHTS if not (folder / name).is_file()]:
        raise Inapplicable(
            "weights of generator 'biggan'",
            needs=f"{' and '.join(WEIGHTS)} in the folder named by GLASSHOUSE_BIGGAN",
            got=f"'{folder}' without {', '.join(missing)}",
            fix="put the published biggan-deep-128 there, or use generator = 'wgan_gp'",
        )
    with torch.random.fork_rng(devices=[]):  # the initial weights are overwritten
        network: nn.Module = package.BigGAN.from_pretrained(str(folder))
    return Pretrained(network, input_shape)
