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


def unmet(path: str, needs: str, *, got: str = "", hint: str = "") -> Problem:
    """The problem that a setting does not meet what it ``needs``; an empty ``got`` stands for its value."""
    return Problem(path=path, needs=needs, got=got, hint=hint)


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
    # A plug-in may be written as its name alone.
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
    # What is left is a plain value with its bounds.
    limits = " and ".join(f"{sign} {schema[key]:g}" for key, sign in _LIMITS.items() if key in schema)
    return " ".join(filter(None, [_TYPES.get(str(schema.get("type")), "a value"), limits]))


def found_problems(error: ValidationError, model: type[BaseModel]) -> list[Problem]:
    """The errors of one validation as :class:`Problem` objects, in order."""
    return [_problem(e, _schema(model)) for e in error.errors(include_url=False)]


def _problem(error: ErrorDetails, root: Schema) -> Problem:
    kind, loc, value = error["type"], error["loc"], error["input"]
    path, got = dotted_path(loc), "nothing" if kind == "missing" else show_value(value)
    if kind == "extra_forbidden":
        known = tuple(_deref(_at(root, loc[:-1], root), root).get("properties", {}))
        return unmet(path, "a known key", got=f"'{loc[-1]}'", hint=nearest_names(str(loc[-1]), known))
    if kind in ("needs", "finite_number"):
        return unmet(path, "a finite number" if kind == "finite_number" else error["ctx"]["needs"], got=got)
    schema = _at(root, loc, root)
    options = tuple(str(o) for o in _deref(schema, root).get("enum", ()) if o)
    hint = nearest_names(value, options) if options and isinstance(value, str) else ""
    needs = "at least one entry" if kind == "too_short" else condition(schema, root)
    return unmet(path, needs, got=got, hint=hint)


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
