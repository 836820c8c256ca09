"""How figures are drawn: escaped elements, scales in percent, round ticks, and a finding on its scale.

Figures have no viewBox: x coordinates are percentages and y coordinates pixels, so a figure fills the width
of the screen while text and strokes keep their size. Colours come from the page's style sheet through
classes, so figures also adapt to dark mode and print.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, final

from markupsafe import Markup

from glasshouse.errors import BadValue
from glasshouse.outside.text import visible
from glasshouse.report import numbers
from glasshouse.report.cards import ACCURACY
from glasshouse.results.cards import MetricCard
from glasshouse.results.records import Finding, Utility

SUPERSCRIPT: Final = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def tag(name: str, *children: str, **attributes: str | float) -> Markup:
    """An element. ``class_`` means ``class``, other underscores become hyphens; everything is escaped.

    Examples:
        >>> str(tag("text", "a<b", class_="tick", x="5%"))
        '<text class="tick" x="5%">a&lt;b</text>'
    """
    # SVG's camel case (viewBox) is restored by the HTML parser.
    names = [key.removesuffix("_").replace("_", "-") for key in attributes]
    values = [_readable(v) if isinstance(v, str) else v for v in attributes.values()]
    pairs = [Markup(' {}="{}"').format(*pair) for pair in zip(names, values, strict=True)]
    inside = Markup("").join(map(_readable, children))
    return Markup("<{0}{1}>{2}</{0}>").format(name, Markup("").join(pairs), inside)


def _readable(text: str) -> str:
    """Plain text without characters that XML forbids; markup was made here and stays."""
    return text if isinstance(text, Markup) else visible(text)


TOP, BOTTOM = 10.0, 262.0  # the plotting area of a chart, pixels
ROW = 30.0  # height of a finding's row, pixels
DISC = 9.0  # radius of a numbered disc, pixels


def chart(
    across: "Scale",
    up: "Scale",
    *children: str,
    label: str,
    x_labels: Sequence[str] = (),
    y_labels: Sequence[str] = (),
) -> Markup:
    """A chart with both axes: y tick labels in a fixed width on the left, the plot in the rest.

    Args:
        across: horizontal scale.
        up: vertical scale.
        children: elements of the plot; x in percent, y in pixels (``down``).
        label: text for screen readers.
        x_labels: tick labels that replace those of ``tick``.
        y_labels: tick labels that replace those of ``tick``.
    """
    names = y_labels or [tick(t, up) for t in up.ticks]
    width = 10 + 6.6 * max(map(len, names))
    heights = [(down(up(t)), name) for t, name in zip(up.ticks, names, strict=True)]
    ticks = [
        tag("text", name, class_="tick", x=short(width - 8), y=short(y + 4), text_anchor="end")
        for y, name in heights
    ]
    rules = [tag("line", class_="grid", x1=0, x2="100%", y1=short(y), y2=short(y)) for y, _ in heights]
    height = short(BOTTOM + 24)
    left = tag("svg", *ticks, class_="ys", width=short(width), height=height, aria_hidden="true")
    inside = (*rules, *_grid(across, x_labels or [tick(t, across) for t in across.ticks]), *children)
    plot = tag("svg", *inside, class_="plot", width="100%", height=height, aria_hidden="true")
    return tag("div", left, plot, class_="chart", role="img", aria_label=label)


def down(share: float) -> float:
    """The y coordinate in pixels of a share of the plot's height: 0 is the bottom, 1 the top."""
    return BOTTOM - share * (BOTTOM - TOP)


def percent(share: float) -> str:
    """An x coordinate in percent: 0 is the left edge, 1 the right one."""
    return f"{short(100 * numbers.finite(share, 'a place in a figure'))}%"


@final
@dataclass(frozen=True, kw_only=True)
class Scale:
    """Maps data to [0, 1].

    Attributes:
        low: data value that maps to 0; low < high.
        high: data value that maps to 1.
        log: logarithmic; low > 0.
        ticks: round values within the range.
    """

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def __call__(self, value: float) -> float:
        """Map a value to [0, 1]; values outside the range are clipped.

        Raises:
            BadValue: the value is not finite, or not positive on a logarithmic scale.
        """
        value = numbers.finite(value, "a value in a figure")
        if self.log:
            share = (_log(value) - _log(self.low)) / (_log(self.high) - _log(self.low))
        else:
            share = (value - self.low) / (self.high - self.low)
        return min(max(share, 0.0), 1.0)


