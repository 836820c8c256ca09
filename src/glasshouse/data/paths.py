"""Paths in the names of sources."""

from pathlib import Path

from glasshouse.errors import BadFile


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
