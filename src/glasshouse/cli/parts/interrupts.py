"""Ctrl-C on the command line: the first one ends the command within seconds, further ones do nothing.

Python answers a signal between two operations of its own. One that arrives during a long call into a library
would have to wait, so a thread that the operating system wakes up directly ends the process after a while.
"""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final, final

INTERRUPTED: Final = 130
"""Exit code after Ctrl-C."""
MESSAGE: Final = "interrupted; what is finished is kept, --resume goes on"
PATIENCE: Final = 2.0
"""Seconds in which Python has to notice the signal."""
CLEAN_UP: Final = 10.0
"""Seconds for ending workers and writing the message, once it has noticed."""


@final
class _Interrupts:
    """The answer to Ctrl-C: raises KeyboardInterrupt once, and watches that the process ends."""

    def __init__(self) -> None:
        self.noticed = threading.Event()

    def answer(self, number: int, frame: FrameType | None) -> None:
        """The signal handler, for the first signal only: Python's exit resets a handler, but not deafness."""
        del number, frame
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        self.noticed.set()
        raise KeyboardInterrupt

    def watch(self, wakeups: socket.socket) -> None:
        """Wait for Ctrl-C, then end this process if it has not ended by itself."""
        with wakeups:
            while received := wakeups.recv(64):
                if signal.SIGINT in received:
                    break
            else:
                return  # the other end was closed: the command is done
        if self.noticed.wait(PATIENCE):
            time.sleep(CLEAN_UP)
        print(MESSAGE, file=sys.stderr, flush=True)
        _end_server()
        os._exit(INTERRUPTED)


@contextmanager
def one_interrupt() -> Iterator[None]:
    """Within the block, Ctrl-C raises KeyboardInterrupt once; if that does not end the process, it is ended.

    After an interrupt the process stays deaf to further ones, as it is about to exit. Where Ctrl-C is ignored
    or somebody else answers it, and outside the main thread, nothing changes.
    """
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_default or threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupts = _Interrupts()
    # Python answers a signal between two bytecodes only: a thread is woken in any case, and ends what hangs.
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.signal(signal.SIGINT, interrupts.answer)
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    watcher = threading.Thread(target=interrupts.watch, args=(reader,), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        # After an interrupt the handler stays, so that a second one cannot tear the end apart.
        if not interrupts.noticed.is_set():
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.set_wakeup_fd(before)
            writer.close()
            watcher.join()
        else:
            _end_server()


def _end_server() -> None:
    """Kill the server from which workers are forked, if there is one.

    It ends with this process, but only after its imports, and could still fork a worker until then.
    """
    module = sys.modules.get("multiprocessing.forkserver")
    server = getattr(getattr(module, "_forkserver", None), "_forkserver_pid", None)
    if server is not None:
        with suppress(ProcessLookupError):
            os.kill(server, signal.SIGKILL)
