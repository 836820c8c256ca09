"""Paths in the names of sources."""

from pathlib import Path

from glasshouse.errors import BadFile


def existing(where: str, *, name: str, folder: bool = False) -> Path:
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
    if path.is_dir() != folder:
        raise BadFile(
            f"data '{name}'",
            needs=f"a {kind}",
            got="a folder" if path.is_dir() else "a file",
            fix="folder: and idx: read folders, npz: reads a file",
        )
    return path
