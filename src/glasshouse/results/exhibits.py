"""Make exhibits: charts, tables and images as plain data, with headings that name their cell."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, Final, Literal, final, get_args

import numpy as np
from numpy.typing import NDArray

from glasshouse.disk import write_bytes, write_text
from glasshouse.errors import BadValue
from glasshouse.limits import is_finite
from glasshouse.results.records import Exhibit, ExhibitKind, Settings

__all__ = [
    "KINDS",
    "Images",
    "Place",
    "Series",
    "boxes",
    "check_exhibit",
    "histogram",
    "line",
    "lines",
    "pictures",
    "sentences",
    "table",
]

Images = NDArray[np.floating[Any]]
"""(rows, H, W, C) in [0, 1]."""
Series = Mapping[str, Any]
"""One line of a chart; made by :func:`line`."""
KINDS: Final[tuple[str, ...]] = get_args(ExhibitKind)


@final
@dataclass(frozen=True, kw_only=True)
class Place:
    """The cell that an exhibit belongs to.

    Attributes:
        scenario: its name.
        axes: values of the axes in this cell.
        run: the run directory; images are stored below it.
    """

    scenario: str
    axes: Settings = field(default_factory=dict)
    run: Path = Path()

    @property
    def words(self) -> str:
        """The values of the axes, e.g. ``clients = 4, std = 0.1``; empty without axes."""
        return ", ".join(f"{path.split('.')[-1]} = {value}" for path, value in self.axes.items())

    def heading(self, text: str) -> str:
        """The text, followed by the values of the axes in brackets.

        Examples:
            >>> Place(scenario="ward", axes={"federation.clients": 4}).heading("Accuracy")
            'Accuracy (clients = 4)'
        """
        return f"{text} ({self.words})" if self.axes else text

    def exhibit(
        self, kind: ExhibitKind, title: str, caption: str, *, data: Settings, **further: Any
    ) -> Exhibit:
        """An exhibit of this cell."""
        title = self.heading(title)
        return Exhibit(kind=kind, scenario=self.scenario, title=title, caption=caption, data=data, **further)

    def file_name(self, path: Path) -> str:
        """The path of a file relative to the run directory, as stored in a result."""
        return str(path.resolve().relative_to(self.run.resolve()))

    def without(self, *paths: str) -> "Place":
        """The same place without these axes, for exhibits joined along them."""
        axes = {path: value for path, value in self.axes.items() if path not in paths}
        return Place(scenario=self.scenario, axes=axes, run=self.run)


def line(
    name: str,
    x: Sequence[float],
    y: Sequence[float],
    *,
    band: tuple[Sequence[float], Sequence[float]] | None = None,
    null: bool = False,
    of: int | None = None,
) -> Series:
    """One line of a chart.

    Args:
        name: for the legend.
        x: horizontal coordinates, as many as ``y``.
        y: values.
        band: lower and upper ends of an interval around each value.
        null: the line is the null baseline of the others.
        of: index of the line in the same chart that this one belongs to.
    """
    series: dict[str, Any] = {"name": name, "x": list(x), "y": list(y)}
    if band is not None:
        series |= {"low": list(band[0]), "high": list(band[1])}
    if null:
        series["null"] = True
    return series if of is None else {**series, "of": of}


def lines(
    place: Place,
    title: str,
    caption: str,
    *,
    labels: tuple[str, str],
    series: Sequence[Series],
    spacing: Literal["linear", "log", "even"] = "linear",
    join: str = "",
) -> Exhibit:
    """A line chart.

    Args:
        place: the cell.
        title: the heading without the values of the axes, which are added.
        caption: how to read the chart.
        labels: of the horizontal and of the vertical axis.
        series: the lines, made by :func:`line`.
        spacing: of the horizontal axis; ``even`` spaces the values that occur equally.
        join: exhibits of one scenario and kind with the same key are joined into one; empty: not joined.
    """
    extra = {} if spacing == "linear" else {f"x_{spacing}": True}
    data = {"x_label": labels[0], "y_label": labels[1], **extra, "series": list(series)}
    return place.exhibit("lines", title, caption, data=data, join=join)


def histogram(
    place: Place,
    title: str,
    caption: str,
    *,
    label: str,
    values: Mapping[str, Sequence[float]],
    join: str = "",
) -> Exhibit:
    """Distributions of numbers over one axis; ``label`` names the axis, ``values`` the distributions."""
    data = {"x_label": label, "series": _name_values(values)}
    return place.exhibit("histogram", title, caption, data=data, join=join)


def boxes(
    place: Place,
    title: str,
    caption: str,
    *,
    label: str,
    values: Mapping[str, Sequence[float]],
    join: str = "",
) -> Exhibit:
    """A box plot; ``label`` names the axis, ``values`` the rows."""
    data = {"y_label": label, "series": _name_values(values)}
    return place.exhibit("boxes", title, caption, data=data, join=join)


def table(
    place: Place,
    title: str,
    caption: str,
    *,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    join: str = "",
) -> Exhibit:
    """A table; every row has as many cells as there are ``columns``."""
    data = {"columns": list(columns), "rows": [list(row) for row in rows]}
    return place.exhibit("table", title, caption, data=data, join=join)


def pictures(
    place: Place,
    title: str,
    caption: str,
    *,
    columns: Mapping[str, Images],
    file: Path,
    private: Sequence[str],
    rows: Sequence[str] = (),
) -> Exhibit:
    """Images side by side, stored as arrays below the run directory.

    Args:
        place: the cell.
        title: the heading without the values of the axes, which are added.
        caption: how to read the images.
        columns: images by the heading of their column.
        file: where they are written, an ``.npz`` below ``place.run``.
        private: columns that show private data; the report blurs their images unless the user asks.
        rows: names of the rows; 1, 2, ... by default.
    """
    images = np.stack(list(columns.values()), axis=1)
    packed = BytesIO()
    np.savez_compressed(packed, images=images)
    write_bytes(file, packed.getvalue())
    data = {"columns": list(columns), "rows": list(rows) or [str(i + 1) for i in range(len(images))]}
    where = place.file_name(file)
    return place.exhibit("pictures", title, caption, data=data, file=where, private=tuple(private))


def sentences(
    place: Place,
    title: str,
    caption: str,
    *,
    columns: Sequence[str],
    rows: Mapping[str, Sequence[str]],
    file: Path,
    private: Sequence[str],
) -> Exhibit:
    """Sentences side by side, stored below the run directory, never in ``result.json`` itself.

    Args:
        place: the cell.
        title: the heading without the values of the axes, which are added.
        caption: how to read the sentences.
        columns: headings of the columns.
        rows: one sentence per column, by the name of the row.
        file: where they are written, a ``.json`` below ``place.run``.
        private: columns that show private data; the report hides them unless the user asks.
    """
    write_text(file, json.dumps({"sentences": [list(texts) for texts in rows.values()]}, indent=2) + "\n")
    data, where = {"columns": list(columns), "rows": list(rows)}, place.file_name(file)
    return place.exhibit("sentences", title, caption, data=data, file=where, private=tuple(private))


def check_exhibit(exhibit: Exhibit, *, subject: str) -> None:
    """Raise unless the exhibit can be written and drawn.

    Raises:
        BadValue: unknown kind, no data, rows of unequal length, NaN or infinity.
    """
    fault = next(_faults(exhibit), None)
    if fault:
        raise BadValue(
            subject,
            needs=f"exhibits as docs/result.md describes them (one of {', '.join(KINDS)})",
            got=f"'{exhibit.title}': {fault}",
            fix="make exhibits with glasshouse.results.exhibits, and leave out what is undefined",
        )


def _faults(exhibit: Exhibit) -> Iterator[str]:
    data = exhibit.data
    if exhibit.kind not in KINDS:
        yield f"kind '{exhibit.kind}'"
    if not is_finite(data):
        yield "a number that is not finite"
    if exhibit.kind in ("pictures", "sentences"):
        if not exhibit.file:
            yield "no file"
    elif exhibit.kind == "table":
        if any(len(row) != len(data.get("columns", ())) for row in data.get("rows", ())):
            yield "a row has more or fewer cells than there are columns"
    # What is left are drawings.
    elif not data.get("series"):
        yield "no series"
    elif exhibit.kind == "lines":
        columns = ("x", "y", "low", "high")
        if any(len({len(one[k]) for k in columns if k in one}) != 1 for one in data["series"]):
            yield "x, y, low and high differ in length"
    elif not all(one.get("values") for one in data["series"]):
        yield "a series without values"


def _name_values(values: Mapping[str, Sequence[float]]) -> list[dict[str, object]]:
    return [{"name": name, "values": list(numbers)} for name, numbers in values.items()]
