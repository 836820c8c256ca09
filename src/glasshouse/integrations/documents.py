"""Apps that send no network: how their messages become documents that ``formats`` read.

Flower's and NVIDIA FLARE's examples send boosted trees as bytes, follow-up times as two arrays, and
statistics as named numbers. What the app sends is kept to the last digit; only its wrapping differs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.data.tables.schema import read_schema
from glasshouse.errors import BadValue
from glasshouse.federation.protocols.documents.newton import as_encoded
from glasshouse.federation.protocols.documents.survival import raw_document
from glasshouse.formats.carried import NAME, tensor_of
from glasshouse.formats.records import Newton, Statistic, Statistics, Vectors
from glasshouse.formats.tabular import document_of
from glasshouse.formats.xgboost import append_trees
from glasshouse.modalities.row import Column, Row
from glasshouse.tasks.classification import Classification
from glasshouse.wire import Architecture, Stage, Value

CAPACITY: Final = 2**22
"""Bytes of a document: some 8,000 trees of depth 3 as JSON."""
RAW: Final = "raw"
VERTICAL: Final = "vertical"
_SUBJECT: Final = "a message of an app that sends documents"
_SUFFIXES: Final[Mapping[str, str]] = {
    "sum_sqd": "sum_squares",
    "sum_squares": "sum_squares",
    "sum": "sum",
    "count": "count",
    "avg": "mean",
    "mean": "mean",
    "min": "minimum",
    "minimum": "minimum",
    "max": "maximum",
    "maximum": "maximum",
}
"""How names of numbers end, and which statistic that is; the first that fits."""
_SETTINGS: Final[Mapping[str, str]] = {
    "eta": "eta",
    "learning_rate": "eta",
    "max_depth": "max_depth",
    "subsample": "subsample",
    "lambda": "reg_lambda",
    "reg_lambda": "reg_lambda",
    "alpha": "reg_alpha",
    "reg_alpha": "reg_alpha",
    "min_child_weight": "min_child_weight",
    "max_bin": "max_bin",
    "base_score": "base_score",
    "local_epochs": "trees",
}
"""Names under which apps configure boosting, and the option of the protocol."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Parts:
    """What one message holds, whatever the framework.

    Attributes:
        arrays: all arrays by name.
        values: numbers, texts and lists of numbers by name.
        payloads: bytes by name.
        asked: the arrays of the message that this one answers, where the app's protocol needs them.
        stated: numbers of which the framework itself says what they are.
    """

    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    values: Mapping[str, object] = field(default_factory=dict)
    payloads: Mapping[str, bytes] = field(default_factory=dict)
    asked: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    stated: Sequence[Statistic] = ()


