"""``result.json`` in and out. Needs no torch.

The schema is documented in docs/result.md; ``FORMAT`` changes when a field's meaning would.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from glasshouse.disk import write_text
from glasshouse.errors import BadFile, BadValue
from glasshouse.results.records import (
    AttackCard,
    Contrast,
    Control,
    Exchange,
    Exhibit,
    Finding,
    Limit,
    MetricCard,
    Reference,
    Refused,
    Result,
    ThreatCard,
    Utility,
    Victim,
)

FORMAT = 2
READABLE = (1, 2)

T = TypeVar("T")  # one of the records


def write_result(result: Result, path: Path) -> None:
    """Write ``result.json``; NaN and infinity are refused.

    Raises:
        BadValue: a number is not finite.
        DiskFull, BadFile: it could not be written.
    """
    try:
        text = json.dumps({"format": FORMAT, **asdict(result)}, allow_nan=False, indent=1, default=_plain)
    except ValueError as error:
        raise BadValue(
            "result.json",
            needs="finite numbers only",
            got=_where_not_finite(result),
            fix="report what is undefined as a refusal",
        ) from error
    write_text(path, text + "\n")


def read_result(path: Path) -> Result:
    """Read ``result.json``.

    Raises:
        BadFile: missing, not JSON, or of a newer format.
    """
    try:
        raw = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BadFile(
            f"result '{path}'", needs="a readable result.json", got=str(error), fix="name a run directory"
        ) from error
    if not isinstance(raw, dict) or raw.get("format", 0) not in READABLE:
        raise BadFile(
            f"result '{path}'",
            needs=f"format {' or '.join(map(str, READABLE))}",
            got=f"format {raw.get('format') if isinstance(raw, dict) else type(raw).__name__}",
            fix="upgrade glasshouse, or run the audit again",
        )
    return Result(
        suite=raw["suite"],
        threats=tuple(_load(ThreatCard, t) for t in raw["threats"]),
        findings=tuple(_finding(f) for f in raw["findings"]),
        refusals=tuple(_load(Refused, r) for r in raw["refusals"]),
        utility=tuple(_load(Utility, u) for u in raw["utility"]),
        exhibits=tuple(_load(Exhibit, e) for e in raw["exhibits"]),
        contrasts=tuple(_load(Contrast, c) for c in raw.get("contrasts", ())),
        limits=tuple(_load(Limit, one) for one in raw.get("limits", ())),
        attacks=tuple(_load(AttackCard, one) for one in raw.get("attacks", ())),
        metrics=tuple(_load(MetricCard, one) for one in raw.get("metrics", ())),
        manifest=raw["manifest"],
    )


def pictures(exhibit: Exhibit, run: Path) -> NDArray[np.float64]:
    """The images of a ``pictures`` exhibit, (rows, columns, H, W, C) in [0, 1]."""
    # Opened here: np.load leaves a file open that turns out to be no archive.
    with (run / exhibit.file).open("rb") as stream, np.load(stream) as archive:
        return np.asarray(archive["images"], dtype=np.float64)


def _finding(raw: Mapping[str, Any]) -> Finding:
    nested: dict[str, type[Control] | type[Exchange] | type[Reference]] = {
        "control": Control,
        "exchange": Exchange,
        "undefended": Reference,
    }
    parts: dict[str, Any] = {
        name: _load(kind, raw[name]) if raw.get(name) else None for name, kind in nested.items()
    }
    victims = [_load(Victim, one) for one in raw.get("victims", ())]
    return _load(Finding, {**raw, **parts, "victims": victims})


def _load(kind: type[T], raw: Mapping[str, Any]) -> T:
    known: dict[str, Any] = {f.name: raw[f.name] for f in fields(cast("Any", kind)) if f.name in raw}
    values: Any = {k: tuple(v) if isinstance(v, list) else v for k, v in known.items()}
    return kind(**values)


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} in a result")


def _where_not_finite(result: Result) -> str:
    rows: Sequence[Finding | Utility | Contrast] = [*result.findings, *result.utility, *result.contrasts]
    for row in rows:
        for name, value in asdict(row).items():
            if isinstance(value, float) and not math.isfinite(value):
                return f"{type(row).__name__.lower()} of {row.scenario}: {name} = {value}"
    return "a number in an exhibit or the manifest"
