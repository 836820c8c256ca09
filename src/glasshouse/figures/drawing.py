"""Draw all registered figures, and join those of several cells that have the same key.

A figure that fails is a refusal that names it; all others are drawn.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, final

from glasshouse.errors import BadValue
from glasshouse.figures.base import CellEvidence, Figure, RunFigure, has_any
from glasshouse.registry import load, names
from glasshouse.results.exhibits import Series, check_exhibit
from glasshouse.results.records import Exhibit
from glasshouse.wire import Refusal


class Guard(Protocol):
    """Calls a plug-in; what raises becomes a refusal that names it."""

    def __call__(
        self, kind: str, name: str, work: Callable[[], None], /, *, about: str
    ) -> Refusal | None: ...


@final
@dataclass(frozen=True, kw_only=True)
class Drawings:
    """The figures' output for one cell, or for a run.

    Attributes:
        exhibits: in the order of the figures' names.
        collected: data collected by figures that draw the whole run, by name.
        refusals: of figures that failed.
    """

    exhibits: tuple[Exhibit, ...] = ()
    collected: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    refusals: tuple[Refusal, ...] = ()


def draw_cell(cell: CellEvidence, guard: Guard) -> Drawings:
    """Draw all registered figures for one cell; ``guard`` calls each of them."""
    exhibits: list[Exhibit] = []
    collected: dict[str, list[Any]] = {}
    refusals: list[Refusal] = []

    def work(name: str) -> None:
        figure = _figure(name)
        if not has_any(cell, figure.reads):
            return
        if isinstance(figure, Figure):
            for exhibit in _check_exhibits(name, figure.draw(cell)):  # those drawn before an error are kept
                exhibits.append(exhibit)  # noqa: PERF402 - extend() would keep none of them
        if isinstance(figure, RunFigure):
            collected.setdefault(name, []).extend(figure.collect(cell))

    about = f"of {cell.place.heading(cell.place.scenario)}"
    for name in names("figures"):
        answer = guard("figure", name, partial(work, name), about=about)
        refusals += [answer] if isinstance(answer, Refusal) else []
    return Drawings(exhibits=tuple(exhibits), collected=collected, refusals=tuple(refusals))


def draw_run(cells: Sequence[Drawings], guard: Guard) -> Drawings:
    """The exhibits of a run: those drawn from all cells together, then those of cells, joined by key."""
    exhibits: list[Exhibit] = []
    refusals: list[Refusal] = []

    def work(name: str, parts: Sequence[Any]) -> None:
        figure = _figure(name)
        if isinstance(figure, RunFigure):
            exhibits.extend(_check_exhibits(name, figure.draw_run(parts)))

    for name in dict.fromkeys(name for one in cells for name in one.collected):
        parts = [part for one in cells for part in one.collected.get(name, ())]
        answer = guard("figure", name, partial(work, name, parts), about="of the run")
        refusals += [answer] if isinstance(answer, Refusal) else []
    joined = join_exhibits([e for one in cells for e in one.exhibits])
    return Drawings(exhibits=(*exhibits, *joined), refusals=tuple(refusals))


def _figure(name: str) -> Figure | RunFigure:
    figure = load("figures", name)()
    if not isinstance(figure, Figure | RunFigure):
        raise BadValue(
            f"figure '{name}'",
            needs="'card', 'reads', and 'draw' or 'collect' with 'draw_run'",
            got=f"a {type(figure).__name__} without them",
            fix="docs/plugins/figure.md shows a complete figure",
        )
    return figure


def _check_exhibits(name: str, exhibits: Iterable[Exhibit]) -> Iterator[Exhibit]:
    for exhibit in exhibits:
        check_exhibit(exhibit, subject=f"figure '{name}'")
        yield exhibit


def join_exhibits(exhibits: Sequence[Exhibit]) -> tuple[Exhibit, ...]:
    """Join exhibits with the same scenario, kind and key ``join``, at the position of the first.

    Title and caption are those of the first. Lines of the same name become one line, sorted by x; of two
    points at the same x the later one is kept. Distributions of the same name are pooled. Pictures and
    sentences are never joined.
    """
    out: dict[tuple[str, ...], Exhibit] = {}
    for number, exhibit in enumerate(exhibits):
        own = not exhibit.join or exhibit.kind in ("pictures", "sentences")
        key = (exhibit.scenario, exhibit.kind, "" if own else exhibit.join, str(number) if own else "")
        out[key] = _join_exhibits(out[key], exhibit) if key in out else exhibit
    return tuple(out.values())


def _join_exhibits(one: Exhibit, other: Exhibit) -> Exhibit:
    if one.kind == "table":
        return replace(one, data={**one.data, "rows": [*one.data["rows"], *other.data["rows"]]})
    join = _lines if one.kind == "lines" else _pool_lines
    return replace(one, data={**one.data, "series": join(one.data["series"], other.data["series"])})


def _lines(one: Sequence[Series], other: Sequence[Series]) -> list[Series]:
    lines = {line["name"]: line for line in one}
    for line in other:
        name = line["name"]
        lines[name] = _longer(lines[name], line) if name in lines else line
    names = list(lines)
    beside = {
        line["name"]: every[line["of"]]["name"] for every in (one, other) for line in every if "of" in line
    }
    return [
        {**line, "of": names.index(beside[name])} if name in beside else line for name, line in lines.items()
    ]


def _longer(one: Series, other: Series) -> Series:
    columns = [k for k in ("y", "low", "high") if k in one and k in other]
    points = {}
    for line in (one, other):
        for i, x in enumerate(line["x"]):
            points[x] = [line[k][i] for k in columns]
    xs = sorted(points)
    rest = {k: v for k, v in one.items() if k not in ("x", "y", "low", "high")}
    values = zip(*(points[x] for x in xs), strict=True)
    return {**rest, "x": xs, **{k: list(own) for k, own in zip(columns, values, strict=True)}}


def _pool_lines(one: Sequence[Series], other: Sequence[Series]) -> list[Series]:
    values: dict[str, list[float]] = {}
    for series in (*one, *other):
        values.setdefault(series["name"], []).extend(series["values"])
    return [{"name": name, "values": pooled} for name, pooled in values.items()]
