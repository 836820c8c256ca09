"""The documented file format of a transcript, and of what the adversary holds beside it.

``transcript/`` (may be handed to a stranger): ``terms.json``, ``rounds.jsonl`` (one message a line) and
one ``.safetensors`` per message; ``public.safetensors`` where the terms name public data. ``own/`` and
``grants/`` beside it. Written by a simulation, by a capture, or by hand: see docs/transcript.md.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from glasshouse.errors import BadFile
from glasshouse.store import read_json, read_jsonl, read_tensors, write_json, write_jsonl, write_tensors
from glasshouse.tensors import check_finite
from glasshouse.transcript.grants import Cohort, Grants
from glasshouse.transcript.record import RoundRecord, Transcript
from glasshouse.wire import Aggregate, Architecture, Batch, Broadcast, Mechanism, Terms, Update

FORMAT = 1


def write_transcript(transcript: Transcript, folder: Path) -> None:
    """Write ``transcript`` into ``folder``, the index last: a folder without it is unfinished."""
    folder.mkdir(parents=True, exist_ok=True)
    terms = transcript.terms
    plain = {k: v for k, v in vars(terms).items() if k not in ("public", "architecture")}
    plain = {**plain, "architecture": _plain(terms.architecture), "options": dict(terms.options)}
    if terms.public is not None:
        write_tensors(
            folder / "public.safetensors", {"inputs": terms.public.inputs, "labels": terms.public.labels}
        )
    lines: list[dict[str, Any]] = []
    for record in transcript.rounds:
        for message in (
            *record.broadcasts,
            *record.updates,
            *((record.aggregate,) if record.aggregate else ()),
        ):
            name = f"{len(lines):06d}.safetensors"
            write_tensors(folder / name, message.tensors)
            lines.append({"message": type(message).__name__.lower(), "file": name, **_header(message)})
    write_json(folder / "terms.json", {"format": FORMAT, **plain, "has_public": terms.public is not None})
    write_jsonl(folder / "rounds.jsonl", lines)


def read_transcript(folder: Path) -> Transcript:
    """Read a transcript folder.

    Raises:
        BadFile: missing or corrupt files, a newer format, an unknown message.
        BadValue: a tensor is not finite.
    """
    raw = read_json(folder / "terms.json")
    if raw.pop("format", None) != FORMAT:
        raise BadFile(
            f"transcript '{folder.name}'",
            needs=f"format {FORMAT}",
            got="another format in terms.json",
            fix="upgrade glasshouse; older formats stay readable",
        )
    public = None
    if raw.pop("has_public"):
        tensors = read_tensors(folder / "public.safetensors")
        public = Batch(inputs=tensors["inputs"], labels=tensors["labels"])
    architecture = _architecture(raw.pop("architecture"))
    raw["image_range"] = tuple(raw["image_range"])
    try:
        terms = Terms(**raw, architecture=architecture, public=public)
    except TypeError as error:
        raise BadFile(
            f"transcript '{folder.name}'",
            needs="terms as docs/transcript.md lists them",
            got=str(error),
            fix="correct terms.json",
        ) from error
    rounds: dict[int, RoundRecord] = {}
    for line in read_jsonl(folder / "rounds.jsonl"):
        tensors = read_tensors(folder / line.pop("file"))
        check_finite(
            tensors, subject=f"transcript '{folder.name}', {line['message']} of round {line['round']}"
        )
        rounds[line["round"]] = _added(rounds.get(line["round"]), _message(line, tensors))
    return Transcript(terms=terms, rounds=tuple(rounds[r] for r in sorted(rounds)))


def write_own(own: Mapping[int, Mapping[str, Tensor]], folder: Path) -> None:
    """Write what the role itself knows, one file per round."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, tensors in own.items():
        write_tensors(folder / f"{number:06d}.safetensors", tensors)


def read_own(folder: Path) -> dict[int, dict[str, Tensor]]:
    """Read what :func:`write_own` wrote; a missing folder is empty."""
    return {int(f.stem): read_tensors(f) for f in sorted(folder.glob("*.safetensors"))}


