"""Format numbers for reports: rounding, intervals, signs and units; non-finite numbers are refused."""

import math

from glasshouse.errors import BadValue
from glasshouse.report.cards import ACCURACY
from glasshouse.results.cards import MetricCard

MINUS = "\u2212"
NBSP = "\u00a0"


def finite(value: float, what: str = "a number in the report") -> float:
    """Return ``value`` unchanged if it is finite.

    Raises:
        BadValue: ``value`` is NaN or infinite.
    """
    if not math.isfinite(value):
        raise BadValue(
            what,
            needs="a finite number",
            got=repr(value),
            fix="report what is undefined as a refusal; run the audit again if the file was edited",
        )
    return float(value)


def plain(value: float, *, digits: int = 2) -> str:
    """A number in few characters: at most ``digits`` decimals, or as many significant digits below 0.01.

    Examples:
        >>> plain(0.618), plain(0.00213), plain(12345.6), plain(-0.2), plain(0.0)
        ('0.62', '0.0021', '12,346', '−0.20', '0.00')
    """
    size = abs(finite(value))
    if size >= 1000:
        text = f"{size:,.0f}"
    elif size >= 100:
        text = f"{size:.0f}"
    elif size >= 10:
        text = f"{size:.1f}"
    elif size >= 0.01 or size == 0:
        text = f"{size:.{digits}f}"
    elif size >= 1e-4:
        text = f"{size:.{digits - 1 - math.floor(math.log10(size))}f}"
    else:
        text = f"{size:.1e}".replace("e-0", "e\u2212").replace("e-", "e\u2212")
    return (MINUS if value < 0 and text.strip("0.,") else "") + text


def plain_ends(low: float, high: float) -> str:
    """An interval in few characters, with both ends as by :func:`plain`.

    Examples:
        >>> plain_ends(-0.2, 0.618)
        '[−0.20, 0.62]'
    """
    return f"[{plain(low)}, {plain(high)}]"


def places(metric: MetricCard, low: float, high: float) -> int:
    """Decimals to print, so that the interval's half-width shows one digit; at least the metric's usual.

    More than four digits of the larger end say nothing to a reader, however narrow the interval.

    Examples:
        >>> places(ACCURACY, 0.41, 0.85), places(ACCURACY, 0.0021, 0.0029), places(ACCURACY, 0.5, 0.500002)
        (0, 2, 2)
    """
    kind = metric.display
    size = max(abs(finite(low)), abs(finite(high)))
    usual = {"rate": 0, "level": 1}.get(kind, 2 if size < 10 else 1 if size < 100 else 0)
    half = (high - low) / 2 * (100 if kind == "rate" else 1)
    if half <= 0:
        return usual
    most = 3 - math.floor(math.log10(size * (100 if kind == "rate" else 1)))
    return max(usual, min(-math.floor(math.log10(half) + 1e-9), most, 8))


def sign_places(metric: MetricCard, *bounds: float) -> int:
    """Fewest decimals, at most 4, at which no non-zero bound rounds to 0: verdicts depend on their signs.

    Examples:
        >>> sign_places(ACCURACY, -0.004, 0.06), sign_places(ACCURACY, 0.2, 0.4)
        (1, 0)
    """
    sizes = [abs(b) * (100 if metric.display == "rate" else 1) for b in bounds if b]
    return next((d for d in range(5) if all(round(s, d) for s in sizes)), 4)


def bare(value: float, metric: MetricCard, digits: int | None = None) -> str:
    """A metric's value without its unit, rates as percentages. ``digits``: decimals; None: chosen by size."""
    kind = metric.display
    scaled_value = finite(value) * (100 if kind == "rate" else 1)
    if digits is None and kind == "plain":
        return plain(scaled_value)
    if digits is None:
        digits = 1 if kind == "level" or (scaled_value % 1 and abs(scaled_value) < 10) else 0
    text = f"{abs(scaled_value):,.{digits}f}"
    if kind == "rate" and abs(scaled_value) < 100 and float(text) >= 100:
        text = "99.9"  # never round up to 100 %
    return (MINUS if scaled_value < 0 and text.strip("0.,") else "") + text


def unit(metric: MetricCard, named: str = "") -> str:
    """The suffix of a value: ``%``, ``dB``, the finding's own unit ``named``, or nothing."""
    kind = metric.display
    if kind == "rate":
        return NBSP + "%"
    if kind == "level":
        return NBSP + "dB"
    return NBSP + named if named not in {"", "1", "share", "score", "index"} else ""


def value(value: float, metric: MetricCard, named: str = "", digits: int | None = None) -> str:
    r"""A value with its unit.

    Examples:
        >>> value(0.654, ACCURACY)
        '65\xa0%'
    """
    return bare(value, metric, digits) + unit(metric, named)


def interval(low: float, high: float, metric: MetricCard, digits: int | None = None) -> str:
    """An interval without its unit.

    Examples:
        >>> interval(-0.01, 0.2, ACCURACY)
        '[−1, 20]'
    """
    digits = places(metric, low, high) if digits is None else digits
    return f"[{bare(low, metric, digits)}, {bare(high, metric, digits)}]"


def difference(value: float, metric: MetricCard, named: str = "", digits: int | None = None) -> str:
    r"""The absolute difference of two values of a metric; for rates in percentage points.

    Examples:
        >>> difference(-0.4, ACCURACY)
        '40\xa0points'
    """
    number = bare(abs(value), metric, digits)
    if metric.display == "rate":
        return f"{number}{NBSP}point{'' if number == '1' else 's'}"
    return number + unit(metric, named)


def with_sign(value: float, metric: MetricCard, digits: int | None = None) -> str:
    """A gain with its sign, without its unit.

    Examples:
        >>> with_sign(0.41, ACCURACY), with_sign(-0.02, ACCURACY), with_sign(0.0, ACCURACY)
        ('+41', '−2', '0')
    """
    unsigned = bare(value, metric, digits)
    return "+" + unsigned if value > 0 and unsigned.strip("0.,") else unsigned


def percent(value: float) -> str:
    """A share as a percentage, without the % sign.

    Examples:
        >>> percent(0.25)
        '25'
    """
    return bare(value, ACCURACY)


def probability(value: float) -> str:
    """A p-value with three decimals.

    Examples:
        >>> probability(0.0154), probability(0.00002)
        ('0.015', '< 0.001')
    """
    return "< 0.001" if finite(value) < 0.0005 else f"{value:.3f}"


def seconds(value: float) -> str:
    r"""A duration.

    Examples:
        >>> seconds(0.042), seconds(12.3), seconds(754), seconds(9000)
        ('0.04\xa0s', '12\xa0s', '12.6\xa0min', '2.5\xa0h')
    """
    size = finite(value)
    if size < 10:
        return f"{size:.1g}{NBSP}s"
    if size < 120:
        return f"{size:.0f}{NBSP}s"
    if size < 7200:
        return f"{size / 60:.1f}{NBSP}min"
    return f"{size / 3600:.1f}{NBSP}h"
