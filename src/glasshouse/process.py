"""How a process of Glasshouse computes, and how independent pieces of one computation get a process each.

A process has one thread, and memory that it frees is kept for the next step. Parallelism is over pieces,
never inside one. A task is a function of a module and plain data.
"""

import ctypes
import gc
import multiprocessing
import os
import pickle
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from types import ModuleType, TracebackType
from typing import Any, Self, TypeVar, final

import torch

from glasshouse.errors import Interrupted, WorkerKilled
from glasshouse.progress import track

T = TypeVar("T")
R = TypeVar("R")

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt(3)
_BLOCK, _KEPT = 2**28, 2**29


def prepare_process() -> None:
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


_elsewhere = [0.0]


def processor_time() -> float:
    """Processor seconds of this process so far, and of others that worked for it and said so."""
    return time.process_time() + _elsewhere[0]


def add_processor_time(seconds: float) -> None:
    """Another process worked so long for this one."""
    _elsewhere[0] += seconds


def begin() -> None:
    """In a new worker: settled, and at an end as soon as the process that wanted its work is gone."""
    prepare_process()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def each(work: Callable[[T], R], tasks: Sequence[T], *, processes: int, label: str) -> list[R]:
    """``work`` of every task, in their order; the same whatever ``processes`` is.

    Args:
        work: a function of a module.
        tasks: plain data, which another process can be handed.
        processes: tasks at a time, each in a process of its own; 1: one after the other, in this one.
        label: what is being done, for whoever shows the progress.

    Raises:
        WorkerKilled: the system ended one of the processes.
    """
    if processes <= 1 or len(tasks) <= 1:
        return list(track(map(work, tasks), label, total=len(tasks)))
    packed = [pickle.dumps((number, work, task)) for number, task in enumerate(tasks)]
    with Workers(min(processes, len(tasks)), subject="computation") as workers:
        answers = track(workers.each(_answer, packed), label, total=len(tasks))
        by_number = dict(pickle.loads(answer) for answer in answers)  # noqa: S301 - what our own process sent
    return [by_number[number] for number in range(len(tasks))]


def _answer(packed: bytes) -> bytes:
    """Bytes both ways: tensors as they are would travel through /dev/shm, which containers keep small."""
    number, work, task = pickle.loads(packed)  # noqa: S301 - as above
    return pickle.dumps((number, work(task)))


def default_jobs() -> int:
    """Default number of worker processes: one per core available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@final
class Workers:
    """Worker processes for the length of a ``with`` block.

    Args:
        jobs: processes at a time; with one, all work is done in this process, unless ``apart``.
        apart: never work in this process. Plug-ins run apart from the process that scores their claims.
        preload: modules that are imported once for all workers, where the system allows it.
        subject: whose work it is, for errors.
    """

    def __init__(
        self, jobs: int, *, apart: bool = False, preload: Sequence[str] = (__name__,), subject: str = "audit"
    ) -> None:
        self._jobs = max(1, jobs)
        self._apart, self._preload, self._subject = apart, preload, subject
        self._here = self._jobs == 1 and not apart
        self._queue: deque[tuple[Callable[[Any], Any], Any]] = deque()
        self._waiting: dict[Future[Any], Any] = {}
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(wait=kind is None)

    def end(self, *, wait: bool = True) -> None:
        """End the processes; without ``wait``, their work is abandoned."""
        if self._pool is not None:
            self._pool.shutdown(wait=wait, cancel_futures=True)

    def each(self, work: Callable[[T], R], tasks: Sequence[T]) -> Iterator[R]:
        """Results in the order in which they finish. Raises what :meth:`finished` raises."""
        here = self._here or (not self._apart and len(tasks) <= 1)
        if here:
            self._queue.extend((work, task) for task in tasks)
        else:
            for task in tasks:
                self.submit(work, task)
        return (result for _, result in self.finished())

    def submit(self, work: Callable[[T], R], task: T) -> None:
        """Work to be done; its result comes out of :meth:`finished`."""
        if self._here:
            self._queue.append((work, task))
            return
        with nullcontext() if work.__module__ == "__main__" else _without_main():
            self._waiting[self._start_pool().submit(work, task)] = task

    def finished(self) -> Iterator[tuple[Any, Any]]:
        """Tasks with their results as they finish, until none is left; more may be submitted meanwhile.

        Raises:
            Interrupted: Ctrl-C; running pieces are abandoned, finished ones were yielded.
            WorkerKilled: the system ended a worker.
        """
        try:
            while self._queue or self._waiting:
                if self._queue:
                    work, task = self._queue.popleft()
                    yield task, work(task)
                    continue
                for future in wait(self._waiting, return_when=FIRST_COMPLETED).done:
                    yield self._waiting.pop(future), future.result()
        except BrokenProcessPool as error:
            raise worker_killed(self._subject) from error
        except KeyboardInterrupt as error:
            if multiprocessing.parent_process() is not None:
                raise  # a worker's own workers: the audit says so, once
            raise interrupted(self._subject) from error

    def _start_pool(self) -> ProcessPoolExecutor:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self._jobs,
                mp_context=_start_method(self._preload),
                initializer=_begin_worker,
                initargs=(dict(os.environ),),
            )
        return self._pool


def _start_method(preload: Sequence[str]) -> Any:
    """How workers start: on Linux as forks of a server that has imported ``preload`` and run nothing else.

    Elsewhere each is a new interpreter. Never forks of this process, which may have threads and a device.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    return context


@contextmanager
def _without_main() -> Iterator[None]:
    """Workers that start in the block do not run the user's script again: they need nothing of it.

    Python would have each of them import it first, and a script without an ``if __name__ == "__main__"``
    would begin its audit once more in every worker.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _begin_worker(environment: dict[str, str]) -> None:
    """Set a new worker's environment variables to those of the process that started it.

    What was imported before it was forked stays to its end: the garbage collector need not look at it (0.3
    CPU seconds each time, and as many pages copied).
    """
    os.environ.clear()
    os.environ.update(environment)
    begin()
    gc.freeze()


def interrupted(subject: str) -> Interrupted:
    """The error for Ctrl-C while workers computed."""
    return Interrupted(
        subject,
        needs="time to finish",
        got="an interrupt (Ctrl-C)",
        fix="the same command with --resume goes on",
    )


def worker_killed(subject: str) -> WorkerKilled:
    """The error for a pool whose worker ended without an answer."""
    return WorkerKilled(
        subject,
        needs="worker processes that live until their piece is done",
        got="a worker process was killed (out of memory?)",
        fix="free some memory and run again with --jobs 1 --resume; what was finished is kept",
    )
