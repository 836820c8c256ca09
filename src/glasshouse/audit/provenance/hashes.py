"""Hashes that verify that attacks, replays and resumed runs read what the simulation recorded.

Two records: ``hashes.json`` in a group's folder, one hash per file, written when the group's simulation is
done; and ``cells`` in the run's ``manifest.json``, one hash per folder, written when the run is done. They
detect accidental changes and damage in transit, not tampering by anyone who can rewrite the hashes too.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, RootModel

from glasshouse.audit.provenance.manifest import file_hashes, tree_hash
from glasshouse.errors import BadFile
from glasshouse.outside import limits
from glasshouse.outside.files import check_plain_tree, printable
from glasshouse.outside.schema import Text, parse_as
from glasshouse.store import read_json, write_json

PARTS: Final = ("transcript", "own", "grants", "adversary", "truth")
"""Folders of a group that a simulation writes and that never change afterwards."""
HIDEABLE: Final = "truth"
"""The part that may be missing as a whole, because runs are shared without it."""

NOTES: Final = "notes.json"
"""File of the notes taken during the simulation."""
_FILE: Final = "hashes.json"
_FIX: Final = "get the run again, or run the audit again into a new folder"
_Hash = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]


class _Files(RootModel[dict[Annotated[str, Field(max_length=4096)], _Hash]]):
    """``hashes.json``: a hash per file."""


class _Cells(RootModel[dict[Text, dict[Text, _Hash]]]):
    """``cells`` of ``manifest.json``: a hash per part of a group."""


def write_hashes(group: Path) -> None:
    """Write ``hashes.json`` of a group whose simulation is done."""
    write_json(group / _FILE, _hashes(group))


def recorded_files(group: Path) -> list[str]:
    """Names of all files that a group's simulation wrote, the hashes last; without images from scoring."""
    recorded = read_json(group / _FILE)
    names = (p.relative_to(group).as_posix() for part in PARTS for p in sorted((group / part).rglob("*")))
    notes = [NOTES] if (group / NOTES).is_file() else []
    return [*(name for name in names if name in recorded), *notes, _FILE]


def part_hashes(group: Path) -> dict[str, str]:
    """The manifest's entry of a group: one hash per part."""
    return {part: tree_hash(group / part) for part in PARTS}


def verify_hashes(run: Path) -> None:
    """Verify the files in ``run`` against the recorded hashes of every simulated group.

    First checks that everything below ``run`` is a regular file or a folder.

    Raises:
        BadFile: a link, pipe or device; a file that was changed, added or removed (named); a group without
            recorded hashes.
    """
    check_plain_tree(run, subject=f"run '{run}'")
    cells = _recorded_cells(run / "manifest.json")
    for group in sorted(path.parent for path in (run / "cells").glob("*/group.json")):
        _verify_files(group, in_manifest=group.name in cells)
        for part, recorded in cells.get(group.name, {}).items():
            exists = (group / part).is_dir() if part in PARTS else False
            if part in PARTS and (exists or part != HIDEABLE) and tree_hash(group / part) != recorded:
                raise _changed_file(group, part, "changed since the manifest was written")


def _recorded_cells(path: Path) -> Mapping[str, Mapping[str, str]]:
    if not path.is_file():
        return {}
    raw = read_json(path, most=limits.JSON_BYTES)
    cells = raw.get("cells", {}) if isinstance(raw, dict) else raw
    return parse_as(_Cells, cells, subject=f"manifest '{path}'", fix=_FIX).root


def _verify_files(group: Path, *, in_manifest: bool) -> None:
    path = group / _FILE
    if not path.is_file():
        if in_manifest:
            return
        raise _changed_file(group, _FILE, "no such file, and no manifest.json that would speak for it")
    recorded = parse_as(
        _Files, read_json(path, most=limits.JSONL_BYTES), subject=f"file '{path}'", fix=_FIX
    ).root
    hidden = not (group / HIDEABLE).exists()
    expected = {k: v for k, v in recorded.items() if not (hidden and k.startswith(f"{HIDEABLE}/"))}
    later = f"{HIDEABLE}/"  # scoring adds images to the truth later; the manifest has their hashes
    actual = {k: v for k, v in _hashes(group).items() if k in recorded or not k.startswith(later)}
    for name in sorted(expected.keys() | actual.keys()):
        if expected.get(name) != actual.get(name):
            how = "added" if name not in expected else "removed" if name not in actual else "changed"
            raise _changed_file(group, name, f"{how} since the simulation wrote it")


def _hashes(group: Path) -> dict[str, str]:
    return {f"{part}/{name}": digest for part in PARTS for name, digest in file_hashes(group / part).items()}


def _changed_file(group: Path, name: str, got: str) -> BadFile:
    return BadFile(
        f"file '{printable(str(group / name))}'",
        needs="what the simulation recorded, by its hash",
        got=got,
        fix=_FIX,
    )
