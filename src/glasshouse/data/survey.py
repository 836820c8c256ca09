"""Count the images of each class in a data set without decoding them; used by ``check``.

Counts come from headers, labels and file names. Kinds of data sets not listed here (those of plug-ins, for
example) are not counted before the audit reads them.
"""

import gzip
import struct
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import final

import numpy as np
from PIL import Image

from glasshouse.data.fetch import not_here, offline
from glasshouse.data.kinds import zipped
from glasshouse.data.kinds.idx import find_pairs
from glasshouse.data.kinds.pictures import BROKEN, SUFFIXES
from glasshouse.data.named import NAMED, find
from glasshouse.data.paths import SPLITS, class_folders, files_of, require_existing, split_folders
from glasshouse.data.sources import load

DIGITS: Mapping[str, tuple[int, ...]] = {
    "train": (135, 136, 133, 136, 131, 141, 140, 132, 130, 134),
    "test": (43, 46, 44, 47, 50, 41, 41, 47, 44, 46),
}
"""Images of each class of the built-in digits; a test compares them with the data."""
PHOTOS: Mapping[str, tuple[int, ...]] = {"train": (195, 195), "test": (65, 65)}
"""The same for the built-in photographs."""
GREY = frozenset({"1", "L", "I;16", "I;16B", "I;16L", "I;16N", "I", "F"})
"""Pillow modes with one channel."""


UNREADABLE = (*BROKEN, EOFError, zipfile.BadZipFile)
"""Errors after which the data are read in full: the reader reports the problem or handles it."""


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
    if kind not in KINDS:
        return None
    try:
        result = KINDS[kind](where)
    except UNREADABLE:
        return _read_whole(source, resize, channels)
    return None if result is None else _shaped(result, resize, channels)


def _public(name: str) -> Survey:
    """The known counts of a named data set that is not downloaded until it is read."""
    data = NAMED[name]
    if not data.downloads or offline():
        raise not_here(data)
    return _known(data.counts, data.shape)


def _shaped(whole: Survey, resize: int | None, channels: int | None) -> Survey:
    depth, height, width = whole.shape
    size = (height, width) if resize is None else (resize, resize)
    return replace(whole, shape=(channels or depth, *size))


def _read_whole(source: str, resize: int | None, channels: int | None) -> Survey:
    """Read malformed files in full: the reader reports the problem or handles it."""
    data = load(source, resize=resize, channels=channels)
    counts = {name: Counter(images.labels.tolist()) for name, images in data.splits.items()}
    channels, height, width = data.input_shape
    return Survey(counts=counts, shape=(channels, height, width), classes=data.classes)


def _known(numbers: Mapping[str, tuple[int, ...]], shape: tuple[int, int, int]) -> Survey:
    counts = {split: dict(enumerate(part)) for split, part in numbers.items()}
    return Survey(counts=counts, shape=shape, classes=_highest(counts) + 1)


def _built_in(where: str, *, numbers: Mapping[str, tuple[int, ...]], shape: tuple[int, int, int]) -> Survey:
    if where:
        raise LookupError("built-in data have no path")
    return _known(numbers, shape)


def _npz(where: str) -> Survey | None:
    path = require_existing(where, name=f"npz:{where}")
    if not zipfile.is_zipfile(path):
        raise zipfile.BadZipFile(str(path))
    with np.load(path, allow_pickle=False) as archive:
        class_names = len(archive["class_names"]) if "class_names" in archive.files else 0
        labels = {split: archive[f"{split}_labels"] for split in SPLITS if f"{split}_labels" in archive.files}
    if any(one.dtype.kind not in "iu" or one.size != len(one) for one in labels.values()):
        return None  # the targets are no classes
    counts = {split: Counter(one.reshape(-1).tolist()) for split, one in labels.items()}
    with zipfile.ZipFile(path) as archive, archive.open("train_images.npy") as file:
        form = np.lib.format
        old = form.read_magic(file) == (1, 0)
        shape = (form.read_array_header_1_0 if old else form.read_array_header_2_0)(file)[0]
    if not counts or len(shape) not in (3, 4):
        return None
    depth = shape[3] if len(shape) == 4 else 1
    return Survey(
        counts=counts, shape=(depth, shape[1], shape[2]), classes=class_names or _highest(counts) + 1
    )


