"""Write messages to a transcript folder, all at once or one by one as they are sent."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, final

import torch
from torch import Tensor

from glasshouse.store import append_jsonl, write_json, write_tensors
from glasshouse.transcript.record import Message
from glasshouse.wire import Architecture, Broadcast, ClientMetrics, Dropout, Terms, Update

FORMAT: Final = 1


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
        plain |= {"architecture": _plain(terms.architecture), "optimizer": terms.optimizer.model_dump()}
        plain["options"] = dict(terms.options)
        if terms.public is not None:
            public = {"inputs": terms.public.inputs, "labels": terms.public.labels}
            write_tensors(self.folder / "public.safetensors", public)
        write_json(
            self.folder / "terms.json", {"format": FORMAT, **plain, "has_public": terms.public is not None}
        )

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
        line = {"message": kind, "file": name, **_header(message)}
        tensors = message.tensors
        if isinstance(message, Update) and message.buffers:
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


def _plain(architecture: Architecture) -> dict[str, Any]:
    return {**asdict(architecture), "arguments": dict(architecture.arguments)}


def _header(message: Message) -> dict[str, Any]:
    plain = {k: v for k, v in vars(message).items() if k not in ("tensors", "buffers", "architecture")}
    if isinstance(message, Broadcast):
        plain["architecture"] = _plain(message.architecture)
    return plain
