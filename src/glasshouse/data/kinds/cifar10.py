"""CIFAR-10's official Python batches, read without executing anything in them.

The batches are pickles, and a pickle must never choose which code runs: the reader below accepts only the
names that a numpy array needs, and replaces each by a stand-in that only stores bytes.
"""

import io
import pickle
import pickletools
from functools import partial
from pathlib import Path
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from glasshouse.data.base import DataSource, assemble
from glasshouse.data.kinds.by_name import read
from glasshouse.data.kinds.pictures import BROKEN
from glasshouse.data.paths import bad_data, require_existing, require_inside
from glasshouse.data.survey import Survey, counted_by, known_survey
from glasshouse.outside import limits
from glasshouse.outside.files import check_size, reason
from glasshouse.registry import Card

NAMES: Final = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_PIXELS: Final = 3 * 32 * 32
_IMAGES: Final = 10_000
"""In each of the official batches."""
_bad: Final = partial(bad_data, fix="unpack cifar-10-python.tar.gz and name the folder cifar-10-batches-py")


def _count(where: str) -> Survey | None:
    """None of a copy that is not whole: its labels would have to be read from the batches."""
    root = require_existing(where, name=f"cifar10:{where}", folder=True)
    batches = [*root.glob("data_batch_[1-5]"), *root.glob("test_batch")]
    whole = len(batches) == 6 and all(path.stat().st_size > _IMAGES * _PIXELS for path in batches)
    return known_survey("cifar10") if whole else None


@counted_by(_count)
@Card(
    summary="CIFAR-10 by name: in GLASSHOUSE_DATA, else fetched; or cifar10:PATH, cifar-10-batches-py",
    source="Krizhevsky 2009, Learning multiple layers of features from tiny images",
)
def cifar10(where: str, *, resize: int | None = None) -> DataSource:
    """Read all existing batches: ``data_batch_*`` as train, ``test_batch`` as test.

    Without a path: by name, from ``GLASSHOUSE_DATA`` or downloaded (docs/data.md).

    Raises:
        BadFile: no such folder, no batches, or a file that is not a batch.
    """
    if not where:
        return read("cifar10", where, resize=resize)
    name = f"cifar10:{where}"
    root = require_existing(where, name=name, folder=True)
    files = {"train": sorted(root.glob("data_batch_[1-5]")), "test": sorted(root.glob("test_batch"))}
    arrays = {}
    for split, paths in files.items():
        parts = [_batch(require_inside(path, root, name=name), name=name) for path in paths]
        if parts:
            images, labels = zip(*parts, strict=True)
            arrays[split] = np.concatenate(images), np.concatenate(labels)
    if not arrays:
        raise _bad(name, "data_batch_1 to data_batch_5 and test_batch", f"none of them in '{root}'")
    return assemble(name, arrays, class_names=NAMES, public=True, resize=resize)


@final
class _Array:
    """Stand-in for a numpy array in a pickle; its state is stored, not interpreted."""

    data: bytes = b""

    def __init__(self, *_arguments: object) -> None: ...

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.data = state[-1] if isinstance(state[-1], bytes) else b""


@final
class _Unpickler(pickle.Unpickler):
    """Unpickles plain containers and the bytes of arrays; refuses every other name."""

    def find_class(self, module: str, name: str, /) -> Any:
        allowed = {
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
        }
        if (module, name) not in allowed:
            raise pickle.UnpicklingError(f"the file asks for {module}.{name}")
        return _Array


def _check_opcodes(content: bytes) -> None:
    """Check lengths and memo positions before unpickling: a pickle can claim any number.

    Raises:
        ValueError: a length beyond the end of the file, or a memo position beyond the number of operations.
    """
    for count, (operation, argument, _) in enumerate(pickletools.genops(content), start=1):
        if operation.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > count:
            raise ValueError(f"position {argument} of the memo after {count} operations")


def _batch(path: Path, *, name: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    check_size(path.stat().st_size, limits.JSONL_BYTES, subject=f"data '{name}', '{path.name}'")
    try:
        content = path.read_bytes()
        _check_opcodes(content)
        record = _Unpickler(io.BytesIO(content), encoding="bytes").load()
        pixels = np.frombuffer(record[b"data"].data, dtype=np.uint8)
        labels = np.array(record[b"labels"], dtype=np.int64)
    except (*BROKEN, EOFError, pickle.UnpicklingError) as error:
        raise _bad(
            name, "a batch of CIFAR-10", f"'{path.name}': {type(error).__name__}: {reason(error)}"
        ) from error
    if labels.ndim != 1 or pixels.size != len(labels) * _PIXELS:
        raise _bad(
            name, f"{_PIXELS} bytes per label", f"{pixels.size} bytes, {labels.size} labels in '{path.name}'"
        )
    return pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels
