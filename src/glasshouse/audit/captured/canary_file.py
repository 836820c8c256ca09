"""The auditor's record of canary clients beside a capture: ``canaries.json``."""

from collections import Counter
from pathlib import Path
from typing import Annotated, Final, final

from pydantic import Field, RootModel

from glasshouse.errors import BadFile
from glasshouse.outside import limits
from glasshouse.outside.files import plain_file, printable
from glasshouse.outside.schema import Client, Described, Text, parse_as
from glasshouse.store import read_json

FILE: Final = "canaries.json"
FEWEST: Final = 20
_FIX: Final = "see docs/flower.md: a client that adds the clip norm to one entry, or nothing, by its own coin"


@final
class Canary(Described):
    """One canary client of a federation that ran; an object in ``canaries.json``.

    Attributes:
        client: its id in the transcript.
        tensor: the parameter that it changes.
        entry: the index of the entry in the flattened parameter (last axis fastest).
        included: the outcome of its coin flip.
    """

    client: Client
    tensor: Text
    entry: Annotated[int, Field(ge=0, lt=limits.ENTRIES)]
    included: bool


@final
class _Canaries(RootModel[Annotated[tuple[Canary, ...], Field(max_length=limits.CLIENTS)]]):
    """``canaries.json``."""


def read_canaries(capture: Path) -> tuple[Canary, ...]:
    """Read the canaries of a capture.

    Raises:
        BadFile: the file is missing or invalid, has too few canaries, or two with the same client or entry.
    """
    path = capture / FILE
    if not path.exists():
        raise bad_canaries(
            path, f"{FEWEST} canary clients or more, and which of them were in", "no such file"
        )
    raw = read_json(plain_file(capture, FILE, subject=_subject(path)), most=limits.JSON_BYTES)
    every = parse_as(_Canaries, raw, subject=_subject(path), fix=_FIX).root
    if len(every) < FEWEST:
        raise bad_canaries(path, f"{FEWEST} canary clients or more", str(len(every)))
    clients = Counter(one.client for one in every)
    if (twice := clients.most_common(1)[0])[1] > 1:
        raise bad_canaries(path, "every canary client once", f"client {twice[0]}, {twice[1]} times")
    hosts: dict[tuple[str, int], int] = {}
    for one in every:
        if (other := hosts.setdefault((one.tensor, one.entry), one.client)) != one.client:
            got = f"'{printable(one.tensor)}', entry {one.entry}, of clients {other} and {one.client}"
            raise bad_canaries(path, "an entry of its own for every canary", got)
    return every


def bad_canaries(path: Path, needs: str, got: str) -> BadFile:
    """The error for an invalid file of canaries, or one that does not match its capture."""
    return BadFile(_subject(path), needs=needs, got=got, fix=_FIX)


def _subject(path: Path) -> str:
    return f"canaries of a capture, '{path}'"
