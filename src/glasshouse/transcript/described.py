"""Schemas of ``terms.json``, ``grants.json`` and the lines of ``rounds.jsonl``.

Types and ranges are checked here, before a tensor is read or memory is allocated for it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

import torch
from pydantic import Field
from torch import Tensor

from glasshouse import wire
from glasshouse.errors import BadFile, BadValue
from glasshouse.outside import limits
from glasshouse.outside.files import check_holes, plain_file, printable, shorten
from glasshouse.outside.schema import (
    ArchitectureFile,
    Client,
    Count,
    Described,
    Round,
    Text,
    Value,
    Values,
    check_name,
    parse_as,
    plugin_of,
)
from glasshouse.settings import Optimizer, Training
from glasshouse.store import TensorFile
from glasshouse.tasks.base import Task
from glasshouse.tensors import Lazy, check_finite
from glasshouse.transcript.record import Message

Clients = Annotated[tuple[Client, ...], Field(max_length=limits.CLIENTS)]
Shards = Annotated[tuple[Text, ...], Field(max_length=limits.SHARDS)]

_FLOATS: Final = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_INTEGERS: Final = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})


class TermsFile(Described):
    """``terms.json`` without its format version."""

    protocol: Text
    architecture: ArchitectureFile
    sends: wire.Kind
    clients: Annotated[int, Field(ge=1, le=limits.CLIENTS)]
    cohort: Annotated[int, Field(ge=1, le=limits.CLIENTS)]
    batch_size: Count
    local_epochs: Count = 1
    learning_rate: Annotated[float, Field(gt=0)] = 0.1
    optimizer: Optimizer = Optimizer()
    training: Training = Training()
    server_rate: float = 1.0
    secure_sum: bool = False
    weighting: Literal["size", "uniform"] = "size"
    trained: Text = ""
    sensitive: Annotated[int, Field(ge=0, le=limits.EXAMPLES)] = 0
    targets: Annotated[int, Field(ge=0, le=limits.CLASSES)] = 0
    options: Annotated[
        dict[Text, Value | Annotated[tuple[Value, ...], Field(max_length=limits.ARGUMENTS)]],
        Field(max_length=limits.ARGUMENTS),
    ] = Field(default_factory=dict)
    has_public: bool


class _Message(Described):
    round: Round


class ReferenceFile(Described):
    """A file of weights outside the transcript, by its name and SHA-256."""

    file: Annotated[str, Field(pattern=r"^[^/\\\x00]{1,200}$")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class BroadcastLine(_Message):
    """A line of kind ``broadcast``.

    What its files lack is in ``base``, the file of an earlier one, and in ``reference``, a frozen base model.
    """

    message: Literal["broadcast"]
    file: Text
    more: Shards = ()
    base: Text = ""
    reference: ReferenceFile | None = None
    architecture: ArchitectureFile
    client: Client | None = None


class UpdateLine(_Message):
    """A line of kind ``update``."""

    message: Literal["update"]
    file: Text
    more: Shards = ()
    rounded: Literal["", "float16", "bfloat16"] = ""
    buffers: tuple[Text, ...] = ()
    client: Client
    kind: wire.Kind
    examples: Annotated[int, Field(ge=0, le=limits.EXAMPLES)]
    steps: Annotated[int, Field(ge=0, le=limits.EXAMPLES)] = 1


class CohortFile(Described):
    """A round's cohort, in ``grants.json`` and in the line of its sum."""

    selected: Clients
    dropped: Clients = ()
    examples: Annotated[int, Field(ge=0, le=limits.EXAMPLES)]
    steps: Annotated[int, Field(ge=0, le=limits.EXAMPLES)] = 1


class AggregateLine(_Message, CohortFile):
    """A line of kind ``aggregate``."""

    message: Literal["aggregate"]
    file: Text
    more: Shards = ()
    buffers: tuple[Text, ...] = ()
    kind: wire.Kind
    weight: float


class MetricsLine(_Message):
    """A line of kind ``metrics``."""

    message: Literal["metrics"]
    client: Client
    stage: wire.Stage
    values: Values


