"""What FLARE's federated statistics state of a site's columns, as the numbers that documents hold.

A site answers in two passes: counts, sums, means and extremes, then histograms and variances about the common
mean. Each names statistic, data set and column: ``{"sum": {"train": {"age": 311.5}}}``.
"""

import math
from collections.abc import Iterator, Mapping
from numbers import Real
from typing import Any, Final

from glasshouse.formats.records import Statistic
from glasshouse.integrations.nvflare.names import DXO, DataKind

_NAMES: Final[Mapping[str, str]] = {
    "count": "count",
    "sum": "sum",
    "mean": "mean",
    "min": "minimum",
    "max": "maximum",
}
"""FLARE's word for a statistic, and ours. Variances about the mean of all sites have none."""
_HISTOGRAM: Final = "histogram"
Stated = Mapping[str, tuple[Statistic, ...]]
"""Numbers by the data set that they are about."""


def stated_in(dxo: DXO | None, data: Mapping[str, Any]) -> Stated:
    """The numbers of an answer with decoded ``data``, by data set; none, if it is no answer of statistics."""
    if dxo is None or dxo.data_kind != DataKind.STATISTICS:
        return {}
    found: dict[str, list[Statistic]] = {}
    for told in data.values():
        for data_set, number in _numbers(told):
            found.setdefault(data_set, []).append(number)
    return {data_set: tuple(numbers) for data_set, numbers in found.items()}


def _numbers(told: object) -> Iterator[tuple[str, Statistic]]:
    """Every number below the three names; what is laid out otherwise is passed over."""
    for statistic, by_set in _items(told):
        for data_set, by_column in _items(by_set):
            for column, value in _items(by_column):
                if statistic == _HISTOGRAM:
                    for low, high, count in _bins(value):
                        yield data_set, Statistic(name="bin", value=count, column=column, low=low, high=high)
                elif statistic in _NAMES and _is_number(value):
                    yield data_set, Statistic(name=_NAMES[statistic], value=float(value), column=column)


def _bins(histogram: object) -> list[tuple[float, float, float]]:
    """Lower end, upper end and count of every bin; none of what is no histogram."""
    bins = getattr(histogram, "bins", ())
    whole = isinstance(bins, list | tuple) and all(isinstance(one, tuple) and len(one) == 3 for one in bins)
    if not whole or not all(_is_number(number) for one in bins for number in one):
        return []
    return [(float(low), float(high), float(count)) for low, high, count in bins]


def _is_number(value: object) -> bool:
    """Whether it is a finite number, Python's or numpy's: a site may send anything."""
    return isinstance(value, Real) and math.isfinite(value)


def _items(value: object) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((str(name), inner) for name, inner in value.items())
