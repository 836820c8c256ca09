"""Folders moved aside for a while, where no namespace can hide them; they come back, also after a crash."""

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
    """Within the block, ``folders`` of ``run`` are moved to a name that cannot be guessed.

    Where they went is written into ``run`` first: after a crash :func:`bring_back` returns them.
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
    """Move back what :func:`moved_aside` moved, even after its process was killed.

    Raises:
        BadFile: the note does not name a folder beside ``run``.
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
