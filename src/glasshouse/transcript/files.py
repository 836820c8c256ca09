"""The file format of a transcript, and of the adversary's own tensors and grants.

``transcript/`` (contains nothing private, may be shared): ``terms.json``, ``rounds.jsonl`` (one message per
line) and one ``.safetensors`` per message with tensors; ``public.safetensors`` if the terms have public data.
``own/`` and ``grants/`` beside it. Written by a simulation, by a capture, or by hand: see docs/transcript.md.
"""

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, final

import torch
from torch import Tensor

from glasshouse.errors import BadFile
from glasshouse.outside import limits
from glasshouse.outside.files import check_size, plain_file, shorten
from glasshouse.outside.schema import parse_as
from glasshouse.store import (
    TensorFile,
    append_jsonl,
    read_json,
    read_jsonl,
    read_tensors,
    write_json,
    write_jsonl,
    write_tensors,
)
from glasshouse.tasks.base import Task
from glasshouse.tensors import Lazy, check_finite, derive, finite_fault
from glasshouse.transcript import described
from glasshouse.transcript.grants import Cohort, Grants
from glasshouse.transcript.record import Keep, Log, Message, Transcript
from glasshouse.transcript.reference import find_reference, name_reference
from glasshouse.wire import (
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
    "read_index",
    "read_own",
    "read_terms",
    "read_transcript",
    "write_grants",
    "write_own",
    "write_transcript",
]

_LOG = logging.getLogger(__name__)
FORMAT: Final = 2
SHARD: Final = 2**30
"""Bytes of tensors (1 GiB) from which on a message is written to several files."""
OPEN: Final = 64
"""Files whose headers are kept."""
Files = dict[str, Lazy]
_NOTHING: Final = Lazy(tuple, dict[str, Tensor]().__getitem__, int)
_NARROW: Final = (torch.float16, torch.bfloat16)


