"""The schema of a table: what every column holds, written by its owner in a TOML file beside the table.

A draft is made of the table's own values; ranges and levels are public once they stand in a schema, so that
the owner widens or merges what would give a person away, and confirms it.
"""

import json
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, final

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from glasshouse.errors import BadFile, BadValue
from glasshouse.modalities.row import Column, Row
from glasshouse.outside import limits
from glasshouse.outside.files import read_limited, shorten

Role = Literal["feature", "target", "group", "ignored"]
FIX: Final = "glasshouse schema FILE drafts a schema; docs/data.md explains its keys"


@final
@dataclass(frozen=True, kw_only=True)
class Schema:
    """What the columns of a table are.

    Attributes:
        columns: all of them that are read: features and the target, in the order of the schema.
        target: name of the column that the federation predicts.
        group: name of the column that says whose row it is; empty: there is none.
        file: the table, relative to the schema; empty: the file that names the schema.
    """

    columns: tuple[Column, ...]
    target: str
    group: str = ""
    file: str = ""

    @property
    def features(self) -> Row:
        """The rows as they enter a network: all columns but the target."""
        return Row(columns=tuple(column for column in self.columns if column.name != self.target))

    @property
    def target_column(self) -> Column:
        """The column that is predicted."""
        return next(column for column in self.columns if column.name == self.target)


@final
@checked(frozen=True, kw_only=True, config=ConfigDict(extra="forbid", strict=True))
class _ColumnFile:
    """A column, as a table ``[[column]]`` of a schema."""

    name: str
    kind: Literal["continuous", "integer", "categorical", "binary"]
    role: Role = "feature"
    low: float | int = 0.0
    high: float | int = 1.0
    levels: tuple[str, ...] = ()
    tolerance: float | int = 0.0
    missing: bool = False


@final
@checked(frozen=True, kw_only=True, config=ConfigDict(extra="forbid", strict=True))
class _SchemaFile:
    """A schema, as a file."""

    confirmed: bool
    column: tuple[_ColumnFile, ...]
    file: str = ""


def read_schema(path: Path, *, subject: str) -> Schema:
    """The schema in the TOML file at ``path``.

    Raises:
        BadFile: no such file, no TOML, another key or type, not confirmed, or not exactly one target.
    """
    if not path.is_file():
        raise BadFile(subject, needs=f"a schema '{path.name}' beside the table", got="no such file", fix=FIX)
    try:
        raw = tomllib.loads(read_limited(path, limits.TOML_BYTES, subject=f"schema '{path}'").decode())
        stated = TypeAdapter(_SchemaFile).validate_json(json.dumps(raw))
        columns = tuple(_column(one) for one in stated.column if one.role in ("feature", "target"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadFile(f"schema '{path}'", needs="TOML", got=str(error), fix=FIX) from error
    # The first problem is enough: a schema is a file of some lines that its owner reads anyway.
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise BadFile(
            f"schema '{path}'", needs=f"'{place}': {first['msg']}", got=shorten(first["input"]), fix=FIX
        ) from error
    except BadValue as error:
        raise BadFile(
            f"schema '{path}', {error.subject}", needs=error.needs, got=error.got, fix=FIX
        ) from error
    targets = [one.name for one in stated.column if one.role == "target"]
    groups = [one.name for one in stated.column if one.role == "group"]
    # A draft is a guess about somebody's data; only its owner can say that it is right.
    if not stated.confirmed:
        needs, got = "confirmed = true, by the owner of the table", "confirmed = false"
    elif len(targets) != 1 or len(groups) > 1 or len(columns) < 2:
        needs = "one column of role target, at most one of role group, and a feature"
        got = f"{len(targets)} targets, {len(groups)} groups, {len(columns)} columns to read"
    else:
        return Schema(columns=columns, target=targets[0], group="".join(groups), file=stated.file)
    raise BadFile(f"schema '{path}'", needs=needs, got=got, fix="read every line of it, and correct it")


def _column(stated: _ColumnFile) -> Column:
    return Column(
        name=stated.name,
        kind=stated.kind,
        low=float(stated.low),
        high=float(stated.high),
        levels=stated.levels,
        tolerance=float(stated.tolerance),
        missing=stated.missing,
    )


def draft(columns: Mapping[Column, str], *, target: str, dates: Collection[str] = ()) -> str:
    """A schema of these columns as TOML, to be read, corrected and confirmed.

    Args:
        columns: each with the reason why it is drafted as ``ignored``; empty: it is none.
        target: name of the one that is predicted.
        dates: names of those that hold dates, which are left out, with what to do instead.

    Raises:
        BadFile: there is no such column.

    Examples:
        >>> text = draft({Column(name="age", kind="integer", low=0, high=90): ""}, target="age")
        >>> text.splitlines()[-6:]
        ['[[column]]', 'name = "age"', 'kind = "integer"', 'role = "target"', 'low = 0', 'high = 90']
    """
    lines = [
        "# A draft from the table's own values. What stands here is public: widen ranges, merge rare levels,",
        '# set role = "ignored" for what no network sees (names, numbers of records), then confirm.',
        "confirmed = false",
    ]
    names = [column.name for column in columns]
    if target not in names:
        raise BadFile("draft of a schema", needs=f"a target among {', '.join(names[:8])}", got=f"'{target}'",
                      fix="give --target as it stands in the table's first line")  # fmt: skip
    for column, reason in columns.items():
        if column.name in dates:
            lines += ["", *_left_out(column.name)]
            continue
        role = "target" if column.name == target else "ignored" if reason else "feature"
        lines += [
            "",
            *([f"# {reason}"] if reason else []),
            "[[column]]",
            f"name = {_text(column.name)}",
            f'kind = "{column.kind}"',
        ]
        lines.append(f'role = "{role}"')
        # What a network does not see need not be published either.
        if role == "ignored":
            continue
        if column.numeric:
            lines += [f"low = {column.low!r}", f"high = {column.high!r}"]
        else:
            lines.append(f"levels = [{', '.join(map(_text, column.levels))}]")
        lines += [f"tolerance = {column.tolerance!r}"] if column.tolerance else []
        lines += ["missing = true"] if column.missing else []
    return "\n".join(lines)


def _left_out(name: str) -> list[str]:
    """The lines of a column of dates: as levels each would name its day, and few people share one."""
    days = f'(pd.to_datetime(frame[{_text(name)}]) - pd.Timestamp("2000-01-01")).dt.days'
    return [
        "# Dates are no levels. To use them, write whole days into the table and draft again, with pandas:",
        f"# frame[{_text(name)}] = {days}",
        "[[column]]",
        f"name = {_text(name)}",
        'kind = "integer"',
        'role = "ignored"',
    ]


def _text(value: Any) -> str:
    """A TOML string."""
    return json.dumps(str(value), ensure_ascii=False)
