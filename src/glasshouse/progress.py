"""Progress reports: running work reports its progress to a listener, if one is installed.

Only labels and counts are reported, never data: a progress bar must not leak any.
"""

from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol, TypeVar, final

T = TypeVar("T")


class Task(Protocol):
    """One progress bar of a listener."""

    def advance(self) -> None:
        """One more step is done."""

    def expect(self, total: int) -> None:
        """Set the total to ``total`` steps, more than was known when the work began."""

    def close(self) -> None:
        """The work ended, finished or not."""


class Listener(Protocol):
    """Shows progress. Installed by the outermost program with :func:`listen`."""

    def begin(self, label: str, total: int | None) -> Task:
        """Start work called ``label`` with ``total`` steps; None: unknown."""

    def forecast(self, seconds: float) -> None:
        """The whole run is expected to end in ``seconds``."""


@final
class _Silent:
    def begin(self, label: str, total: int | None) -> "_Silent":
        del label, total
        return self

    def forecast(self, seconds: float) -> None:
        del seconds

    def advance(self) -> None: ...

    def expect(self, total: int) -> None:
        del total

    def close(self) -> None: ...


_SILENT = _Silent()
_listener: ContextVar[Listener] = ContextVar("glasshouse_progress", default=_SILENT)


@contextmanager
def listen(listener: Listener) -> Iterator[None]:
    """Report all work within the block to ``listener``."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def forecast(seconds: float) -> None:
    """Report that the whole run is expected to end in ``seconds``."""
    _listener.get().forecast(seconds)


@contextmanager
def stage(label: str) -> Iterator[None]:
    """Report a piece of work without countable steps."""
    task = _listener.get().begin(label, None)
    try:
        yield
    finally:
        task.close()


def track(iterable: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
    """Yield the items of ``iterable`` and report each one when it is done.

    Args:
        iterable: what to iterate over.
        label: what is being done, in the user's words.
        total: number of items; None: the length of the iterable, where it has one.

    Examples:
        >>> [x for x in track([1, 2], "counting")]
        [1, 2]
    """
    if total is None and isinstance(iterable, Sized):
        total = len(iterable)
    task = _listener.get().begin(label, total)
    try:
        for item in iterable:
            yield item
            task.advance()
    finally:
        task.close()


@final
class Counters:
    """One progress bar per label, for work whose total grows while it runs."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}
        self._expected: dict[str, int] = {}
        self._done: dict[str, int] = {}

    def expect(self, label: str, more: int = 1) -> None:
        """Add ``more`` steps to the total of ``label``."""
        self._expected[label] = self._expected.get(label, 0) + more
        if label in self._tasks:
            self._tasks[label].expect(self._expected[label])
        else:
            self._tasks[label] = _listener.get().begin(label, self._expected[label])

    def advance(self, label: str) -> None:
        """One step of ``label`` is done."""
        self._done[label] = self._done.get(label, 0) + 1
        self._tasks[label].advance()

    def left(self, label: str) -> int:
        """Steps that are expected and not yet done."""
        return self._expected.get(label, 0) - self._done.get(label, 0)

    def close(self) -> dict[str, int]:
        """Close all bars, finished or not; return the number of steps done, by label."""
        for task in self._tasks.values():
            task.close()
        return dict(self._done)