def _dicom(where: str) -> Survey | None:
    reader = import_module("glasshouse.data.kinds.dicom")  # imported on demand: it needs an extra
    return _tree(where, kind="dicom", suffixes=reader.SUFFIXES, shape_of=reader.shape_of)


def _image_shape(path: Path) -> tuple[int, int, int]:
    with Image.open(path) as image:
        return (1 if image.mode in GREY else 3, image.height, image.width)


def _tree(
    where: str, *, kind: str, suffixes: frozenset[str], shape_of: Callable[[Path], tuple[int, int, int]]
) -> Survey:
    root = require_existing(where, name=f"{kind}:{where}", folder=True)
    folders = {split: class_folders(place) for split, place in split_folders(root).items()}
    names = sorted({path.name for paths in folders.values() for path in paths})
    counts: dict[str, Mapping[int, int]] = {}
    every: list[Path] = []
    for split, paths in folders.items():
        pictures = {names.index(path.name): files_of(path, suffixes) for path in paths}
        counts[split] = {label: len(files) for label, files in pictures.items()}
        every += [file for files in pictures.values() for file in files[:1]]
    return Survey(counts=counts, shape=shape_of(every[0]), classes=len(names))


def _zip(where: str) -> Survey | None:
    name = f"zip:{where}"
    path = require_existing(where, name=name)
    result = zipped.listing(path, name=name)
    classes = zipped.classes_of(result)
    counts = {
        split: {classes.index(label): len(pictures) for label, pictures in parts.items()}
        for split, parts in result.items()
    }
    first = next(pictures[0] for parts in result.values() for pictures in parts.values())
    with zipped.opened(path, first) as image:
        depth = 1 if image.mode in GREY else 3
        return Survey(counts=counts, shape=(depth, image.height, image.width), classes=len(classes))


def _idx(where: str) -> Survey | None:
    root = require_existing(where, name=f"idx:{where}", folder=True)
    pairs = {split: (i, k) for split, (i, k) in find_pairs(root).items() if i and k}
    if not pairs:
        raise LookupError("no such files")
    counts = {split: Counter(_read(labels)[8:]) for split, (_, labels) in pairs.items()}
    *_, (height, width) = [struct.unpack(">2I", _read(images, 16)[8:]) for images, _ in pairs.values()]
    return Survey(counts=counts, shape=(1, height, width), classes=_highest(counts) + 1)


def _read(path: Path, size: int = -1) -> bytes:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        return file.read(size)


def _cifar10(where: str) -> Survey | None:
    root = require_existing(where, name=f"cifar10:{where}", folder=True)
    batches = {"train": len(list(root.glob("data_batch_[1-5]"))), "test": len(list(root.glob("test_batch")))}
    if batches != {"train": 5, "test": 1}:
        return None  # an incomplete copy: the labels would have to be read from the batches
    return _known(NAMED["cifar10"].counts, NAMED["cifar10"].shape)


def _highest(counts: Mapping[str, Mapping[int, int]]) -> int:
    return max((label for numbers in counts.values() for label in numbers), default=0)


KINDS: Mapping[str, Callable[[str], Survey | None]] = {
    "digits": partial(_built_in, numbers=DIGITS, shape=(1, 8, 8)),
    "photos": partial(_built_in, numbers=PHOTOS, shape=(3, 32, 32)),
    "npz": _npz,
    "dicom": _dicom,
    "folder": partial(_tree, kind="folder", suffixes=SUFFIXES, shape_of=_image_shape),
    "zip": _zip,
    "idx": _idx,
    "cifar10": _cifar10,
}
