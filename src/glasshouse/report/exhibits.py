"""Exhibits that accompany an audit's numbers: line charts, histograms, box plots and tables.

Box plots are horizontal, one row each, so that long names stay readable on a narrow screen.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, final

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from glasshouse.errors import BadValue
from glasshouse.report import numbers, svg, words
from glasshouse.results.records import Exhibit

COLOURS: Final = 6  # further series reuse the colours, with dashed lines
_NUMBERS: Final = ("x", "y", "low", "high", "values")
MAX_MARKS = 16  # lines with at most this many points mark each of them


class Key(NamedTuple):
    """A legend entry: the name of the series and its CSS class."""

    name: str
    style: str


@final
@dataclass(frozen=True, kw_only=True)
class Strip:
    """One row of a box plot; ``text``: its median and sample size in words."""

    label: str
    style: str
    track: Markup
    text: str


@final
@dataclass(frozen=True, kw_only=True)
class Drawing:
    """An exhibit ready for the page: a plot, rows above an axis, or a table."""

    x_label: str = ""
    y_label: str = ""
    plot: Markup | None = None
    keys: tuple[Key, ...] = ()
    strips: tuple[Strip, ...] = ()
    axis: Markup | None = None
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def draw(exhibit: Exhibit, *, beside: Sequence[Exhibit] = ()) -> Drawing:
    """Draw an exhibit of any kind except ``pictures``.

    Args:
        exhibit: the exhibit to draw.
        beside: other exhibits on the page; those of the same kind and labels share its axes.

    Raises:
        BadValue: its data lack a key, are empty, differ in length or hold a non-finite number.
    """
    kinds = {"lines": _lines, "histogram": _histogram, "boxes": _boxes}
    try:
        if exhibit.kind == "table":
            return _table(exhibit.data)
        return kinds[exhibit.kind](exhibit.data, list(_alike(exhibit, beside)))
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, BadValue):
            raise
        raise BadValue(
            f"exhibit '{exhibit.title}'",
            needs=f"data of a {exhibit.kind} exhibit, as docs/result.md describes them",
            got=f"{type(error).__name__}: {error}",
            fix="correct the plug-in that made it; the numbers of the audit do not depend on it",
        ) from error


def _alike(exhibit: Exhibit, others: Sequence[Exhibit]) -> Iterator[Mapping[str, Any]]:
    """Series of other exhibits with the same kind and axes as this one."""
    axes = ("x_label", "y_label", "x_log", "x_even")
    for other in others:
        if other.kind == exhibit.kind and all(other.data.get(a) == exhibit.data.get(a) for a in axes):
            try:
                for one in _series(other.data):
                    yield {key: _floats(one[key]) for key in _NUMBERS if one.get(key) is not None}
            except (KeyError, TypeError, ValueError):
                continue  # the error is reported when that exhibit is drawn


def _pool(own: Sequence[Mapping[str, Any]], peers: Sequence[Mapping[str, Any]], *keys: str) -> list[float]:
    """All numbers under these keys, in this exhibit and its peers."""
    return [float(v) for one in (*own, *peers) for key in keys if one.get(key) is not None for v in one[key]]


def _lines(data: Mapping[str, Any], peers: Sequence[Mapping[str, Any]]) -> Drawing:
    series = _series(data)
    xs = [_floats(s["x"]) for s in series]
    ys = [_floats(s["y"]) for s in series]
    bands = [_band(s) for s in series]
    across = svg.scale(_pool(series, peers, "x"), log=bool(data.get("x_log")), count=5)
    names: list[str] = []
    if data.get("x_even"):
        xs, across, names = _even(xs)
    up = svg.scale(_pool(series, peers, "y", "low", "high"), count=4)
    shapes, marks = [], []
    for i, (x, y, band) in enumerate(zip(xs, ys, bands, strict=True)):
        if len(x) != len(y) or (band and len(band[0]) != len(x)):
            raise ValueError(f"series {i}: x, y, low and high differ in length")
        order = np.argsort(x, kind="stable")
        style = _style(i, series[i])
        if band:
            back = order[::-1]
            low, high = _path(x[order], band[0][order], across, up), _path(x[back], band[1][back], across, up)
            shapes.append(svg.tag("polygon", class_=f"band {style}", points=f"{low} {high}"))
        path = _path(x[order], y[order], across, up)
        shapes.append(svg.tag("polyline", class_=f"line {style}", points=path))
        reference = series[i].get("null") or series[i].get("of") is not None  # drawn thin and without marks
        if len(x) <= MAX_MARKS and not reference:
            marks += [_dot(across(a), up(b), style) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    text = f"{data['y_label']} against {data['x_label']}: {_names(series)}."
    return Drawing(
        x_label=str(data["x_label"]),
        y_label=str(data["y_label"]),
        plot=svg.chart(across, up, _stretched(shapes), *marks, label=text, x_labels=names),
        keys=_keys(series),
    )


def _even(xs: Sequence[NDArray[np.float64]]) -> tuple[list[NDArray[np.float64]], svg.Scale, list[str]]:
    """Evenly spaced x axis: ranks instead of values; the values become the tick labels."""
    values = np.unique(np.concatenate(xs))
    last = max(len(values) - 1, 1)
    across = svg.Scale(low=0.0, high=float(last), ticks=tuple(float(i) for i in range(len(values))))
    ranks = [np.searchsorted(values, x).astype(np.float64) for x in xs]
    return ranks, across, [f"{v:g}" for v in values.tolist()]


def _histogram(data: Mapping[str, Any], peers: Sequence[Mapping[str, Any]]) -> Drawing:
    series = _series(data)
    values = [_floats(s["values"]) for s in series]
    pooled = _pool(series, peers, "values")
    # Bins and axes are those of all drawings that stand side by side, so that they can be compared.
    edges = np.histogram_bin_edges(pooled, bins=min(40, max(8, int(np.sqrt(len(pooled)) * 2))))
    shares = [np.histogram(v, edges)[0] / len(v) for v in (*values, *(p["values"] for p in peers))]
    across = svg.scale(edges.tolist(), count=5)
    up = svg.scale(np.concatenate(shares).tolist(), include=(0.0,), count=4)
    # The others have only set the height of the axis.
    shares = shares[: len(values)]
    shapes = []
    for i, share in enumerate(shares):
        steps = _path(np.repeat(edges, 2), np.concatenate([[0.0], np.repeat(share, 2), [0.0]]), across, up)
        shapes.append(svg.tag("polygon", class_=f"area {_style(i, series[i])}", points=steps))
    text = f"Distribution of {data['x_label']}: {_names(series)}."
    percent = [numbers.percent(t) for t in up.ticks]
    return Drawing(
        x_label=str(data["x_label"]),
        y_label="share of the values, %",
        plot=svg.chart(across, up, _stretched(shapes), label=text, y_labels=percent),
        keys=_keys(series, counts=[len(v) for v in values]),
    )


def _boxes(data: Mapping[str, Any], peers: Sequence[Mapping[str, Any]]) -> Drawing:
    series = _series(data)
    values = [_floats(s["values"]) for s in series]
    scale = svg.scale(_pool(series, peers, "values"), count=4)
    strips = tuple(
        Strip(
            label=str(s["name"]),
            style=_style(i, s) if len(series) <= COLOURS else "s0",
            track=_box(v, scale),
            text=f"median {numbers.plain(float(np.median(v)))}, n = {len(v):,}",
        )
        for i, (s, v) in enumerate(zip(series, values, strict=True))
    )
    return Drawing(x_label=str(data["y_label"]), strips=strips, axis=svg.axis(scale))


def _table(data: Mapping[str, Any]) -> Drawing:
    columns = tuple(str(c) for c in data["columns"])
    rows = tuple(tuple(cell(value) for value in row) for row in data["rows"])
    if any(len(row) != len(columns) for row in rows):
        raise ValueError("a row has more or fewer cells than there are columns")
    return Drawing(columns=columns, rows=rows)


def cell(value: object) -> str:
    """A table cell: numbers in few characters, a missing value as a dash."""
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}".replace("-", numbers.MINUS)
    return numbers.plain(value, digits=3) if isinstance(value, float) else words.plain_value(value)


def _box(values: NDArray[np.float64], scale: svg.Scale) -> Markup:
    """A box plot: quartiles, whiskers to the last values within 1.5 × IQR, outliers as points."""
    q1, q2, q3 = (float(q) for q in np.percentile(values, [25, 50, 75]))
    inside = values[(values >= q1 - 1.5 * (q3 - q1)) & (values <= q3 + 1.5 * (q3 - q1))]
    low, high = float(inside.min()), float(inside.max())
    outside = values[(values < low) | (values > high)]
    parts = svg.rules(scale, height=24)
    at = {name: svg.percent(scale(v)) for name, v in (("low", low), ("high", high), ("q1", q1), ("q2", q2))}
    parts.append(svg.tag("line", class_="whisker", x1=at["low"], x2=at["high"], y1=12, y2=12))
    width = svg.percent(scale(q3) - scale(q1))
    parts.append(svg.tag("rect", class_="box", x=at["q1"], width=width, y=5, height=14))
    parts.append(svg.tag("line", class_="median", x1=at["q2"], x2=at["q2"], y1=4, y2=20))
    outliers = np.unique(outside) if len(outside) <= 200 else np.percentile(outside, np.linspace(0, 100, 200))
    parts += [
        svg.tag("circle", class_="outlier", cx=svg.percent(scale(float(v))), cy=12, r=2) for v in outliers
    ]
    return svg.tag("svg", *parts, class_="track", width="100%", height=24, aria_hidden="true")


def _stretched(shapes: Sequence[Markup]) -> Markup:
    """Shapes in a 1000 × 1000 viewBox stretched to fill the plot; the style keeps strokes unscaled."""
    height = svg.short(svg.BOTTOM - svg.TOP)
    return svg.tag(
        "svg",
        *shapes,
        class_="stretch",
        viewbox="0 0 1000 1000",
        preserveaspectratio="none",
        x=0,
        y=svg.short(svg.TOP),
        width="100%",
        height=height,
    )


def _dot(x: float, y: float, style: str) -> Markup:
    return svg.tag("circle", class_=f"dot {style}", cx=svg.percent(x), cy=svg.short(svg.down(y)), r=3)


def _path(x: NDArray[np.float64], y: NDArray[np.float64], across: svg.Scale, up: svg.Scale) -> str:
    """Points in the coordinates of the stretched viewBox: 0 to 1000 in both directions."""
    pairs = zip(x.tolist(), y.tolist(), strict=True)
    return " ".join(f"{svg.short(1000 * across(a))},{svg.short(1000 * (1 - up(b)))}" for a, b in pairs)


def _series(data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    series = list(data["series"])
    if not series:
        raise ValueError("no series")
    return series


def _floats(values: Sequence[float]) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not array.size or not np.isfinite(array).all():
        raise ValueError(f"needs a row of finite numbers, got shape {array.shape}")
    return array


def _band(series: Mapping[str, Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    if series.get("low") is None or series.get("high") is None:
        return None
    return _floats(series["low"]), _floats(series["high"])


def _style(i: int, series: Mapping[str, Any]) -> str:
    if series.get("of") is not None:
        return f"s{int(series['of']) % COLOURS} own"
    return "null" if series.get("null") else f"s{i % COLOURS}" + (" again" if i >= COLOURS else "")


def _keys(series: Sequence[Mapping[str, Any]], counts: Sequence[int] | None = None) -> tuple[Key, ...]:
    tails = [f" (n = {n:,})" for n in counts] if counts else [""] * len(series)
    return tuple(Key(f"{s['name']}{tails[i]}", _style(i, s)) for i, s in enumerate(series))


def _names(series: Sequence[Mapping[str, Any]]) -> str:
    return words.join_words([str(s["name"]) for s in series])
