"""Data sets addressed by name alone; ``glasshouse.data.named`` lists where each is searched for."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from glasshouse import registry
from glasshouse.data.base import DataSource
from glasshouse.data.fetch import ensure
from glasshouse.data.named import NAMED
from glasshouse.data.paths import refuse_path
from glasshouse.registry import Card


def read(name: str, where: str, *, resize: int | None) -> DataSource:
    """The data set ``name``, from ``GLASSHOUSE_DATA`` or downloaded; its own name states which file was read.

    Raises:
        BadFile: it is missing and cannot be downloaded, is damaged, or a path was given.
    """
    fix = f"write '{name}' alone, and set GLASSHOUSE_DATA; npz:, folder:, zip: and idx: take paths"
    refuse_path(name, where, fix=fix)
    kind, _, path = ensure(name).partition(":")
    source: DataSource = registry.load("datasets", kind)(path, resize=resize)
    label = f"{name} (fetched)" if Path(path) == NAMED[name].fetched else f"{name} ({Path(path).name})"
    return replace(source, name=label, public=source.public or NAMED[name].public)


def _named(name: str, card: Card) -> Callable[..., DataSource]:
    @card
    def factory(where: str, *, resize: int | None = None) -> DataSource:
        """A data set with a name of its own: from ``GLASSHOUSE_DATA``, or downloaded."""
        return read(name, where, resize=resize)

    return factory


cifar10_full = _named(
    "cifar10_full",
    Card(
        summary="CIFAR-10 by name, all 50,000 train images: in GLASSHOUSE_DATA, else fetched",
        source="Krizhevsky 2009, Learning multiple layers of features from tiny images",
    ),
)
mnist = _named(
    "mnist",
    Card(
        summary="MNIST by name: in GLASSHOUSE_DATA, else fetched",
        source="LeCun et al. 1998, the MNIST database, CC BY-SA 3.0",
    ),
)
orl = _named(
    "orl",
    Card(
        summary="ORL faces by name, 40 people: in GLASSHOUSE_DATA",
        source="Samaria and Harter 1994, AT&T Laboratories Cambridge",
    ),
)
lfw = _named(
    "lfw",
    Card(
        summary="Labeled Faces in the Wild by name, 800 people: in GLASSHOUSE_DATA",
        source="Huang et al. 2007, Labeled Faces in the Wild, for research",
    ),
)
chest_xray = _named(
    "chest_xray",
    Card(
        summary="chest X-rays by name, with and without pneumonia, 28 × 28: in GLASSHOUSE_DATA",
        source="PneumoniaMNIST, Yang et al. 2023, MedMNIST v2, CC BY 4.0",
    ),
)
imagenet = _named(
    "imagenet",
    Card(
        summary="700 pictures of ImageNet by name, one per class: in GLASSHOUSE_DATA",
        source="Russakovsky et al. 2015, ImageNet, for non-commercial research",
    ),
)
