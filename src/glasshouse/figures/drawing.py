"""Asks every registered figure to draw. One that fails costs itself and a line of the log, not the audit."""

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from glasshouse.errors import BadValue, DiskFull, GlasshouseError, Interrupted
from glasshouse.figures.base import CellEvidence, Figure, RunFigure, has_any
from glasshouse.figures.joining import join_exhibits
from glasshouse.registry import load, names
from glasshouse.results.exhibits import check_exhibit
from glasshouse.results.records import Exhibit


@final
@dataclass(frozen=True, kw_only=True)
class Drawings:
    """What the figures made of one cell, or of a run.

    Attributes:
        exhibits: in the order of the figures' names.
        collected: of the figures that draw the run as a whole, what they need, by name.
        notes: for the log: which figure failed, and how.
    """

    exhibits: tuple[Exhibit, ...] = ()
    collected: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def draw_cell(cell: CellEvidence) -> Drawings:
    """What all registered figures show of one cell."""
    exhibits: list[Exhibit] = []
    collected: dict[str, tuple[Any, ...]] = {}
    notes: list[str] = []
    for name in names("figures"):
        made: list[Exhibit] = []
        parts: list[Any] = []
        with_figure = _reader(name, cell, made, parts)
        notes += _note(name, cell.place.heading(cell.place.scenario), with_figure)
        exhibits += made
        if parts:
            collected[name] = tuple(parts)
    return Drawings(exhibits=tuple(exhibits), collected=collected, notes=tuple(notes))


def draw_run(cells: Sequence[Drawings]) -> Drawings:
    """The exhibits of a run: those that join cells first, then those of the cells, in order."""
    exhibits: list[Exhibit] = []
    notes: list[str] = []
    for name in dict.fromkeys(name for one in cells for name in one.collected):
        made: list[Exhibit] = []
        parts = [part for one in cells for part in one.collected.get(name, ())]
        notes += _note(name, "the run", _run_reader(name, parts, made))
        exhibits += made
    joined = join_exhibits([e for one in cells for e in one.exhibits])
    return Drawings(exhibits=(*exhibits, *joined), notes=tuple(notes))


def _reader(name: str, cell: CellEvidence, made: list[Exhibit], parts: list[Any]) -> Callable[[], None]:
    def read() -> None:
        figure = load("figures", name)()
        if not isinstance(figure, Figure | RunFigure):
            raise BadValue(
                f"figure '{name}'",
                needs="'card', 'reads', and 'draw' or 'collect' with 'draw_run'",
                got=f"a {type(figure).__name__} without them",
                fix="docs/plugins.md shows a complete figure",
            )
        if not has_any(cell, figure.reads):
            return
        if isinstance(figure, Figure):
            made.extend(_checked(name, figure.draw(cell)))
        if isinstance(figure, RunFigure):
            parts.extend(figure.collect(cell))

    return read


def _run_reader(name: str, parts: Sequence[Any], made: list[Exhibit]) -> Callable[[], None]:
    def read() -> None:
        figure = load("figures", name)()
        made.extend(_checked(name, figure.draw_run(parts)))

    return read


def _checked(name: str, exhibits: Iterable[Exhibit]) -> Iterator[Exhibit]:
    for exhibit in exhibits:
        check_exhibit(exhibit, subject=f"figure '{name}'")
        yield exhibit


def _note(name: str, where: str, draw: Callable[[], None]) -> list[str]:
    """Draw; what went wrong, as at most one sentence. Exhibits made before the error are kept."""
    try:
        draw()
    except (DiskFull, Interrupted):
        raise
    except GlasshouseError as error:
        return [f"figure '{name}' did not finish {where}: {error}"]
    except Exception:  # noqa: BLE001 - a figure of another package may raise anything; it costs that figure alone
        return [f"figure '{name}' failed on {where}: {traceback.format_exc()}"]
    return []
