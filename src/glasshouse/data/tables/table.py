"""``table:PATH``: rows of a CSV or Parquet file, with the schema that its owner wrote beside it."""

import csv
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from glasshouse.data.base import DataSource
from glasshouse.data.paths import require_existing
from glasshouse.data.shaped.arrays import assemble_examples
from glasshouse.data.tables.schema import Schema, read_schema
from glasshouse.errors import BadFile, not_installed
from glasshouse.modalities.row import HALF, Column
from glasshouse.outside import limits
from glasshouse.outside.files import shorten
from glasshouse.registry import Card

try:
    import pandas as pd
except ImportError as error:
    raise not_installed("data kind 'table'", "pandas", error, extra="tables") from error

MISSING: Final = ("", "NA", "N/A", "NaN", "nan", "?", "null", "None")
"""Texts that stand for a missing value, without spaces around them."""
_CONVERT: Final = "write it with pandas' to_csv or to_parquet; unpack archives"
_ENCODE: Final = (
    "write it anew: pandas.read_csv(path, encoding=...).to_csv(path, index=False), read as it was written"
)
_SEPARATORS: Final = (";", "\t", "|")
_NESTED: Final = (list, tuple, dict, np.ndarray)
DATE: Final = r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2}))([ T]\d{1,2}:\d{2}.*)?"
"""A date as tables write it, with a time or without."""
EMPTY: Final = "it has no value in any row"
SINGLE: Final = "most of its rows have a level of their own: a name, a date, a number with signs?"
WIDE: Final = "its neighbouring whole numbers are one entry in float32: the number of a record?"
FEW: Final = 20
"""Levels that are no sign of a name."""
FIX: Final = "correct the schema or the table; docs/data.md explains both"


@Card(
    summary="table:PATH, rows of a .csv or .parquet file, with its schema beside it; or the schema's path",
    extra="tables",
    details={"modality": "row"},
)
def table(where: str, *, resize: int | None = None) -> DataSource:
    """Read the rows of ``where``: every fourth one is in the test split.

    ``where`` is the table, whose schema stands beside it (``people.csv``: ``people.schema.toml``), or a
    schema that names the table (``file = "people.csv"``).

    Raises:
        BadFile: no such table or schema, a missing column, or a value that the schema does not allow.
        NotInstalled: pandas, or pyarrow for Parquet, is missing.
    """
    del resize  # for pictures only
    name = f"table:{where}"
    return rows_of(*_find(where, name), name=name)


def rows_of(path: Path, schema: Schema, *, name: str) -> DataSource:
    """The rows of the table at ``path``, as :func:`table`; ``name``: of the source.

    Raises:
        BadFile: a missing column, or a value that the schema does not allow.
    """
    frame = read_frame(path, name=name)
    asked = [column.name for column in schema.columns] + ([schema.group] if schema.group else [])
    if missing := [column for column in asked if column not in frame.columns]:
        raise _bad(name, f"the columns of its schema: {', '.join(asked[:8])}", f"no column '{missing[0]}'")
    features = [column for column in schema.columns if column.name != schema.target]
    values = np.stack([values_of(frame[column.name], column, name=name) for column in features], 1)
    targets = _targets(frame, schema.target_column, name)
    inputs = schema.features.encode(torch.from_numpy(values)).numpy()
    test = np.arange(len(inputs)) % 4 == 3
    rows = {"train": ~test, "test": test}
    groups = None if not schema.group else frame[schema.group].astype("category").cat.codes.to_numpy()
    return assemble_examples(
        name,
        {split: (inputs[own], targets[own]) for split, own in rows.items()},
        inputs=schema.features,
        class_names=None if schema.target_column.numeric else schema.target_column.levels,
        groups={} if groups is None else {s: groups[own].astype(np.int64) for s, own in rows.items()},
    )


def _find(where: str, name: str) -> tuple[Path, Schema]:
    """The table and its schema."""
    path = require_existing(where, name=name)
    if path.suffix != ".toml":
        return path, read_schema(path.with_suffix(".schema.toml"), subject=f"data '{name}'")
    schema = read_schema(path, subject=f"data '{name}'")
    if not schema.file:
        raise _bad(name, "file: the table, in the schema", "no such key")
    return require_existing(str(path.parent / schema.file), name=name), schema


def read_frame(path: Path, *, name: str) -> Any:
    """The table as a frame of texts (CSV) or typed columns (Parquet).

    Raises:
        BadFile: too large, not readable, of another kind, or without rows.
    """
    if path.stat().st_size > limits.FILE_BYTES:
        raise _bad(name, f"at most {limits.FILE_BYTES:,} bytes", f"{path.stat().st_size:,}")
    try:
        if path.suffix == ".parquet":
            frame = pd.read_parquet(path)
        elif path.suffix == ".csv":
            frame = pd.read_csv(path, dtype=str, keep_default_na=False, skipinitialspace=True)
            _check_header(path, name)
        else:
            raise _bad(name, "a .csv or .parquet file", f"'{path.suffix}'", fix=_CONVERT)
    except ImportError as error:
        raise not_installed("reading Parquet", "pyarrow", error, extra="tables") from error
    except UnicodeDecodeError as error:
        raise _bad(name, "text in UTF-8", f"another encoding: {error.reason}", fix=_ENCODE) from error
    except (ValueError, OSError, pd.errors.ParserError) as error:
        raise _bad(name, "a table that can be read", f"{type(error).__name__}: {error}") from error
    if not len(frame):
        raise _bad(name, "at least one row", "none")
    _check_columns(frame, name)
    return frame


