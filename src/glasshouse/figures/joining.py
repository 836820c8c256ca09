"""Join exhibits of several cells that have the same key: lines by name, rows of tables in order."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from glasshouse.results.records import Exhibit

Line = Mapping[str, Any]


def join_exhibits(exhibits: Sequence[Exhibit]) -> tuple[Exhibit, ...]:
    """Join exhibits with the same scenario, kind and key ``join``, at the position of the first.

    Title and caption are those of the first. Lines of the same name become one line, sorted by x; of two
    points at the same x the later one is kept. Distributions of the same name are pooled. Pictures and
    sentences are never joined.
    """
    out: dict[tuple[str, ...], Exhibit] = {}
    for number, exhibit in enumerate(exhibits):
        own = not exhibit.join or exhibit.kind in ("pictures", "sentences")
        key = (exhibit.scenario, exhibit.kind, "", str(number)) if own else _key(exhibit)
        out[key] = _join_exhibits(out[key], exhibit) if key in out else exhibit
    return tuple(out.values())


def _key(exhibit: Exhibit) -> tuple[str, ...]:
    return (exhibit.scenario, exhibit.kind, exhibit.join)


def _join_exhibits(one: Exhibit, other: Exhibit) -> Exhibit:
    if one.kind == "table":
        data = {**one.data, "rows": [*one.data["rows"], *other.data["rows"]]}
    elif one.kind == "lines":
        data = {**one.data, "series": _lines(one.data["series"], other.data["series"])}
    else:
        data = {**one.data, "series": _pool_lines(one.data["series"], other.data["series"])}
    return dataclasses.replace(one, data=data)


def _lines(one: Sequence[Line], other: Sequence[Line]) -> list[Line]:
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


def _longer(one: Line, other: Line) -> Line:
    columns = [k for k in ("y", "low", "high") if k in one and k in other]
    points = {x: {k: line[k][i] for k in columns} for line in (one, other) for i, x in enumerate(line["x"])}
    xs = sorted(points)
    rest = {k: v for k, v in one.items() if k not in ("x", "y", "low", "high")}
    return {**rest, "x": xs, **{k: [points[x][k] for x in xs] for k in columns}}


def _pool_lines(one: Sequence[Line], other: Sequence[Line]) -> list[Line]:
    values: dict[str, list[float]] = {}
    for series in (*one, *other):
        values.setdefault(series["name"], []).extend(series["values"])
    return [{"name": name, "values": pooled} for name, pooled in values.items()]
