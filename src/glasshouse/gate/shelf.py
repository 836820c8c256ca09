"""Tensors of a received model wait in a file, not in memory, until an answer is compared with them.

The file lies in the site's folder without a name: it is gone when the process ends, however it ends. What is
read of it counts as memory of this process until it is let go, which the readers do block by block.
"""

import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from glasshouse.gate.apart.spool import Spool

LARGE: Final = 2**20
"""Bytes from which a tensor stays in the file; each takes a mapping of the process."""

Forms = dict[str, tuple[str, tuple[int, ...]]]
"""Type and shape of each tensor by name, in the order of the message."""


@final
@dataclass(frozen=True, kw_only=True)
class Shelf:
    """Tensors in a spool.

    Attributes:
        spool: their bytes by name.
        forms: their types and shapes.

    Examples:
        >>> import tempfile
        >>> spool = Spool.inside(Path(tempfile.gettempdir()))
        >>> big = np.arange(2**19, dtype=np.float32)
        >>> kept = Shelf(spool=spool, forms=lay({"w": big}, spool)).arrays()["w"]
        >>> bool((kept == big).all()), kept.flags.writeable
        (True, False)
    """

    spool: Spool
    forms: Forms

    @property
    def mapped(self) -> int:
        """Bytes that stay in the file."""
        return sum(length for _, length in self.spool.places.values() if length >= LARGE)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The tensors, read-only; the large ones from the file."""
        found: dict[str, NDArray[Any]] = {}
        with os.fdopen(os.dup(self.spool.descriptor), "rb") as file:
            for name, (dtype, shape) in self.forms.items():
                start, length = self.spool.places[name]
                if length < LARGE:
                    found[name] = np.frombuffer(self.spool[name], dtype=dtype).reshape(shape)
                else:
                    found[name] = np.memmap(file, dtype=dtype, mode="r", offset=start, shape=shape)
        return found


def lay(arrays: dict[str, NDArray[Any]], spool: Spool) -> Forms:
    """Write tensors into ``spool``; takes them out of ``arrays`` one by one.

    Raises:
        OSError: the disk is full.
    """
    forms: Forms = {}
    for name in list(arrays):
        array = arrays.pop(name)
        forms[name] = (array.dtype.str, array.shape)
        spool[name] = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    return forms


def shelve(arrays: dict[str, NDArray[Any]], folder: Path) -> dict[str, NDArray[Any]]:
    """The same tensors, the large ones read-only from a file in ``folder``; empties ``arrays``.

    Raises:
        OSError: the disk is full.
    """
    spool = Spool.inside(folder)
    return Shelf(spool=spool, forms=lay(arrays, spool)).arrays()


def let_go(array: NDArray[Any]) -> None:
    """Give back the memory that reading a shelved tensor took; of any other nothing happens."""
    mapping = getattr(array, "_mmap", None)
    if mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED)
