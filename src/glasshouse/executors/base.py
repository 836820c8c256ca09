"""The contract of executors, and how one piece of an audit runs on any of them.

A piece is a module-level function with plain data. It writes its output to disk atomically; when run again,
it finds the output and returns. So a lost piece can be restarted anywhere.
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
from glasshouse.process import crewed, prepare_process, processor_time
from glasshouse.registry import Card

__all__ = ["Answer", "Executor", "Piece", "Workers", "choose_device", "peak_memory", "run_piece"]


@final
@dataclass(frozen=True, kw_only=True)
class Piece:
    """Work that does not depend on other pieces of its room.

    Attributes:
        work: a module-level function.
        task: picklable data.
        label: description of the work, for the progress display.
        room: no process works for two rooms: a process that ran plug-ins never scores claims.
        lock: a file that is locked while the piece runs, so that it never runs twice at once; empty: the
            piece writes nothing.
        device: ``cpu``, or the accelerator that it shares.
        processes: number of processes that it uses.
        part: of the audit that its time is charged to.
        if_lost: called with the task in the audit's own process if the piece ends its process again and
            again; answers in its place. None: the audit ends.
    """

    work: Callable[[Any], Any]
    task: Any
    label: str
    room: str
    lock: str = ""
    device: str = "cpu"
    processes: int = 1
    part: str = ""
    if_lost: Callable[[Any], Any] | None = None


@final
@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a piece returned, with its time and memory.

    Attributes:
        value: the result of its work.
        seconds: wall-clock time.
        cpu_seconds: CPU time of the process and of those that worked for it.
        unseen: of these, CPU seconds of processes that the audit's own process cannot see end.
        peak_mb: peak memory of its process so far, in MB (10⁶ bytes); 0: unknown.
    """

    value: Any
    seconds: float
    cpu_seconds: float
    peak_mb: float
    unseen: float = 0.0


class Workers(Protocol):
    """Processes that are ready to work.

    Attributes:
        jobs: largest number of pieces at a time.
        cores: largest number of processes that one piece may use.
        devices: kinds of devices that a piece may request.
    """

    @property
    def jobs(self) -> int: ...

    @property
    def cores(self) -> int: ...

    @property
    def devices(self) -> frozenset[str]: ...

    def submit(self, piece: Piece) -> None:
        """Submit a piece for :func:`run_piece` in some process; return immediately."""

    def finished(self) -> Iterator[tuple[Piece, Answer]]:
        """Yield each submitted piece once, when done, until none is left; more may be submitted meanwhile.

        A lost process is replaced and its piece runs again, or the audit ends with WorkerKilled.

        Raises:
            GlasshouseError: raised by a piece.
            WorkerKilled: a process was lost and is not replaced again.
            Interrupted: Ctrl-C.
        """


class Executor(Protocol):
    """A plug-in of the group ``glasshouse.executors``: a frozen dataclass with ``jobs`` and ``address``.

    An executor rejects a setting that has no meaning for it. ``jobs``: pieces at a time; 0: as many as fit.
    """

    card: ClassVar[Card]

    def start(self) -> AbstractContextManager[Workers]:
        """Provide workers for the duration of a ``with`` block.

        If it is left by an exception, such as Ctrl-C, running pieces are ended at once: they may take hours.
        """


def run_piece(piece: Piece) -> Answer:
    """Run ``piece`` in this process, after waiting for any other process that is running it."""
    prepare_process()
    if piece.lock:
        Path(piece.lock).parent.mkdir(parents=True, exist_ok=True)
    with FileLock(piece.lock) if piece.lock else nullcontext():
        started, busy, unseen = time.perf_counter(), processor_time(), crewed[0]
        value = piece.work(piece.task)
    return Answer(
        value=value,
        seconds=time.perf_counter() - started,
        cpu_seconds=processor_time() - busy,
        peak_mb=peak_memory(),
        unseen=crewed[0] - unseen,
    )


def peak_memory() -> float:
    """Peak memory of this process so far, in MB (10⁶ bytes); 0 where the system does not report it."""
    if sys.platform == "win32":
        return 0.0
    import resource  # noqa: PLC0415  (not on Windows)

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / 1e6 if sys.platform == "darwin" else most * 1024 / 1e6


def choose_device(device: str, there: frozenset[str]) -> str:
    """Resolve ``auto`` to an available device, and check that any other choice is available.

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
