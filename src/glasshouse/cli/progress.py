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
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

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

    def begin(self, label: str, total: int | None) -> _Bar:
        return _Bar(self._progress, self._progress.add_task(label, total=total))


@final
class _Count:
    """Progress of one kind of work as text: ``attacks 3 of 12``."""

    def __init__(self, label: str, total: int | None, open_counts: "list[_Count]") -> None:
        self._label, self._total, self._done, self._open = label, total, 0, open_counts
        open_counts.append(self)

    def advance(self) -> None:
        self._done += 1

    def expect(self, total: int) -> None:
        self._total = total

    def close(self) -> None:
        self._open.remove(self)

    def __str__(self) -> str:
        return self._label if self._total is None else f"{self._label} {self._done} of {self._total}"


@final
class _Lines:
    """Prints the current work every ``every`` seconds."""

    def __init__(self, stream: TextIO, every: float) -> None:
        self._stream, self._every = stream, every
        self._open: list[_Count] = []
        self._ended, self._started = threading.Event(), time.monotonic()

    def begin(self, label: str, total: int | None) -> _Count:
        return _Count(label, total, self._open)

    def run(self) -> None:
        while not self._ended.wait(self._every):
            minutes = (time.monotonic() - self._started) / 60
            what = ", ".join(map(str, list(self._open))) or "preparing"
            print(f"{minutes:.0f} min: {what}", file=self._stream, flush=True)

    def end(self) -> None:
        self._ended.set()


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
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress, listen(_Bars(progress)):
        yield


@contextmanager
def lines(stream: TextIO, *, every: float) -> Iterator[None]:
    """Within the block, print a progress line to ``stream`` every ``every`` seconds."""
    printer = _Lines(stream, every)
    thread = threading.Thread(target=printer.run, daemon=True)
    thread.start()
    try:
        with listen(printer):
            yield
    finally:
        printer.end()
        thread.join()
