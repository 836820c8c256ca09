"""Independent pieces of work in worker processes, each with one torch thread.

Two threads in one process were measured up to ten times slower than one when anything else ran; so
parallelism is over pieces, never inside one. A task is a module-level function and plain data.
"""

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType
from typing import Any, Self, TypeVar, final

from glasshouse.errors import Interrupted
from glasshouse.process import begin, worker_killed

T = TypeVar("T")
R = TypeVar("R")


def default_jobs() -> int:
    """Worker processes used unless told: one per core that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@final
class Workers:
    """Worker processes for the length of a ``with`` block.

    Args:
        jobs: processes at a time; with one, all work is done in this process, unless ``apart``.
        apart: never work in this process. Plug-ins run apart from the process that scores their claims.
    """

    def __init__(self, jobs: int, *, apart: bool = False) -> None:
        self._jobs = max(1, jobs)
        self._apart = apart
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=kind is None, cancel_futures=True)

    def each(self, work: Callable[[T], R], tasks: Sequence[T]) -> Iterator[R]:
        """Results in the order in which they finish.

        Raises:
            Interrupted: Ctrl-C; running pieces are abandoned, finished ones were yielded.
            WorkerKilled: the system ended a worker.
        """
        try:
            if not self._apart and (self._jobs == 1 or len(tasks) <= 1):
                yield from map(work, tasks)
                return
            waiting: set[Future[R]] = {self._start_pool().submit(work, task) for task in tasks}
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        except BrokenProcessPool as error:
            raise worker_killed("audit") from error
        except KeyboardInterrupt as error:
            raise Interrupted(
                "audit",
                needs="time to finish",
                got="an interrupt (Ctrl-C)",
                fix="the same command with --resume goes on",
            ) from error

    def _start_pool(self) -> ProcessPoolExecutor:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self._jobs,
                mp_context=_start_method(),
                initializer=_begin_worker,
                initargs=(dict(os.environ),),
            )
        return self._pool


def _start_method() -> Any:
    """How workers start: on Linux as forks of a server that has imported torch once and run nothing else.

    Elsewhere each is a new interpreter. Never forks of this process, which may have threads and a device.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["glasshouse.audit.attacking.call"])
    return context


def _begin_worker(environment: dict[str, str]) -> None:
    """In a new worker: the variables of the process that wants its work, which the server may not have."""
    os.environ.clear()
    os.environ.update(environment)
    begin()
