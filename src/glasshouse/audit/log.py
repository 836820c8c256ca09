"""The log of a run: ``log.jsonl``, one event per line."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

from glasshouse.store import append_jsonl, read_jsonl

LOGGER = logging.getLogger("glasshouse")


@final
class _Notes(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message, once."""
        message = record.getMessage()
        if message not in self.messages:
            self.messages.append(message)


@contextmanager
def collect_notes() -> Iterator[list[str]]:
    """Collect what this package logs within the block (a fallback, a restart from a checkpoint)."""
    notes = _Notes()
    level = LOGGER.level
    LOGGER.addHandler(notes)
    LOGGER.setLevel(logging.INFO)
    try:
        yield notes.messages
    finally:
        LOGGER.removeHandler(notes)
        LOGGER.setLevel(level)


@final
class RunLog:
    """Appends events to a run's ``log.jsonl``; a resumed run appends to the same file."""

    def __init__(self, run: Path) -> None:
        self._path = run / "log.jsonl"
        self._started = time.perf_counter()

    def total(self, fact: str) -> float:
        """The sum of a number over the events of all runs in this folder so far."""
        lines = read_jsonl(self._path) if self._path.is_file() else []
        return sum(float(line[fact]) for line in lines if isinstance(line, dict) and fact in line)

    def write(self, event: str, **facts: Any) -> None:
        """Write one line: the event, seconds since this process started the run, and facts about it."""
        append_jsonl(
            self._path, {"event": event, "after": round(time.perf_counter() - self._started, 3), **facts}
        )
