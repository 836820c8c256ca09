"""What FLARE's federated statistics state of a site's columns, as the numbers that documents hold.

A site answers in two passes: counts, sums, means and extremes, then histograms and variances about the common
mean. Each names statistic, data set and column: ``{"sum": {"train": {"age": 311.5}}}``.
"""

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
                    for low, high, count in (tuple(one)[:3] for one in value.bins):
                        made = Statistic(
                            name="bin", value=float(count), column=column, low=float(low), high=float(high)
                        )
                        yield data_set, made
                elif statistic in _NAMES and isinstance(value, Real):  # numpy's too
                    yield data_set, Statistic(name=_NAMES[statistic], value=float(value), column=column)


def _items(value: object) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((str(name), inner) for name, inner in value.items())
