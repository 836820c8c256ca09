"""How a process of Glasshouse computes, and how independent pieces of one computation get a process each.

A process has one thread, and memory that it frees is kept for the next step.
"""

import ctypes
import multiprocessing
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

import torch

from glasshouse.errors import WorkerKilled
from glasshouse.progress import track

T = TypeVar("T")
R = TypeVar("R")

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt(3)
_BLOCK, _KEPT = 2**28, 2**29


def settle() -> None:
    """What every process does before it computes; harmless twice.

    One torch thread: two in one process were measured up to ten times slower than one when anything else ran.
    Blocks up to 256 MiB come from the heap, and up to 512 MiB of free heap stay: glibc otherwise hands larger
    activations back and has their pages zeroed again in the next step (1.1 to 1.7 times the time of a small
    convolutional network). Other C libraries are left as they are. No result depends on either.
    """
    torch.set_num_threads(1)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _BLOCK)
        mallopt(_TRIM_THRESHOLD, _KEPT)


def begin() -> None:
    """In a new worker: settled, and at an end as soon as the process that wanted its work is gone."""
    settle()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def each(work: Callable[[T], R], tasks: Sequence[T], *, processes: int, label: str) -> list[R]:
    """``work`` of every task, in their order; the same whatever ``processes`` is.

    Args:
        work: a function of a module. tasks: plain data, which another process can be handed.
        processes: tasks at a time, each in a process of its own; 1: one after the other, in this one.
        label: what is being done, for whoever shows the progress.

    Raises:
        WorkerKilled: the system ended one of the processes.
    """
    return list(track(_mapped(work, tasks, processes), label, total=len(tasks)))


def _mapped(work: Callable[[T], R], tasks: Sequence[T], processes: int) -> Iterator[R]:
    if processes <= 1 or len(tasks) <= 1:
        yield from map(work, tasks)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(processes, len(tasks)), mp_context=context, initializer=begin) as pool:
        try:
            for done in pool.map(_packed, [pickle.dumps((work, task)) for task in tasks]):
                yield pickle.loads(done)  # noqa: S301 - what our own process has just sent
        except BrokenProcessPool as error:
            raise worker_killed("computation") from error


def worker_killed(subject: str) -> WorkerKilled:
    """The error for a pool whose worker ended without an answer."""
    return WorkerKilled(
        subject,
        needs="worker processes that live until their piece is done",
        got="a worker process was killed (out of memory?)",
        fix="free some memory and run again with --jobs 1 --resume; what was finished is kept",
    )


def _packed(sent: bytes) -> bytes:
    """Bytes both ways: tensors as they are would travel through /dev/shm, which containers keep small."""
    work, task = pickle.loads(sent)  # noqa: S301 - as above
    return pickle.dumps(work(task))