@final
@dataclass(frozen=True, kw_only=True)
class Documents:
    """What an app without a network sends, in the place of ``model`` of a capture.

    Args:
        table: the columns of the clients' rows, in the order in which the app uses them; or the path of a
            schema (``glasshouse schema`` drafts one).
        protocol: ``xgb_bagging``, ``xgb_cyclic``, ``newton``, ``survival``, ``statistics`` or ``vertical``.
        options: public settings of the protocol (``eta``, ``trees``, ``column``, ...). Those of boosting that
            are missing are read from the run's configuration; ``rows = "plain"`` only you can state: the app
            gives no weights and takes no value for a missing one. Without it nothing is proved of trees and
            Newton's sums.
        encoded: the rows that trees or sums are over are encoded as networks see them; False: numbers as
            they are.
        edges: ends of the bins of a histogram, by the name under which its counts are sent.
        meaning: which statistic a suffix stands for, where it is not what it says: ``{"avg": "sum"}``.
        times: name of the array of follow-up times.
        events: name of the array that says whether the event happened.
        capacity: largest number of bytes of a document.
        known: of a vertical federation, the people whom both parties know, the first of those it is about:
            values by columns (levels by their number), and labels.
        where: only answers with these values count, such as those of one party: ``{"pos": 0}``.
        data_set: of statistics over several (FLARE's ``train`` and ``test``), the one that is audited.

    Raises:
        BadValue: a protocol that is not read, a name that is no statistic, or known people of no table.

    Examples:
        >>> from glasshouse.modalities.row import Column, Row
        >>> weeks = Row(columns=(Column(name="T", kind="integer", low=0, high=100),))
        >>> sends = Documents(table=weeks, protocol="survival", options={"column": "T"})
        >>> arrays = {"T": np.array([6.0, 9.0]), "E": np.array([1, 0])}
        >>> document, rows = sends.document(Parts(arrays=arrays))
        >>> document.decode(), rows
        ('{"format": "survival", "times": [6.0, 9.0], "raw": [1, 0]}', 2)
    """

    table: Row | str | Path
    protocol: str
    options: Mapping[str, Value] = field(default_factory=dict)
    encoded: bool = False
    edges: Mapping[str, Sequence[float]] = field(default_factory=dict)
    meaning: Mapping[str, str] = field(default_factory=dict)
    times: str = "T"
    events: str = "E"
    capacity: int = CAPACITY
    known: tuple[Sequence[Sequence[float]], Sequence[int]] = ((), ())
    where: Mapping[str, object] = field(default_factory=dict)
    data_set: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.table, Row):
            path = Path(self.table).expanduser()
            schema = read_schema(path, subject=f"columns of a captured app, '{path}'")
            object.__setattr__(self, "table", schema.features)
        unknown = set(self.meaning.values()) - set(_SUFFIXES.values())
        if self.protocol not in _READERS or unknown:
            raise BadValue(
                "documents of a captured app",
                needs=f"protocol {', '.join(_READERS)}; meanings among {', '.join(_SUFFIXES.values())}",
                got=", ".join([self.protocol, *sorted(unknown)]),
                fix="give a network as model, if the app trains one",
            )
        values, labels = self.known
        if len(values) != len(labels) or any(len(row) != len(self.rows.columns) for row in values):
            raise BadValue(
                "documents of a captured app",
                needs=f"of everybody who is known, {len(self.rows.columns)} values and a label",
                got=f"{len(values)} rows and {len(labels)} labels",
                fix="give known=(rows, labels), by the columns of the table",
            )

    @classmethod
    def over(cls, architecture: Architecture | None, **fields: Any) -> "Documents":
        """Documents over the columns that ``architecture`` reads.

        Raises:
            BadValue: it reads something else.
        """
        table = None if architecture is None else architecture.inputs
        if isinstance(table, Row):
            return cls(table=table, **fields)
        raise BadValue(
            "documents of a captured job",
            needs="an architecture that reads rows of a table",
            got="none" if table is None else f"one that reads {table.nouns}",
            fix="give the terms of boosted_trees or no_model, with the columns of the schema",
        )

    @property
    def rows(self) -> Row:
        """The columns."""
        assert isinstance(self.table, Row)
        return self.table

    @property
    def architecture(self) -> Architecture:
        """The registered model that carries such documents, over these columns."""
        learns = {"xgb_bagging": "boosted_trees", "xgb_cyclic": "boosted_trees", "newton": "coefficients"}
        name = learns.get(self.protocol, "no_model")
        arguments = {"capacity": self.capacity}
        return Architecture(name=name, inputs=self.rows, task=Classification(classes=2), arguments=arguments)

    def terms(self, config: Mapping[str, object]) -> dict[str, Any]:
        """Fields of the terms, with options read from a run's configuration where they are not stated."""
        read: dict[str, Value] = {}
        if self.protocol.startswith("xgb"):
            read = {**options_in(config), **({} if self.encoded else {"units": RAW})}
        if self.protocol.startswith("xgb") or self.protocol == "newton":
            read["rows"] = "unknown"
        if self.protocol == VERTICAL:
            read = {"reads": "embeddings", "known": len(self.known[1])}
        return {"protocol": self.protocol, "options": {**read, **self.options}}

    def document(self, parts: Parts) -> tuple[bytes, int]:
        """The document in a message, empty if it holds none, and the number of rows that it is about.

        Raises:
            BadValue: the message holds something else.
        """
        return _READERS[self.protocol](self, parts)

    def broadcast(self, parts: Parts) -> bytes:
        """The document that the server sends: settings beside it are no answer.

        In a vertical federation, whom both parties know.

        Raises:
            BadValue: as :meth:`document`.
        """
        if self.protocol != VERTICAL:
            return self.document(replace(parts, values={}))[0]
        values = torch.tensor(self.known[0], dtype=torch.float64).reshape(-1, len(self.rows.columns))
        rows = self.rows.encode(values).double().numpy()
        return document_of(
            Vectors(what="known", vectors=rows, labels=np.array(self.known[1], dtype=np.int64))
        )

    def concerns(self, stage: Stage) -> bool:
        """Whether messages of a stage hold the model and the answers.

        In a vertical federation embeddings answer a query; gradients are sent with what follows.
        """
        if self.protocol != VERTICAL:
            return stage in ("train", "query")
        return stage == ("train" if self.told else "query")

    @property
    def told(self) -> bool:
        """What is read is what the server sends: the gradients of a vertical federation."""
        return self.protocol == VERTICAL and self.options.get("reads") == "gradients"

    def counts(self, parts: Parts) -> bool:
        """Whether an answer is one of those that are read (``where``)."""
        return all(parts.values.get(name) == value for name, value in self.where.items())

    def numbers_of(self, statistics: Mapping[str, Sequence[Statistic]]) -> Sequence[Statistic]:
        """The numbers about the data set that is audited.

        Raises:
            BadValue: there are several, and none was chosen.
        """
        if len(statistics) > 1 and self.data_set not in statistics:
            raise _unlike(
                "statistics of one data set",
                ", ".join(statistics)[:200],
                fix=f"choose it: data_set='{next(iter(statistics))}'",
            )
        only = next(iter(statistics), "")
        return statistics.get(self.data_set or only, ())

    def tensors(self, document: bytes) -> dict[str, Tensor]:
        """A document as it stands in a transcript.

        Raises:
            BadValue: it is larger than the capacity.
        """
        return {NAME: tensor_of(document, self.capacity)}


