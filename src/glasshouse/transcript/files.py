"""The file format of a transcript, and of the adversary's own tensors and grants.

``transcript/`` (contains nothing private, may be shared): ``terms.json``, ``rounds.jsonl`` (one message per
line) and one ``.safetensors`` per message with tensors; ``public.safetensors`` if the terms have public data.
``own/`` and ``grants/`` beside it. Written by a simulation, by a capture, or by hand: see docs/transcript.md.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, final

import torch
from torch import Tensor

from glasshouse.errors import BadFile
from glasshouse.outside import limits
from glasshouse.outside.files import plain_file, shorten
from glasshouse.outside.schema import parse_as
from glasshouse.store import (
    append_jsonl,
    read_json,
    read_jsonl,
    read_tensors,
    write_json,
    write_jsonl,
    write_tensors,
)
from glasshouse.tasks.base import Task
from glasshouse.tensors import check_finite
from glasshouse.transcript import described
from glasshouse.transcript.grants import Cohort, Grants
from glasshouse.transcript.record import Log, Message, Transcript
from glasshouse.wire import (
    Aggregate,
    Architecture,
    Broadcast,
    ClientMetrics,
    Dropout,
    Mechanism,
    Terms,
    Update,
)

__all__ = [
    "describe_architecture",
    "read_grants",
    "read_own",
    "read_terms",
    "read_transcript",
    "write_grants",
    "write_own",
    "write_transcript",
]

FORMAT: Final = 2
Files = dict[str, Mapping[str, Tensor]]


@final
@dataclass(kw_only=True)
class TranscriptWriter:
    """Writes a transcript. With :meth:`append`, messages written before survive any later failure.

    Tensors that equal those of the first broadcast (a frozen base model) are not written again: the line
    names the first broadcast's file instead.

    Args:
        folder: of the transcript; created as needed.
        durable: fsync after every file and line.
    """

    folder: Path
    durable: bool = False
    written: int = 0
    _count: int = 0
    _first: Mapping[str, Tensor] = field(default_factory=dict)
    _first_file: str = ""

    def terms(self, terms: Terms) -> None:
        """Write ``terms.json`` (and public data), replacing an existing file."""
        plain = {k: v for k, v in vars(terms).items() if k not in ("public", "architecture")}
        plain |= {
            "architecture": describe_architecture(terms.architecture),
            "optimizer": terms.optimizer.model_dump(),
        }
        plain |= {"training": terms.training.model_dump()}
        plain |= {"options": dict(terms.options), "has_public": terms.public is not None}
        if terms.public is not None:
            public = {"inputs": terms.public.inputs, "labels": terms.public.labels}
            write_tensors(self.folder / "public.safetensors", public)
        write_json(self.folder / "terms.json", {"format": FORMAT, **plain})

    def append(self, message: Message) -> None:
        """Write one message: its tensors first, then its line."""
        append_jsonl(self.folder / "rounds.jsonl", self.line(message), durable=self.durable)

    def line(self, message: Message) -> dict[str, Any]:
        """Write the tensors of ``message``; return its line of ``rounds.jsonl``."""
        kind = "metrics" if isinstance(message, ClientMetrics) else type(message).__name__.lower()
        if isinstance(message, ClientMetrics | Dropout):
            return {"message": kind, **asdict(message)}
        name = f"{self._count:06d}.safetensors"
        self._count += 1
        plain = {k: v for k, v in vars(message).items() if k not in ("tensors", "buffers", "architecture")}
        line = {"message": kind, "file": name, **plain}
        if isinstance(message, Broadcast):
            line["architecture"] = describe_architecture(message.architecture)
        tensors = message.tensors
        if isinstance(message, Update | Aggregate) and message.buffers:
            line, tensors = {**line, "buffers": list(message.buffers)}, {**tensors, **message.buffers}
        if isinstance(message, Broadcast) and self._first:
            changed = {n: t for n, t in tensors.items() if not _same(t, self._first.get(n))}
            if len(changed) < len(tensors):
                line, tensors = {**line, "base": self._first_file}, changed
        elif isinstance(message, Broadcast):
            self._first, self._first_file = dict(tensors), name
        write_tensors(self.folder / name, tensors, durable=self.durable)
        self.written += sum(t.nbytes for t in tensors.values())
        return line


def _same(one: Tensor, other: Tensor | None) -> bool:
    return other is not None and one.dtype == other.dtype and torch.equal(one, other)


def describe_architecture(architecture: Architecture) -> dict[str, Any]:
    """The fields of ``architecture`` as ``terms.json`` states them.

    Examples:
        >>> describe_architecture(Architecture.of("mlp", (1, 8, 8), 10))["task"]["fields"]["classes"]
        10
    """
    return {
        "name": architecture.name,
        "inputs": {"name": architecture.inputs.name, "fields": asdict(architecture.inputs)},
        "task": {"name": architecture.task.name, "fields": asdict(architecture.task)},
        "arguments": dict(architecture.arguments),
    }


def write_transcript(transcript: Transcript, folder: Path) -> None:
    """Write ``transcript`` to ``folder``, with ``rounds.jsonl`` last: a folder without it is unfinished."""
    writer = TranscriptWriter(folder=folder)
    lines = [writer.line(message) for record in transcript.rounds for message in record.messages()]
    writer.terms(transcript.terms)
    write_jsonl(folder / "rounds.jsonl", lines)


def read_transcript(folder: Path, *, trust_factory: bool = False, contents: bool = True) -> Transcript:
    """Read an untrusted transcript folder.

    Args:
        folder: of the transcript; only regular files in it are opened.
        trust_factory: allow an architecture ``module:factory``, whose module will be imported to build it.
        contents: False: leave updates and sums without tensors, and do not open their files.

    Raises:
        BadFile: missing or corrupt files, links, a newer format, an unknown message, an architecture that is
            not registered, a number outside the limits (see :mod:`glasshouse.outside.limits`).
        BadValue: a tensor is empty or not finite.
    """
    subject = f"transcript '{folder.name}'"
    log = Log(terms=read_terms(folder, trust_factory=trust_factory))
    files: Files = {}
    rows = read_jsonl(plain_file(folder, "rounds.jsonl", subject=subject), most=limits.JSONL_BYTES)
    for number, row in enumerate(rows, start=1):
        line = described.line_of(row, subject=f"{subject}, line {number} of rounds.jsonl")
        who = f" of client {line.client}" if isinstance(line, described.UpdateLine) else ""
        where = f"{subject}, {line.message}{who} of round {line.round}"
        tensors = _tensors_of(line, folder, files, subject=where, contents=contents)
        log.record(described.message_of(line, tensors, subject=where, trust_factory=trust_factory))
    return log.transcript()


def read_terms(folder: Path, *, trust_factory: bool = False) -> Terms:
    """Read the terms of an untrusted transcript folder.

    Raises:
        BadFile: as :func:`read_transcript`.
        BadValue: inconsistent terms.
    """
    subject = f"transcript '{folder.name}'"
    raw = read_json(plain_file(folder, "terms.json", subject=subject), most=limits.JSON_BYTES)
    stated = raw.pop("format", None) if isinstance(raw, dict) else None
    if type(stated) is not int or stated != FORMAT:
        again = "run the audit or the capture again: it names no modality and no task"
        raise BadFile(
            subject,
            needs=f"terms.json of format {FORMAT}",
            got=f"format {stated}" if type(stated) is int else "no format that is a number",
            fix=again if type(stated) is int and stated < FORMAT else "upgrade glasshouse",
        )
    return described.terms_of(raw, folder=folder, trust_factory=trust_factory)


def write_own(own: Mapping[int, Mapping[str, Tensor]], folder: Path) -> None:
    """Write the adversary's own tensors, one file per round."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, tensors in own.items():
        write_tensors(folder / f"{number:06d}.safetensors", tensors)


