"""Progress bars on a terminal; elsewhere, such as in CI logs, one line per minute."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO, final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from glasshouse.outside.text import visible
from glasshouse.progress import listen

EVERY = 60.0
"""Seconds between two lines without a terminal."""


@final
class _Bar:
    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task

    def advance(self) -> None:
        self._progress.advance(self._task)

    def expect(self, total: int) -> None:
        self._progress.update(self._task, total=total)

    def close(self) -> None:
        self._progress.remove_task(self._task)


@final
class _Bars:
    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.left = ""

    def begin(self, label: str, total: int | None) -> _Bar:
        return _Bar(self._progress, self._progress.add_task(label, total=total, left=""))

    def forecast(self, seconds: float) -> None:
        """Write the remaining time behind the first bar, and keep it for lines."""
        self.left = f"{remaining_words(seconds)} left"
        for position, task in enumerate(self._progress.tasks):
            self._progress.update(task.id, left="" if position else self.left)


def remaining_words(seconds: float) -> str:
    """A remaining time in words, no finer than it is known.

    Examples:
        >>> remaining_words(8), remaining_words(50), remaining_words(400), remaining_words(8000)
        ('less than 10 s', 'about 50 s', 'about 7 min', 'about 2 h 10 min')
    """
    if seconds < 10:
        return "less than 10 s"
    if seconds < 90:
        return f"about {10 * round(seconds / 10):.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"about {minutes} min"
    return f"about {minutes // 60} h {10 * (minutes % 60 // 10)} min"


@contextmanager
def bars(console: Console, *, every: float = EVERY) -> Iterator[None]:
    """Within the block, show progress of this process as bars on ``console``, or as lines."""
    if not console.is_terminal:
        with lines(sys.stderr, every=every):
            yield
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=console, transient=True) as progress, listen(_Bars(progress)):
        yield


@contextmanager
def lines(stream: TextIO, *, every: float) -> Iterator[None]:
    """Within the block, print a progress line to ``stream`` every ``every`` seconds."""
    counts, ended, started = Progress(disable=True), threading.Event(), time.monotonic()
    listener = _Bars(counts)

    def say() -> None:
        while not ended.wait(every):
            what = ", ".join(map(_how_far, counts.tasks)) or "preparing"
            left = f"; {listener.left}" if listener.left else ""
            minutes = (time.monotonic() - started) / 60
            print(f"{minutes:.0f} min: {visible(what)}{left}", file=stream, flush=True)

    thread = threading.Thread(target=say, daemon=True)
    thread.start()
    try:
        with listen(listener):
            yield
    finally:
        ended.set()
        thread.join()


def _how_far(task: Task) -> str:
    """Progress of one kind of work as text: ``attacks 3 of 12``."""
    if task.total is None:
        return task.description
    return f"{task.description} {task.completed:.0f} of {task.total:.0f}"