class DropoutLine(_Message):
    """A line of kind ``dropout``."""

    message: Literal["dropout"]
    client: Client
    reason: Text = ""


Line = BroadcastLine | UpdateLine | AggregateLine | MetricsLine | DropoutLine
LINES: Final[Mapping[str, type[Line]]] = {
    kind.__name__.removesuffix("Line").lower(): kind for kind in get_args(Line)
}


class MechanismFile(Described):
    """A defence, in ``grants.json``."""

    name: Text
    place: wire.Place
    parameters: Values
    note: Annotated[str, Field(max_length=4 * limits.TEXT)] = ""


class GrantsFile(Described):
    """``grants.json``."""

    given: tuple[Text, ...]
    defense: Annotated[tuple[MechanismFile, ...], Field(max_length=limits.ARGUMENTS)] | None
    cohorts: dict[Annotated[str, Field(pattern=r"^[0-9]{1,8}$")], CohortFile] = Field(default_factory=dict)


def terms_of(raw: object, *, folder: Path, trust_factory: bool) -> wire.Terms:
    """Parse the terms in ``raw`` and read the public data beside them.

    Raises:
        BadFile: an invalid key, type or range, an architecture that is not registered, or public data of
            another shape.
        BadValue: inconsistent terms.
    """
    subject = f"transcript '{folder.name}', terms.json"
    fix = "correct terms.json: docs/transcript.md lists its keys"
    stated = parse_as(TermsFile, raw, subject=subject, fix=fix)
    architecture = architecture_of(stated.architecture, subject=subject, trust_factory=trust_factory)
    public = None
    if stated.has_public:
        path = plain_file(folder, "public.safetensors", subject=f"transcript '{folder.name}', public data")
        public = batch_of(path, architecture)
    fields = {k: v for k, v in dict(stated).items() if k not in ("architecture", "has_public")}
    return wire.Terms(**fields, architecture=architecture, public=public)


def architecture_of(stated: ArchitectureFile, *, subject: str, trust_factory: bool) -> wire.Architecture:
    """The architecture described in a file.

    Raises:
        BadFile: it is neither registered nor a trusted ``module:factory``, or its loss is code.
    """
    check_name(stated.name, subject=subject, trust_factory=trust_factory)
    fix = "correct the architecture: docs/transcript.md lists its keys"
    task: Task = plugin_of("tasks", stated.task, subject=subject, fix=fix)
    if task.code and not trust_factory:
        raise BadFile(
            subject,
            needs="a loss of ours: a file from outside never has code imported",
            got=f"the loss {shorten(task.code)}",
            fix="--trust-factory runs that module's code: only if you wrote it or read it",
        )
    return wire.Architecture(
        name=stated.name,
        inputs=plugin_of("modalities", stated.inputs, subject=subject, fix=fix),
        task=task,
        arguments=stated.arguments,
    )


def line_of(raw: object, *, subject: str) -> Line:
    """Parse one line of ``rounds.jsonl``.

    Raises:
        BadFile: a message of an unknown kind, or not as docs/transcript.md describes it.
    """
    kind = raw.get("message") if isinstance(raw, dict) else None
    if not (isinstance(kind, str) and kind in LINES):
        raise BadFile(
            subject,
            needs=f"messages {', '.join(LINES)}",
            got=repr(kind)[: limits.TEXT],
            fix="correct rounds.jsonl",
        )
    fix = "correct rounds.jsonl: docs/transcript.md lists the keys of a line"
    return parse_as(LINES[kind], raw, subject=subject, fix=fix)


def message_of(line: Line, tensors: Lazy, *, subject: str, trust_factory: bool) -> Message:
    """Build a message from its line and tensors. Raises as :func:`architecture_of`."""
    elsewhere = ("message", "file", "more", "base", "reference", "rounded", "buffers", "architecture")
    fields = {k: v for k, v in dict(line).items() if k not in elsewhere}
    match line:
        case BroadcastLine():
            described = architecture_of(line.architecture, subject=subject, trust_factory=trust_factory)
            return wire.Broadcast(**fields, architecture=described, tensors=tensors)
        case UpdateLine():
            trained, buffers = apart(tensors, line.buffers)
            return wire.Update(**fields, tensors=trained, buffers=buffers)
        case AggregateLine():
            trained, buffers = apart(tensors, line.buffers)
            return wire.Aggregate(**fields, tensors=trained, buffers=buffers)
        case MetricsLine():
            return wire.ClientMetrics(**fields)
        case DropoutLine():
            return wire.Dropout(**fields)


