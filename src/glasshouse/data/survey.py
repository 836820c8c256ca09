"""What a data set holds, told without decoding it; used by ``check``.

A source that can count its images by headers, labels and file names says so with :func:`counted_by`. Others
are not counted before the audit reads them.
"""

import zipfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, TypeVar, final

from PIL import Image

from glasshouse import registry
from glasshouse.data.base import DataSource
from glasshouse.data.fetch import not_here, offline
from glasshouse.data.kinds.pictures import BROKEN
from glasshouse.data.named import NAMED, find
from glasshouse.data.sources import load

F = TypeVar("F", bound=Callable[..., Any])

UNREADABLE: Final = (*BROKEN, EOFError, zipfile.BadZipFile)
"""Errors after which the data are read in full: the reader reports the problem or handles it."""
_GREY: Final = frozenset({"1", "L", "I;16", "I;16B", "I;16L", "I;16N", "I", "F"})
"""Pillow modes with one channel."""


@final
@dataclass(frozen=True, kw_only=True)
class Survey:
    """Size and shape of a data set.

    Attributes:
        counts: images of each class, by split.
        shape: (C, H, W) of the images, after resizing.
        classes: K.
    """

    counts: Mapping[str, Mapping[int, int]]
    shape: tuple[int, int, int]
    classes: int


def counted_by(count: Callable[[str], Survey | None]) -> Callable[[F], F]:
    """Let a kind of source be counted without reading it.

    Args:
        count: takes what follows the colon in the name of the source, and tells what the source holds before
            any resizing; None where that takes reading. Whatever it raises on a damaged file is left to the
            reader, which is asked next.

    Examples:
        >>> def one_image(where):
        ...     return Survey(counts={"train": {0: 1}}, shape=(1, 8, 8), classes=1)
        >>> @counted_by(one_image)
        ... def single(where, *, resize=None): ...
        >>> single.count("anywhere").classes
        1
    """

    def attach(source: F) -> F:
        source.__dict__["count"] = count
        return source

    return attach


def survey(source: str, resize: int | None = None, channels: int | None = None) -> Survey | None:
    """Count the images in ``source``; None: this kind cannot be counted without reading it.

    Raises:
        BadFile: missing, or not of its kind; the error of its reader.
        BadValue: missing, or not of its kind; the error of its reader.
    """
    place = find(source) if source in NAMED else source
    if place is None:
        return _shaped(_public(source), resize, channels)
    return _survey(place, resize, channels)


@lru_cache(maxsize=16)
def _survey(source: str, resize: int | None, channels: int | None) -> Survey | None:
    kind, _, where = source.partition(":")
    if kind not in registry.names("datasets"):
        return None
    count = getattr(registry.load("datasets", kind), "count", None)
    if count is None:
        return None
    try:
        result: Survey | None = count(where)
    except UNREADABLE:
        return survey_of(load(source, resize=resize, channels=channels))
    return None if result is None else _shaped(result, resize, channels)


def _public(name: str) -> Survey:
    """The known counts of a named data set that is not downloaded until it is read."""
    data = NAMED[name]
    if not data.downloads or offline():
        raise not_here(data)
    return known_survey(name)


def _shaped(whole: Survey, resize: int | None, channels: int | None) -> Survey:
    depth, height, width = whole.shape
    size = (height, width) if resize is None else (resize, resize)
    return replace(whole, shape=(channels or depth, *size))


def survey_of(data: DataSource) -> Survey:
    """What a data set holds that was read: of pictures with classes."""
    counts = {name: Counter(images.labels.tolist()) for name, images in data.splits.items()}
    channels, height, width = data.input_shape
    return Survey(counts=counts, shape=(channels, height, width), classes=data.classes)


def known_survey(name: str) -> Survey:
    """What the public files of a named data set hold."""
    data = NAMED[name]
    counts = {split: dict(enumerate(numbers)) for split, numbers in data.counts.items()}
    return Survey(counts=counts, shape=data.shape, classes=count_classes(counts))


def count_classes(counts: Mapping[str, Mapping[int, int]]) -> int:
    """K of classes without names: one more than the highest label."""
    return max((label for numbers in counts.values() for label in numbers), default=0) + 1


def shape_of(image: Image.Image) -> tuple[int, int, int]:
    """(C, H, W) of a picture that is not decoded yet."""
    return (1 if image.mode in _GREY else 3, image.height, image.width)