def options_in(config: Mapping[str, object]) -> dict[str, Value]:
    """Settings of boosting that a run's configuration states.

    Examples:
        >>> options_in({"params.eta": 0.1, "params.max-depth": 8, "local-epochs": 1, "fraction-train": 0.5})
        {'eta': 0.1, 'max_depth': 8, 'trees': 1}
    """
    found: dict[str, Value] = {}
    for key, value in config.items():
        name = _SETTINGS.get(key.rpartition(".")[2].replace("-", "_"))
        if name is not None and isinstance(value, int | float) and not isinstance(value, bool):
            found.setdefault(name, value)
    return found


def _trees(sends: Documents, parts: Parts) -> tuple[bytes, int]:
    """The bytes of a booster: one array of bytes, or one payload; those of several, one behind the other."""
    del sends
    held = [array.tobytes() for array in parts.arrays.values() if array.dtype == np.uint8]
    held = [one for one in (*held, *parts.payloads.values()) if one]
    if any(array.dtype != np.uint8 for array in parts.arrays.values()):
        kinds = ", ".join(f"'{name}' {array.dtype}" for name, array in parts.arrays.items())
        raise _unlike("one array of bytes, the saved booster", f"{len(held)} of bytes; {kinds}"[:200])
    if len(held) < 2:
        return b"".join(held), 0
    try:
        return reduce(append_trees, held, b""), 0
    except (ValueError, LookupError, TypeError) as error:
        raise _unlike("boosters as XGBoost saves them in JSON", type(error).__name__) from error


def _survival(sends: Documents, parts: Parts) -> tuple[bytes, int]:
    """Times and events of single people, as two arrays of one length."""
    if not parts.arrays:
        return b"", 0
    times, events = (parts.arrays.get(name) for name in (sends.times, sends.events))
    if times is None or events is None or times.shape != events.shape or times.ndim != 1:
        raise _unlike(
            f"arrays '{sends.times}' and '{sends.events}' of one length",
            ", ".join(f"'{name}' {array.shape}" for name, array in parts.arrays.items())[:200],
            fix="name the two arrays: times, events",
        )
    return raw_document(times.astype(np.float64), events.astype(np.int64) == 1), len(times)


def _statistics(sends: Documents, parts: Parts) -> tuple[bytes, int]:
    """Named numbers and lists of counts; names that are no column's are metrics of the message."""
    columns, digits = {c.name: c for c in sends.rows.columns}, sends.options.get("digits")
    numbers = [number for number in parts.stated if number.column in columns]
    if isinstance(digits, int):
        numbers = [n if n.name in ("count", "bin") else replace(n, digits=digits) for n in numbers]
    for name, value in parts.values.items():
        numbers += _stated(sends, name, value)
    counted = {n.column: round(n.value) for n in numbers if n.name == "count" and n.column}
    # The count of a column that may have gaps is not that of the rows, even where all such counts are equal.
    sure = any(not columns[name].missing for name in counted)
    counts = set(counted.values())
    if not counted and isinstance(announced := parts.values.get("num-examples"), int | float):
        counts, sure = {int(announced)}, True
    if not numbers or not counts:
        return b"", 0
    # Where columns count differently values are missing, and no number is about all rows.
    whole = [Statistic(name="count", value=min(counts))] if sure and len(counts) == 1 else []
    return document_of(Statistics(numbers=(*whole, *numbers))), max(counts)


