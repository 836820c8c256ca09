"""Process settings, and worker processes for the independent tasks of one computation.

Each process runs one torch thread and keeps freed memory for the next step. Parallelism is across tasks,
never within one. A task is a module-level function and plain data.
"""

import ctypes
import gc
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from types import ModuleType
from typing import Any, Self, TypeVar, final

import torch

from glasshouse.errors import Interrupted, WorkerKilled
from glasshouse.progress import track

T = TypeVar("T")
R = TypeVar("R")

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt(3)
_BLOCK, _KEPT = 2**28, 2**29
TIMES = 2
"""Processes that a task may end while it runs alone."""


def prepare_process() -> None:
    """Set up a process for computing; may be called twice.

    One torch thread: two in one process were measured up to ten times slower than one when anything else ran.
    Blocks up to 256 MiB come from the heap, and up to 512 MiB of free heap is kept: otherwise glibc returns
    larger activations to the system, which zeroes their pages again in the next step (1.1 to 1.7 times the
    time for a small convolutional network). Other C libraries are left as they are. Neither changes results.
    """
    torch.set_num_threads(1)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _BLOCK)
        mallopt(_TRIM_THRESHOLD, _KEPT)


@contextmanager
def as_torch_starts() -> Iterator[None]:
    """Torch's modes as a new process has them, in this block or in the function that it decorates.

    Whoever calls from within ``torch.no_grad()``, an autocast, or with float64 or a GPU as default asks for
    the same work; what was set is set again afterwards.
    """
    device, number = torch.get_default_device(), torch.get_default_dtype()
    with ExitStack() as modes:
        modes.enter_context(torch.inference_mode(False))
        modes.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                modes.enter_context(torch.autocast(kind, enabled=False))
        if device.type != "cpu":  # a mode of torch's, which would slow every call down
            modes.enter_context(torch.device("cpu"))
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(number)


@contextmanager
def flushed_subnormals() -> Iterator[None]:
    """Count numbers below 1.2e-38 (float32) as zero in this block, or in the function it decorates.

    Processors treat them in microcode: trained networks, some 5 % of whose weights are so small, take two to
    three times as long. Where claims are scored they stay, because p-values may be so small.
    """
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def processor_time() -> float:
    """CPU seconds so far of this process, of those that it waited for, and of crews (:func:`charging_crew`).

    Windows tells nothing of other processes: only this one counts there.
    """
    return time.process_time() + _ended_children() + crewed[0]


def tree_time() -> float:
    """CPU seconds so far of this process and all that it started, whether they run, ended or were killed.

    On Linux what runs is read from ``/proc``, to a hundredth of a second per process. Elsewhere a process
    counts once it has ended; on Windows only this process counts.
    """
    return time.process_time() + _ended_children() + running_time()


def _ended_children() -> float:
    """CPU seconds of the processes that this one waited for, and of those that they waited for."""
    if sys.platform == "win32":
        return 0.0
    import resource  # noqa: PLC0415  (not on Windows)

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def running_time() -> float:
    """CPU seconds of the running descendants of this process and of whom they waited for; 0 off Linux."""
    if sys.platform != "linux":
        return 0.0
    spent, children = dict[int, float](), dict[int, list[int]]()
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            # The name before may hold spaces and brackets; then come state, parent and, from the 12th on,
            # user and system time of the process and of its children (proc(5)).
            fields = file.read_bytes().rpartition(b")")[2].split()
            number = int(file.parent.name)
            spent[number] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
            children.setdefault(int(fields[1]), []).append(number)
    total, waiting = 0.0, list(children.get(os.getpid(), ()))
    while waiting:
        number = waiting.pop()
        total += spent[number]
        waiting += children.get(number, ())
    return total


crewed = [0.0]
"""CPU seconds of processes that this one started, on Linux, and will not see end (:func:`charging_crew`)."""


@contextmanager
def charging_crew() -> Iterator[None]:
    """Charge this process with what starts in the block below a server of workers of its own.

    The server outlives the block, and nobody waits for it when this process ends.
    """
    before = running_time()
    try:
        yield
    finally:
        crewed[0] += running_time() - before


_charged_whole = [False]


def charge_from_start() -> None:
    """Charge the next computation with all that this process has done: it was started for it alone."""
    _charged_whole[0] = True


