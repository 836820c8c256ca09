"""Batches recorded by a test client of a real federation, in one folder per client and one file per round.

``FOLDER/NODE/000002.safetensors`` holds the batches of round 2, in the order of the steps: ``0.inputs``,
``0.labels``, ``1.inputs``, ..., and the tensors that training returned: ``sent.0.NAME``, ...
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

from torch import Tensor

from glasshouse.errors import BadFile
from glasshouse.outside import limits
from glasshouse.outside.files import plain_file, shorten
from glasshouse.store import read_metadata, read_tensors, write_tensors
from glasshouse.wire import Batch

_PIXELS: Final = "pixels"
_SENT: Final = "sent."
_STEPPING: Final = "stepping"
_COUNTED: Final = "counted"


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Recorded:
    """The training data of one client in one round.

    Attributes:
        node: the client's id or name in its framework; a plain file name.
        round: from 0.
        steps: the batch of every step, in order.
        pixels: inputs are pixels in [0, 1]; False: normalised, as they enter the network.
        sent: the tensors returned by the client's training, before further processing; by name or number.
        counted: ``round`` is the number of the client's answer to a query, which states no round.
        stepping: how it stepped, as far as it was seen: ``optimizer``, ``learning_rate``, ``mode``,
            ``accumulate``, or ``unread``: why that is unknown.
    """

    node: str
    round: int
    steps: tuple[Batch, ...]
    pixels: bool
    sent: Mapping[str, Tensor]
    stepping: Mapping[str, Any] = field(default_factory=dict)
    counted: bool = False


def write_recorded(recorded: Recorded, folder: Path) -> None:
    """Write the training data of one client in one round below ``folder``."""
    tensors = {f"{i}.inputs": batch.inputs for i, batch in enumerate(recorded.steps)}
    tensors |= {f"{i}.labels": batch.labels for i, batch in enumerate(recorded.steps)}
    tensors |= {f"{_SENT}{i}.{name}": t for i, (name, t) in enumerate(recorded.sent.items())}
    path = folder / recorded.node / f"{recorded.round:06d}.safetensors"
    facts = {_PIXELS: str(recorded.pixels), _STEPPING: json.dumps(dict(recorded.stepping))}
    facts |= {_COUNTED: str(True)} if recorded.counted else {}
    write_tensors(path, tensors, facts, durable=True)


def read_recorded(folder: Path) -> Iterator[Recorded]:
    """Read everything that clients recorded below ``folder``, in order.

    Raises:
        BadFile: a file in another format.
    """
    for path in sorted(folder.glob("*/*.safetensors")):
        subject = f"recorded batches '{path}'"
        number = path.stem
        if not (number.isascii() and number.isdecimal() and len(number) <= limits.DIGITS):
            raise BadFile(
                subject,
                needs="files NODE/ROUND.safetensors",
                got=shorten(f"{path.parent.name}/{path.name}"),
                fix="give the folder that the test client was given",
            )
        place = plain_file(path.parent, path.name, subject=subject)
        tensors = read_tensors(place)
        update = {name: tensors.pop(name) for name in sorted(tensors, key=_place) if name.startswith(_SENT)}
        steps = range(len(tensors) // 2)
        if tensors.keys() != {f"{i}.{part}" for i in steps for part in ("inputs", "labels")}:
            raise BadFile(
                subject,
                needs="inputs and labels of every step",
                got=shorten(", ".join(tensors)),
                fix="record the round again",
            )
        facts = read_metadata(place)
        yield Recorded(
            node=path.parent.name,
            round=int(path.stem),
            steps=tuple(Batch(inputs=tensors[f"{i}.inputs"], labels=tensors[f"{i}.labels"]) for i in steps),
            pixels=facts.get(_PIXELS) == "True",
            sent={name.split(".", 2)[2]: t for name, t in update.items()},
            counted=facts.get(_COUNTED) == "True",
            stepping=_stepping(facts.get(_STEPPING, "{}"), subject),
        )


def _stepping(text: str, subject: str) -> dict[str, Any]:
    """How a client stepped, from a file's metadata.

    Raises:
        BadFile: not a table.
    """
    try:
        stated = json.loads(text)
    except ValueError:
        stated = None
    if isinstance(stated, dict):
        return stated
    raise BadFile(subject, needs="how the client stepped, as a table", got=shorten(text), fix="record again")


def _place(name: str) -> int:
    """Position of a sent tensor in the model's order; files sort tensors by name."""
    number = name.removeprefix(_SENT).partition(".")[0]
    return int(number) if name.startswith(_SENT) and number.isdecimal() else -1
