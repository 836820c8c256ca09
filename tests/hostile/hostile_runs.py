"""Run directories that no simulation wrote: each case changes a small honest one, and its hashes with it."""

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from glasshouse.audit.provenance.hashes import write_hashes
from glasshouse.store import read_tensors, write_tensors

Case = Callable[[Path, Path], list[str]]
"""(empty folder, honest run) → arguments of the command."""

REPLAY = ["replay", "run", "--attack", "linear_input"]


def changed(edit: Callable[[Path], None], *, hashes: bool = True) -> Case:
    """``replay`` of a copy of the honest run whose one group ``edit`` was given."""

    def build(place: Path, honest: Path) -> list[str]:
        shutil.copytree(honest, place / "run")
        (place / "evilmod.py").write_text("open('EVIL', 'w').close()\ndef f(*a, **k): ...\n")
        (group,) = (place / "run" / "cells").iterdir()
        edit(group)
        if hashes:
            write_hashes(group)
            (place / "run" / "manifest.json").unlink(missing_ok=True)
        return REPLAY

    return build


def terms(key: str, value: Any) -> Case:
    """One key of the terms has another value; ``architecture.name`` is one inside. None: it is missing."""

    def edit(group: Path) -> None:
        path = group / "transcript" / "terms.json"
        raw = json.loads(path.read_text())
        *owners, last = key.split(".")
        table = raw
        for owner in owners:
            table = table[owner]
        table[last] = value
        if value is None:
            del table[last]
        path.write_text(json.dumps(raw))

    return changed(edit)


def terms_text(content: bytes | Callable[[str], str]) -> Case:
    """The terms are these bytes, or what they were after a change of their text."""

    def edit(group: Path) -> None:
        path = group / "transcript" / "terms.json"
        path.write_bytes(content if isinstance(content, bytes) else content(path.read_text()).encode())

    return changed(edit)


def line(message_kind: str, /, **keys: Any) -> Case:
    """The first message of a kind has other values."""

    def edit(group: Path) -> None:
        path = group / "transcript" / "rounds.jsonl"
        rows = [json.loads(row) for row in path.read_text().splitlines()]
        next(row for row in rows if row["message"] == message_kind).update(keys)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    return changed(edit)


def told(**keys: Any) -> Case:
    """The first broadcast tells its clients to run another architecture."""

    def edit(group: Path) -> None:
        path = group / "transcript" / "rounds.jsonl"
        rows = [json.loads(row) for row in path.read_text().splitlines()]
        rows[0]["architecture"].update(keys)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    return changed(edit)


def tensors(edit: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Case:
    """The first update has other tensors."""

    def change(group: Path) -> None:
        path = group / "transcript" / "000001.safetensors"
        write_tensors(path, edit(read_tensors(path)))

    return changed(change)


def safetensors_bytes(header: Any, *, length: int | None = None, size: int = 0) -> bytes:
    """A file with this header (or these bytes for one), perhaps of another length, and ``size`` zeros."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + bytes(size)


def raw_tensors(content: bytes, *, grow: int = 0) -> Case:
    """The first update's file holds these bytes, and ``grow`` bytes of a hole."""

    def edit(group: Path) -> None:
        path = group / "transcript" / "000001.safetensors"
        path.write_bytes(content)
        if grow:
            os.truncate(path, len(content) + grow)

    return changed(edit, hashes=not grow)


def instead(name: str, make: Callable[[Path], None]) -> Case:
    """Something else stands where a file or folder of the group was."""

    def edit(group: Path) -> None:
        path = group / name
        if path.is_dir():
            shutil.move(path, group.parents[2] / "elsewhere")
        else:
            path.unlink(missing_ok=True)
        make(path)

    return changed(edit, hashes=False)


def text(name: str, content: str) -> Case:
    """A file of the group has this content."""

    def edit(group: Path) -> None:
        for path in [group / name] if "*" not in name else list(group.glob(name)):
            path.write_text(content)

    return changed(edit)


def linked(path: Path) -> None:
    """A link out of the run."""
    outside = path
    while outside.name != "run":
        outside = outside.parent
    target = outside.parent / "elsewhere"
    if not target.exists():
        write_tensors(target, {"w": torch.zeros(2)})
    path.symlink_to(target)


def given(name: str, values: dict[str, torch.Tensor]) -> Case:
    """A grant that no simulation would give."""

    def edit(group: Path) -> None:
        write_tensors(group / "grants" / f"{name}.safetensors", values)
        path = group / "grants" / "grants.json"
        raw = json.loads(path.read_text())
        path.write_text(json.dumps({**raw, "given": [*raw["given"], name]}))

    return changed(edit)


def renamed_unit(group: Path) -> None:
    """A unit's folder has a name that says nothing."""
    unit = next(group.glob("claims/*/*"))
    unit.rename(unit.with_name("roundX-client../1"[:6]))


def duplicated(group: Path) -> None:
    """One file for a thousand messages."""
    path = group / "transcript" / "rounds.jsonl"
    path.write_text(path.read_text() * 1000)


def one_byte(group: Path) -> None:
    """The last byte of an update changes; the hashes stay."""
    path = group / "transcript" / "000001.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


_CLAIM = {"w": {"dtype": "F32", "shape": [2**20, 2**20], "data_offsets": [0, 2**42]}}
_TERA = {"w": {"dtype": "F32", "shape": [2**38], "data_offsets": [0, 2**40]}}
_F8 = {"w": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}}