@final
@dataclass(kw_only=True)
class TranscriptWriter:
    """Writes a transcript. With :meth:`append`, messages written before survive any later failure.

    Tensors that equal those of the first broadcast (a frozen base model) are not written again: the line
    names the first broadcast's file instead. One tensor is held at a time.

    Args:
        folder: of the transcript; created as needed.
        durable: fsync after every file and line.
        keep: says what is rounded, and names a base model that is not stored.
    """

    folder: Path
    durable: bool = False
    keep: Keep = field(default_factory=Keep)
    written: int = 0
    _count: int = 0
    _first: Lazy | None = None
    _first_file: str = ""
    _stored: dict[int, tuple[Message, dict[str, Any]]] = field(default_factory=dict)

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

    def append(self, message: Message, *, partial: bool = False) -> Message:
        """Write one message, its tensors first, then its line; return it with tensors read from there.

        Args:
            message: what was sent.
            partial: a broadcast whose missing tensors are those of the first one.
        """
        line = self._write(message, partial=partial)
        append_jsonl(self.folder / "rounds.jsonl", line, durable=self.durable)
        return self._read(line, message)

    def store(self, message: Message) -> Message:
        """Write the tensors of a message now, and its line with :meth:`finish`; return it as it is read."""
        line = self._write(message)
        stored = self._read(line, message)
        self._stored[id(stored)] = stored, line
        return stored

    def finish(self, transcript: Transcript) -> None:
        """Write terms and lines, and tensors that are not stored; ``rounds.jsonl`` last.

        A folder without it is unfinished.
        """
        lines = []
        for message in (message for record in transcript.rounds for message in record.messages()):
            known = self._stored.get(id(message))
            lines.append(self._write(message) if known is None else known[1])
        self.terms(transcript.terms)
        write_jsonl(self.folder / "rounds.jsonl", lines)

    def _write(self, message: Message, *, partial: bool = False) -> dict[str, Any]:
        """Write the tensors of ``message``; return its line of ``rounds.jsonl``."""
        kind = "metrics" if isinstance(message, ClientMetrics) else type(message).__name__.lower()
        if isinstance(message, ClientMetrics | Dropout):
            return {"message": kind, **asdict(message)}
        plain = {k: v for k, v in vars(message).items() if k not in ("tensors", "buffers", "architecture")}
        line = {"message": kind, "file": f"{self._count:06d}.safetensors", **plain}
        parts = [message.tensors]
        if self.keep.rounded and isinstance(message, Update):
            rounded = _rounded(message.tensors, getattr(torch, self.keep.rounded))
            if not finite_fault(rounded):  # else too large for the type: stored as they are
                line["rounded"], parts = self.keep.rounded, [rounded]
        if isinstance(message, Broadcast):
            line["architecture"] = describe_architecture(message.architecture)
            stated, parts = self._beside_what_is_stored(message.tensors, partial=partial)
            line |= stated
        elif message.buffers:
            line["buffers"] = list(message.buffers)
            parts.append(message.buffers)
        if more := self._write_files(line["file"], parts):
            line["more"] = more
        self._count += 1
        if isinstance(message, Broadcast) and self._first is None:
            self._first = self._own(line, subject="the first broadcast")
            self._first_file = line["file"]
        return line

    def _beside_what_is_stored(
        self, tensors: Mapping[str, Tensor], *, partial: bool
    ) -> tuple[dict[str, Any], list[Mapping[str, Tensor]]]:
        """What the line of a broadcast says about tensors stored elsewhere, and those that are not."""
        stated: dict[str, Any] = {}
        kept: frozenset[str] = frozenset()
        if self._first is not None:
            first = self._first
            kept = frozenset(n for n, t in tensors.items() if n in first and _same(t, first[n]))
            stated = {"base": self._first_file} if kept or partial else {}
        elif self.keep.base is not None and (kept := _all_in(self.keep.base, tensors)):
            stated = {"reference": name_reference(self.keep.base).model_dump()}
        return stated, [derive(tensors, lambda _, t: t, keep=lambda name: name not in kept)]

    def _write_files(self, name: str, parts: list[Mapping[str, Tensor]]) -> list[str]:
        """Write tensors to a file, or to several; return the names of those after the first."""
        shards: list[list[tuple[Mapping[str, Tensor], str]]] = [[]]
        size = 0
        for part in parts:
            for key in part:
                t = part[key]
                size += t.nbytes
                self.written += t.nbytes
                if size > SHARD and shards[-1]:
                    size = t.nbytes
                    shards.append([])
                shards[-1].append((part, key))
        stem = name.removesuffix(".safetensors")
        names = [name, *(f"{stem}-{number:03d}.safetensors" for number in range(1, len(shards)))]
        for place, shard in zip(names, shards, strict=True):
            write_tensors(self.folder / place, _picked(shard), durable=self.durable)
        return names[1:]

    def _own(self, line: Mapping[str, Any], *, subject: str) -> Lazy:
        return _contents(self.folder, line, subject=subject, reference=self.keep.base)

    def _read(self, line: Mapping[str, Any], message: Message) -> Message:
        if isinstance(message, ClientMetrics | Dropout):
            return message
        own = self._own(line, subject=f"{line['message']} of round {message.round}")
        every = own.over(self._first) if "base" in line and self._first is not None else own
        names = tuple(message.tensors)
        if isinstance(message, Broadcast):
            return replace(message, tensors=every if len(every) > len(names) else every.ordered(names))
        trained, buffers = described.apart(own, line.get("buffers", ()))
        return replace(message, tensors=trained.ordered(names), buffers=buffers)


def _rounded(tensors: Mapping[str, Tensor], narrow: torch.dtype) -> Lazy:
    """``tensors`` with those of float32 in another type, one at a time."""

    def make(name: str) -> Tensor:
        t = tensors[name]
        return t.to(narrow) if t.dtype is torch.float32 else t

    return Lazy(lambda: list(tensors), make, int)


def _picked(shard: list[tuple[Mapping[str, Tensor], str]]) -> Lazy:
    """The tensors of a shard, from where they are."""
    owners = {key: part for part, key in shard}
    return Lazy(lambda: owners, lambda key: owners[key][key], int)


def _all_in(reference: Path, tensors: Mapping[str, Tensor]) -> frozenset[str]:
    """The names in a base model's file, if all are among ``tensors`` with the same numbers; else none."""
    file = TensorFile(reference)
    alike = all(name in tensors and _same(tensors[name], file.read(name)) for name in file.entries)
    if not alike:
        _LOG.warning("base model '%s': the broadcast has other numbers, and is stored in full", reference)
    return frozenset(file.entries) if alike else frozenset()


def _same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one.cpu(), other)


