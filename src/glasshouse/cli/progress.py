"""Progress on a terminal, with rich; silent where the output is not one."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

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


@final
class _Bar:
    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task

    def advance(self) -> None:
        self._progress.advance(self._task)

    def close(self) -> None:
        self._progress.remove_task(self._task)


@final
class _Bars:
    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def begin(self, label: str, total: int | None) -> _Bar:
        return _Bar(self._progress, self._progress.add_task(label, total=total))


@contextmanager
def bars(console: Console) -> Iterator[None]:
    """Within the block, all work of this process shows a bar on ``console``."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    if not console.is_terminal:
        yield
        return
    with Progress(*columns, console=console, transient=True) as progress, listen(_Bars(progress)):
        yield
