"""Stop a probe that takes too long."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class OutOfTime(BaseException):
    """A probe was stopped; not an ``Exception``, so that nothing takes it for an error of a plug-in."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Stop the block after this many CPU seconds.

    Only in a main thread of an operating system with timers of CPU time; elsewhere the block runs to its end.

    Raises:
        OutOfTime: time was up.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGPROF, stop)
    try:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    finally:
        signal.signal(signal.SIGPROF, signal.SIG_DFL if before is None else before)
