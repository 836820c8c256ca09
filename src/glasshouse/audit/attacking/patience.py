"""How long one call of an attack may take.

The user says it in ``GLASSHOUSE_CALL_LIMIT``, such as ``2 h``; without it a call may take for ever.
"""

import faulthandler
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from glasshouse.errors import BadValue, Inapplicable
from glasshouse.scenario.table import DURATION_NEEDS, seconds_of

__all__ = ["CALL_LIMIT", "call_limit", "limited"]

CALL_LIMIT: Final = "GLASSHOUSE_CALL_LIMIT"
PATIENCE: Final = 1.5
"""Limits after which the process of a call is ended that does not answer to an interrupt."""


def call_limit() -> float:
    """Seconds that a call may take; 0: as many as it wants.

    Raises:
        BadValue: the variable is set, and is no duration.
    """
    text = os.environ.get(CALL_LIMIT, "")
    if text and not seconds_of(text):
        raise BadValue(
            f"environment variable {CALL_LIMIT}",
            needs=DURATION_NEEDS,
            got=repr(text),
            fix="unset it for none",
        )
    return seconds_of(text)


@contextmanager
def limited(subject: str) -> Iterator[None]:
    """Interrupt the block at the limit of a call; end its worker process if that does not help.

    Args:
        subject: what runs, for the error.

    Raises:
        Inapplicable: the limit was reached.
    """
    limit = call_limit()
    if not limit:
        yield
        return

    def interrupt(*_: object) -> None:
        raise Inapplicable(
            subject,
            needs=f"a call that ends within {CALL_LIMIT} = {os.environ[CALL_LIMIT]}",
            got="it was still running",
            fix=f"give it more time, or a smaller budget; without {CALL_LIMIT} a call may take for ever",
        )

    # Signals arrive in the main thread alone, and no process of the user's own is ended.
    main = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    worker = multiprocessing.parent_process() is not None
    before = signal.signal(signal.SIGALRM, interrupt) if main else None
    with Path(os.devnull).open("w") as nowhere:
        if main:
            signal.setitimer(signal.ITIMER_REAL, limit)
        if worker:  # a thread below Python: it also ends what never returns to the interpreter
            faulthandler.dump_traceback_later(PATIENCE * limit, exit=True, file=nowhere)
        try:
            yield
        finally:
            if worker:
                faulthandler.cancel_dump_traceback_later()
            if main:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, before)
