"""Pieces of an audit as tasks of a Ray cluster: all machines read and write the same folders.

A task that is lost with its process or machine is restarted elsewhere, a few times. Every room has its own
worker processes: Ray runs tasks with different environment variables in different processes.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Final, final

from glasshouse.errors import BadFile, BadValue, not_installed
from glasshouse.executors.base import Answer, Piece, Workers, run_piece
from glasshouse.executors.local import SHARING
from glasshouse.process import interrupted, worker_killed
from glasshouse.registry import Card

RETRIES: Final = 3
"""Maximum number of restarts of a piece whose process or machine was lost."""
_OURS: Final = "GLASSHOUSE_"
_SILENT: Final = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}


@final
@dataclass(frozen=True, kw_only=True)
class Ray:
    """Tasks on a Ray cluster; without one, on a new cluster of this machine only.

    Attributes:
        jobs: concurrent pieces; 0: as many as the cluster has processors, and four per GPU.
        address: of the cluster: ``host:port``, ``ray://host:port``, ``auto`` or ``local``; empty: from
            ``RAY_ADDRESS``, else the cluster that runs on this machine, else a new one.
    """

    jobs: int = 0
    address: str = ""

    card: ClassVar[Card] = Card(
        summary="tasks on a Ray cluster; lost ones are started again",
        source="Moritz et al. 2018, arXiv:1712.05889",
        extra="ray",
    )

    @contextmanager
    def start(self) -> Iterator[Workers]:
        """Workers for the length of a ``with`` block.

        Raises:
            NotInstalled: Ray is missing.
            BadValue: no cluster answers at the address.
        """
        try:
            ray: Any = import_module("ray")
        except ImportError as error:
            raise not_installed("executor 'ray'", "ray", error, extra="ray") from error
        ours = not ray.is_initialized()
        if ours:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", FutureWarning)  # about future GPU behaviour of Ray
                    ray.init(address=self.address or None, **_SILENT)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise BadValue(
                    "executor 'ray'",
                    needs="the address of a Ray cluster that runs",
                    got=f"'{self.address}': {str(error).splitlines()[0]}",
                    fix="start one (docs/cluster.md), or leave --address out",
                ) from error
        try:
            yield _Cluster(ray, self.jobs, own=ours and not self.address)
        finally:
            if ours:
                ray.shutdown()


@final
class _Cluster:
    """A :class:`Workers` of Ray tasks; ``own``: this process started the cluster, and sees what it took."""

    def __init__(self, ray: Any, jobs: int, *, own: bool) -> None:
        self._ray, self._limit, self._own = ray, jobs, own
        self._there: dict[str, float] = ray.cluster_resources()
        self._work = ray.remote(_run_there)
        self._queue: list[Piece] = []
        self._running: dict[Any, Piece] = {}

    @property
    def jobs(self) -> int:
        return self._limit or int(self._there.get("CPU", 1))

    @property
    def cores(self) -> int:
        """Cores of the largest machine, as a piece runs on a single one."""
        cores = (node["Resources"].get("CPU", 1) for node in self._ray.nodes() if node["Alive"])
        return min(self.jobs, int(max(cores, default=1)))

    @property
    def devices(self) -> frozenset[str]:
        return frozenset({"cpu", *(("cuda",) if self._there.get("GPU") else ())})

    def submit(self, piece: Piece) -> None:
        self._queue.append(piece)
        self._fill()

    def finished(self) -> Iterator[tuple[Piece, Answer]]:
        try:
            while self._running:
                done, _ = self._ray.wait(list(self._running), num_returns=1)
                for reference in done:
                    piece = self._running.pop(reference)
                    answer = self._answer(reference)
                    self._fill()
                    yield piece, answer
        except KeyboardInterrupt as error:
            for reference in self._running:  # a cluster of others outlives this audit, its pieces must not
                self._ray.cancel(reference, force=True)
            raise interrupted("audit") from error

    def _fill(self) -> None:
        """Submit pieces in order; all of them, or up to ``jobs`` at a time."""
        while self._queue and self._fits(self._queue[0]):
            piece = self._queue.pop(0)
            task = self._work.options(
                num_cpus=piece.processes,
                num_gpus=self._share() if piece.device == "cuda" else 0,
                max_retries=RETRIES,
                name=piece.label,
                runtime_env={"env_vars": _environment(piece.room)},
            )
            self._running[task.remote(piece, str(Path.cwd()))] = piece

    def _fits(self, piece: Piece) -> bool:
        """Whether the piece fits beside the running ones; if none runs, it always does."""
        busy = sum(one.processes for one in self._running.values())
        return not self._limit or not busy or busy + piece.processes <= self._limit

    def _share(self) -> float:
        """Share of a GPU for one piece: GPUs divided by ``jobs``, at most 1; a fourth if ``jobs`` is 0."""
        return min(1.0, self._there.get("GPU", 1.0) / self._limit) if self._limit else 1 / SHARING

    def _answer(self, reference: Any) -> Answer:
        errors = self._ray.exceptions
        try:
            answer: Answer = self._ray.get(reference)
        except errors.RayTaskError as error:
            raise error.cause from None
        except errors.RayError as error:  # the process or the machine was lost too often
            raise worker_killed("audit") from error
        return answer if self._own else replace(answer, unseen=answer.cpu_seconds)


def _run_there(piece: Piece, folder: str) -> Answer:
    """:func:`run_piece` in the folder in which the audit was started.

    Raises:
        BadFile: this machine does not have that folder.
    """
    if not Path(folder).is_dir():
        raise BadFile(
            f"folder '{folder}' on machine '{os.uname().nodename}'",
            needs="the folder in which the audit was started, under the same path on every machine",
            got="no such folder",
            fix="start the audit in a folder that all machines share (docs/cluster.md)",
        )
    os.chdir(folder)
    return run_piece(piece)


def _environment(room: str) -> dict[str, str]:
    """Environment of a piece's process: one thread, our own variables, and the room, which separates them."""
    own = {name: value for name, value in os.environ.items() if name.startswith(_OURS)}
    return {**own, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GLASSHOUSE_ROOM": room}
