"""Check and resolve the paths in source names."""

from pathlib import Path
from typing import Final

from glasshouse.errors import BadFile, BadValue

SPLITS: Final = ("train", "val", "test")
"""Allowed names of the splits of a data set."""


def bad_data(name: str, needs: str, got: str, *, fix: str) -> BadFile:
    """The error of a source called ``name``."""
    return BadFile(f"data '{name}'", needs=needs, got=got, fix=fix)


def refuse_path(name: str, where: str, *, fix: str = "") -> None:
    """Refuse a path for a source that takes none.

    Raises:
        BadValue: ``where`` is not empty; the message says what to write instead.
    """
    if where:
        fix = fix or f"write '{name}' alone"
        raise BadValue(f"data '{name}'", needs="no path", got=f"{name}:{where}", fix=fix)


def split_folders(root: Path) -> dict[str, Path]:
    """The folders of the splits below ``root``; without any, ``root`` itself is ``train``."""
    return {split: root / split for split in SPLITS if (root / split).is_dir()} or {"train": root}


def class_folders(path: Path) -> list[Path]:
    """The class folders below a split's folder, sorted by name."""
    return sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))


def files_of(folder: Path, suffixes: frozenset[str]) -> list[Path]:
    """Files with one of the suffixes, case-insensitive, sorted by name."""
    return sorted(p for p in folder.iterdir() if p.suffix.lower() in suffixes)


def require_existing(where: str, *, name: str, folder: bool = False) -> Path:
    """The file (or folder) at ``where``; ``~`` is expanded, relative paths start at the current folder.

    Raises:
        BadFile: ``where`` is empty, does not exist, or is of the wrong type.
    """
    path = Path(where).expanduser()
    kind = "folder" if folder else "file"
    if not where or not path.exists():
        needs = f"an existing {kind}"
        got = f"no such {kind} (looked in '{Path.cwd()}')" if where else "no path"
        before = name.partition(":")[0]
        fix = f"give the path of a {kind} after '{before}:'; docs/data.md says how to get data"
    elif not (path.is_dir() if folder else path.is_file()):
        needs = f"a {kind}"
        got = "a folder" if path.is_dir() else "a file" if path.is_file() else "a pipe, socket or device"
        fix = "folder: and idx: read folders, npz: reads a file"
    else:
        return path
    raise bad_data(name, needs, got, fix=fix)


def require_inside(path: Path, root: Path, *, name: str, folder: bool = False) -> Path:
    """``path``, if it resolves to a regular file (or a folder) inside the data folder ``root``.

    A link within the folder is followed; one that leads outside is refused, because whoever packed the folder
    could otherwise choose which of the user's files are read as private examples.

    Raises:
        BadFile: it leads outside ``root``, or is a pipe, socket or device.
    """
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise _not_inside(path, name, "a link that leads nowhere") from error
    if not real.is_relative_to(root.resolve()):
        raise _not_inside(path, name, f"a link to '{real}'")
    if not (real.is_dir() if folder else real.is_file()):
        raise _not_inside(path, name, "a folder" if real.is_dir() else "a pipe, socket, device or file")
    return path


def _not_inside(path: Path, name: str, got: str) -> BadFile:
    return BadFile(
        f"data '{name}'",
        needs="plain files and folders inside the data folder",
        got=f"'{path}': {got}",
        fix="copy what is meant into the folder, or name the folder that has it",
    )
