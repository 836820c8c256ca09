"""Follow-up times: raw as in Flower's app, counts per unit of time as in NVIDIA FLARE's, or a curve.

Source: Flower, examples/federated-kaplan-meier-fitter (times and events, raw); NVIDIA FLARE,
kaplan-meier-he in its plain variant (counts per day). A published Kaplan–Meier curve, at full precision or
rounded, is what papers print.
"""

import json
from dataclasses import dataclass
from typing import ClassVar, Final, final

import numpy as np

from glasshouse.errors import BadValue
from glasshouse.federation.protocols.documents.base import Present, Reports
from glasshouse.formats.records import Survival
from glasshouse.formats.tabular import document_of
from glasshouse.interfaces import Traits
from glasshouse.modalities.row import Row
from glasshouse.registry import Card
from glasshouse.rng import Rng

SENT: Final = ("raw", "table", "curve")


@final
@dataclass(frozen=True, kw_only=True)
class SurvivalProtocol(Reports):
    """Times of one column; label 1 is an event, label 0 somebody lost from sight.

    Args:
        joins: people who join each site before every further round.
        leaves: people who leave each site before every further round.
        column: of the follow-up times, whole numbers.
        shape: what is sent: raw times, a table of counts, or the curve with the number of patients.
        unit: times are rounded up to a multiple of this.
        digits: decimals of a curve; 0: as computed.
    """

    card: ClassVar[Card] = Card(
        summary="each site sends follow-up times: raw, counted per day, or as a Kaplan–Meier curve",
        source="Flower, federated-kaplan-meier-fitter; NVIDIA FLARE, kaplan-meier-he",
    )
    traits: ClassVar[Traits] = Traits(
        sends="document",
        advice="send counts per quarter instead of days, or a curve whose last digit is two patients or more",
    )

    column: str = "time"
    shape: str = "table"
    unit: int = 1
    digits: int = 0

    def __post_init__(self) -> None:
        if self.shape not in SENT or self.unit < 1 or not 0 <= self.digits <= 17:
            raise BadValue(
                "protocol 'survival'",
                needs=f"shape of {', '.join(SENT)}; unit >= 1; digits from 0 to 17",
                got=f"shape = {self.shape}, unit = {self.unit}, digits = {self.digits}",
                fix="correct federation.options",
            )

    def report(self, table: Row, site: Present, number: int, *, rng: Rng) -> bytes:
        """The times of one site."""
        del number, rng
        names = [column.name for column in table.columns]
        if self.column not in names or table.columns[names.index(self.column)].kind != "integer":
            raise BadValue(
                "protocol 'survival'",
                needs="a column of whole numbers that holds follow-up times",
                got=f"column '{self.column}' among {', '.join(names)}",
                fix="name it in federation.options.column",
            )
        values = table.decode(site.batch.inputs)[:, names.index(self.column)].numpy()
        times = np.ceil(values / self.unit) * self.unit
        died = site.batch.labels.numpy() == 1
        each, at = np.unique(times, return_inverse=True)
        events = np.bincount(at, died, minlength=len(each)).astype(np.int64)
        censored = np.bincount(at, ~died, minlength=len(each)).astype(np.int64)
        if self.shape == "curve":
            curve = curve_of(events, censored, self.digits or None)
            falls = events > 0  # a curve is printed where it falls
            record = Survival(
                times=each[falls], patients=len(times), curve=curve[falls], digits=self.digits or None
            )
        elif self.shape == "table":
            record = Survival(times=each, patients=len(times), events=events, censored=censored)
        else:
            return raw_document(times, died)
        return document_of(record)


def curve_of(events: np.ndarray, censored: np.ndarray, digits: int | None) -> np.ndarray:
    """The Kaplan–Meier estimate at each time, rounded.

    Examples:
        >>> curve_of(np.array([1, 0, 1]), np.array([0, 1, 0]), 3).tolist()
        [0.667, 0.667, 0.0]
    """
    there = events.sum() + censored.sum() - np.concatenate([[0], np.cumsum(events + censored)[:-1]])
    curve = np.cumprod(1 - events / there)
    return curve if digits is None else np.round(curve, digits)


def raw_document(times: np.ndarray, died: np.ndarray) -> bytes:
    """One time and one 0 or 1 per patient."""
    return json.dumps(
        {"format": "survival", "times": times.tolist(), "raw": died.astype(int).tolist()}
    ).encode()