def _newton(sends: Documents, parts: Parts) -> tuple[bytes, int]:
    """Gradient and Hessian of a site, at the coefficients that it was sent; of the server, those alone."""
    table, size = sends.rows, (sends.rows.shape[0] if sends.encoded else len(sends.rows.columns)) + 1
    wide = [column.name for column in table.columns if column.width > 1]
    if wide and not sends.encoded:
        raise _unlike("columns of one number each", f"'{wide[0]}', {len(wide)} more", fix="set encoded=True")
    sums = {"gradient", "hessian"} <= parts.arrays.keys()
    theta = [array for array in (parts.asked if sums else parts.arrays).values() if array.size == size]
    gradient, hessian = (
        (parts.arrays[name] for name in ("gradient", "hessian"))
        if sums
        else (np.zeros(size), np.zeros((size, size)))
    )
    if len(theta) != 1 or gradient.size != size or hessian.shape != (size, size):
        raise _unlike(
            f"{size} coefficients, then 'gradient' and 'hessian' ({size}, {size}) at them",
            ", ".join(f"'{name}' {array.shape}" for name, array in parts.arrays.items())[:200] or "no arrays",
            fix="give the columns of the app's rows, without the intercept",
        )
    flat = (array.astype(np.float64).reshape(-1) for array in (theta[0], gradient))
    made = Newton(theta=next(flat), gradient=next(flat), hessian=hessian.astype(np.float64))
    return document_of(made if sends.encoded else as_encoded(made, table)), 0


def _vectors(sends: Documents, parts: Parts) -> tuple[bytes, int]:
    """One vector for everybody, of embeddings or of gradients; the known ones come first."""
    sent = [array for array in parts.arrays.values() if array.ndim == 2 and array.dtype.kind == "f"]
    known = len(sends.known[1])
    if not parts.arrays:
        return b"", 0
    if len(sent) != 1 or len(sent[0]) <= known or not np.isfinite(sent[0]).all():
        raise _unlike(
            f"one array (people, entries) of finite numbers, of more than the {known} people who are known",
            ", ".join(f"'{name}' {array.dtype} {array.shape}" for name, array in parts.arrays.items())[:200],
        )
    vectors = Vectors(what="gradients" if sends.told else "embeddings", vectors=sent[0].astype(np.float64))
    return document_of(vectors), len(sent[0]) - known


def _stated(sends: Documents, name: str, value: object) -> list[Statistic]:
    """The statistics that one named value states; none, if its name is that of no column."""
    owners = [c for c in sends.rows.columns if name == c.name or name.startswith(f"{c.name}_")]
    if not owners:
        return []
    # The longest name that fits: 'age_group_mean' is about 'age_group', not about 'age'.
    column = max(owners, key=lambda one: len(one.name))
    if isinstance(value, list | tuple):
        return _bins(sends, column, name, [float(v) for v in value])
    words = name.removeprefix(column.name).strip("_")
    suffixes = {**_SUFFIXES, **sends.meaning}
    # The caller's meanings first: they are there to overrule ours.
    what = next((suffixes[s] for s in (*sends.meaning, *_SUFFIXES) if words.endswith(s)), None)
    if what is None or not isinstance(value, int | float):
        return []
    beyond = what in ("mean", "minimum", "maximum") and not column.low <= value <= column.high
    if column.numeric and beyond:
        raise _unlike(
            f"'{name}' in [{column.low:g}, {column.high:g}], as the schema says of '{column.name}'",
            f"{value:g}",
            fix=f"say which statistic it is: meaning={{'{words}': 'sum'}}",
        )
    return [Statistic(name=what, value=float(value), column=column.name)]


def _bins(sends: Documents, column: Column, name: str, counts: Sequence[float]) -> list[Statistic]:
    edges = sends.edges.get(name)
    if edges is None or len(edges) != len(counts) + 1:
        raise _unlike(
            f"the {len(counts) + 1} ends of the bins of '{name}', which the message does not state",
            "none" if edges is None else str(len(edges)),
            fix=f"take them from the app's code: edges={{'{name}': (...)}}",
        )
    pairs = zip(counts, edges, edges[1:], strict=False)
    return [
        Statistic(name="bin", value=count, column=column.name, low=float(low), high=float(high))
        for count, low, high in pairs
    ]


def _unlike(needs: str, got: str, fix: str = "choose the protocol that the app speaks") -> BadValue:
    return BadValue(_SUBJECT, needs=needs, got=got, fix=fix)


Reader = Callable[[Documents, Parts], tuple[bytes, int]]
_READERS: Final[Mapping[str, Reader]] = {
    "xgb_bagging": _trees,
    "xgb_cyclic": _trees,
    "newton": _newton,
    "survival": _survival,
    "statistics": _statistics,
    VERTICAL: _vectors,
}
"""How the messages of a protocol are read."""
