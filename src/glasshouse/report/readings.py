"""A finding's numbers as text, with as many decimals as its intervals support."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, final

from glasshouse.report import numbers
from glasshouse.report.cards import ACCURACY, Cards
from glasshouse.results.cards import MetricCard
from glasshouse.results.records import Finding, Utility
from glasshouse.results.rows import grouped

PICTURE: Final = re.compile(r"data:image/png;base64,[A-Za-z0-9+/=]+")


@final
@dataclass(frozen=True, kw_only=True)
class Reading:
    """The formatted numbers of a finding.

    Attributes:
        value: value with its unit.
        interval: confidence interval of the value, in brackets.
        baseline: value of the null baseline, with unit.
        median: median over victims, with unit; empty if there is none.
        gain: signed gain without unit; its interval is ``gain_interval``.
        measured_gain: signed gain with unit.
    """

    value: str
    interval: str
    baseline: str
    median: str
    gain: str
    gain_interval: str
    measured_gain: str


def read(f: Finding, cards: Cards) -> Reading:
    """Format a finding's numbers.

    Raises:
        BadValue: one of them is not finite.
    """
    m, unit = cards.metric(f.metric), f.unit_of_value
    own = numbers.places(m, f.low, f.high)
    gained = max(numbers.places(m, f.gain_low, f.gain_high), numbers.sign_places(m, f.gain_low, f.gain_high))
    gain = numbers.with_sign(f.gain, m, gained)
    sign = gain[0] if gain[0] in f"+{numbers.MINUS}" else ""
    return Reading(
        value=numbers.value(f.value, m, unit, own),
        interval=numbers.interval(f.low, f.high, m, own),
        baseline=numbers.value(f.baseline_value, m, unit, own),
        median="" if f.median is None else numbers.value(f.median, m, unit, own),
        gain=gain,
        gain_interval=numbers.interval(f.gain_low, f.gain_high, m, gained),
        measured_gain=sign + numbers.difference(f.gain, m, unit, gained),
    )


def landmarks(card: MetricCard) -> tuple[tuple[str, str, str], ...]:
    """(number, meaning, image) for the legend of a metric; "" instead of an invalid image."""
    return tuple(
        (numbers.value(number, card), meaning, picture if PICTURE.fullmatch(picture) else "")
        for number, meaning, picture in card.landmarks
    )


def at_chance(u: Utility) -> bool:
    """Whether the model may be no better than always predicting the most common class."""
    return u.chance is not None and u.low <= u.chance


def one_per_setting(rows: Iterable[Utility]) -> tuple[Utility, ...]:
    """Merge utilities of the same cell and metric over seeds: mean value, union of the intervals."""
    groups = grouped(rows, lambda u: (u.scenario, u.cell, u.metric))
    return tuple(
        replace(
            us[0],
            value=sum(u.value for u in us) / len(us),
            low=min(u.low for u in us),
            high=max(u.high for u in us),
        )
        for us in groups.values()
    )


def utility(u: Utility) -> str:
    """A utility with its interval: ``61 % [58, 64]``."""
    digits = numbers.places(ACCURACY, u.low, u.high)
    text = numbers.value(u.value, ACCURACY, digits=digits)
    return f"{text} {numbers.interval(u.low, u.high, ACCURACY, digits)}"
