"""The register: one line for every audit that a project began, ended or not, each bound to the line before.

It answers one question: of how many attempts is this result one? Whoever tries five seeds and shows the
best leaves five lines. A line that is changed, removed or moved breaks the chain of hashes; a cut end shows
only against a head that somebody keeps elsewhere (every result and every bundle holds one).
"""

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal, final

from filelock import FileLock
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from glasshouse.disk import unwritable
from glasshouse.errors import BadFile
from glasshouse.evidence import digests
from glasshouse.outside.files import lines_of, parse_json, read_limited, reason

__all__ = [
    "Digest",
    "Line",
    "Planned",
    "PlannedLine",
    "Words",
    "append_begin",
    "append_end",
    "default_path",
    "new_audit",
    "read_register",
    "standing",
]

FORMAT: Final = 1
DEFAULT: Final = Path("runs/register.jsonl")
"""Below the current folder, beside the runs: one register per project."""
VARIABLE: Final = "GLASSHOUSE_REGISTER"
"""Environment variable that names another file."""
START: Final = "0" * 64
"""What the first line stands on."""
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Words = Annotated[str, Field(max_length=1000)]


@final
@dataclass(frozen=True, kw_only=True)
class Planned:
    """One scenario of an audit, before anything ran.

    Attributes:
        name: of the scenario.
        scenario: SHA-256 of its settings without name, texts, seeds, auditor and policy: equal for attempts
            that differ in luck alone.
        policy: SHA-256 of its policy.
        seed: of data, model and clients.
        attack_seed: of attacks.
    """

    name: str
    scenario: str
    policy: str
    seed: int
    attack_seed: int


@final
class PlannedLine(BaseModel):
    """:class:`Planned`, as it stands in a file."""

    model_config = ConfigDict(strict=True, extra="forbid")
    name: Words
    scenario: Digest
    policy: Digest
    seed: int
    attack_seed: int


@final
class Line(BaseModel):
    """One line of a register.

    Attributes:
        event: ``begun``, ``resumed`` or ``ended``.
        audit: what the lines of one audit share, 16 hexadecimal digits.
        when: of this machine's clock, UTC.
        scenarios: what it audits; empty for ``ended``.
        digest: SHA-256 of the run's ``stamp.json``, or of its ``result.json`` once it ended.
        before: ``hash`` of the line before.
        hash: SHA-256 over all other fields.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    format: Literal[1]
    event: Literal["begun", "resumed", "ended"]
    audit: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    when: Words
    scenarios: list[PlannedLine]
    digest: Digest
    before: Digest
    hash: Digest


def default_path() -> Path:
    """``$GLASSHOUSE_REGISTER``, else ``runs/register.jsonl`` below the current folder."""
    return Path(os.environ.get(VARIABLE) or DEFAULT)


def append_begin(path: Path, planned: Sequence[Planned], *, digest: str, audit: str) -> Line:
    """Append that an audit begins; where the register knows it already, that it goes on.

    Args:
        path: of the register; it is created with its folder.
        planned: what the audit is about.
        digest: SHA-256 of the run's stamp.
        audit: name of the audit (:func:`new_audit`).

    Raises:
        BadFile: the register was changed, or cannot be written.
        DiskFull: no space left.
    """
    known = any(line.audit == audit for line in read_register(path))
    facts = {"event": "resumed" if known else "begun", "audit": audit, "digest": digest}
    return _append(path, {**facts, "scenarios": [asdict(one) for one in planned]})


def append_end(path: Path, audit: str, *, digest: str) -> Line:
    """Append that an audit ended with the result of this SHA-256. Raises as :func:`append_begin`."""
    return _append(path, {"event": "ended", "audit": audit, "scenarios": [], "digest": digest})


def new_audit() -> str:
    """A name for an audit that no other has."""
    return secrets.token_hex(8)


def read_register(path: Path) -> list[Line]:
    """The lines of a register, after its chain was checked; none if there is no file.

    Raises:
        BadFile: a line is no entry, was changed, or does not stand on the line before it.
    """
    if not path.exists():
        return []
    subject = f"register '{path}'"
    text = read_limited(path, digests.LARGEST, subject=subject).decode("utf-8", "replace")
    lines: list[Line] = []
    for number, row in enumerate(lines_of(text), start=1):
        raw = parse_json(row, subject=f"{subject}, line {number}")
        try:
            line = Line.model_validate(raw)
        except ValidationError as error:
            raise _changed(subject, number, reason(error)) from error
        if line.hash != _hash(raw):
            raise _changed(subject, number, "the line itself was changed")
        if line.before != (lines[-1].hash if lines else START):
            raise _changed(subject, number, "a line before it was changed, removed, added or moved")
        lines.append(line)
    return lines


def standing(lines: Sequence[Line], audit: str) -> dict[str, dict[str, int]]:
    """For each scenario of an audit by name: its ``place`` among those ``begun``, and how many ``ended``.

    Attempts of one scenario are those with equal settings, whatever their seeds, names and policies.
    """
    begun = [line for line in lines if line.event == "begun"]
    ended = {line.audit for line in lines if line.event == "ended"}
    counts: dict[str, dict[str, int]] = {}
    for planned in next((line.scenarios for line in begun if line.audit == audit), []):
        wanted = planned.scenario
        alike = [line.audit for line in begun if any(one.scenario == wanted for one in line.scenarios)]
        place, others = alike.index(audit) + 1, [name for name in alike if name != audit]
        others_ended = sum(name in ended for name in others)
        counts[planned.name] = {"place": place, "begun": len(alike), "others_ended": others_ended}
    return counts


def _append(path: Path, facts: Mapping[str, Any]) -> Line:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            lines = read_register(path)
            now = datetime.now(UTC).isoformat(timespec="seconds")
            raw = {"format": FORMAT, **facts, "when": now, "before": lines[-1].hash if lines else START}
            raw["hash"] = _hash(raw)
            with path.open("a+b") as file:
                _drop_incomplete_line(path, file.seek(0, os.SEEK_END))
                file.write(digests.canonical(raw) + b"\n")
                file.flush()
                os.fsync(file.fileno())
    except OSError as error:
        fix = "make room, name another file by --register, or give --no-register"
        raise unwritable(path, error, fix=fix) from error
    return Line.model_validate(raw)


def _drop_incomplete_line(path: Path, size: int) -> None:
    """What a writer that was killed left of a line is no line."""
    whole = path.read_bytes().rfind(b"\n") + 1
    if whole < size:
        os.truncate(path, whole)


def _hash(raw: Mapping[str, Any]) -> str:
    return digests.of_value({key: value for key, value in raw.items() if key != "hash"})


def _changed(subject: str, number: int, got: str) -> BadFile:
    return BadFile(
        f"{subject}, line {number}",
        needs="lines as they were written, each standing on the one before",
        got=got,
        fix="keep the file as it is, for whoever asks; go on with another one (--register) and say why",
    )
