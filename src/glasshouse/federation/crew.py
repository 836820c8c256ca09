"""Clients of one round that train beside each other, each group of them in a process of its own.

A client's randomness is a stream of its own and sums are added up in the order of the clients, so that the
result is the same, to the bit, whatever the number of processes. That is not so of clients that remember
something, as behaviours and guards may: their federations are played in one process.
"""

import io
import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import Any, Final, Self, final

import torch
from torch import Tensor

from glasshouse.federation.rounds import Clients
from glasshouse.federation.setting import Answer, Request, Setting
from glasshouse.process import Workers, add_processor_time

__all__ = ["WORTH", "ProcessCrew"]

WORTH: Final = 5000
"""Trainings of a federation from which on processes of its own pay: each takes a second or two to begin."""
_TURNS = 2  # parts of a round for each process: the last one to end is waited for


@final
@dataclass(frozen=True, kw_only=True)
class _Part:
    """Some clients of a round, for a process that knows the federation."""

    number: int
    make: Callable[[Any], Setting]
    task: Any
    requests: list[Request]


@final
class ProcessCrew:
    """A :class:`~glasshouse.federation.setting.Crew` for the length of a ``with`` block.

    Args:
        processes: clients at a time.
        make: a function of a module that makes the setting anew, once in every process.
        task: plain data, from which it does.
    """

    def __init__(self, processes: int, *, make: Callable[[Any], Setting], task: Any) -> None:
        self._processes, self._make, self._task = processes, make, task
        self._workers = Workers(processes, apart=True, preload=(make.__module__,), subject="federation")

    def __enter__(self) -> Self:
        self._workers.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._workers.__exit__(kind, error, trace)

    def answers(self, requests: list[Request]) -> Iterator[Answer | None]:
        """Of each client, in order.

        Raises:
            GlasshouseError: what a client's training raised.
            WorkerKilled: the system ended one of the processes.
        """
        size = max(1, -(-len(requests) // (_TURNS * self._processes)))
        parts = [requests[start : start + size] for start in range(0, len(requests), size)]
        packed = [
            _pack(_Part(number=number, make=self._make, task=self._task, requests=part))
            for number, part in enumerate(parts)
        ]
        done: dict[int, list[Answer | None]] = {}
        expected = 0
        for answer in self._workers.each(_answer, packed):
            number, answers, seconds = pickle.loads(answer)  # noqa: S301 - what our own process sent
            add_processor_time(seconds)
            done[number] = answers
            while expected in done:
                yield from done.pop(expected)
                expected += 1


def _answer(packed: bytes) -> bytes:
    """Bytes both ways: tensors as they are would travel through /dev/shm, which containers keep small."""
    started = time.process_time()
    part: _Part = pickle.loads(packed)  # noqa: S301 - what our own process sent
    clients = _clients(part.make, part.task)
    answers = [clients.answer(one) for one in part.requests]
    return _pack((part.number, answers, time.process_time() - started))


class _Pickler(pickle.Pickler):
    """Tensors travel as arrays: torch's own way makes an archive of each, which costs half of a training."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is Tensor and obj.dtype in _AS_ARRAYS and not obj.requires_grad and obj.is_cpu:
            return torch.from_numpy, (obj.numpy(),)
        return NotImplemented


_AS_ARRAYS: Final = frozenset({torch.float32, torch.float64, torch.int64, torch.bool})


def _pack(content: object) -> bytes:
    place = io.BytesIO()
    _Pickler(place, protocol=pickle.HIGHEST_PROTOCOL).dump(content)
    return place.getvalue()


@lru_cache(maxsize=1)
def _clients(make: Callable[[Any], Setting], task: Any) -> Clients:
    return Clients(make(task))
