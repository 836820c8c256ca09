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
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

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
        self._end: float | None = None

    def begin(self, label: str, total: int | None) -> _Bar:
        return _Bar(self._progress, self._progress.add_task(label, total=total))

    def forecast(self, seconds: float) -> None:
        """Keep when the run is going to end, as far as it is known now."""
        self._end = time.monotonic() + seconds

    def is_first(self, task: Task) -> bool:
        """Whether a bar stands above all others."""
        return task.id == self._progress.tasks[0].id

    @property
    def left(self) -> str:
        """The remaining time in words; empty as long as nothing is known."""
        if self._end is None:
            return ""
        seconds = self._end - time.monotonic()
        return f"{remaining_words(seconds)} left" if seconds > 0 else "longer than was foreseen"


@final
class _Left(ProgressColumn):
    """The remaining time of the run, behind the first bar."""

    def __init__(self, shown: _Bars) -> None:
        super().__init__()
        self._shown = shown

    def render(self, task: Task) -> Text:
        """Nothing for the other bars."""
        return Text(self._shown.left if self._shown.is_first(task) else "")


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
    )
    progress = Progress(*columns, console=console, transient=True)
    shown = _Bars(progress)
    progress.columns = (*columns, _Left(shown))
    with progress, listen(shown):
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