def first_second() -> float:
    """The :func:`tree_time` from which a computation that begins now is charged."""
    whole, _charged_whole[0] = _charged_whole[0], False
    return 0.0 if whole else tree_time()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def each(work: Callable[[T], R], tasks: Sequence[T], *, processes: int, label: str) -> list[R]:
    """Apply ``work`` to every task; results in task order, the same for any number of ``processes``.

    Args:
        work: a module-level function.
        tasks: picklable data.
        processes: tasks at a time, each in its own process; 1: one after another, in this process.
        label: description of the work, for the progress display.

    Raises:
        WorkerKilled: the system ended one of the processes.
    """
    if processes <= 1 or len(tasks) <= 1:
        return list(track(map(work, tasks), label, total=len(tasks)))
    packed = [pickle.dumps((number, work, task)) for number, task in enumerate(tasks)]
    with Workers(min(processes, len(tasks)), subject="computation") as workers:
        answers = track(workers.each(_answer, packed), label, total=len(tasks))
        by_number = dict(pickle.loads(answer) for answer in answers)  # noqa: S301 - sent by our own process
    return [by_number[number] for number in range(len(tasks))]


def _answer(packed: bytes) -> bytes:
    """Run a pickled task. Bytes both ways: tensors would travel through /dev/shm, small in containers."""
    number, work, task = pickle.loads(packed)  # noqa: S301 - as above
    return pickle.dumps((number, work(task)))


def default_jobs() -> int:
    """Default number of worker processes: one per core available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@final
class Workers:
    """Worker processes for the duration of a ``with`` block.

    Args:
        jobs: processes at a time; with one, all work is done in this process, unless ``apart``.
        apart: never work in this process. Plug-ins run in other processes than the scoring of their claims.
        preload: modules that are imported once for all workers, where the system allows it.
        subject: what the workers compute, for error messages.
        if_lost: called with a task that ended its process ``TIMES`` times, the last ones while it ran alone;
            answers in its place, or raises. None: the first process that is lost ends the computation.
    """

    def __init__(
        self,
        jobs: int,
        *,
        apart: bool = False,
        preload: Sequence[str] = (__name__,),
        subject: str = "audit",
        if_lost: Callable[[Any], Any] | None = None,
    ) -> None:
        self._jobs = max(1, jobs)
        self._apart, self._preload, self._subject, self._if_lost = apart, preload, subject, if_lost
        self._here = self._jobs == 1 and not apart
        self._queue: deque[tuple[Callable[[Any], Any], Any]] = deque()
        self._waiting: dict[Future[Any], tuple[Callable[[Any], Any], Any]] = {}
        self._pool: ProcessPoolExecutor | None = None
        self._losses = 0  # of the task that has waited longest, while it ran alone

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.end(wait=kind is None)

    def end(self, *, wait: bool = True) -> None:
        """End the processes; without ``wait``, at once: what they were working on is lost.

        They are killed, as an abandoned piece may take hours and must not write half of its output. Processes
        that they started themselves end with them (:func:`_end_with_parent`).
        """
        if self._pool is None:
            return
        if not wait:
            for process in list((self._pool._processes or {}).values()):  # public from 3.14
                process.kill()
        self._pool.shutdown(wait=wait, cancel_futures=True)

    def each(self, work: Callable[[T], R], tasks: Sequence[T]) -> Iterator[R]:
        """Yield results as they finish. Raises what :meth:`finished` raises."""
        if self._here or (not self._apart and len(tasks) <= 1):
            self._queue.extend((work, task) for task in tasks)
        else:
            for task in tasks:
                self.submit(work, task)
        return (result for _, result in self.finished())

    def submit(self, work: Callable[[T], R], task: T) -> None:
        """Submit a task; :meth:`finished` yields its result."""
        if self._here:
            self._queue.append((work, task))
            return
        deaf = nullcontext() if sys.platform == "linux" else _deaf_to_interrupts()
        with nullcontext() if work.__module__ == "__main__" else _without_main(), deaf:
            if self._pool is None:
                self._pool = ProcessPoolExecutor(
                    self._jobs,
                    mp_context=_start_method(self._preload),
                    initializer=_begin_worker,
                    initargs=(dict(os.environ),),
                )
            try:
                future = self._pool.submit(work, task)
            except BrokenProcessPool as error:  # a process was lost, and nobody has looked since
                future = Future()
                future.set_exception(error)
            self._waiting[future] = work, task

    def finished(self) -> Iterator[tuple[Any, Any]]:
        """Yield tasks with their results as they finish, until none is left; more may be submitted meanwhile.

        Raises:
            Interrupted: Ctrl-C; finished tasks have been yielded, :meth:`end` kills the running ones.
            WorkerKilled: the system ended a worker.
        """
        try:
            while self._queue or self._waiting:
                if self._queue:
                    work, task = self._queue.popleft()
                    yield task, work(task)
                    continue
                for future in wait(self._waiting, return_when=FIRST_COMPLETED).done:
                    if self._if_lost is not None and _is_lost(future):
                        yield from self._again(self._if_lost)
                        break
                    _, task = self._waiting.pop(future)
                    self._losses = 0
                    yield task, future.result()
        except BrokenProcessPool as error:
            raise worker_killed(self._subject) from error
        except KeyboardInterrupt as error:
            if multiprocessing.parent_process() is not None:
                raise  # workers of a worker: the audit itself reports it, once
            raise interrupted(self._subject) from error

    def _again(self, if_lost: Callable[[Any], Any]) -> Iterator[tuple[Any, Any]]:
        """Submit what was not finished when a process was lost, one task after another in a new process.

        Several tasks may have been running, and memory may have been short for all of them together. Alone,
        in order, it is the first one that ends its process.
        """
        assert self._pool is not None
        alone = self._jobs == 1
        self._pool.shutdown(wait=True)
        self._pool, self._jobs = None, 1
        ended = {future: one for future, one in self._waiting.items() if _is_lost(future)}
        finished = [future for future in self._waiting if future not in ended]
        for future in finished:
            yield self._waiting.pop(future)[1], future.result()
        waiting, self._waiting = list(ended.values()), {}
        self._losses = self._losses + 1 if alone and not finished else int(alone)
        if self._losses >= TIMES:
            self._losses, (_, task) = 0, waiting.pop(0)
            yield task, if_lost(task)
        for work, task in waiting:
            self.submit(work, task)


def _is_lost(future: Future[Any]) -> bool:
    """Whether its process was lost; every task of a pool that broke is finished or lost."""
    return isinstance(future.exception(), BrokenProcessPool)


def _start_method(preload: Sequence[str]) -> Any:
    """How workers start: on Linux forked from a server process that has only imported ``preload``.

    Elsewhere each is a new interpreter. Never forked from this process, which may have threads and a device.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    with _deaf_to_interrupts():
        forkserver.ensure_running()
    return context