def _contents(folder: Path, line: Mapping[str, Any], *, subject: str, reference: Path | None = None) -> Lazy:
    """The tensors in the files of a line, checked whenever they are read.

    ``reference``: where the base model lies that the line names; None: it is looked for.
    """
    names = (line["file"], *line.get("more", ()))

    def entries() -> dict[str, TensorFile]:
        files = [_header(folder, name, subject) for name in names]
        return {key: file for file in files for key in file.entries}

    def make(key: str) -> Tensor:
        t = entries()[key].read(key)
        check_finite({key: t}, subject=subject)
        return t.float() if line.get("rounded") and t.dtype in _NARROW else t

    own = Lazy(entries, make, lambda: sum((folder / name).stat().st_size for name in names))
    if (named := line.get("reference")) is None:
        return own
    stated = described.ReferenceFile.model_validate(named)

    def base() -> TensorFile:
        if reference is not None:
            return TensorFile(reference)
        return find_reference(stated, subject=subject)

    return own.over(Lazy(lambda: base().entries, lambda key: base().read(key), lambda: base().size))


def _header(folder: Path, name: str, subject: str) -> TensorFile:
    path = plain_file(folder, name, subject=subject)
    status = path.lstat()
    return _header_of(path, status.st_mtime_ns, status.st_size, subject)


@lru_cache(maxsize=OPEN)
def _header_of(path: Path, changed: int, size: int, subject: str) -> TensorFile:
    """The header of a file that was last changed then."""
    del changed, size
    return described.opened(path, subject=subject)


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
    TranscriptWriter(folder=folder).finish(transcript)


def read_transcript(folder: Path, *, trust_factory: bool = False) -> Transcript:
    """Read an untrusted transcript folder, but no tensor: each is read, and checked, when it is asked for.

    Args:
        folder: of the transcript; only regular files in it are opened.
        trust_factory: allow an architecture ``module:factory``, whose module will be imported to build it.

    Raises:
        BadFile: missing or corrupt files, links, a newer format, an unknown message, an architecture that is
            not registered, a number outside the limits (see :mod:`glasshouse.outside.limits`). Of the files
            of tensors, which may also be damaged: where they are read.
        BadValue: where a tensor is read that is empty or not finite.
    """
    subject = f"transcript '{folder.name}'"
    log = Log(terms=read_terms(folder, trust_factory=trust_factory))
    files: Files = {}
    for number, row in enumerate(read_index(folder), start=1):
        line = described.line_of(row, subject=f"{subject}, line {number} of rounds.jsonl")
        who = f" of client {line.client}" if isinstance(line, described.UpdateLine) else ""
        where = f"{subject}, {line.message}{who} of round {line.round}"
        tensors = _tensors_of(line, folder, files, subject=where)
        log.record(described.message_of(line, tensors, subject=where, trust_factory=trust_factory))
    return log.transcript()


def read_index(folder: Path) -> list[Any]:
    """The lines of ``rounds.jsonl``, as they stand there.

    Raises:
        BadFile: missing, larger than ``GLASSHOUSE_MOST_INDEX_BYTES`` allows, or a line is not JSON.
    """
    subject = f"transcript '{folder.name}'"
    path, limit = plain_file(folder, "rounds.jsonl", subject=subject), limits.INDEX_BYTES
    check_size(path.stat().st_size, limit(), subject=f"file '{path}'", fix=limit.advice)
    return read_jsonl(path, most=limit())


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

    # A file is opened only if the grants say that it is there.
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


def _tensors_of(line: described.Line, folder: Path, files: Files, *, subject: str) -> Lazy:
    """The tensors of a line, over those of its base broadcast; added to ``files``.

    Raises:
        BadFile: a file used twice or in another folder, or a missing base broadcast.
    """
    if not isinstance(line, described.BroadcastLine | described.UpdateLine | described.AggregateLine):
        return _NOTHING
    base = line.base if isinstance(line, described.BroadcastLine) else ""
    named = (line.file, *line.more)
    used = any(name in files or "/" in name for name in named) or len(set(named)) < len(named)
    if used or (base and base not in files):
        raise BadFile(
            subject,
            needs="a file of its own beside rounds.jsonl" + (", and a broadcast before it" if base else ""),
            got=shorten(line.file) + (f" on top of {shorten(base)}" if base else ""),
            fix="correct rounds.jsonl: one line, one file",
        )
    tensors = _contents(folder, line.model_dump(), subject=subject)
    tensors = tensors.over(files[base]) if base else tensors
    files |= dict.fromkeys(named, _NOTHING)
    if isinstance(line, described.BroadcastLine):
        files[line.file] = tensors
    return tensors
