"""A finding's numbers as text, all with the decimals that its intervals support."""

from dataclasses import dataclass
from typing import final

from glasshouse.report import numbers
from glasshouse.results.records import Finding, Utility


@final
@dataclass(frozen=True, kw_only=True)
class Reading:
    """The numbers of a finding.

    Attributes:
        value: with its unit; interval: in brackets. baseline: the null's value, with unit.
        median: over victims, with unit; empty where there is none.
        gain: signed, without unit; gain_interval. size: the gain without its sign, with unit; size_interval:
            the interval of that. visible: the smallest gain that the interval would have told from none.
    """

    value: str
    interval: str
    baseline: str
    median: str
    gain: str
    gain_interval: str
    size: str
    size_interval: str
    visible: str


def read(f: Finding) -> Reading:
    """Write a finding's numbers.

    Raises:
        BadValue: one of them is not finite.
    """
    m, unit = f.metric, f.unit_of_value
    own = numbers.places(m, f.low, f.high)
    gained = max(numbers.places(m, f.gain_low, f.gain_high), numbers.sign_places(m, f.gain_low, f.gain_high))
    sides = (f.gain_low, f.gain_high) if f.gain >= 0 else (-f.gain_high, -f.gain_low)
    return Reading(
        value=numbers.value(f.value, m, unit, own),
        interval=numbers.interval(f.low, f.high, m, own),
        baseline=numbers.value(f.baseline_value, m, unit, own),
        median="" if f.median is None else numbers.value(f.median, m, unit, own),
        gain=numbers.signed(f.gain, m, gained),
        gain_interval=numbers.interval(f.gain_low, f.gain_high, m, gained),
        size=numbers.difference(f.gain, m, unit, gained),
        size_interval=numbers.interval(*sides, m, gained),
        visible=numbers.difference(f.gain - f.gain_low, m, unit, gained),
    )


def utility(u: Utility) -> str:
    """A utility with its interval: ``61 % [58, 64]``."""
    digits = numbers.places(u.metric, u.low, u.high)
    shown = numbers.value(u.value, u.metric, digits=digits)
    return f"{shown} {numbers.interval(u.low, u.high, u.metric, digits)}"