def scale(
    values: Sequence[float], *, log: bool = False, include: Sequence[float] = (), count: int = 5
) -> Scale:
    """A scale that covers all values, ends on round numbers and has about ``count`` ticks.

    Raises:
        BadValue: no values, a non-finite one, or a non-positive one on a logarithmic scale.

    Examples:
        >>> scale([0.12, 0.87]).ticks
        (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    """
    data = [numbers.finite(v, "a value in a figure") for v in (*values, *include)]
    if not data:
        raise BadValue("a figure", needs="at least one value", got="none", fix="leave the figure out")
    low, high = min(data), max(data)
    if log:
        return _log_scale(low, high)
    if high - low < 1e-12 * max(1.0, abs(high)):
        low, high = low - 0.5 * (abs(low) or 1.0), high + 0.5 * (abs(high) or 1.0)
    step = _round_step((high - low) / count)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(round(i * step, 12) + 0.0 for i in range(first, last + 1))
    return Scale(low=min(ticks[0], low), high=max(ticks[-1], high), ticks=ticks)  # covers rounding errors


def tick(value: float, scale: Scale) -> str:
    """The label of a tick: as many decimals as the step needs; powers of ten on a logarithmic scale.

    Examples:
        >>> [tick(v, scale([0.0, 0.1])) for v in (0.0, 0.02)]
        ['0', '0.02']
    """
    if scale.log and not 1e-3 <= value <= 1e4:
        power = f"{math.floor(math.log10(value) + 1e-9)}".translate(SUPERSCRIPT)
        lead = f"{value / 10.0 ** math.floor(math.log10(value) + 1e-9):g}"
        return f"10{power}" if lead == "1" else f"{lead}·10{power}"
    if scale.log or value == 0:
        return f"{value:g}"
    step = scale.ticks[1] - scale.ticks[0] if len(scale.ticks) > 1 else abs(value)
    digits = next((d for d in range(5) if abs(round(step, d) - step) < 1e-9 * step), 5)
    text = f"{abs(value):,.{digits}f}" if digits <= 4 else f"{abs(value):g}"
    return (numbers.MINUS if value < 0 else "") + text


def _grid(scale: Scale, labels: Sequence[str]) -> Iterator[Markup]:
    """Vertical grid lines of a chart at the ticks of its horizontal scale, with labels below."""
    for share, name in zip(map(scale, scale.ticks), labels, strict=True):
        x = percent(share)
        # Labels at the edges extend inwards, so that they stay inside the plot.
        side = "start" if share < 0.04 else "end" if share > 0.96 else "middle"
        yield tag("line", class_="grid", x1=x, x2=x, y1=short(TOP), y2=short(BOTTOM))
        yield tag("text", name, class_="tick", x=x, y=short(BOTTOM + 16), text_anchor=side)


def rules(scale: Scale, *, height: float) -> list[Markup]:
    """Vertical grid lines at the ticks, from the top of a row."""
    places = [percent(scale(t)) for t in scale.ticks]
    return [tag("line", class_="grid", x1=x, x2=x, y1=0, y2=height) for x in places]


def axis(scale: Scale, *, labels: Sequence[str] = ()) -> Markup:
    """An axis of tick labels, for the scale of several rows; ``labels`` replace those of :func:`tick`."""
    names = labels or [tick(t, scale) for t in scale.ticks]
    ticks = [
        tag("text", name, class_="tick", x=percent(scale(t)), y=13, text_anchor="middle")
        for t, name in zip(scale.ticks, names, strict=True)
    ]
    return tag("svg", *ticks, class_="axis", width="100%", height=18, aria_hidden="true")


def short(value: float) -> str:
    """A coordinate with at most two decimals."""
    return f"{numbers.finite(value, 'a place in a figure'):.2f}".rstrip("0").rstrip(".")


def _log(value: float) -> float:
    if value <= 0:
        raise BadValue(
            "a figure with a logarithmic axis", needs="positive values", got=f"{value:g}", fix="drop x_log"
        )
    return math.log10(value)


def _log_scale(low: float, high: float) -> Scale:
    first, last = math.floor(_log(low) + 1e-9), math.ceil(_log(high) - 1e-9)
    if first == last:
        first, last = first - 1, last + 1
    stride = max(1, math.ceil((last - first) / 6))
    ticks = tuple(10.0**i for i in range(first, last + 1, stride))
    if last - first <= 2:
        # Few decades: add ticks at 2 and 5, and end the scale close to the data.
        steps = [m * 10.0**i for i in range(first, last + 1) for m in (1, 2, 5)]
        start = max(s for s in steps if s <= low * (1 + 1e-9)) if steps[0] <= low else steps[0]
        stop = min((s for s in steps if s >= high * (1 - 1e-9)), default=steps[-1])
        if start < stop:
            return Scale(low=start, high=stop, ticks=tuple(s for s in steps if start <= s <= stop), log=True)
    return Scale(low=10.0**first, high=10.0**last, ticks=ticks, log=True)


def _round_step(rough: float) -> float:
    base = 10.0 ** math.floor(math.log10(rough))
    return next((m * base for m in (1, 2, 2.5, 5, 10) if rough <= m * base * (1 + 1e-9)), 10 * base)


