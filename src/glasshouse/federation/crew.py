"""Parallel training of the clients of a round in worker processes.

Each client has its own random stream and sums are accumulated in client order, so the result is bitwise
identical for any number of processes. That does not hold for clients that keep state between rounds, as
behaviours and guards may: their federations run in one process.
"""

import io
import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import lru_cache
from typing import Any, Final, Self, final

import torch
from torch import Tensor

from glasshouse.federation.rounds import Clients
from glasshouse.federation.setting import Answer, Request, Setting
from glasshouse.process import Workers, charging_crew

WORTH: Final = 5000
"""Client trainings per federation from which worker processes pay off: each takes 1 to 2 s to start."""
_TURNS = 2  # parts of a round per process, so that less time is spent waiting for the slowest


@final
class ProcessCrew:
    """A :class:`~glasshouse.federation.setting.Crew` for the length of a ``with`` block.

    Args:
        processes: number of worker processes.
        make: a module-level function that builds the setting, once per process.
        task: its argument, plain data.
    """

    def __init__(self, processes: int, *, make: Callable[[Any], Setting], task: Any) -> None:
        self._processes, self._maker = processes, (make, task)
        self._workers = Workers(processes, apart=True, preload=(make.__module__,), subject="federation")
        self._block = ExitStack()

    def __enter__(self) -> Self:
        # Leaving goes the other way round: what the workers took is counted once they have ended.
        self._block.enter_context(charging_crew())
        self._block.enter_context(self._workers)
        return self

    def __exit__(self, *error: Any) -> None:
        self._block.__exit__(*error)

    def answers(self, requests: list[Request]) -> Iterator[Answer | None]:
        """The answers in the order of the requests.

        Raises:
            GlasshouseError: a client's training raised it.
            WorkerKilled: the system killed one of the processes.
        """
        size = max(1, -(-len(requests) // (_TURNS * self._processes)))
        parts = [requests[start : start + size] for start in range(0, len(requests), size)]
        packed = [_pack((number, self._maker, part)) for number, part in enumerate(parts)]
        done: dict[int, list[Answer | None]] = {}
        expected = 0
        for answer in self._workers.each(_answer, packed):
            number, answers = pickle.loads(answer)  # noqa: S301 - what our own process sent
            done[number] = answers
            while expected in done:
                yield from done.pop(expected)
                expected += 1


def _answer(packed: bytes) -> bytes:
    """Run one part. Bytes in and out: tensors would be passed through /dev/shm, small in containers."""
    number, maker, requests = pickle.loads(packed)  # noqa: S301 - what our own process sent
    answers = [_clients(*maker).answer(one) for one in requests]
    return _pack((number, answers))


class _Pickler(pickle.Pickler):
    """Pickles tensors as arrays: torch's own archive per tensor costs half as much time as a training."""

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
