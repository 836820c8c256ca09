"""Federated statistics: every site answers each query with counts, sums, bins, minimum and maximum.

Source: NVIDIA FLARE's federated statistics (rounded to 4 decimals; its three privacy filters with their
defaults), and Flower's quickstart-pandas and federated-analytics, read in 2026. Columns that are categories
are answered with a count per level, as their histograms are.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final, final

import numpy as np
import torch

from glasshouse.errors import BadValue
from glasshouse.federation.protocols.documents.base import Present, Reports
from glasshouse.formats.records import Statistic, Statistics
from glasshouse.formats.tabular import document_of
from glasshouse.interfaces import Traits
from glasshouse.modalities.row import Column, Row
from glasshouse.registry import Card
from glasshouse.rng import Rng

ASKED: Final = ("count", "sum", "mean", "bins", "minimum", "maximum", "labels")
FEWEST, NOISE, SHARE = 10, (0.1, 0.3), 0.1
"""Defaults of NVIDIA FLARE's MinCountCleanser, AddNoiseToMinMax and HistogramBinsCleanser."""
STEP: Final = 1.5e-7
"""Entries are float32: a value this close below a cut is at the cut."""


@final
@dataclass(frozen=True, kw_only=True)
class StatisticsProtocol(Reports):
    """Numbers about columns, round by round.

    Args:
        joins: people who join each site before every further round.
        leaves: people who leave each site before every further round.
        asked: what is queried, of count, sum, mean, bins, minimum, maximum, labels; comma-separated.
        bins: of a histogram of a number, over the range of the schema.
        digits: decimals of every answer; -1: as computed.
        filters: NVIDIA FLARE's three privacy filters with their defaults.
    """

    card: ClassVar[Card] = Card(
        summary="each site answers queries for counts, sums, bins, minimum and maximum of its columns",
        source="NVIDIA FLARE, federated statistics; Flower, quickstart-pandas",
    )
    traits: ClassVar[Traits] = Traits(
        sends="document",
        advice="answer again only when several people have come since, and leave out counts below five",
    )

    asked: str = "count,sum,bins,minimum,maximum,labels"
    bins: int = 10
    digits: int = 4
    filters: bool = False

    def __post_init__(self) -> None:
        unknown = set(self.asked.split(",")) - set(ASKED)
        if unknown or self.bins < 2 or not -1 <= self.digits <= 17:
            raise BadValue(
                "protocol 'statistics'",
                needs=f"asked of {', '.join(ASKED)}; bins >= 2; digits from -1 to 17",
                got=f"asked = {self.asked}, bins = {self.bins}, digits = {self.digits}",
                fix="correct federation.options",
            )

    def report(self, table: Row, site: Present, number: int, *, rng: Rng) -> bytes:
        """Every statistic of every column, as asked."""
        asked, draws = set(self.asked.split(",")), np.random.default_rng(rng.seed())
        values = table.decode(site.batch.inputs).numpy()
        where: dict[str, Any] = {"site": site.client, "round": number}
        stated = [Statistic(name="count", value=len(values), **where)] if "count" in asked else []
        if "labels" in asked:
            for label in (0, 1):
                amount = int((site.batch.labels == label).sum())
                stated.append(Statistic(name="count", value=amount, subset=f"target={label}", **where))
        for i, column in enumerate(table.columns):
            have = values[~np.isnan(values[:, i]), i]
            if not self.filters or len(have) >= FEWEST:
                stated += [self._rounded(n) for n in self._of(column, have, asked, draws, where)]
        return document_of(Statistics(numbers=tuple(stated)))

    def _of(
        self,
        column: Column,
        values: np.ndarray,
        asked: set[str],
        draws: np.random.Generator,
        where: dict[str, Any],
    ) -> Iterator[Statistic]:
        """The statistics of one column's values that are not missing."""
        if not column.numeric:
            if "bins" in asked:
                for code, level in enumerate(column.levels):
                    amount = int((values == code).sum())
                    yield Statistic(name="count", value=amount, column=column.name, subset=level, **where)
            return
        if not len(values):
            return
        numbers = {"sum": values.sum(), "mean": values.mean()}
        numbers |= {"minimum": values.min(), "maximum": values.max()}
        for name in ("sum", "mean", "minimum", "maximum"):
            if name in asked:
                value = float(numbers[name])
                # FLARE's filter blurs extremes, as they are somebody's values.
                if self.filters and name in ("minimum", "maximum"):
                    value *= 1 + float(draws.choice([-1, 1]) * draws.uniform(*NOISE))
                yield Statistic(name=name, value=value, column=column.name, **where)
        # It also refuses histograms that have nearly a bin for each person.
        if "bins" not in asked or (self.filters and self.bins >= SHARE * len(values)):
            return
        entries = column.encode(torch.from_numpy(values)).numpy()[:, 0].astype(np.float64)
        at = np.clip(np.floor((entries + STEP) * self.bins), 0, self.bins - 1).astype(int)
        edges = column.low + (column.high - column.low) * np.arange(self.bins + 1) / self.bins
        for k, amount in enumerate(np.bincount(at, minlength=self.bins)):
            yield Statistic(
                name="bin", value=int(amount), column=column.name, low=float(edges[k]),
                high=float(edges[k + 1]), **where,
            )  # fmt: skip

    def _rounded(self, number: Statistic) -> Statistic:
        whole = number.name in ("count", "bin")
        if whole or self.digits < 0:
            return number
        return Statistic(**{**vars(number), "value": round(number.value, self.digits), "digits": self.digits})
