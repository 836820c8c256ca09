"""Translate pydantic's errors into problems: path, needs, got, and the nearest valid name."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from glasshouse.errors import Problem
from glasshouse.registry import nearest_names

Schema = Mapping[str, Any]
_LIMITS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
_TYPES = {
    "integer": "an int",
    "number": "a number",
    "boolean": "true or false",
    "string": "text",
    "object": "a table",
}


def dotted_path(loc: tuple[str | int, ...]) -> str:
    """A pydantic error location in the scenario's path notation.

    Examples:
        >>> dotted_path(("axes", "federation.batch_size", 0)), dotted_path(("defenses", 1, "name"))
        ('axes."federation.batch_size"[0]', 'defenses[1].name')
    """
    parts = [
        f"[{p}]" if isinstance(p, int) else f".{p}" if re.fullmatch(r"[\w-]+", p) else f'."{p}"' for p in loc
    ]
    return "".join(parts).removeprefix(".")


def show_value(value: object) -> str:
    """A value in TOML-like notation, truncated to 60 characters."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        text = f"[{', '.join(show_value(v) for v in value)}]"
    elif isinstance(value, Mapping):
        text = "{" + ", ".join(f"{k} = {show_value(v)}" for k, v in value.items()) + "}"
    else:
        text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def condition(schema: Schema, root: Schema) -> str:
    """A JSON schema's condition in words: ``an int >= 1``, ``one of iid, dirichlet``."""
    if "description" in schema and "type" not in schema and "$ref" not in schema:
        return str(schema["description"])
    if "$ref" in schema:
        present = {"arguments", "use"} & _deref(schema, root).get("properties", {}).keys()
        return "a name, or a table with one" if present else "a table"
    if "anyOf" in schema:
        branches = [s for s in schema["anyOf"] if s.get("type") != "null"]
        return " or ".join(condition(s, root) for s in branches)
    if "enum" in schema or "const" in schema:
        options = schema.get("enum", [schema.get("const")])
        return "one of " + ", ".join(f'"{o}"' if o == "" else str(o) for o in options)
    if schema.get("type") == "array":
        inner = condition(schema.get("items", {}), root)
        return f"a list, each {inner}" if schema.get("items") else "a list"
    if "pattern" in schema:
        return "text of letters, digits, '.', '_' and '-'"
    if schema.get("minLength"):
        return "text that is not empty"
    limits = " and ".join(f"{sign} {schema[key]:g}" for key, sign in _LIMITS.items() if key in schema)
    return " ".join(filter(None, [_TYPES.get(str(schema.get("type")), "a value"), limits]))


def found_problems(error: ValidationError, model: type[BaseModel]) -> list[Problem]:
    """The errors of one validation as :class:`Problem` objects, in order."""
    return [_problem(e, _schema(model)) for e in error.errors(include_url=False)]


def known_keys(root: Schema, loc: tuple[str | int, ...]) -> tuple[str, ...]:
    """The valid keys of the table at ``loc``."""
    return tuple(_deref(_at(root, loc, root), root).get("properties", {}))


def _problem(error: ErrorDetails, root: Schema) -> Problem:
    loc = tuple(part for part in error["loc"])
    if error["type"] == "extra_forbidden":
        keys = known_keys(root, loc[:-1])
        return Problem(
            path=dotted_path(loc),
            needs="a known key",
            got=f"'{loc[-1]}'",
            hint=nearest_names(str(loc[-1]), keys),
        )
    if error["type"] == "needs":
        return Problem(path=dotted_path(loc), needs=error["ctx"]["needs"], got=show_value(error["input"]))
    schema = _at(root, loc, root)
    got = "nothing" if error["type"] == "missing" else show_value(error["input"])
    if error["type"] == "finite_number":
        return Problem(path=dotted_path(loc), needs="a finite number", got=got)
    options = tuple(str(o) for o in _deref(schema, root).get("enum", ()) if o)
    hint = nearest_names(error["input"], options) if options and isinstance(error["input"], str) else ""
    needs = condition(schema, root)
    if error["type"] == "too_short":
        needs = "at least one entry"
    return Problem(path=dotted_path(loc), needs=needs, got=got, hint=hint)


@cache
def _schema(model: type[BaseModel]) -> Schema:
    return model.model_json_schema()


def _deref(schema: Schema, root: Schema) -> Schema:
    while "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rsplit("/", 1)[1]]
    return schema


def _at(schema: Schema, loc: tuple[str | int, ...], root: Schema) -> Schema:
    """The schema of the value at ``loc``; empty if there is none."""
    for part in loc:
        schema = _deref(schema, root)
        if "anyOf" in schema:
            schema = _deref(next(s for s in schema["anyOf"] if s.get("type") != "null"), root)
        if isinstance(part, int):
            schema = schema.get("items", {})
        else:
            schema = schema.get("properties", {}).get(part) or schema.get("additionalProperties") or {}
        if not isinstance(schema, Mapping):
            return {}
    return schema
