"""Score by a metric of another package in a process of its own: what it does to that process ends with it.

A metric that replaces a function of this program, of torch or of NumPy would change every verdict after it,
and one that ends its process or takes all memory would end the audit. The process is a fork, so that it sees
what has been read; all that comes back are records and numbers, which carry no code.
"""

import ctypes
import io
import os
import pickle
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any, Final, TypeVar

import numpy as np
import torch

from glasshouse.wire import Refusal

__all__ = ["apart"]

T = TypeVar("T")
_PACKAGE: Final = __name__.partition(".")[0]
_PLAIN: Final = frozenset({"builtins.frozenset", "builtins.set", "numpy.dtype", "numpy.ndarray"})
_ARRAYS: Final = frozenset(
    f"{function.__module__}.{function.__name__}"
    for function in (np.zeros(1).__reduce__()[0], np.float64(0).__reduce__()[0])
    if callable(function)
)
"""Functions by which NumPy reads its arrays and numbers; its versions have them in different modules."""
_DIE_WITH_PARENT: Final = 1  # prctl(2)


def apart(work: Callable[[], T | Refusal], *, subject: str) -> T | Refusal:
    """The result of ``work``, which runs in a fork of this process; where there are none, in this process.

    Args:
        work: returns records, numbers and arrays.
        subject: what runs, for the refusal.

    Returns:
        What it returned; a refusal if the process ended before, or something else came back. Processes that
        it started are ended with it, unless they left its session.
    """
    if sys.platform != "linux":
        return work()
    # A file, and no pipe: what the process leaves running could keep a pipe open for ever.
    with tempfile.TemporaryFile() as answer:
        with warnings.catch_warnings():
            # The child takes no lock of another thread: it runs one thread and ends with os._exit.
            warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*fork.*")
            process = os.fork()
        if process == 0:
            _answer(work, answer)
        _, status = os.waitpid(process, 0)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process, signal.SIGKILL)
        if status:
            return _refusal(subject, _ended(os.waitstatus_to_exitcode(status)))
        answer.seek(0)
        try:
            result: T | Refusal = _Records(answer).load()
        except (
            pickle.UnpicklingError,
            EOFError,
            AttributeError,
            ImportError,
            TypeError,
            ValueError,
        ) as error:
            return _refusal(subject, f"something else ({' '.join(str(error).split())[:200]})")
        return result


def _answer(work: Callable[[], Any], answer: IO[bytes]) -> None:
    """Run in the fork; never returns."""
    status = 1
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
        torch.set_num_threads(1)  # a fork has none of its parent's threads
        packed = pickle.dumps(work())
        answer.write(packed)
        answer.flush()
        status = 0
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, OSError, ValueError):  # replaced or closed
                stream.flush()
        os._exit(status)


class _Records(pickle.Unpickler):
    """Reads records of this package, arrays and numbers, and nothing that could run."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(io.BytesIO(file.read()))

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if full in _PLAIN | _ARRAYS:
            return super().find_class(module, name)
        found = super().find_class(module, name) if module.partition(".")[0] == _PACKAGE else None
        if not isinstance(found, type) or found.__module__ != module:
            raise pickle.UnpicklingError(full)
        return found


def _ended(code: int) -> str:
    if code < 0:
        with suppress(ValueError):
            return f"it was ended by {signal.Signals(-code).name} (out of memory?)"
    return f"it ended with code {code}"


def _refusal(subject: str, got: str) -> Refusal:
    return Refusal(
        subject=subject,
        needs="a process that lives until the scores are there, and scores as answer",
        got=got,
        fix="report it to the plug-in's author, or free some memory",
    )