def apart(tensors: Lazy, buffers: Sequence[str]) -> tuple[Lazy, Mapping[str, Tensor]]:
    """Trained tensors, and the buffers sent beside them."""
    if not buffers:
        return tensors, {}
    return tensors.only(lambda name: name not in buffers), tensors.only(frozenset(buffers).__contains__)


def tensors_of(path: Path, *, subject: str) -> dict[str, Tensor]:
    """Read all tensors, of the dtypes that messages may have, from a regular file.

    Raises:
        BadFile: damaged, a mostly sparse file, or tensors of another dtype.
    """
    file = opened(path, subject=subject)
    return {name: file.read(name) for name in file.entries}


def opened(path: Path, *, subject: str) -> TensorFile:
    """A regular file with tensors of the dtypes that messages may have. Raises as :func:`tensors_of`."""
    check_holes(path.lstat(), subject=subject)
    file = TensorFile(path, subject=subject)
    for name, entry in file.entries.items():
        if entry.dtype not in _FLOATS | _INTEGERS:
            raise BadFile(
                subject,
                needs="tensors of 16, 32 or 64 bit floats, or of integers",
                got=f"'{printable(name)}' of {entry.dtype}".replace("torch.", ""),
                fix="convert them before writing",
            )
    return file


def batch_of(path: Path, architecture: wire.Architecture | None = None) -> wire.Batch:
    """Read examples from a file with ``inputs`` and ``labels``.

    Args:
        path: a regular file.
        architecture: its modality and task must accept them; None: any shapes within the limits.

    Raises:
        BadFile: other tensors, shapes, types or labels.
        BadValue: a number is not finite, or there is no example.
    """
    subject = f"file '{path}'"
    tensors = tensors_of(path, subject=subject)
    inputs, labels = tensors.get("inputs"), tensors.get("labels")
    if inputs is None or labels is None or inputs.ndim < 2 or labels.shape[:1] != inputs.shape[:1]:
        shapes = ", ".join(f"'{printable(k)}' {tuple(t.shape)}" for k, t in list(tensors.items())[:4])
        raise _no_batch(subject, "tensors inputs (B, ...) and labels (B, ...)", shapes or "nothing")
    check_finite(tensors, subject=subject)
    if architecture is not None:
        try:
            architecture.inputs.check(inputs, subject=subject)
        except BadValue as error:
            raise _no_batch(subject, error.needs, error.got) from error
        check_labels(labels, architecture.task, subject=subject)
    return wire.Batch(inputs=inputs, labels=labels)


def check_labels(labels: Tensor, task: Task, *, subject: str) -> None:
    """Raise unless ``labels`` are targets of ``task``; -1 where an example has no class.

    Raises:
        BadFile: other labels.
    """
    if (wrong := task.violation(labels)) is not None:
        raise _no_batch(subject, *wrong)


def key_of(name: str, parts: int, *, subject: str) -> tuple[Any, ...]:
    """Parse ``"3/1"`` or ``"3/-1/layer"`` as (round, client[, layer]).

    Raises:
        BadFile: another form.
    """
    words = name.split("/", parts - 1)
    numbers = [w for w in words[:2] if w.removeprefix("-").isascii() and w.removeprefix("-").isdecimal()]
    if len(words) != parts or len(numbers) != 2 or max(map(len, numbers)) > 9:
        raise BadFile(
            subject,
            needs="tensors named ROUND/CLIENT" + ("/LAYER" if parts > 2 else ""),
            got=repr(name)[: limits.TEXT],
            fix="write the grants again: docs/transcript.md",
        )
    return (int(words[0]), int(words[1]), *words[2:])


def _no_batch(subject: str, needs: str, got: str) -> BadFile:
    return BadFile(
        subject, needs=needs, got=got.replace("torch.", ""), fix="write the file again: docs/transcript.md"
    )
