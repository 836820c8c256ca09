"""The contract of executors, and how one piece of an audit runs, wherever that is.

A piece is a function of a module with plain data. What it makes lies on disk when it is done, whole or not at
all; asked for again, it finds that and returns. So a piece that was lost may be started once more anywhere.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, final

from filelock import FileLock

from glasshouse.errors import BadValue
from glasshouse.process import prepare_process, processor_time
from glasshouse.registry import Card

__all__ = ["Answer", "Executor", "Piece", "Workers", "choose_device", "peak_memory", "run_piece"]


@final
@dataclass(frozen=True, kw_only=True)
class Piece:
    """Work that needs no other piece of its room to be done.

    Attributes:
        work: a function of a module.
        task: plain data, which another process can be handed.
        label: what is being done, for whoever shows the progress.
        room: no process works for two rooms: where plug-ins ran, nothing is scored.
        lock: a file that is locked while the piece runs, so that it never runs twice at once; empty: the
            piece writes nothing.
        device: ``cpu``, or the accelerator that it wants a share of.
        processes: that it computes in.
        part: of the audit, whose seconds they are.
    """

    work: Callable[[Any], Any]
    task: Any
    label: str
    room: str
    lock: str = ""
    device: str = "cpu"
    processes: int = 1
    part: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a piece returned, and what it took.

    Attributes:
        value: the result of its work.
        seconds: on the clock.
        cpu_seconds: of the processor time of the process, and of those that trained clients for it.
        peak_mb: the most memory that its process had so far, in MB (10⁶ bytes); 0: unknown.
    """

    value: Any
    seconds: float
    cpu_seconds: float
    peak_mb: float


class Workers(Protocol):
    """Processes that are ready to work.

    Attributes:
        jobs: pieces at a time, at most.
        cores: processes that one piece may compute in.
        devices: kinds of devices that a piece may ask for.
    """

    @property
    def jobs(self) -> int: ...

    @property
    def cores(self) -> int: ...

    @property
    def devices(self) -> frozenset[str]: ...

    def submit(self, piece: Piece) -> None:
        """A piece to be done by :func:`run_piece` in some process; returns at once."""
        ...

    def finished(self) -> Iterator[tuple[Piece, Answer]]:
        """Each submitted piece once, when it is done, until none is left; more may be submitted meanwhile.

        A process that is lost is replaced and its piece runs again, or the audit ends with WorkerKilled.

        Raises:
            GlasshouseError: what a piece raised.
            WorkerKilled: a process was lost, and is not replaced any more.
            Interrupted: Ctrl-C.
        """
        ...


class Executor(Protocol):
    """A plug-in of the group ``glasshouse.executors``: a frozen dataclass with ``jobs`` and ``address``.

    A field that means nothing there is refused where it is set. ``jobs``: pieces at a time; 0: as many as
    there is room for.
    """

    card: ClassVar[Card]

    def start(self) -> AbstractContextManager[Workers]:
        """Workers for the length of a ``with`` block."""
        ...


def run_piece(piece: Piece) -> Answer:
    """Do the work of ``piece`` in this process; wait first while another process does it."""
    prepare_process()
    if piece.lock:
        Path(piece.lock).parent.mkdir(parents=True, exist_ok=True)
    with FileLock(piece.lock) if piece.lock else nullcontext():
        started, busy = time.perf_counter(), processor_time()
        value = piece.work(piece.task)
    return Answer(
        value=value,
        seconds=time.perf_counter() - started,
        cpu_seconds=processor_time() - busy,
        peak_mb=peak_memory(),
    )


def peak_memory() -> float:
    """The most memory that this process had so far, in MB (10⁶ bytes); 0 where the system does not say."""
    if sys.platform == "win32":
        return 0.0
    import resource  # noqa: PLC0415  (not on Windows)

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / 1e6 if sys.platform == "darwin" else most * 1024 / 1e6


def choose_device(device: str, there: frozenset[str]) -> str:
    """``auto`` resolved among the devices that are there; one that is not is an error.

    Raises:
        BadValue: unknown, or not available.
    """
    if device == "auto":
        return "cuda" if "cuda" in there else "cpu"
    if device not in there:
        raise BadValue(
            f"device '{device}'",
            needs="auto, or one of " + ", ".join(sorted(there)) + ", which are there",
            got=device,
            fix="install a build of torch for it (README), or leave --device out",
        )
    return device
