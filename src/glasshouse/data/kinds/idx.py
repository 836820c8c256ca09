"""Files in MNIST's idx format (also Fashion-MNIST, KMNIST, and EMNIST's digits)."""

import gzip
import io
import struct
import zlib
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from glasshouse.data.base import DataSource, assemble
from glasshouse.data.paths import bad_data, require_existing, require_inside
from glasshouse.data.survey import Survey, count_classes, counted_by
from glasshouse.outside import limits
from glasshouse.outside.files import check_unpacked
from glasshouse.registry import Card

_PREFIXES: Final = {"train": "train", "test": "t10k"}
_UNSIGNED_BYTE: Final = 8
_PIECE: Final = 2**20
_bad: Final = partial(bad_data, fix="get the files again; docs/data.md says where")


def _count(where: str) -> Survey:
    """Labels are read, of the images the header."""
    pairs = find_pairs(require_existing(where, name=f"idx:{where}", folder=True))
    whole = {split: (images, labels) for split, (images, labels) in pairs.items() if images and labels}
    if not whole:
        raise LookupError("no such files")
    counts = {split: Counter(_bytes(labels)[8:]) for split, (_, labels) in whole.items()}
    *_, (height, width) = [struct.unpack(">2I", _bytes(images, 16)[8:]) for images, _ in whole.values()]
    return Survey(counts=counts, shape=(1, height, width), classes=count_classes(counts))


def _bytes(path: Path, size: int = -1) -> bytes:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        return file.read(size)


@counted_by(_count)
@Card(
    summary="idx:PATH, a folder with MNIST's files: train-*, t10k-*, as they come or unpacked",
    source="LeCun et al. 1998, the MNIST database",
)
def idx(where: str, *, resize: int | None = None) -> DataSource:
    """Read ``images-idx3-ubyte`` and ``labels-idx1-ubyte`` of ``train-`` and ``t10k-``; one pair is enough.

    With or without ``.gz``.

    Raises:
        BadFile: no such folder, none of the files, one of a pair missing, or a damaged file.
    """
    name = f"idx:{where}"
    root = require_existing(where, name=name, folder=True)
    arrays: dict[str, tuple[NDArray[Any], NDArray[Any]]] = {}
    for split, (images, labels) in find_pairs(root).items():
        if images and labels:
            arrays[split] = (
                _read(require_inside(images, root, name=name), 3, name=name),
                _read(require_inside(labels, root, name=name), 1, name=name),
            )
        elif images or labels:
            raise _bad(name, f"images and labels of '{_PREFIXES[split]}'", f"only '{(images or labels)}'")
    if not arrays:
        raise _bad(name, "files such as train-images-idx3-ubyte.gz", f"none of them in '{root}'")
    return assemble(name, arrays, class_names=None, public=False, resize=resize)


def find_pairs(root: Path) -> dict[str, tuple[Path | None, Path | None]]:
    """Paths of images and labels by split, unpacked or gzipped; None: missing."""

    def find(stem: str) -> Path | None:
        return next((path for path in (root / stem, root / f"{stem}.gz") if path.exists()), None)

    return {
        split: (find(f"{prefix}-images-idx3-ubyte"), find(f"{prefix}-labels-idx1-ubyte"))
        for split, prefix in _PREFIXES.items()
    }


def _read(path: Path, dimensions: int, *, name: str) -> NDArray[np.uint8]:
    """Read an idx file: two zero bytes, a type, the number of dimensions, their sizes, the data."""
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = _unpacked(data, subject=f"data '{name}', '{path}'")
    except (OSError, EOFError, zlib.error) as error:
        raise _bad(name, "files that can be read", f"'{path}': {error}") from error
    start = 4 + 4 * dimensions
    if len(data) < start or data[:4] != bytes([0, 0, _UNSIGNED_BYTE, dimensions]):
        raise _bad(name, f"an idx file of bytes with {dimensions} dimensions", f"'{path}' begins otherwise")
    shape = struct.unpack(f">{dimensions}I", data[4:start])
    array = np.frombuffer(data, dtype=np.uint8, offset=start)
    if array.size != int(np.prod(shape, dtype=object)):
        raise _bad(name, f"{shape} bytes, as the header says", f"{array.size} bytes in '{path}'")
    return array.reshape(shape)


def _unpacked(packed: bytes, *, subject: str) -> bytes:
    most = max(limits.UNPACKED_BYTES, limits.UNPACKED_RATIO * len(packed))
    size = 0
    with gzip.open(io.BytesIO(packed)) as stream:  # check the size before keeping anything
        while piece := stream.read(_PIECE):
            size += len(piece)
            if size > most:
                check_unpacked(len(packed), size, subject=subject)
    return gzip.decompress(packed)
