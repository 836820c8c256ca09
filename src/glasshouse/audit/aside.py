"""Move folders aside temporarily where namespaces cannot hide them; they are restored even after a crash."""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from glasshouse.errors import BadFile
from glasshouse.store import read_json, write_json

_NOTE: Final = "truth-moved-aside.json"


@contextmanager
def moved_aside(run: Path, folders: Sequence[Path]) -> Iterator[None]:
    """Move ``folders`` of ``run`` to an unguessable name for the duration of the block.

    Their new places are written to ``run`` first, so that :func:`bring_back` restores them after a crash.
    """
    aside = run.parent / f".{secrets.token_hex(16)}"
    write_json(run / _NOTE, {str(f.relative_to(run)): str(aside / str(i)) for i, f in enumerate(folders)})
    aside.mkdir()
    try:
        for position, folder in enumerate(folders):
            folder.rename(aside / str(position))
        yield
    finally:
        bring_back(run)


def bring_back(run: Path) -> None:
    """Restore the folders that :func:`moved_aside` moved, even after its process was killed.

    Raises:
        BadFile: the note names a place that is not beside ``run``, or a folder outside ``run``.
    """
    note = run / _NOTE
    if not note.is_file():
        return
    places = {run / name: Path(place) for name, place in read_json(note).items()}
    for folder, place in places.items():
        if place.parent.parent != run.parent or run not in folder.parents or ".." in folder.parts:
            raise BadFile(
                f"file '{note}'",
                needs="folders of this run that were moved beside it",
                got=f"{folder} at {place}",
                fix="move the truth back by hand, and delete the file",
            )
        if place.is_dir():
            place.rename(folder)
    for aside in {place.parent for place in places.values()}:
        if aside.is_dir():
            aside.rmdir()
    note.unlink()
