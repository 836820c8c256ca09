"""Pieces in processes of this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Final, final

import torch

from glasshouse.errors import BadValue
from glasshouse.executors.base import Answer, Piece, Workers, run_piece
from glasshouse.process import Workers as Processes
from glasshouse.process import default_jobs
from glasshouse.registry import Card

SHARING: Final = 4
"""Worker processes per GPU: each has a context of half a gigabyte there, and small networks leave it idle."""
PRELOAD: Final = ("glasshouse.audit.stages", "torch._dynamo", "sklearn.datasets")
"""Imported once for all workers. Every optimizer of torch imports the second, which takes 2 CPU seconds; the
built-in data, and with them most controls, need the third."""


@final
@dataclass(frozen=True, kw_only=True)
class Local:
    """Worker processes on this machine.

    Attributes:
        jobs: processes; 0: one per core.
        address: has no meaning here.
        here: everything in this process, one piece after the other: no other one can have what it needs.
    """

    jobs: int = 0
    address: str = ""
    here: bool = False

    card: ClassVar[Card] = Card(summary="worker processes on this machine")

    @contextmanager
    def start(self) -> Iterator[Workers]:
        """Workers for the length of a ``with`` block.

        Raises:
            BadValue: an address is given.
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


@final
class _Rooms:
    """One set of processes for each room; all end as soon as no piece is left."""

    def __init__(self, jobs: int, *, here: bool) -> None:
        self._jobs, self._here = jobs, here
        self._rooms: dict[str, Processes] = {}

    @property
    def jobs(self) -> int:
        return self._jobs

    @property
    def cores(self) -> int:
        return 1 if self._here else self._jobs

    @property
    def devices(self) -> frozenset[str]:
        """What torch finds on this machine."""
        there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
        return frozenset(name for name, found in there.items() if found)

    def submit(self, piece: Piece) -> None:
        if piece.room not in self._rooms:
            jobs = processes_on(piece.device, self._jobs)
            self._rooms[piece.room] = Processes(jobs, apart=not self._here, preload=PRELOAD)
        self._rooms[piece.room].submit(run_piece, piece)

    def finished(self) -> Iterator[tuple[Piece, Answer]]:
        while self._rooms:
            room, processes = next(iter(self._rooms.items()))
            yield from processes.finished()
            self._rooms.pop(room).end()

    def end(self, *, wait: bool = True) -> None:
        """End all processes; where one failed, without waiting for the others."""
        for room in self._rooms.values():
            room.end(wait=wait)
        self._rooms = {}


def processes_on(device: str, jobs: int) -> int:
    """Of ``jobs`` worker processes, as many as may share the device.

    Examples:
        >>> processes_on("cpu", 64)
        64
    """
    if device == "cpu":
        return jobs
    return min(jobs, SHARING * max(1, torch.cuda.device_count() if device == "cuda" else 1))
