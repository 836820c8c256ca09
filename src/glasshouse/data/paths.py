"""Paths in the names of sources."""

from pathlib import Path
from typing import Final

from glasshouse.errors import BadFile, BadValue

SPLITS: Final = ("train", "val", "test")
"""What the parts of a data set may be called."""


def refuse_path(name: str, where: str, *, fix: str = "") -> None:
    """Raise where something follows the name of a source that has no path.

    Raises:
        BadValue: says what to write instead.
    """
    if where:
        fix = fix or f"write '{name}' alone"
        raise BadValue(f"data '{name}'", needs="no path", got=f"{name}:{where}", fix=fix)


def split_folders(root: Path) -> dict[str, Path]:
    """The folders of the splits below ``root``; where there are none, all of it is to train on."""
    return {split: root / split for split in SPLITS if (root / split).is_dir()} or {"train": root}


def class_folders(path: Path) -> list[Path]:
    """The folders of classes below that of a split, by name."""
    return sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))


def files_of(folder: Path, suffixes: frozenset[str]) -> list[Path]:
    """What has one of the suffixes, in small or capital letters, by name."""
    return sorted(p for p in folder.iterdir() if p.suffix.lower() in suffixes)


def require_existing(where: str, *, name: str, folder: bool = False) -> Path:
    """The file (or folder) that ``where`` names: ``~`` is expanded, relative to the current folder.

    Raises:
        BadFile: ``where`` is empty, or there is nothing, or a folder where a file should be.
    """
    path = Path(where).expanduser()
    kind = "folder" if folder else "file"
    if not where or not path.exists():
        got = f"no such {kind} (looked in '{Path.cwd()}')" if where else "no path"
        fix = (
            f"give the path of a {kind} after '{name.partition(':')[0]}:'; docs/data.md says how to get data"
        )
        raise BadFile(f"data '{name}'", needs=f"an existing {kind}", got=got, fix=fix)
    if not (path.is_dir() if folder else path.is_file()):
        raise BadFile(
            f"data '{name}'",
            needs=f"a {kind}",
            got="a folder" if path.is_dir() else "a file" if path.is_file() else "a pipe, socket or device",
            fix="folder: and idx: read folders, npz: reads a file",
        )
    return path


def require_inside(path: Path, root: Path, *, name: str, folder: bool = False) -> Path:
    """``path``, if it is a regular file (or a folder) that really lies in the data folder ``root``.

    A link within the folder is followed; one that leads out is refused: whoever packed the folder would
    choose which of the user's files are read as private examples.

    Raises:
        BadFile: it leads out of ``root``, or is a pipe, socket or device.
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
