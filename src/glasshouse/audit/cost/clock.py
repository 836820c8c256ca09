"""CPU seconds of short pieces of work."""

import time
from collections.abc import Callable
from typing import Final

STEADY: Final = 0.05
"""Seconds for which a short piece is repeated: the clocks of some systems tick every 4 ms."""
REPEATS: Final = 200
"""Times that a piece is repeated at the most."""


def seconds_on(device: str, run: Callable[[], object]) -> float:
    """CPU seconds of ``run``; on an accelerator wall-clock seconds, as the CPU mostly waits for it."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    started = clock()
    run()
    return clock() - started


def steady_seconds(device: str, run: Callable[[], object], *, at_least: float = STEADY) -> float:
    """Seconds of ``run`` on average, repeated until that took ``at_least`` seconds, or ``REPEATS`` times."""
    spent, calls = seconds_on(device, run), 1
    while spent < at_least and calls < REPEATS:
        spent, calls = spent + seconds_on(device, run), calls + 1
    return spent / calls
