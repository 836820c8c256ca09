"""``[axes]``: expand a scenario into cells, each a scenario without axes."""

import copy
import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

from glasshouse.outside.schema import freeze
from glasshouse.scenario.overrides import PathError, assign, parse_path
from glasshouse.scenario.spec import Scenario
from glasshouse.wire import Value

MAX_CELLS = 2000


@final
@dataclass(frozen=True, kw_only=True)
class Cell:
    """One combination of axis values.

    Attributes:
        scenario: the expanded scenario; its ``axes`` are empty.
        axes: path → value in this cell, or its label if the value is a list or table.
        hash: 16 hexadecimal digits over everything that affects the findings; the name of the cell's folder.
    """

    scenario: Scenario
    axes: Mapping[str, Value]
    hash: str


def cells(scenario: Scenario) -> tuple[Cell, ...]:
    """All combinations of axis values, the last axis fastest; one cell if there are no axes.

    The scenario must come from :func:`glasshouse.scenario.load.load`, which validates every cell.
    """
    return tuple(
        Cell(scenario=(one := Scenario.model_validate(freeze(raw))), axes=labels, hash=content_hash(one))
        for labels, raw in expand_axes(plain(scenario))
    )


def expand_axes(raw: dict[str, Any]) -> Iterator[tuple[dict[str, Value], dict[str, Any]]]:
    """(labels, raw scenario without axes) of every cell.

    Raises:
        PathError: an axis is empty, zipped axes differ in length, a path does not exist, or too many cells.
    """
    base = {k: v for k, v in raw.items() if k not in ("axes", "axes_zipped")}
    _check_paths(raw)
    groups = [
        [{path: choice} for choice in _different(path, _some(path, values))]
        for path, values in raw.get("axes", {}).items()
    ]
    groups += [_rows(i, table) for i, table in enumerate(raw.get("axes_zipped", []))]
    # Counted before any cell is made: a few long axes multiply to millions.
    total, needs = math.prod(map(len, groups)), f"at most {MAX_CELLS} cells"
    if total > MAX_CELLS:
        raise PathError("axes", needs=needs, got=str(total), hint="make several scenarios")
    for row in itertools.product(*groups):
        cell = copy.deepcopy(base)
        labels: dict[str, Value] = {}
        for path, choice in itertools.chain.from_iterable(step.items() for step in row):
            labelled = isinstance(choice, dict) and choice.keys() == {"label", "value"}
            value = choice["value"] if labelled else choice
            labels[path] = str(choice["label"]) if labelled else label_of(value)
            assign(cell, path, copy.deepcopy(value))
        yield labels, cell


def label_of(value: Any) -> Value:
    """The label of an axis value: a scalar itself; a list or table in words.

    Examples:
        >>> label_of([]), label_of([{"name": "clip", "norm": 4.0}, "sign"]), label_of(4)
        ('none', 'clip norm=4.0 + sign', 4)
    """
    if isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, (list, tuple)):
        return " + ".join(str(label_of(v)) for v in value) or "none"
    if not isinstance(value, Mapping):
        return str(value)
    if value.get("label"):
        return str(value["label"])
    rest = (f"{k}={label_of(v)}" for k, v in value.items() if k != "name")
    return " ".join([str(value.get("name", "")), *rest]).strip()


def content_hash(scenario: Scenario) -> str:
    """Hash of everything that affects the findings, 16 hexadecimal digits; ignores texts and key order."""
    content = plain(scenario)
    for words in ("summary", "policy", "tuning"):
        content.pop(words, None)
    for words in ("auditor", "budget", "auto"):
        content["audit"].pop(words, None)
    text = json.dumps(content, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def plain(scenario: Scenario) -> dict[str, Any]:
    """The scenario with all defaults as plain data: flat plug-ins, lists instead of tuples, no None."""
    dumped: dict[str, Any] = _without_none(scenario.model_dump())
    return dumped


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    return [_without_none(v) for v in value] if isinstance(value, (list, tuple)) else value


def _check_paths(raw: dict[str, Any]) -> None:
    """Refuse a path set by two axes, in any notation: one would silently override the other."""
    tables = [raw.get("axes", {}), *raw.get("axes_zipped", [])]
    paths: set[tuple[str, ...]] = set()
    for path in (path for table in tables for path in table):
        parts = tuple(map(str, parse_path(path)))
        if parts in paths:
            raise PathError(f'axes."{path}"', needs="every path in one axis only", got="two axes that set it")
        paths.add(parts)


def _some(path: str, values: Any) -> list[Any]:
    if not isinstance(values, list) or not values:
        raise PathError(f'axes."{path}"', needs="a list of at least one value", got=repr(values))
    return values


def _different(path: str, values: list[Any]) -> list[Any]:
    """Refuse duplicate values: the same cell would be counted twice."""
    texts = [json.dumps(value, sort_keys=True, default=str) for value in values]
    for value, text in zip(values, texts, strict=True):
        if texts.count(text) > 1:
            raise PathError(
                f'axes."{path}"',
                needs="different values",
                got=f"{label_of(value)} {texts.count(text)} times",
                hint="audit.seeds repeats a cell with other seeds",
            )
    return values


def _rows(index: int, table: dict[str, Any]) -> list[dict[str, Any]]:
    where = f"axes_zipped[{index}]"
    lengths = {len(_some(path, values)) for path, values in table.items()}
    if len(lengths) != 1:
        raise PathError(where, needs="lists of one length", got=f"lengths {sorted(lengths) or 'none'}")
    return [{path: values[i] for path, values in table.items()} for i in range(lengths.pop())]