def write_grants(grants: Grants, folder: Path) -> None:
    """Write side knowledge: ``grants.json`` and one file per kind."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, batch in (("auxiliary", grants.auxiliary), ("challenge", grants.challenge)):
        if batch is not None:
            write_tensors(folder / f"{name}.safetensors", {"inputs": batch.inputs, "labels": batch.labels})
    if grants.labels:
        write_tensors(folder / "labels.safetensors", {f"{r}/{c}": t for (r, c), t in grants.labels.items()})
    if grants.batch_norm:
        flat = {
            f"{r}/{c}/{layer}": t
            for (r, c), layers in grants.batch_norm.items()
            for layer, t in layers.items()
        }
        write_tensors(folder / "batch_norm.safetensors", flat)
    known = None if grants.defense is None else [asdict(m) for m in grants.defense]
    cohorts = {str(number): asdict(c) for number, c in grants.cohorts.items()}
    write_json(folder / "grants.json", {"given": list(grants.given()), "defense": known, "cohorts": cohorts})


def read_grants(folder: Path) -> Grants:
    """Read what :func:`write_grants` wrote."""
    raw = read_json(folder / "grants.json")
    batches = {}
    for name in ("auxiliary", "challenge"):
        if name in raw["given"]:
            tensors = read_tensors(folder / f"{name}.safetensors")
            batches[name] = Batch(inputs=tensors["inputs"], labels=tensors["labels"])
    labels = {}
    if "labels" in raw["given"]:
        for name, t in read_tensors(folder / "labels.safetensors").items():
            number, client = name.split("/")
            labels[int(number), int(client)] = t
    statistics: dict[tuple[int, int], dict[str, Tensor]] = {}
    if "batch_norm" in raw["given"]:
        for name, t in read_tensors(folder / "batch_norm.safetensors").items():
            number, client, layer = name.split("/", 2)
            statistics.setdefault((int(number), int(client)), {})[layer] = t
    known = raw["defense"]
    defense = None if known is None else tuple(Mechanism(**m) for m in known)
    return Grants(
        auxiliary=batches.get("auxiliary"),
        challenge=batches.get("challenge"),
        labels=labels,
        batch_norm=statistics,
        defense=defense,
        cohorts={int(number): _cohort(c) for number, c in raw.get("cohorts", {}).items()},
    )


def _cohort(raw: Mapping[str, Any]) -> Cohort:
    ids = {name: tuple(int(c) for c in raw[name]) for name in ("selected", "dropped")}
    return Cohort(**ids, examples=int(raw["examples"]), steps=int(raw["steps"]))


def _plain(architecture: Architecture) -> dict[str, Any]:
    return {**asdict(architecture), "arguments": dict(architecture.arguments)}


def _architecture(raw: dict[str, Any]) -> Architecture:
    return Architecture(**{**raw, "input_shape": tuple(raw["input_shape"])})


def _header(message: Broadcast | Update | Aggregate) -> dict[str, Any]:
    plain = {k: v for k, v in vars(message).items() if k not in ("tensors", "architecture")}
    if isinstance(message, Broadcast):
        plain["architecture"] = _plain(message.architecture)
    return plain


def _message(line: dict[str, Any], tensors: dict[str, Tensor]) -> Broadcast | Update | Aggregate:
    kind, fields = line.pop("message"), line
    if kind == "broadcast":
        return Broadcast(**{**fields, "architecture": _architecture(fields["architecture"])}, tensors=tensors)
    if kind == "update":
        return Update(**fields, tensors=tensors)
    if kind == "aggregate":
        ids = {"selected": tuple(fields["selected"]), "dropped": tuple(fields["dropped"])}
        return Aggregate(**{**fields, **ids}, tensors=tensors)
    raise BadFile(
        "transcript",
        needs="messages broadcast, update or aggregate",
        got=f"'{kind}'",
        fix="correct rounds.jsonl",
    )


def _added(record: RoundRecord | None, message: Broadcast | Update | Aggregate) -> RoundRecord:
    old = record or RoundRecord(round=message.round, broadcasts=())
    return RoundRecord(
        round=old.round,
        broadcasts=(*old.broadcasts, message) if isinstance(message, Broadcast) else old.broadcasts,
        updates=(*old.updates, message) if isinstance(message, Update) else old.updates,
        aggregate=message if isinstance(message, Aggregate) else old.aggregate,
    )
