"""Read and write ``result.json``. Needs no torch.

The schema is documented in docs/result.md; ``FORMAT`` changes whenever the meaning of a field does.
"""

import math
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from glasshouse.disk import write_text
from glasshouse.errors import BadFile, BadValue
from glasshouse.outside import limits
from glasshouse.outside.arrays import read_arrays
from glasshouse.outside.files import parse_json, plain_file, read_limited, reason
from glasshouse.outside.text import as_json
from glasshouse.results.records import Exhibit, Result

__all__ = ["FORMAT", "READABLE", "pictures", "read_result", "sentences", "write_result"]

FORMAT = 3
READABLE = (3,)


def write_result(result: Result, path: Path) -> None:
    """Write ``result.json``; NaN and infinity are rejected.

    Raises:
        BadValue: a number is not finite.
        DiskFull: no space left.
        BadFile: the file could not be written.
    """
    try:
        text = as_json({"format": FORMAT, **asdict(result)}, indent=1, default=_plain)
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
        BadFile: missing, not JSON, of a newer format, or not what docs/result.md describes.
    """
    subject = f"result '{path}'"
    try:
        raw = parse_json(read_limited(path, limits.RESULT_BYTES, subject=subject).decode(), subject=subject)
    except UnicodeDecodeError as error:
        raise BadFile(
            subject, needs="a readable result.json", got=str(error), fix="name a run directory"
        ) from error
    if not isinstance(raw, dict) or raw.get("format", 0) not in READABLE:
        raise BadFile(
            subject,
            needs=f"format {' or '.join(map(str, READABLE))}",
            got=f"format {raw.get('format') if isinstance(raw, dict) else type(raw).__name__}",
            fix="upgrade glasshouse, or run the audit again",
        )
    try:
        result: Result = TypeAdapter(Result).validate_python({k: v for k, v in raw.items() if k != "format"})
    except (ValidationError, RecursionError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": str(error)}
        raise BadFile(
            subject,
            needs="a result as docs/result.md describes it",
            got=f"{'.'.join(map(str, first['loc']))}: {reason(ValueError(first['msg']))}",
            fix="get the file again, or run the audit again",
        ) from error
    return result


def pictures(exhibit: Exhibit, run: Path) -> NDArray[np.float64]:
    """The images of a ``pictures`` exhibit, (rows, columns, H, W, C) in [0, 1].

    Raises:
        BadFile: not a regular file below ``run``, or not an archive of plain arrays.
        KeyError: the archive has no ``images``.
    """
    subject, fix = f"pictures '{exhibit.title}'", "make the report where the run directory is whole"
    path = plain_file(run, exhibit.file, subject=subject)
    return np.asarray(read_arrays(path, subject=subject, fix=fix)["images"], dtype=np.float64)


def sentences(exhibit: Exhibit, run: Path) -> list[list[str]]:
    """The sentences of a ``sentences`` exhibit, row by row.

    Raises:
        BadFile: not a regular file below ``run``, or not JSON with lists of strings.
    """
    subject, fix = f"sentences '{exhibit.title}'", "make the report where the run directory is whole"
    path = plain_file(run, exhibit.file, subject=subject)
    raw = parse_json(read_limited(path, limits.JSON_BYTES, subject=subject).decode(), subject=subject)
    rows = raw.get("sentences") if isinstance(raw, dict) else None
    try:
        return TypeAdapter(list[list[str]]).validate_python(rows, strict=True)
    except ValidationError:
        got = "something else"
        raise BadFile(subject, needs="'sentences': lists of texts", got=got, fix=fix) from None


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} in a result")


def _where_not_finite(result: Result) -> str:
    for row in (*result.findings, *result.utility, *result.contrasts):
        for name, value in asdict(row).items():
            if isinstance(value, float) and not math.isfinite(value):
                return f"{type(row).__name__.lower()} of {row.scenario}: {name} = {value}"
    return "a number in an exhibit or the manifest"
