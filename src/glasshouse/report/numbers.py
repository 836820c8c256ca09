"""How numbers are written: with their interval, their sign, and never as NaN."""

import math

from glasshouse.errors import BadValue
from glasshouse.report import words

MINUS = "\u2212"
NBSP = "\u00a0"


def finite(value: float, what: str = "a number in the report") -> float:
    """The value itself.

    Raises:
        BadValue: it is NaN or infinite.
    """
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise BadValue(
            what,
            needs="a finite number",
            got=repr(value),
            fix="report what is undefined as a refusal; run the audit again if the file was edited",
        )
    return float(value)


def plain(value: float, *, digits: int = 2) -> str:
    """A number in few characters: two decimals, or ``digits`` significant ones where that would hide it.

    Example:
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


def bare(value: float, metric: str) -> str:
    """A value of a metric without its unit: rates as percentages."""
    kind = words.metric(metric).kind
    if kind == "rate":
        return _percent(finite(value))
    return plain(value, digits=1) if kind == "level" and abs(value) >= 0.05 else plain(value)


def unit(metric: str, named: str = "") -> str:
    """What follows a value: ``%``, ``dB``, the unit that the finding names, or nothing."""
    kind = words.metric(metric).kind
    if kind == "rate":
        return NBSP + "%"
    if kind == "level":
        return NBSP + "dB"
    return NBSP + named if named not in {"", "1", "share", "score", "index"} else ""


def value(value: float, metric: str, named: str = "") -> str:
    """A value with its unit.

    Example:
        >>> value(0.654, "identification"), value(31.24, "psnr"), value(0.62, "ssim")
        ('65\\xa0%', '31.2\\xa0dB', '0.62')
    """
    return bare(value, metric) + unit(metric, named)


def interval(low: float, high: float, metric: str) -> str:
    """An interval, without unit.

    Example:
        >>> interval(0.55, 0.68, "ssim"), interval(-0.01, 0.2, "identification")
        ('[0.55, 0.68]', '[−1, 20]')
    """
    return f"[{bare(low, metric)}, {bare(high, metric)}]"


def difference(value: float, metric: str, named: str = "") -> str:
    """An unsigned difference of two values of a metric; of rates in points.

    Example:
        >>> difference(-0.4, "identification"), difference(0.41, "ssim")
        ('40\\xa0points', '0.41')
    """
    shown = bare(abs(value), metric)
    if words.metric(metric).kind == "rate":
        return f"{shown}{NBSP}point{'' if shown == '1' else 's'}"
    return shown + unit(metric, named)


def signed(value: float, metric: str) -> str:
    """A gain with its sign, without unit.

    Example:
        >>> signed(0.41, "ssim"), signed(-0.02, "identification"), signed(0.0, "ssim")
        ('+0.41', '−2', '0.00')
    """
    shown = bare(value, metric)
    return "+" + shown if value > 0 and shown.strip("0.,") else shown


def seconds(value: float) -> str:
    """A duration.

    Example:
        >>> seconds(0.042), seconds(12.3), seconds(754), seconds(9000)
        ('0.04\\xa0s', '12\\xa0s', '12.6\\xa0min', '2.5\\xa0h')
    """
    size = finite(value)
    if size < 10:
        return f"{size:.1g}{NBSP}s"
    if size < 120:
        return f"{size:.0f}{NBSP}s"
    if size < 7200:
        return f"{size / 60:.1f}{NBSP}min"
    return f"{size / 3600:.1f}{NBSP}h"


def _percent(share: float) -> str:
    points = abs(share) * 100
    text = f"{points:.0f}" if points >= 10 or points == 0 or points % 1 == 0 else f"{points:.1f}"
    if points < 100 and text == "100":
        text = "99.9"  # all but one is not all
    text = text.removesuffix(".0")
    return (MINUS if share < 0 and text.strip("0.") else "") + text
