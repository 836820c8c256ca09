"""Large tensors of a received model wait in a file, not in memory, until an answer is compared with them.

The file lies in the site's folder without a name: it is gone when the process ends, however it ends. What is
read of it counts as memory of this process until it is let go, which the readers do block by block.
"""

import mmap
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

LARGE: Final = 2**20
"""Bytes from which a tensor is put on the shelf; each takes a mapping of the process."""


def shelve(arrays: dict[str, NDArray[Any]], folder: Path) -> dict[str, NDArray[Any]]:
    """The same tensors, the large ones read-only from a file; takes them out of ``arrays`` one by one.

    Args:
        arrays: by name; empty afterwards.
        folder: where the file is made.

    Raises:
        OSError: the disk is full.

    Examples:
        >>> big = np.arange(2**19, dtype=np.float32)
        >>> kept = shelve({"w": big}, Path(tempfile.gettempdir()))
        >>> bool((kept["w"] == big).all()), kept["w"].flags.writeable
        (True, False)
    """
    kept: dict[str, NDArray[Any]] = {}
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        for name in list(arrays):
            array = arrays.pop(name)
            if array.nbytes < LARGE:
                kept[name] = array
                continue
            place = file.tell() + -file.tell() % mmap.ALLOCATIONGRANULARITY
            file.seek(place)
            _write_all(file, array)
            kept[name] = np.memmap(file, dtype=array.dtype, mode="r", offset=place, shape=array.shape)
    return kept


def let_go(array: NDArray[Any]) -> None:
    """Give back the memory that reading a shelved tensor took; of any other nothing happens."""
    mapping = getattr(array, "_mmap", None)
    if mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED)


def _write_all(file: Any, array: NDArray[Any]) -> None:
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    done = 0
    while done < len(data):
        done += file.write(data[done:])