@contextmanager
def _without_main() -> Iterator[None]:
    """Keep workers that start in this block from running the user's script again.

    Python would make each of them import it first, and a script without ``if __name__ == "__main__"``
    would start its audit again in every worker.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Let processes that start in this block, and all that they fork, receive no Ctrl-C.

    Their parent answers it, by ending them. A terminal sends it to all processes, and each would print a
    traceback of its own. Windows knows no mask: there a worker is deaf once it has started.
    """
    if sys.platform == "win32":
        yield
        return
    resource_tracker.ensure_running()  # when it starts, it removes the mask
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin_worker(environment: dict[str, str]) -> None:
    """Set up a new worker with the environment variables of its parent process; it ends when that is gone.

    Objects imported before the fork live until the worker ends, so the garbage collector skips them: each
    pass would cost 0.3 CPU seconds, and copy their memory pages.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    os.environ.clear()
    os.environ.update(environment)
    prepare_process()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    gc.freeze()


def interrupted(subject: str) -> Interrupted:
    """The error for Ctrl-C while workers were computing."""
    return Interrupted(
        subject,
        needs="time to finish",
        got="an interrupt (Ctrl-C)",
        fix="the same command with --resume goes on",
    )


def worker_killed(subject: str) -> WorkerKilled:
    """The error for a worker that died without returning a result."""
    return WorkerKilled(
        subject,
        needs="worker processes that live until their piece is done",
        got="a worker process was killed (out of memory?)",
        fix="free some memory and run again with --jobs 1 --resume; what was finished is kept",
    )
