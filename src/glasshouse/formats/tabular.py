"""Statistics, survival tables, moments of linear models and histograms: JSON documents.

Flower's and NVFlare's apps send these as records of numbers; a capture writes them in this form. Nothing is
computed here.
"""

import json
from dataclasses import dataclass
from typing import Any, ClassVar, Final, final

import numpy as np

from glasshouse.formats.base import NODES, Format, bad, field, json_of, numbers, whole_numbers
from glasshouse.formats.records import (
    Document,
    Histograms,
    Newton,
    Node,
    Statistic,
    Statistics,
    Survival,
    Vectors,
)
from glasshouse.registry import Card

NAMES: Final = ("count", "sum", "mean", "sum_squares", "minimum", "maximum", "auc", "accuracy", "loss", "bin")
PATIENTS: Final = 10**7
ENTRIES: Final = 1024
"""Largest number of coefficients."""
COLUMNS: Final = 4096
"""Largest number of columns of histograms."""


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
            lost = both.astype(np.int64) - died
            return Survival(times=each, patients=length, events=died, censored=lost, raw=True)
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


@final
@dataclass(frozen=True, kw_only=True)
class HistogramsJson(Format):
    """Sums of derivatives per node, column and bin, while a tree is grown together."""

    card: ClassVar[Card] = Card(summary="histograms of derivatives of a growing tree as JSON")
    media: ClassVar[str] = "histograms-json"

    def sniff(self, head: bytes) -> bool:
        """The first key names the format."""
        return head.startswith(b'{"format": "histograms"')

    def parse(self, document: bytes) -> Histograms:
        subject = "histograms"
        raw = json_of(document, subject)
        tree = int(whole_numbers([field(raw, "tree", subject=subject)], subject)[0])
        base = float(numbers([field(raw, "base", subject=subject)], subject)[0])
        stated, nodes = (field(raw, key, subject=subject) for key in ("cuts", "nodes"))
        if tree < 0 or not 0 < base < 1 or not isinstance(stated, list) or not isinstance(nodes, list):
            raise bad(subject, "a tree from 0, a base in (0, 1), lists of cuts and nodes", "others")
        if not 0 < len(stated) <= COLUMNS or not 0 < len(nodes) <= 2**10:
            raise bad(subject, f"1 to {COLUMNS} columns and 1,024 nodes", f"{len(stated)}, {len(nodes)}")
        cuts = tuple(numbers(one, f"{subject}, cuts of column {i}") for i, one in enumerate(stated))
        if any((np.diff(one) <= 0).any() for one in cuts):
            raise bad(subject, "cuts that rise", "others")
        bins = [len(one) + 1 for one in cuts]
        read = tuple(_node(node, bins, f"{subject}, node {i}") for i, node in enumerate(nodes))
        return Histograms(tree=tree, base=base, cuts=cuts, nodes=read)


def _node(raw: Any, bins: list[int], subject: str) -> Node:
    first, last = (
        whole_numbers(field(raw, key, subject=subject), subject, length=len(bins))
        for key in ("first", "last")
    )
    if (first < 0).any() or (first > last).any() or (last >= np.array(bins)).any():
        raise bad(subject, "a box of bins that exist", "another one")
    sums = {}
    for key in ("gradient", "hessian"):
        columns = field(raw, key, subject=subject)
        if not isinstance(columns, list) or len(columns) != len(bins):
            raise bad(subject, f"{key} of {len(bins)} columns", "another number")
        sums[key] = tuple(
            numbers(one, f"{subject}, {key}", length=size) for one, size in zip(columns, bins, strict=True)
        )
    if any((one < 0).any() for one in sums["hessian"]):
        raise bad(subject, "sums of second derivatives of at least 0", "a negative one")
    return Node(first=first, last=last, **sums)


@final
@dataclass(frozen=True, kw_only=True)
class VectorsJson(Format):
    """A vector for every person: embeddings, gradients, or rows of people who are known."""

    card: ClassVar[Card] = Card(summary="one vector per person of a vertical federation as JSON")
    media: ClassVar[str] = "vectors-json"

    def sniff(self, head: bytes) -> bool:
        """The first key names the format."""
        return head.startswith(b'{"format": "vectors"')

    def parse(self, document: bytes) -> Vectors:
        subject = "vectors"
        raw = json_of(document, subject)
        what, rows = (field(raw, key, subject=subject) for key in ("what", "vectors"))
        if what not in ("embeddings", "gradients", "known") or not isinstance(rows, list):
            raise bad(subject, "embeddings, gradients or known, and a list of vectors", str(what)[:40])
        width = len(rows[0]) if rows and isinstance(rows[0], list) else 0
        if len(rows) * max(1, width) > NODES:
            raise bad(subject, f"at most {NODES:,} numbers", f"{len(rows)} × {width}")
        vectors = [numbers(row, f"{subject}, person {i}", length=width) for i, row in enumerate(rows)]
        labels = raw.get("labels")
        if (what == "known") != (labels is not None):
            raise bad(subject, "labels of known people, and of them alone", "others")
        return Vectors(
            what=what,
            vectors=np.stack(vectors) if vectors else np.zeros((0, 0)),
            labels=None if labels is None else whole_numbers(labels, f"{subject}, labels", length=len(rows)),
        )


def document_of(record: Document) -> bytes:
    """A record as the document that its reader here reads: numbers to their last bit, None left out.

    Raises:
        TypeError: trees, which their own libraries write.

    Examples:
        >>> table = Survival(times=np.array([1.0]), patients=2, events=np.array([1]), censored=np.array([1]))
        >>> document_of(table).decode()
        '{"format": "survival", "times": [1.0], "patients": 2, "events": [1], "censored": [1]}'
    """
    named: dict[type, str] = {
        Statistics: "statistics", Survival: "survival", Newton: "glm", Histograms: "histograms",
        Vectors: "vectors",
    }  # fmt: skip
    if type(record) not in named:
        raise TypeError(f"no writer of {type(record).__name__}")
    if isinstance(record, Statistics):
        return json.dumps({"format": "statistics", "numbers": [_stated(n) for n in record.numbers]}).encode()
    parts = {n: _plain(v) for n, v in vars(record).items() if v is not None and n != "raw"}
    return json.dumps({"format": named[type(record)], **parts}).encode()


def _stated(number: Statistic) -> dict[str, Any]:
    """One statistic without what it does not say; digits always."""
    stated = {key: value for key, value in vars(number).items() if value not in ("", -np.inf, np.inf, None)}
    return {**stated, "digits": number.digits}


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Node):
        return {key: _plain(part) for key, part in vars(value).items()}
    return [_plain(one) for one in value] if isinstance(value, tuple) else value
