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


def _named(name: str) -> Callable[..., DataSource]:
    @Card(summary=NAMED[name].summary, source=NAMED[name].source)
    def factory(where: str, *, resize: int | None = None) -> DataSource:
        """A data set with a name of its own: from ``GLASSHOUSE_DATA``, or downloaded."""
        return read(name, where, resize=resize)

    return factory


cifar10_full = _named("cifar10_full")
mnist = _named("mnist")
orl = _named("orl")
lfw = _named("lfw")
chest_xray = _named("chest_xray")
imagenet = _named("imagenet")
