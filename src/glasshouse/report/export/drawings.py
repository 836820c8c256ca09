"""Export the report's charts as SVG files and its contact sheets as PNG files, each self-contained."""

import base64
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from markupsafe import Markup
from PIL import Image, ImageDraw

from glasshouse.disk import write_bytes
from glasshouse.outside.text import file_name, visible
from glasshouse.report import figures, svg
from glasshouse.report.exhibits import Drawing, Key
from glasshouse.report.pictures import Sheet
from glasshouse.report.readings import read
from glasshouse.report.sections import Section, sections
from glasshouse.report.verdicts.stories import stories
from glasshouse.results.records import Result

WIDTH, LABEL, TEXT = 960.0, 230.0, 330.0
"""Widths in pixels: the figure, its labels on the left, its numbers on the right."""
CHART: Final = 640.0
MARKS: Final = (
    "disc: leaks; square: label leak; ring: no leak found; diamond: not shown; cross: no power or too alike; "
    "dashed: guessing"
)
PICTURE: Final = 96
"""Target side of enlarged images in pixels; they are scaled by integer factors."""

_TONES: Final = {
    "leaks": "leak", "label-leak": "leak", "too-alike": "open", "no-leak-found": "quiet", "not-shown": "open",
    "no-power": "mute",
}  # fmt: skip
_CAMEL: Final = {"viewbox": "viewBox", "preserveaspectratio": "preserveAspectRatio"}


def figure_files(result: Result, run: Path, folder: Path, *, show_private: bool = False) -> list[Path]:
    """Write every chart and contact sheet of the report into ``folder``.

    Images of private data are blurred, as in the report, unless ``show_private``.

    Raises:
        BadFile: the folder cannot be written.
        DiskFull: not enough disk space.
    """
    paths, readings = [], read(result)
    for section in sections(readings, stories(readings), run, show_private=show_private):
        taken: Counter[str] = Counter()
        for title, ending, content in _drawings(section):
            name = file_name(f"{section.story.scenario}-{title}").lower()
            taken[name + ending] += 1
            number = taken[name + ending]
            paths.append(folder / f"{name}{f'-{number}' if number > 1 else ''}{ending}")
            write_bytes(paths[-1], content)
    return paths


def _drawings(section: Section) -> Iterator[tuple[str, str, bytes]]:
    """(title, ending, content) of each file of a scenario."""
    for panel in section.panels:
        yield f"{panel.card.label} {panel.setting}", ".svg", _panel(panel)
    if section.trade is not None:
        yield "utility against leakage", ".svg", _trade(section.trade)
    for shown in section.exhibits:
        if shown.drawing is not None and not shown.drawing.columns:
            yield shown.exhibit.title, ".svg", _exhibit(shown.exhibit.title, shown.drawing)
    for sheet in section.sheets:
        yield sheet.title, ".png", _contact_sheet(sheet)


def _panel(panel: figures.Panel) -> bytes:
    """Leakage by defence: one row per attack, with its interval on a shared axis and its numbers."""
    heading = ", ".join(part for part in (panel.card.label, panel.setting) if part)
    parts = [_text(heading, 12, 22, weight="bold", size=14), _text(panel.direction, 12, 40)]
    y = 52.0
    for group in panel.groups:
        title = ": ".join(part for part in (group.defense, group.cost) if part)
        parts.append(_text(title, 12, y + 18, weight="bold"))
        y += 26
        for row in group.rows:
            own = row.reading
            numbers = f"{own.value} {own.interval}; gain {own.gain} {own.gain_interval}"
            parts += _row(row.label, row.track, numbers, y)
            y += svg.ROW
    parts.append(_nested(panel.axis, LABEL, y, WIDTH - LABEL - TEXT))
    parts.append(_text(MARKS, 12, y + 40))
    return _file(heading, parts, WIDTH, y + 52)


def _trade(trade: figures.Trade) -> bytes:
    parts = _chart(trade.plot, x=trade.x, y=trade.y)
    legend = [
        _text(f"{p.number}  {p.name}: {p.utility}; {p.attack} {p.gain}", 12, 362 + 18 * i)
        for i, p in enumerate(trade.points)
    ]
    return _file("Utility against leakage", [*parts, *legend], WIDTH, 370 + 18 * len(legend))


def _exhibit(title: str, drawing: Drawing) -> bytes:
    if drawing.plot is not None:
        parts = _chart(drawing.plot, x=drawing.x_label, y=f"{title}: {drawing.y_label}")
        return _file(title, [*parts, *_legend(drawing.keys)], CHART, 356 + 18 * len(drawing.keys))
    parts, y = [_text(title, 12, 22, weight="bold", size=14)], 34.0
    for strip in drawing.strips:
        row = svg.tag("g", *_row(strip.label, strip.track, strip.text, y), class_=f"strip {strip.style}")
        parts.append(row)
        y += 30
    if drawing.axis is not None:
        parts.append(_nested(drawing.axis, LABEL, y, WIDTH - LABEL - TEXT))
    parts.append(_text(drawing.x_label, LABEL, y + 36))
    return _file(title, parts, WIDTH, y + 48)


