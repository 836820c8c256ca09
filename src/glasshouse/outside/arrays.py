"""Read arrays from an untrusted numpy archive; headers are checked before memory is allocated."""

import math
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from glasshouse.errors import BadFile
from glasshouse.outside.files import check_unpacked, printable, reason

_PYTHON = (OSError, ValueError, EOFError, LookupError, TypeError, RuntimeError, MemoryError, SyntaxError)
BROKEN: Final = (*_PYTHON, struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error)
"""Exceptions of the standard library and numpy for damaged or malicious archives."""


def read_arrays(path: Path, *, subject: str, fix: str) -> dict[str, NDArray[Any]]:
    """All arrays of the ``.npz`` file at ``path``; only plain arrays, no Python objects.

    Raises:
        BadFile: not an archive, damaged, with objects, a zip bomb, or a header that claims too much data.
    """
    if not (path.is_file() and zipfile.is_zipfile(path)):
        got = "a file of another kind, or a damaged one"
        raise BadFile(subject, needs="a numpy archive (.npz)", got=got, fix=fix)
    arrays: dict[str, NDArray[Any]] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            parts = archive.infolist()
            total = sum(part.file_size for part in parts)
            # Sizes are judged by headers, before anything is unpacked: a few bytes may claim gigabytes.
            check_unpacked(path.stat().st_size, total, subject=subject)
            for part in parts:
                name = part.filename.removesuffix(".npy")
                if name in arrays:
                    raise ValueError(f"two arrays '{printable(name)}'")
                with archive.open(part) as stream:
                    _check_header(stream, part, name=printable(name))
                with archive.open(part) as stream:
                    arrays[name] = np.lib.format.read_array(stream, allow_pickle=False)
    except BROKEN as error:
        raise BadFile(subject, needs="plain arrays, undamaged", got=reason(error), fix=fix) from error
    return arrays


def _check_header(stream: Any, part: zipfile.ZipInfo, *, name: str) -> None:
    """Check a header's shape and type against the size of the archive member."""
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"array '{name}' in a format {version} that is not read here")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(stream)
    if dtype.hasobject:
        raise ValueError(f"Object arrays cannot be loaded: array '{name}'")
    claimed = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or claimed > part.file_size:
        raise ValueError(
            f"array '{name}' claims {shape} of {dtype}, {claimed:,} bytes; has {part.file_size:,}"
        )