RUNS: dict[str, Case] = {
    "terms: a factory of the current folder": terms("architecture.name", "evilmod:f"),
    "terms: a model that is not registered": terms("architecture.name", "os.system"),
    "terms: 10^9 classes": terms("architecture.task.fields.classes", 10**9),
    "terms: -1 classes": terms("architecture.task.fields.classes", -1),
    "terms: classes as text": terms("architecture.task.fields.classes", "10"),
    "terms: classes as a truth value": terms("architecture.task.fields.classes", True),
    "terms: pictures of 10^12 pixels": terms("architecture.inputs.fields.size", [1, 10**6, 10**6]),
    "terms: pictures of 4,096 x 4,096 x 1,024": terms("architecture.inputs.fields.size", [1024, 4096, 4096]),
    "terms: a shape of two numbers": terms("architecture.inputs.fields.size", [1, 8]),
    "terms: no channel": terms("architecture.inputs.fields.size", [0, 8, 8]),
    "terms: 10^9 hidden units": terms("architecture.arguments", {"hidden": 10**9}),
    "terms: 2 x 30,000 hidden units": terms("architecture.arguments", {"hidden": "30000,30000"}),
    "terms: ten thousand layers": terms("architecture.arguments", {"hidden": "1," * 10_000}),
    "terms: a deviation of 0": terms("architecture.arguments", {"std": 0}),
    "terms: an argument that is not there": terms("architecture.arguments", {"weights": "/etc/passwd"}),
    "terms: arguments as a list": terms("architecture.arguments", [1]),
    "terms: 10^12 clients": terms("clients", 10**12),
    "terms: a cohort above the clients": terms("cohort", 5000),
    "terms: no batch": terms("batch_size", 0),
    "terms: negative epochs": terms("local_epochs", -3),
    "terms: sends pickles": terms("sends", "pickle"),
    "terms: half a range": terms("architecture.inputs.fields.range", [0.0]),
    "terms: a key that nobody knows": terms("__class__", "x"),
    "terms: a key is missing": terms("clients", None),
    "terms: public data without a file": terms("has_public", True),
    "terms: format as text": terms("format", "1"),
    "terms: options of lists of lists": terms("options", {"a": [[[]]]}),
    "terms: NaN": terms_text(lambda t: t.replace("0.1", "NaN", 1)),
    "terms: 1e999": terms_text(lambda t: t.replace("0.1", "1e999", 1)),
    "terms: 5,000 digits": terms_text(lambda t: t.replace('"clients": ', '"clients": ' + "9" * 5000, 1)),
    "terms: a key twice": terms_text(lambda t: t.replace("{", '{"protocol": "fedavg",', 1)),
    "terms: 100,000 brackets": terms_text(b"[" * 100_000),
    "terms: a list": terms_text(b"[]"),
    "terms: not UTF-8": terms_text(b"\xff\xfe{}"),
    "terms: a byte order mark": terms_text(lambda t: "\ufeff" + t),
    "terms: a NUL": terms_text(lambda t: t.replace('"', '"\0', 1)),
    "terms: 200 MB": terms_text(b'{"a": "' + b"x" * 200_000_000 + b'"}'),
    "terms: empty": terms_text(b""),
    "line: a file of the system": line("update", file="/etc/passwd"),
    "line: a file above the folder": line("update", file="../truth/private.safetensors"),
    "line: a file that is a number": line("update", file=7),
    "line: a file that is not there": line("update", file="999999.safetensors"),
    "line: a NUL in the name": line("update", file="000001\0.safetensors"),
    "line: an unknown message": line("update", message="exec"),
    "line: a message that is a list": line("update", message=["update"]),
    "line: a negative round": line("update", round=-1),
    "line: a round as text": line("update", round="0"),
    "line: 10^12 examples": line("update", examples=10**12),
    "line: 10^7 pictures": line("update", examples=10**7),
    "line: a client of a list": line("update", client=[1]),
    "line: two megabytes": line("update", kind="x" * 2_000_000),
    "line: one file for a thousand messages": changed(duplicated),
    "broadcast: a factory of the current folder": told(name="evilmod:f"),
    "broadcast: 10^9 hidden units": told(arguments={"hidden": 10**9}),
    "tensors: NaN": tensors(lambda old: {k: t * float("nan") for k, t in old.items()}),
    "tensors: another shape": tensors(lambda old: {k: t.flatten() for k, t in old.items()}),
    "tensors: names of no model": tensors(lambda old: {"evil." + k: t for k, t in old.items()}),
    "tensors: none in it": tensors(lambda old: {k: t[:0] for k, t in old.items()}),
    "tensors: 2^40 numbers claimed": raw_tensors(safetensors_bytes(_CLAIM)),
    "tensors: a header of 2^60 bytes": raw_tensors(safetensors_bytes(_CLAIM, length=2**60)),
    "tensors: a header of brackets": raw_tensors(safetensors_bytes(b"[" * 100_000)),
    "tensors: bytes of eight bits": raw_tensors(safetensors_bytes(_F8, size=4)),
    "tensors: garbage": raw_tensors(b"garbage" * 100),
    "tensors: a terabyte of holes": raw_tensors(safetensors_bytes(_TERA), grow=2**40),
    "a link for an update": instead("transcript/000001.safetensors", linked),
    "a pipe for an update": instead("transcript/000001.safetensors", os.mkfifo),
    "a folder for an update": instead("transcript/000001.safetensors", Path.mkdir),
    "a link to an endless device": instead("transcript/terms.json", lambda p: p.symlink_to("/dev/zero")),
    "a link for the transcript": instead("transcript", linked),
    "own: a file without a round": changed(
        lambda g: write_tensors(g / "own" / "x.safetensors", {"w": torch.ones(1)})
    ),
    "grants: a list": text("grants/grants.json", "[]"),
    "grants: a cohort of texts": text(
        "grants/grants.json", '{"given": [], "defense": null, "cohorts": {"0": {"selected": ["x"]}}}'
    ),
    "grants: labels of 10^9": given("labels", {"0/0": torch.tensor([10**9])}),
    "grants: labels without a client": given("labels", {"../x": torch.tensor([1])}),
    "grants: pictures without labels": given("auxiliary", {"inputs": torch.zeros(3, 1, 8, 8)}),
    "claims: a list": text("claims/*/*/claims.json", "[]"),
    "claims: of a kind that is not there": text(
        "claims/*/*/claims.json",
        '{"claims": [{"kind": "os.system", "about": {"rounds": [], "client": 0}, "tensors": [], "plain": {}}'
        '], "refusal": null, "seconds": 1, "notes": []}',
    ),
    "claims: a unit with another name": changed(renamed_unit),
    "scenario: 100,000 brackets": text("scenario.toml", "a = " + "[" * 100_000),
    "scenario: of another kind": text("scenario.toml", 'name = "x"\nevil = 1\n'),
    "hashes: one byte changed": changed(one_byte, hashes=False),
    "hashes: a list": instead("hashes.json", lambda p: p.write_text("[]")),
}
