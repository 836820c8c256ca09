"""Make a call in a process of its own, under limits, and read its answer."""

import atexit
import json
import os
import pickle
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, final

from glasshouse.gate.apart.limits import Limits
from glasshouse.gate.apart.opener import LENGTH

ANSWER: Final = 2**26
"""Bytes of an answer: ids and places of objects, never tensors."""
_SLOW: Final = 30.0
"""Seconds beside a call's own limit, for a machine that is busy or starts the process anew."""


@final
class NotOpened(Exception):
    """The call gave no answer. Its text is one word, for the site's own log."""


@final
class Opener:
    """Starts the process that forks, and asks it; safe to call from several threads.

    Args:
        modules: imported there once, so that a fork finds them.

    Attributes:
        processor: seconds of processor time that calls took, without the forking itself.
    """

    def __init__(self, modules: Sequence[str] = ()) -> None:
        self.processor = 0.0
        self._modules = modules
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        atexit.register(self.close)

    @property
    def pid(self) -> int:
        """Of the process that forks; 0: it was not needed yet."""
        return self._process.pid if self._process else 0

    def call(
        self, work: Callable[..., Any], limits: Limits, arguments: tuple[Any, ...], files: Sequence[int]
    ) -> Any:
        """What ``work(*arguments, *files)`` returns there, from JSON.

        Args:
            work: a module-level function that returns what JSON can hold.
            limits: of its process.
            arguments: picklable.
            files: descriptors, handed on as descriptors.

        Raises:
            NotOpened: it failed, was ended, or took too long.
        """
        request = pickle.dumps((work, limits, arguments))
        near, far = os.pipe()
        try:
            try:
                self._ask(request, [far, *files])
            finally:
                os.close(far)
            answer = json.loads(_read(near, time.monotonic() + limits.clock + _SLOW))
        except (OSError, ValueError) as error:
            raise NotOpened("ended" if isinstance(error, ValueError) else type(error).__name__) from error
        finally:
            os.close(near)
        if "fault" in answer:
            raise NotOpened(str(answer["fault"])[:40])
        self.processor += float(answer["processor"])
        return answer["answer"]

    def _ask(self, request: bytes, files: list[int]) -> None:
        """Send a request; if the process is gone it is started anew, once."""
        with self._lock:
            for turn in (0, 1):
                gate = self._started()
                try:
                    socket.send_fds(gate, [len(request).to_bytes(LENGTH, "big")], files)
                    gate.sendall(request)
                except OSError:
                    self._end()
                    if turn:
                        raise
                else:
                    return

    def _started(self) -> socket.socket:
        if self._socket is not None and self._process is not None and self._process.poll() is None:
            return self._socket
        self._end()
        near, far = socket.socketpair()
        with far:
            command = [
                sys.executable,
                "-m",
                "glasshouse.gate.apart.opener",
                str(far.fileno()),
                *self._modules,
            ]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            self._process = subprocess.Popen(
                command, pass_fds=[far.fileno()], env=environment, stdin=subprocess.DEVNULL
            )
        near.settimeout(_SLOW * 2)
        self._socket = near
        return near

    def _end(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._socket = self._process = None

    def close(self) -> None:
        """End the process, and what it is working on."""
        with self._lock:
            self._end()


def _read(descriptor: int, until: float) -> bytes:
    """Everything up to the end; a call that gives none in time is not waited for."""
    answer, waiting = bytearray(), select.poll()
    waiting.register(descriptor, select.POLLIN)
    while True:
        if not waiting.poll(max(0.0, until - time.monotonic()) * 1000):
            raise TimeoutError
        part = os.read(descriptor, 2**20)
        if not part:
            return bytes(answer)
        answer += part
        if len(answer) > ANSWER:
            raise ValueError("too long")