def _chart(plot: Markup, *, x: str, y: str) -> list[Markup]:
    """Place the two drawings of a page chart (y axis and plot) side by side."""
    axis, area = ET.fromstring(str(plot))  # noqa: S314 - written by svg.chart
    left = float(axis.attrib["width"])
    parts = [_text(y, 12, 20)]
    parts.append(_nested(_markup(axis), 12, 30, left))
    parts.append(_nested(_markup(area), 12 + left, 30, CHART - left - 36))
    return [*parts, _text(x, 12 + left, 336)]


def _legend(keys: Iterable[Key]) -> list[Markup]:
    parts = []
    for i, key in enumerate(keys):
        y = 356 + 18 * i
        parts.append(svg.tag("line", class_=f"line {key.style}", x1=14, x2=36, y1=y - 4, y2=y - 4))
        parts.append(_text(key.name, 44, y))
    return parts


def _row(label: str, track: Markup, numbers: str, y: float) -> list[Markup]:
    right = WIDTH - TEXT
    return [
        _text(label, 24, y + 19),
        _nested(track, LABEL, y, right - LABEL),
        _text(numbers, right + 16, y + 19),
    ]


def _nested(drawing: Markup, x: float, y: float, width: float) -> Markup:
    """A drawing of the page, moved to (x, y) and set to ``width``."""
    root = ET.fromstring(str(drawing))  # noqa: S314 - our own drawing
    root.attrib |= {"x": svg.short(x), "y": svg.short(y), "width": svg.short(width)}
    return _markup(root)


def _markup(root: ET.Element) -> Markup:
    for element in root.iter():
        for low, camel in _CAMEL.items():
            if low in element.attrib:
                element.attrib[camel] = element.attrib.pop(low)
    return Markup(ET.tostring(root, encoding="unicode"))  # noqa: S704 - escaped when it was drawn


def _text(text: str, x: float, y: float, *, weight: str = "normal", size: int = 12) -> Markup:
    return svg.tag(
        "text", text, class_="words", x=svg.short(x), y=svg.short(y), font_weight=weight, font_size=size
    )


def _file(title: str, parts: Sequence[Markup], width: float, height: float) -> bytes:
    size = {"width": svg.short(width), "height": svg.short(height)}
    root = svg.tag(
        "svg",
        svg.tag("title", title),
        svg.tag("style", Markup(_style())),  # noqa: S704 - our own
        svg.tag("rect", fill="#ffffff", width="100%", height="100%"),
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        **size,
    )
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{root}\n'.encode()


@cache
def _style() -> str:
    """The page's light colours without CSS variables, which many SVG readers do not support."""
    sheet = (resources.files("glasshouse.report") / "templates/style.css").read_text(encoding="utf-8")
    colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", sheet.partition("@media")[0]))
    rules = [
        "text{font-family:sans-serif;fill:" + colours["ink"] + "}",
        ".tick,.number{font-size:11px}",
        ".tick{fill:" + colours["soft"] + "}",
        ".grid{stroke:" + colours["grid"] + "}",
        "line.null,.line.null{stroke:" + colours["null"] + ";stroke-width:1.5;stroke-dasharray:3 3}",
        ".whisker{stroke:" + colours["ink"] + ";stroke-width:2}",
        ".mark,.disc{fill:#ffffff;stroke-width:2}",
        ".line,.area,.box,.median,.outlier{fill:none;stroke-width:2}",
        ".area{fill-opacity:.2}.band{opacity:.14}.track,.plot,.stretch,svg{overflow:visible}",
        ".stretch *{vector-effect:non-scaling-stroke}",
    ]
    # A verdict's tone and a series' hue are the page's: a figure in a paper can be held beside it.
    for kind, name in _TONES.items():
        tone = colours[name]
        rules.append(f".{kind} .mark,.{kind} .disc,.{kind} .whisker{{stroke:{tone}}}")
        rules.append(f".{kind} .mark.full{{fill:{tone}}}")
    for i in range(6):
        hue = colours[f"c{i}"]
        rules.append(f".line.s{i},.area.s{i},.s{i} .box,.s{i} .median,.s{i} .outlier{{stroke:{hue}}}")
        rules.append(f".dot.s{i},.band.s{i},.area.s{i}{{fill:{hue}}}")
    return "".join(rules)


def _contact_sheet(sheet: Sheet) -> bytes:
    """A contact sheet as one PNG, enlarged without smoothing, with row labels on the left."""
    rows = [[_decode(p.source) for p in row.pictures] for row in sheet.rows]
    factor = max(1, PICTURE // max(image.height for row in rows for image in row))
    height = factor * max(image.height for row in rows for image in row) + 4
    width = factor * max(image.width for row in rows for image in row) + 4
    labels = [visible(row.label) for row in sheet.rows]
    left = 8 + 7 * max(map(len, labels))
    canvas = Image.new("RGB", (left + width * max(map(len, rows)), height * len(rows)), "white")
    draw = ImageDraw.Draw(canvas)
    for i, images in enumerate(rows):
        draw.text((4, i * height + height // 2 - 6), labels[i], fill="black")
        for j, image in enumerate(images):
            large = image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
            canvas.paste(large, (left + j * width, i * height))
    buffer = io.BytesIO()
    canvas.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _decode(source: str) -> Image.Image:
    content = base64.b64decode(source.partition(",")[2])
    return Image.open(io.BytesIO(content)).convert("RGB")
