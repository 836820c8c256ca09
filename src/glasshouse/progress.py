"""Progress: work says how far it is; whoever listens shows it. By default nobody does.

Only labels and counts are reported, never data: a progress bar must not become a leak.
"""

from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol, TypeVar, final

T = TypeVar("T")


class Task(Protocol):
    """One bar of a listener."""

    def advance(self) -> None:
        """One more step is done."""
        ...

    def close(self) -> None:
        """The work ended, finished or not."""
        ...


class Listener(Protocol):
    """Shows progress. Installed by the outermost program with :func:`listen`."""

    def begin(self, label: str, total: int | None) -> Task:
        """Work called ``label`` starts; ``total`` steps, or None when nobody knows."""
        ...


@final
class _Silent:
    def begin(self, label: str, total: int | None) -> "_Silent":
        del label, total
        return self

    def advance(self) -> None: ...

    def close(self) -> None: ...


_SILENT = _Silent()
_listener: ContextVar[Listener] = ContextVar("glasshouse_progress", default=_SILENT)


@contextmanager
def listen(listener: Listener) -> Iterator[None]:
    """Within the block, ``listener`` hears of all work."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def stage(label: str) -> Iterator[None]:
    """A piece of work without countable steps."""
    task = _listener.get().begin(label, None)
    try:
        yield
    finally:
        task.close()


def track(iterable: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
    """The items of ``iterable``, reported one by one as they are done.

    Args:
        iterable: what to go through.
        label: what is being done, as the user would say it.
        total: number of items; where it is None, the iterable is asked for its length.

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
