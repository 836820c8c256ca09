"""A zip archive of images, one folder per class, read without unpacking to disk."""

import io
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path, PurePosixPath
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from glasshouse.data.base import DataSource, assemble, check_count
from glasshouse.data.kinds.pictures import BROKEN, SUFFIXES, decode, stack_cached
from glasshouse.data.paths import SPLITS, bad_data, require_existing
from glasshouse.data.survey import Survey, counted_by, shape_of
from glasshouse.errors import BadFile
from glasshouse.outside import limits
from glasshouse.outside.files import check_unpacked, printable, reason
from glasshouse.progress import track
from glasshouse.registry import Card

_bad: Final = partial(
    bad_data,
    fix="pack them as CLASS/picture.png or train/CLASS/picture.png; or unpack it and name folder:PATH",
)
Listing = Mapping[str, Mapping[str, Sequence[str]]]
"""Split → class → names of images in the archive, in order."""


def _count(where: str) -> Survey:
    name = f"zip:{where}"
    path = require_existing(where, name=name)
    result = listing(path, name=name)
    classes = classes_of(result)
    counts = {
        split: {classes.index(label): len(pictures) for label, pictures in parts.items()}
        for split, parts in result.items()
    }
    first = next(pictures[0] for parts in result.values() for pictures in parts.values())
    with opened(path, first) as image:
        return Survey(counts=counts, shape=shape_of(image), classes=len(classes))


@counted_by(_count)
@Card(summary="zip:PATH, a zip of pictures, one folder per class, below train/, val/, test/ where there are")
def zipped(where: str, *, resize: int | None = None) -> DataSource:
    """Read the images in the archive ``where``; equivalent to ``folder:`` on the unpacked archive.

    Raises:
        BadFile: not a zip, a zip bomb, no classes, an unreadable image, different sizes (without ``resize``),
            or a mix of grey and colour.
    """
    name = f"zip:{where}"
    path = require_existing(where, name=name)
    result = listing(path, name=name)
    classes = classes_of(result)
    check_count(len(classes), limits.CLASSES, "classes", name=name)

    def read(split: str, parts: Mapping[str, Sequence[str]]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Images and labels of a split; many images are cached until the archive changes."""
        pictures = [picture for paths in parts.values() for picture in paths]
        state = path.stat()
        files = {"zip": str(path.resolve()), "mark": f"{state.st_size} {state.st_mtime_ns}", "split": split}

        def decoded() -> Iterator[NDArray[Any]]:
            with zipfile.ZipFile(path) as archive:
                for picture in track(pictures, f"reading pictures of {split}"):
                    yield _picture(archive, picture, name=name)

        pixels = stack_cached(decoded, len(pictures), resize, files=files, name=name)
        return pixels, np.array([classes.index(k) for k, paths in parts.items() for _ in paths])

    arrays = {split: read(split, parts) for split, parts in result.items()}
    return assemble(name, arrays, class_names=classes, public=False, resize=resize)


def listing(path: Path, *, name: str) -> Listing:
    """The images in an archive by split and class; folders that enclose all of them are ignored.

    Raises:
        BadFile: not a zip, damaged, too many files, a zip bomb, or no folders with images.
    """
    state = path.stat()
    return _listing(path, name, (state.st_size, state.st_mtime_ns))


@lru_cache(maxsize=2)
def _listing(path: Path, name: str, _mark: tuple[int, int]) -> Listing:
    """The listing of an archive, read once until it changes: an audit asks for it in every federation."""
    try:
        with zipfile.ZipFile(path) as archive:
            parts = archive.infolist()
    except (*BROKEN, zipfile.BadZipFile) as error:
        raise _bad(name, "a zip of pictures, undamaged", reason(error)) from error
    check_count(len(parts), limits.FILES, "files", name=name)
    check_unpacked(path.stat().st_size, sum(part.file_size for part in parts), subject=f"data '{name}'")
    # Archives wrap their folders in others: what all pictures share is no class and no split.
    pictures = [PurePosixPath(part.filename) for part in parts if _is_picture(part.filename)]
    depth = _around([place.parts for place in pictures])
    split = bool({place.parts[depth] for place in pictures if len(place.parts) == depth + 3} & {*SPLITS})
    results: dict[str, dict[str, list[str]]] = {}
    for place in sorted(pictures):
        inner = place.parts[depth:]
        if len(inner) == 2 + split and (not split or inner[0] in SPLITS):
            by_class = results.setdefault(inner[0] if split else "train", {})
            by_class.setdefault(inner[-2], []).append(str(place))
    if not results:
        raise _bad(name, "one folder per class, with its pictures inside", "no folders with pictures")
    return {s: results[s] for s in SPLITS if s in results}


def classes_of(by_split: Listing) -> list[str]:
    """Class names of all splits, sorted."""
    return sorted({label for parts in by_split.values() for label in parts})


def opened(path: Path, picture: str) -> Image.Image:
    """One image of an archive, not yet decoded."""
    with zipfile.ZipFile(path) as archive:
        return Image.open(io.BytesIO(archive.read(picture)))


def _is_picture(filename: str) -> bool:
    place = PurePosixPath(filename)
    hidden = any(part.startswith((".", "__MACOSX")) for part in place.parts)
    return not hidden and not filename.endswith("/") and place.suffix.lower() in SUFFIXES


def _around(paths: Sequence[tuple[str, ...]]) -> int:
    """Number of enclosing folder levels that are neither a split nor a class."""
    depth = 0
    while paths and all(len(p) > depth + 2 for p in paths) and paths[0][depth] not in SPLITS:
        if len({p[depth] for p in paths}) > 1:
            break
        depth += 1
    return depth


def _picture(archive: zipfile.ZipFile, picture: str, *, name: str) -> NDArray[Any]:
    place = f"'{printable(picture)}'"
    try:
        with Image.open(io.BytesIO(archive.read(picture))) as image:
            return decode(image, name=name, place=place)
    except BadFile:
        raise
    except (*BROKEN, zipfile.BadZipFile) as error:
        raise _bad(name, "pictures that can be read", f"{place}: {reason(error)}") from error