def _check_header(path: Path, name: str) -> None:
    """Refuse two columns of one name, of which pandas renames the second, and a column without one."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        header = [one.strip() for one in next(csv.reader(file, skipinitialspace=True), [])]
    if repeated := [one for i, one in enumerate(header) if one in header[:i] or not one]:
        fix = "rename one of them in the first line"
        raise _bad(name, "a name of its own for every column", f"'{repeated[0]}' again, or none", fix=fix)


def _check_columns(frame: Any, name: str) -> None:
    """Refuse a table that was split at another sign, and columns whose values are tables themselves."""
    header = str(frame.columns[0])
    if len(frame.columns) == 1 and (sign := next((s for s in _SEPARATORS if s in header), "")):
        fix = f"pandas.read_csv(path, sep={sign!r}).to_csv(path, index=False), with decimal=',' where so"
        raise _bad(name, "columns separated by commas", f"one column, whose name holds {sign!r}", fix=fix)
    for column in frame.columns:
        if frame[column].dtype == object and frame[column].map(lambda one: isinstance(one, _NESTED)).any():
            needs = "a number or a text in each column of a row"
            raise _bad(
                name, needs, f"'{column}' of lists or records", fix="give each entry a column of its own"
            )


def values_of(series: Any, column: Column, *, name: str) -> NDArray[np.float64]:
    """The values of a column: numbers, or positions among the levels; NaN where missing. (N,).

    Raises:
        BadFile: a value that the schema does not allow. Its place is said, never the value.
    """
    texts = series.astype(str).str.strip()
    absent = (series.isna() | texts.isin(MISSING)).to_numpy()
    if column.numeric:
        numbers = pd.to_numeric(texts.where(~absent, "nan"), errors="coerce").to_numpy(dtype=np.float64)
        wrong = ~absent & ~((numbers >= column.low) & (numbers <= column.high))
        if column.kind == "integer":
            wrong = wrong | (~absent & (numbers != np.round(numbers)))
        needs = f"'{column.name}': a number ({column.kind}) from {column.low:g} to {column.high:g}"
    else:
        known = {level: float(i) for i, level in enumerate(column.levels)}
        numbers = texts.map(known).to_numpy(dtype=np.float64)
        absent = absent & np.isnan(numbers)  # a level may be written like a missing value
        wrong = ~absent & np.isnan(numbers)
        needs = f"'{column.name}': one of its {len(known)} levels"
    numbers = np.where(absent, np.nan, numbers)
    if not column.missing:
        wrong = wrong | absent
        needs += ", not missing"
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        raise _bad(name, needs, f"{int(wrong.sum()):,} other values, the first in row {first + 1}")
    return numbers


def _targets(frame: Any, column: Column, name: str) -> NDArray[Any]:
    values = values_of(frame[column.name], column, name=name)
    if np.isnan(values).any():
        raise _bad(name, f"a target '{column.name}' in every row", f"{int(np.isnan(values).sum()):,} missing")
    return values.astype(np.float32 if column.numeric else np.int64)


def drafted(frame: Any) -> dict[Column, str]:
    """A column of the schema for every column of a table, from its own values.

    Returns:
        Each with the reason why no network should see it as it is; empty: none.
    """
    columns: dict[Column, str] = {}
    for label in frame.columns:
        texts = frame[label].astype(str).str.strip()
        absent = frame[label].isna() | texts.isin(MISSING)
        present = texts[~absent]
        numbers = pd.to_numeric(present, errors="coerce")
        levels = tuple(sorted(present.unique()))
        missing = bool(absent.any())
        # Two values, or one, are levels even where they are numbers: 0 and 1 are no range.
        if len(numbers) and not numbers.isna().any() and numbers.max() > numbers.min() and len(levels) > 2:
            kind: Any = "integer" if bool((numbers == numbers.round()).all()) else "continuous"
            wide = Column(
                name=str(label),
                kind="continuous",
                low=float(numbers.min()),
                high=float(numbers.max()),
                missing=missing,
            )
            # Neighbours that float32 merges cannot be told apart, whatever an attack reads.
            coarse = math.ceil(wide.resolution) if kind == "integer" and wide.resolution >= HALF else 0
            column = replace(wide, kind=kind, tolerance=float(coarse))
            reason = WIDE if coarse else ""
        else:
            every = levels if len(levels) > 1 else (*levels, "other") if levels else ("none", "other")
            kind = "binary" if len(every) == 2 else "categorical"
            column = Column(name=str(label), kind=kind, levels=tuple(every), missing=missing)
            reason = SINGLE if len(levels) > max(FEW, len(present) / 2) else "" if levels else EMPTY
        columns[column] = reason
    return columns


def dates_in(frame: Any) -> frozenset[str]:
    """Names of the columns of a table that hold dates, or dates with a time, and nothing else."""
    return frozenset(str(label) for label in frame.columns if _holds_dates(frame[label]))


def _holds_dates(column: Any) -> bool:
    texts = column.astype(str).str.strip()
    present = texts[~(column.isna() | texts.isin(MISSING))]
    if not len(present) or not present.str.fullmatch(DATE).all():
        return False
    return not pd.to_datetime(present, errors="coerce", format="mixed").isna().any()


def _bad(name: str, needs: str, got: str, *, fix: str = FIX) -> BadFile:
    return BadFile(f"data '{name}'", needs=needs, got=shorten(got), fix=fix)