def mark(kind: str) -> Markup:
    """The marker of a verdict, centred at the origin; markers differ in shape, not only in colour."""
    marks = {
        "leaks": tag("circle", class_="mark full", r=5.0),
        "no leak found": tag("circle", class_="mark hollow", r=4.5),
        "label leak": tag("path", class_="mark full", d="M-5 -5H5V5H-5Z"),
        "not shown": tag("path", class_="mark hollow", d="M0 -5.5L5.5 0L0 5.5L-5.5 0Z"),
    }
    return marks.get(kind, tag("path", class_="mark cross", d="M-4 -4L4 4M-4 4L4 -4"))


def slug(kind: str) -> str:
    """A verdict as a CSS class: ``no leak found`` → ``no-leak-found``."""
    return kind.replace(" ", "-")


def scale_of(findings: Sequence[Finding], card: MetricCard) -> Scale:
    """A scale from 0 to the metric's upper limit, even if an interval exceeds it; else fitted to the data."""
    values = [v for f in findings for v in (f.value, f.low, f.high, f.baseline_value)]
    values += [f.bound.value for f in findings if f.bound is not None]
    if card.high is not None:
        return scale([min(v, card.high) for v in values], include=(0.0, card.high), count=4)
    return scale(values, count=4)


def track(f: Finding, scale: Scale) -> Markup:
    """The null's line, the bound on any attack, the confidence interval and the marker of one finding."""
    middle = ROW / 2
    null, value = percent(scale(f.baseline_value)), percent(scale(f.value))
    low, high = percent(scale(f.low)), percent(scale(f.high))
    bound = []
    if f.bound is not None:
        most = percent(scale(f.bound.value))
        bound = [tag("line", class_="bound", x1=most, x2=most, y1=0, y2=ROW)]
    return tag(
        "svg",
        *rules(scale, height=ROW),
        tag("line", class_="null", x1=null, x2=null, y1=0, y2=ROW),
        *bound,
        tag("line", class_="whisker", x1=low, x2=high, y1=middle, y2=middle),
        tag("svg", mark(f.verdict), class_="at", x=value, y=middle),
        class_=f"track {slug(f.verdict)}",
        width="100%",
        height=ROW,
        aria_hidden="true",
    )


def tick_names(scale: Scale, card: MetricCard) -> list[str]:
    """The labels of a scale's ticks; rates in percent."""
    return [f"{100 * t:g}" if card.display == "rate" else tick(t, scale) for t in scale.ticks]


def scatter(pairs: Sequence[tuple[Utility, Finding]], card: MetricCard) -> Markup:
    """Utility against gain, with both intervals and a numbered disc for each pair."""
    across = scale([v for u, _ in pairs for v in (u.low, u.high)], count=4)
    up = scale([v for _, f in pairs for v in (f.gain_low, f.gain_high)], include=(0.0,), count=4)
    zero = short(down(up(0.0)))
    places = _dodge([(across(u.value), down(up(f.gain))) for u, f in pairs])
    return chart(
        across,
        up,
        tag("line", class_="null", x1=0, x2="100%", y1=zero, y2=zero),
        *(_cross(u, f, across, up) for u, f in pairs),
        *(_disc(i, p, f.verdict) for i, (p, (_, f)) in enumerate(zip(places, pairs, strict=True), start=1)),
        label=f"Utility against gain in {card.label}: {len(pairs)} settings, listed in the following table.",
        x_labels=tick_names(across, ACCURACY),
        y_labels=tick_names(up, card),
    )


def _cross(u: Utility, f: Finding, across: Scale, up: Scale) -> Markup:
    """Error bars of a point: the intervals of utility and gain."""
    x, y = percent(across(u.value)), short(down(up(f.gain)))
    low, high = short(down(up(f.gain_low))), short(down(up(f.gain_high)))
    left, right = percent(across(u.low)), percent(across(u.high))
    return tag(
        "g",
        tag("line", class_="whisker", x1=left, x2=right, y1=y, y2=y),
        tag("line", class_="whisker", x1=x, x2=x, y1=low, y2=high),
        class_=slug(f.verdict),
    )


def _dodge(places: Sequence[tuple[float, float]]) -> list[tuple[float, float, float]]:
    """Shift overlapping discs sideways: (share of the width, pixels down, pixels to the right).

    The width is not known here; at 600 pixels or more, no disc covers another.
    """
    discs: list[tuple[float, float, float]] = []
    for x, y in places:
        shift = 0.0
        while any(math.hypot(600 * (x - a) + shift - c, y - b) < 2 * DISC - 1 for a, b, c in discs):
            shift += DISC
        discs.append((x, y, shift))
    return discs


def _disc(number: int, place: tuple[float, float, float], kind: str) -> Markup:
    x, y, aside = percent(place[0]), place[1], place[2]
    return tag(
        "g",
        tag("circle", class_="disc", cx=x, cy=short(y), r=DISC),
        tag("text", str(number), class_="number", x=x, y=short(y + 4), text_anchor="middle"),
        class_=slug(kind),
        transform=f"translate({short(aside)} 0)",
    )
