"""Choose the executor of an audit; run pieces in processes on this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Final, final

import torch

from glasshouse.errors import BadValue
from glasshouse.executors.base import Answer, Executor, Piece, Workers, run_piece
from glasshouse.process import Workers as Processes
from glasshouse.process import default_jobs, worker_killed
from glasshouse.registry import Card, create, load, own_modules

HERE: Final = "local"
"""Registered name of the executor on this machine."""
SHARING: Final = 4
"""Worker processes per GPU: each takes half a gigabyte for its context; one small network underuses a GPU."""
SERVER: Final = "glasshouse.executors.server"
"""The module that imports those of ``PRELOAD``."""
PRELOAD: Final = (
    "glasshouse.audit.stages",
    "torch._dynamo",
    "scipy.stats",
    *(
        name
        for name in own_modules("attacks", "behaviours", "claims", "figures", "metrics", "protocols")
        if ".protocols.documents." not in name
    ),
)
"""Modules imported once for all workers. Every torch optimizer imports the second, which takes 1.5 CPU
seconds; scores import the third. Protocols of documents import XGBoost, with pandas and scikit-learn: whoever
simulates them imports those. Plug-ins of other packages are left out: they are imported only where they are
used, so that they cannot change a process that scores."""


@final
@dataclass(frozen=True, kw_only=True)
class Local:
    """Worker processes on this machine.

    Attributes:
        jobs: processes; 0: one per core.
        address: not supported.
        here: run all pieces in this process, one after another, as no other process has what they need.
    """

    jobs: int = 0
    address: str = ""
    here: bool = False

    card: ClassVar[Card] = Card(summary="worker processes on this machine")

    @contextmanager
    def start(self) -> Iterator[Workers]:
        """Provide workers for the duration of a ``with`` block.

        Raises:
            BadValue: an address is set.
        """
        if self.address:
            raise BadValue(
                "executor 'local'",
                needs="no address: it works on this machine",
                got=f"address '{self.address}'",
                fix="leave --address out, or choose another --executor",
            )
        workers = _Rooms(1 if self.here else self.jobs or default_jobs(), here=self.here)
        try:
            yield workers
        except BaseException:
            workers.end(wait=False)
            raise
        workers.end()


def devices_here() -> frozenset[str]:
    """The kinds of devices that this machine has, as torch was built."""
    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return frozenset(name for name, is_there in present.items() if is_there)


@final
class _Rooms:
    """One set of worker processes per room, ended when none of its pieces is left."""

    def __init__(self, jobs: int, *, here: bool) -> None:
        self.jobs, self.cores, self._here = jobs, 1 if here else jobs, here
        self.devices = devices_here()
        self._rooms: dict[str, Processes] = {}

    def submit(self, piece: Piece) -> None:
        if piece.room not in self._rooms:
            jobs = processes_on(piece.device, self.jobs)
            self._rooms[piece.room] = Processes(
                jobs, apart=not self._here, preload=(SERVER,), if_lost=_answer_for
            )
        self._rooms[piece.room].submit(run_piece, piece)

    def finished(self) -> Iterator[tuple[Piece, Answer]]:
        while self._rooms:
            room, processes = next(iter(self._rooms.items()))
            yield from processes.finished()
            self._rooms.pop(room).end()

    def end(self, *, wait: bool = True) -> None:
        """End all processes; without ``wait``, do not wait for their work."""
        for room in self._rooms.values():
            room.end(wait=wait)
        self._rooms = {}


def _answer_for(piece: Piece) -> Answer:
    """The answer in place of a piece that ended its process again and again."""
    if piece.if_lost is None:
        raise worker_killed("audit")
    return Answer(value=piece.if_lost(piece.task), seconds=0.0, cpu_seconds=0.0, peak_mb=0.0)


def processes_on(device: str, jobs: int) -> int:
    """The number of worker processes, at most ``jobs``, that may share the device.

    Examples:
        >>> processes_on("cpu", 64)
        64
    """
    if device == "cpu":
        return jobs
    return min(jobs, SHARING * max(1, torch.cuda.device_count() if device == "cuda" else 1))


def choose_executor(name: str, *, jobs: int = 0, address: str = "", here: bool = False) -> Executor:
    """The executor plug-in ``name``; ``here``: only this process has what the pieces need.

    Raises:
        UnknownName: no such plug-in.
        BadValue: only this process can do the work, but another executor was requested.
    """
    if not here:
        executor: Executor = create(load("executors", name), {"jobs": jobs, "address": address})
        return executor
    if name != HERE:
        raise BadValue(
            f"executor '{name}'",
            needs="a model that other machines can build",
            got="a network in memory",
            fix="name it as module:factory in [model], or leave executor out",
        )
    return Local(here=True)
