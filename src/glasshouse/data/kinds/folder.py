"""Images in folders: one folder per class."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from glasshouse.data.base import DataSource, assemble, check_count
from glasshouse.data.kinds.pictures import BROKEN, SUFFIXES, decode, stack_cached
from glasshouse.data.paths import class_folders, files_of, require_existing, require_inside, split_folders
from glasshouse.data.survey import Survey, counted_by, shape_of
from glasshouse.errors import BadFile
from glasshouse.outside import limits
from glasshouse.outside.files import reason
from glasshouse.progress import track
from glasshouse.registry import Card

Reader = Callable[[Path, str], NDArray[Any]]
"""(file, name of the source) → one image, (H, W) or (H, W, 3)."""


def _count(where: str) -> Survey:
    return count_tree("folder", where, suffixes=SUFFIXES, shape=_shape)


@counted_by(_count)
@Card(summary="folder:PATH, one folder of pictures per class, below train/, val/, test/ where there are")
def folder(where: str, *, resize: int | None = None) -> DataSource:
    """Read the images below ``where``; classes are numbered in the order of their names.

    Raises:
        BadFile: no such folder, no classes, a class without images, an unreadable image, different sizes
            (without ``resize``), or a mix of grey and colour.
    """
    return read_tree("folder", where, resize, suffixes=SUFFIXES, picture=_picture)


def read_tree(
    kind: str, where: str, resize: int | None, *, suffixes: frozenset[str], picture: Reader
) -> DataSource:
    """The data set in the folders below ``where``; see :func:`folder`.

    Args:
        kind: registered kind of source.
        where: path as given by the user.
        resize: pixels per side; None: unchanged.
        suffixes: file suffixes of images, in lower case.
        picture: reads one image; raises one of ``BROKEN`` if it is damaged.

    Raises:
        BadFile: as :func:`folder`.
    """
    name = f"{kind}:{where}"
    root = require_existing(where, name=name, folder=True)
    roots = split_folders(root)
    # A link may not lead out of the folder: whoever packed it would choose what is read.
    for path in (*roots.values(), *(p for split in roots.values() for p in class_folders(split))):
        require_inside(path, root, name=name, folder=True)
    # A class keeps its number in all splits, also where one of them lacks it.
    classes = sorted({path.name for split in roots.values() for path in class_folders(split)})
    check_count(len(classes), limits.CLASSES, "classes", name=name)
    if not classes:
        raise BadFile(
            f"data '{name}'",
            needs="one folder per class, with its pictures inside",
            got="no folders" + (f" in {', '.join(roots)}" if len(roots) > 1 else ""),
            fix="arrange them as PATH/CLASS/picture.png, or PATH/train/CLASS/picture.png",
        )

    def read(split: Path) -> tuple[NDArray[Any], NDArray[Any]]:
        """Images and labels of a split; many images are cached until one of the files changes."""
        files = _files(split, suffixes, name=name)
        marks = [f"{p.parent.name}/{p.name} {(s := p.stat()).st_size} {s.st_mtime_ns}" for p in files]
        label = f"reading pictures of {split.name}"
        state = {"root": str(split.resolve()), "files": "\n".join(marks)}

        def pictures() -> Iterator[NDArray[Any]]:
            return (_checked(picture, path, name=name) for path in track(files, label))

        pixels = stack_cached(pictures, len(files), resize, files=state, name=name)
        return pixels, np.array([classes.index(path.parent.name) for path in files])

    return assemble(
        name,
        {split: read(path) for split, path in roots.items()},
        class_names=classes,
        public=False,
        resize=resize,
    )


def count_tree(
    kind: str, where: str, *, suffixes: frozenset[str], shape: Callable[[Path], tuple[int, int, int]]
) -> Survey:
    """What :func:`read_tree` would read; ``shape`` tells (C, H, W) of the first file, by its header."""
    root = require_existing(where, name=f"{kind}:{where}", folder=True)
    folders = {split: class_folders(place) for split, place in split_folders(root).items()}
    classes = sorted({path.name for paths in folders.values() for path in paths})
    counts: dict[str, Mapping[int, int]] = {}
    every: list[Path] = []
    for split, paths in folders.items():
        pictures = {classes.index(path.name): files_of(path, suffixes) for path in paths}
        counts[split] = {label: len(files) for label, files in pictures.items()}
        every += [file for files in pictures.values() for file in files[:1]]
    return Survey(counts=counts, shape=shape(every[0]), classes=len(classes))


def _shape(path: Path) -> tuple[int, int, int]:
    with Image.open(path) as image:
        return shape_of(image)


def _files(root: Path, suffixes: frozenset[str], *, name: str) -> list[Path]:
    """The image files of a split, class by class."""
    files: list[Path] = []
    for path in class_folders(root):
        pictures = files_of(path, suffixes)
        if not pictures:
            raise BadFile(
                f"data '{name}'",
                needs=f"pictures ({', '.join(sorted(suffixes))}) in every class",
                got=f"none in '{path}'",
                fix="remove the folder, or put pictures into it",
            )
        files += [require_inside(p, root, name=name) for p in pictures]
    return files


def _picture(path: Path, name: str) -> NDArray[Any]:
    with Image.open(path) as image:
        return decode(image, name=name, place=f"'{path}'")


def _checked(picture: Reader, path: Path, *, name: str) -> NDArray[Any]:
    try:
        return picture(path, name)
    except BROKEN as error:
        raise BadFile(
            f"data '{name}'",
            needs="pictures that can be read",
            got=f"'{path}': {reason(error)}",
            fix="remove or replace the damaged file",
        ) from error
