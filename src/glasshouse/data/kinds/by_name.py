"""Data sets addressed by name alone; ``glasshouse.data.named`` lists where each is searched for."""

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


@Card(
    summary="CIFAR-10 by name, all 50,000 train images: in GLASSHOUSE_DATA, else fetched",
    source="Krizhevsky 2009, Learning multiple layers of features from tiny images",
)
def cifar10_full(where: str, *, resize: int | None = None) -> DataSource:
    """CIFAR-10, whole; see :func:`read`."""
    return read("cifar10_full", where, resize=resize)


@Card(
    summary="MNIST by name: in GLASSHOUSE_DATA, else fetched",
    source="LeCun et al. 1998, the MNIST database, CC BY-SA 3.0",
)
def mnist(where: str, *, resize: int | None = None) -> DataSource:
    """MNIST; see :func:`read`."""
    return read("mnist", where, resize=resize)


@Card(
    summary="ORL faces by name, 40 people: in GLASSHOUSE_DATA",
    source="Samaria and Harter 1994, AT&T Laboratories Cambridge",
)
def orl(where: str, *, resize: int | None = None) -> DataSource:
    """The ORL faces; see :func:`read`."""
    return read("orl", where, resize=resize)


@Card(
    summary="Labeled Faces in the Wild by name, 800 people: in GLASSHOUSE_DATA",
    source="Huang et al. 2007, Labeled Faces in the Wild, for research",
)
def lfw(where: str, *, resize: int | None = None) -> DataSource:
    """Labeled Faces in the Wild; see :func:`read`."""
    return read("lfw", where, resize=resize)


@Card(
    summary="chest X-rays by name, with and without pneumonia, 28 × 28: in GLASSHOUSE_DATA",
    source="PneumoniaMNIST, Yang et al. 2023, MedMNIST v2, CC BY 4.0",
)
def chest_xray(where: str, *, resize: int | None = None) -> DataSource:
    """Chest X-rays; see :func:`read`."""
    return read("chest_xray", where, resize=resize)


@Card(
    summary="700 pictures of ImageNet by name, one per class: in GLASSHOUSE_DATA",
    source="Russakovsky et al. 2015, ImageNet, for non-commercial research",
)
def imagenet(where: str, *, resize: int | None = None) -> DataSource:
    """Pictures of ImageNet; see :func:`read`."""
    return read("imagenet", where, resize=resize)
