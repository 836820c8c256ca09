"""Limits of the process that opens one message: memory, processor, time on the clock, size of its file."""

import os
import resource
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final, final

MARGIN: Final = 2**29
"""Bytes beside the message: names, tables and blocks that are worked on."""
STEADY: Final = 2**23
"""Bytes of a message that a slow machine opens and judges in a second of processor time."""


@final
class TimeIsUp(Exception):
    """The processor time of this process is spent."""


@final
@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one process may use.

    Attributes:
        memory: bytes of address space beside what the process had when it began.
        processor: seconds of processor time.
        clock: seconds until it is ended, whatever it does.
        file: bytes of a file that it writes.
    """

    memory: int
    processor: int
    clock: int
    file: int

    @classmethod
    def of(cls, size: int, *, mapped: int = 0, copies: int = 2, patience: float = 0.0) -> "Limits":
        """Limits for a message of ``size`` bytes.

        Args:
            size: bytes of the message.
            mapped: bytes of files that it is compared with.
            copies: how often the message may stand in memory.
            patience: seconds that a check by another process takes at most.

        Examples:
            >>> small = Limits.of(1000)
            >>> small.memory // 2**20, small.processor, small.clock
            (512, 10, 50)
        """
        processor = 10 + size // STEADY
        return cls(
            memory=MARGIN + copies * size + mapped,
            processor=processor,
            clock=5 * processor + int(patience),
            file=MARGIN + 2 * size,
        )

    def take(self) -> None:
        """Put the limits on this process; of its children they hold unless :func:`lift` is called there."""
        for what, most in (
            (resource.RLIMIT_AS, _address_space() + self.memory),
            (resource.RLIMIT_CPU, self.processor),
            (resource.RLIMIT_FSIZE, self.file),
            (resource.RLIMIT_CORE, 0),
        ):
            _, hard = resource.getrlimit(what)
            resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
        signal.signal(signal.SIGXCPU, _stop)
        # Python answers a signal between two of its steps, and one step may be long. These two are not caught
        # and end the process; its children do not have them.
        signal.setitimer(signal.ITIMER_PROF, self.processor + 1)
        signal.alarm(self.clock)
        if sys.platform == "linux":
            Path("/proc/self/oom_score_adj").write_text("1000")  # short of memory, the system ends this first


def is_limited() -> bool:
    """Whether this process has less memory than it could have: it opens a message."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    return soft != hard


def lift() -> None:
    """Raise the limits of this process again; for a check that the site itself wrote."""
    for what in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE):
        _, hard = resource.getrlimit(what)
        resource.setrlimit(what, (hard, hard))


def _stop(_signal: int, _frame: FrameType | None) -> None:
    """Say once that the time is up; a second signal, a second later, ends the process."""
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    raise TimeIsUp


def _address_space() -> int:
    """Bytes of address space of this process; 0 where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
