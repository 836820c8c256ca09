"""Statistics, survival tables and moments of linear models: small JSON documents.

Flower's and NVFlare's apps send these as records of numbers; a capture writes them in this form. Nothing is
computed here.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Final, final

import numpy as np

from glasshouse.formats.base import NODES, Format, bad, field, json_of, numbers, whole_numbers
from glasshouse.formats.records import Newton, Statistic, Statistics, Survival
from glasshouse.registry import Card

NAMES: Final = ("count", "sum", "mean", "sum_squares", "minimum", "maximum", "auc", "accuracy", "loss", "bin")
PATIENTS: Final = 10**7
ENTRIES: Final = 1024
"""Largest number of coefficients."""


@final
@dataclass(frozen=True, kw_only=True)
class StatisticsJson(Format):
    """Numbers about rows, with site, round, column, subset and precision."""

    card: ClassVar[Card] = Card(summary="statistics of a site's rows as JSON")
    media: ClassVar[str] = "statistics-json"

    def sniff(self, head: bytes) -> bool:
        """The first key names the format."""
        return head.startswith(b'{"format": "statistics"')

    def parse(self, document: bytes) -> Statistics:
        subject = "statistics"
        stated = field(json_of(document, subject), "numbers", subject=subject)
        if not isinstance(stated, list) or not 0 < len(stated) <= NODES:
            raise bad(subject, f"1 to {NODES:,} numbers", type(stated).__name__)
        return Statistics(
            numbers=tuple(_statistic(one, f"{subject}, number {i}") for i, one in enumerate(stated))
        )


def _statistic(raw: Any, subject: str) -> Statistic:
    name = field(raw, "name", subject=subject)
    if name not in NAMES:
        raise bad(subject, f"a name of {', '.join(NAMES)}", str(name)[:40])
    if "digits" not in raw:
        raise bad(subject, "digits: decimals to which it is rounded, or null", "none")
    values = {key: float(numbers([raw[key]], subject)[0]) for key in ("value", "low", "high") if key in raw}
    whole = {key: int(whole_numbers([raw[key]], subject)[0]) for key in ("site", "round") if key in raw}
    digits = raw["digits"]
    if digits is not None and not (isinstance(digits, int) and 0 <= digits <= 17):
        raise bad(subject, "digits from 0 to 17, or null", str(digits)[:40])
    if "value" not in values or (name in ("count", "bin") and values["value"] < 0):
        raise bad(subject, "a value, of counts not below 0", str(values.get("value")))
    texts = {key: str(raw[key])[:256] for key in ("column", "subset") if key in raw}
    return Statistic(name=name, digits=digits, **values, **whole, **texts)  # type: ignore[arg-type]  # by key


@final
@dataclass(frozen=True, kw_only=True)
class SurvivalJson(Format):
    """Follow-up times: raw (times and events), a table of counts, or a curve."""

    card: ClassVar[Card] = Card(summary="survival times, tables and curves as JSON")
    media: ClassVar[str] = "survival-json"

    def sniff(self, head: bytes) -> bool:
        """The first key names the format."""
        return head.startswith(b'{"format": "survival"')

    def parse(self, document: bytes) -> Survival:
        subject = "survival table"
        raw = json_of(document, subject)
        times = numbers(field(raw, "times", subject=subject), f"{subject}, times")
        length = len(times)
        if "raw" in raw:  # one time and one 0 or 1 per patient, as Flower's app sends them
            happened = whole_numbers(raw["raw"], f"{subject}, raw", length=length)
            if not set(happened.tolist()) <= {0, 1}:
                raise bad(subject, "an event of 0 or 1 per patient", "another number")
            each, at = np.unique(times, return_inverse=True)
            events, both = (np.bincount(at, w, minlength=len(each)) for w in (happened, np.ones(length)))
            died = events.astype(np.int64)
            return Survival(times=each, patients=length, events=died, censored=both.astype(np.int64) - died)
        if (np.diff(times) <= 0).any():
            raise bad(subject, "rising times", "times that stand still or fall")
        patients = int(whole_numbers([field(raw, "patients", subject=subject)], subject)[0])
        if not 0 < patients <= PATIENTS:
            raise bad(subject, f"1 to {PATIENTS:,} patients", f"{patients:,}")
        if "curve" in raw:
            return _curve(raw, times, patients, subject)
        events, censored = (
            whole_numbers(field(raw, key, subject=subject), f"{subject}, {key}", length=length)
            for key in ("events", "censored")
        )
        if (events < 0).any() or (censored < 0).any() or (events + censored).sum() > patients:
            raise bad(subject, f"counts from 0 that add up to at most {patients}", "others")
        return Survival(times=times, patients=patients, events=events, censored=censored)


def _curve(raw: Any, times: Any, patients: int, subject: str) -> Survival:
    curve, digits = numbers(raw["curve"], f"{subject}, curve", length=len(times)), raw.get("digits")
    if (np.diff(curve) > 0).any() or (curve < 0).any() or (curve > 1).any():
        raise bad(subject, "a curve in [0, 1] that never rises", "another one")
    if digits is not None and not (isinstance(digits, int) and 1 <= digits <= 17):
        raise bad(subject, "digits from 1 to 17, or null", str(digits)[:40])
    return Survival(times=times, patients=patients, curve=curve, digits=digits)


@final
@dataclass(frozen=True, kw_only=True)
class GlmJson(Format):
    """The sums of one Newton step of logistic regression."""

    card: ClassVar[Card] = Card(summary="gradient and Hessian of logistic regression as JSON")
    media: ClassVar[str] = "glm-json"

    def sniff(self, head: bytes) -> bool:
        """The first key names the format."""
        return head.startswith(b'{"format": "glm"')

    def parse(self, document: bytes) -> Newton:
        subject = "sums of a Newton step"
        raw = json_of(document, subject)
        theta = numbers(field(raw, "theta", subject=subject), f"{subject}, theta")
        size = len(theta)
        rows = field(raw, "hessian", subject=subject)
        if not 1 <= size <= ENTRIES or not isinstance(rows, list) or len(rows) != size:
            raise bad(subject, f"1 to {ENTRIES} coefficients, and as many rows of the hessian", f"{size}")
        hessian = np.stack([numbers(row, f"{subject}, hessian", length=size) for row in rows])
        gradient = numbers(field(raw, "gradient", subject=subject), f"{subject}, gradient", length=size)
        if not np.allclose(hessian, hessian.T):
            raise bad(subject, "a symmetric hessian", "another matrix")
        return Newton(theta=theta, gradient=gradient, hessian=hessian)
