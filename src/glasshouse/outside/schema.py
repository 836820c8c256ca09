"""Validate JSON against a schema: types, ranges, and no unknown keys."""

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from glasshouse.errors import BadFile, BadValue
from glasshouse.outside import limits
from glasshouse.outside.files import shorten
from glasshouse.registry import load, names, nearest_names

M = TypeVar("M", bound=BaseModel)

Text = Annotated[str, Field(max_length=limits.TEXT)]
Count = Annotated[int, Field(ge=1, le=limits.EXAMPLES)]
Client = Annotated[int, Field(ge=0, le=limits.CLIENTS)]
Round = Annotated[int, Field(ge=0, le=limits.ROUNDS)]
Number = Annotated[int, Field(ge=-(2**31), le=2**31)]
Value = float | Number | Text | bool
Values = Annotated[dict[Text, Value], Field(max_length=limits.ARGUMENTS)]


class Described(BaseModel):
    """A JSON object with fixed keys and strict types: neither ``True`` nor ``"5"`` is a number."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class PluginFile(Described):
    """A modality or a task, as stored in files: its registered name and its fields."""

    name: Text
    fields: Annotated[dict[Text, Any], Field(max_length=limits.ARGUMENTS)] = {}


class ArchitectureFile(Described):
    """An architecture, as stored in files; :func:`plugin_of` checks what ``inputs`` and ``task`` hold."""

    name: Text
    inputs: PluginFile
    task: PluginFile
    arguments: Values = {}


def plugin_of(group: str, stated: PluginFile, *, subject: str, fix: str) -> Any:
    """The modality or task that a file describes.

    Raises:
        BadFile: not registered, another field, or a value of another type or out of its range.
    """
    if stated.name not in names(group):
        raise BadFile(
            subject,
            needs=f"a registered name of {group}",
            got=shorten(stated.name),
            fix=f"{nearest_names(stated.name, names(group))}; install the plug-in that has it",
        )
    kind: Any = load(group, stated.name)
    known = {field.name for field in fields(kind)} if is_dataclass(kind) else set()
    if unknown := sorted(stated.fields.keys() - known):
        raise BadFile(
            subject,
            needs=f"{stated.name} with fields among {', '.join(sorted(known)) or 'none'}",
            got=shorten(unknown[0]),
            fix=fix,
        )
    try:
        # As JSON, in which a list is a tuple and a table a dataclass, and nothing else is converted.
        return _adapter(kind).validate_json(json.dumps(stated.fields), strict=True)
    except (ValidationError, BadValue) as error:
        raise _not_fitting(error, subject=subject, fix=fix) from error


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """The validator of a dataclass; to build one takes longer than to read most files."""
    return TypeAdapter(kind)


def _not_fitting(error: ValidationError | BadValue, *, subject: str, fix: str) -> BadFile:
    """An error of a description, as one of the file."""
    if isinstance(error, BadValue):
        return BadFile(f"{subject}, {error.subject}", needs=error.needs, got=error.got, fix=fix)
    first = error.errors(include_url=False, include_context=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return BadFile(
        subject,
        needs=(f"'{place}': " if place else "") + first["msg"][:1].lower() + first["msg"][1:],
        got=shorten(first["input"]),
        fix=fix,
    )


def parse_as(kind: type[M], raw: object, *, subject: str, fix: str) -> M:
    """Validate ``raw`` (from JSON) as a ``kind``.

    Raises:
        BadFile: ``raw`` does not fit; the message names the first problem and its location.
    """
    try:
        return kind.model_validate(freeze(raw))
    except RecursionError as error:
        got = "brackets nested too deeply"
        raise BadFile(subject, needs="plain lists and tables", got=got, fix=fix) from error
    except ValidationError as error:
        raise _not_fitting(error, subject=subject, fix=fix) from error


def check_name(name: str, *, subject: str, trust_factory: bool) -> None:
    """Refuse an architecture name that is not registered, or that would import a module without permission.

    Args:
        name: name of a model, from a file.
        subject: names the file in errors.
        trust_factory: allow ``module:factory``, which runs code of that module.

    Raises:
        BadFile: not a registered model.
    """
    registered, code = names("models"), ":" in name
    if name in registered or (trust_factory and code):
        return
    raise BadFile(
        subject,
        needs="a registered model" + (": a file from outside never has code imported" if code else ""),
        got=f"the architecture {shorten(name)}",
        fix="--trust-factory runs that module's code: only if you wrote it or read it"
        if code
        else f"{nearest_names(name, registered)}; install the plug-in that has it",
    )


def freeze(value: Any) -> Any:
    """Convert lists to tuples recursively, as strict tuple types require."""
    if isinstance(value, Mapping):
        return {key: freeze(item) for key, item in value.items()}
    return tuple(map(freeze, value)) if isinstance(value, (list, tuple)) else value