def read_own(folder: Path) -> dict[int, dict[str, Tensor]]:
    """Read what :func:`write_own` wrote; a missing folder counts as empty.

    Raises:
        BadFile: a file that is damaged, not a regular file, or not named by its round.
    """
    own = {}
    for path in sorted(folder.glob("*.safetensors")):
        if not (path.stem.isascii() and path.stem.isdecimal() and len(path.stem) <= limits.DIGITS):
            raise BadFile(
                f"folder '{folder}'",
                needs="files named by their round, as 000007.safetensors",
                got=shorten(path.name),
                fix="rename or remove it",
            )
        subject = f"file '{path}'"
        file = plain_file(folder, path.name, subject=subject)
        own[int(path.stem)] = described.tensors_of(file, subject=subject)
    return own


def read_memory(folder: Path) -> dict[str, Tensor]:
    """The tensors that an active attack stored (``Crafted.memory``) in the adversary's folder; or none.

    Raises:
        BadFile: the file is damaged, or not a file of tensors.
    """
    path = folder / "memory.safetensors"
    return read_tensors(path) if path.is_file() else {}


def write_grants(grants: Grants, folder: Path) -> None:
    """Write side knowledge: ``grants.json`` and one file per kind."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, batch in (("auxiliary", grants.auxiliary), ("challenge", grants.challenge)):
        if batch is not None:
            write_tensors(folder / f"{name}.safetensors", {"inputs": batch.inputs, "labels": batch.labels})
    if grants.labels:
        write_tensors(folder / "labels.safetensors", {f"{r}/{c}": t for (r, c), t in grants.labels.items()})
    if grants.batch_norm:
        groups = grants.batch_norm.items()
        flat = {f"{r}/{c}/{layer}": t for (r, c), layers in groups for layer, t in layers.items()}
        write_tensors(folder / "batch_norm.safetensors", flat)
    mechanisms = None if grants.defense is None else [asdict(m) for m in grants.defense]
    cohorts = {str(number): asdict(c) for number, c in grants.cohorts.items()}
    stated = {"given": list(grants.names()), "defense": mechanisms, "cohorts": cohorts}
    write_json(folder / "grants.json", stated)


def read_grants(folder: Path, *, task: Task | None = None) -> Grants:
    """Read what :func:`write_grants` wrote.

    Args:
        folder: of the grants; only regular files in it are opened.
        task: of the transcript: granted labels must be its targets; None: they are not checked.

    Raises:
        BadFile: missing, damaged, not regular files, labels that are no targets of ``task``, or not as
            docs/transcript.md describes.
    """
    subject = f"grants in '{folder}'"
    raw = read_json(plain_file(folder, "grants.json", subject=subject), most=limits.JSON_BYTES)
    fix = "correct grants.json: docs/transcript.md"
    stated = parse_as(described.GrantsFile, raw, subject=subject, fix=fix)

    def place(name: str) -> Path:
        return plain_file(folder, f"{name}.safetensors", subject=subject)

    batches = {n: described.batch_of(place(n)) for n in ("auxiliary", "challenge") if n in stated.given}
    labels: dict[tuple[int, int], Tensor] = {}
    if "labels" in stated.given:
        for name, t in described.tensors_of(place("labels"), subject=subject).items():
            number, client = described.key_of(name, 2, subject=subject)
            if task is not None:
                described.check_labels(t, task, subject=f"{subject}, labels '{name}'")
            labels[number, client] = t
    statistics: dict[tuple[int, int], dict[str, Tensor]] = {}
    if "batch_norm" in stated.given:
        for name, t in described.tensors_of(place("batch_norm"), subject=subject).items():
            number, client, layer = described.key_of(name, 3, subject=subject)
            statistics.setdefault((number, client), {})[layer] = t
    return Grants(
        auxiliary=batches.get("auxiliary"),
        challenge=batches.get("challenge"),
        labels=labels,
        batch_norm=statistics,
        defense=None if stated.defense is None else tuple(Mechanism(**dict(m)) for m in stated.defense),
        cohorts={int(number): Cohort(**dict(one)) for number, one in stated.cohorts.items()},
    )


def _tensors_of(
    line: described.Line, folder: Path, files: Files, *, subject: str, contents: bool
) -> Mapping[str, Tensor]:
    """The tensors of a line, merged with those of its base broadcast; added to ``files``.

    Raises:
        BadFile: a file used twice, in another folder or damaged, or a missing base broadcast.
        BadValue: a tensor is empty or not finite.
    """
    if not isinstance(line, described.BroadcastLine | described.UpdateLine | described.AggregateLine):
        return {}
    base = line.base if isinstance(line, described.BroadcastLine) else ""
    if line.file in files or "/" in line.file or (base and base not in files):
        raise BadFile(
            subject,
            needs="a file of its own beside rounds.jsonl" + (", and a broadcast before it" if base else ""),
            got=shorten(line.file) + (f" on top of {shorten(base)}" if base else ""),
            fix="correct rounds.jsonl: one line, one file",
        )
    own: dict[str, Tensor] = {}
    if contents or isinstance(line, described.BroadcastLine):
        own = described.tensors_of(plain_file(folder, line.file, subject=subject), subject=subject)
        check_finite(own, subject=subject)
    tensors = {**files[base], **own} if base else own
    files[line.file] = tensors if isinstance(line, described.BroadcastLine) else {}
    return tensors
