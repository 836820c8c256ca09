"""``--set path=value``: change a raw scenario before it is validated. Axes are applied in the same way.

A path consists of dotted keys. In a list of tables a key is an index, an entry's name or label, or ``*`` for
all entries whose plug-in takes the argument. Assigning a path that an axis sets removes that axis. A path
below an axis (``attacks.*.iterations`` with an axis ``attacks``) changes the axis values.
"""

import re
import tomllib
from collections.abc import Sequence
from typing import Any

from glasshouse import registry
from glasshouse.errors import GlasshouseError, Problem

_PART = re.compile(r'"([^"]*)"|([^."\[\]=\s]+)|\[(\d+)\]')
_ENTRIES = ("attacks", "defenses")


class PathError(Exception):
    """Internal: an invalid assignment; it becomes part of a :class:`BadScenario`."""

    def __init__(self, path: str, *, needs: str, got: str, hint: str = "") -> None:
        self.problem = Problem(path=path, needs=needs, got=got, hint=hint)
        super().__init__(path)


def split_assignment(text: str) -> tuple[str, Any]:
    """Split ``path=value`` into the path and the parsed value; an unquoted word is a string.

    Examples:
        >>> split_assignment('axes."federation.batch_size"=[1, 4]'), split_assignment("model.name=mlp")
        (('axes."federation.batch_size"', [1, 4]), ('model.name', 'mlp'))
    """
    match = re.match(r'((?:"[^"]*"|[^="])+)=(.*)$', text, re.DOTALL)
    if not match:
        raise PathError(text, needs="path=value", got=f"'{text}'", hint="for example federation.batch_size=4")
    path, value = match[1].strip(), match[2].strip()
    try:
        return path, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        if re.fullmatch(r"[A-Za-z_.~/][\w:./-]*", value):
            return path, value
        raise PathError(
            path, needs="a TOML value", got=value or "nothing", hint='texts are quoted: "..."'
        ) from None


def assign(raw: dict[str, Any], path: str, value: Any) -> None:
    """Set ``path`` to ``value`` in place, in the scenario and in the values of axes above it.

    Raises:
        PathError: the path is malformed or does not exist.
    """
    parts = parse_path(path)
    reached = _into_axes(raw, parts, value)
    try:
        _set(raw, parts, value, path, group=str(parts[0]))
    except PathError:
        if not reached:
            raise


def parse_path(path: str) -> list[str]:
    """The keys of a path; ``[0]`` and ``.0`` are equivalent.

    Raises:
        PathError: empty, or not a dotted path.
    """
    parts = [next(g for g in m.groups() if g is not None) for m in _PART.finditer(path)]
    if not parts or _PART.sub("", path).strip("."):
        raise PathError(
            path or '""', needs="a dotted path", got=f"'{path}'", hint="for example attacks.0.iterations"
        )
    return parts


def join_path(parts: Sequence[str]) -> str:
    """The path of these keys.

    Examples:
        >>> join_path(["axes", "federation.batch_size"])
        'axes."federation.batch_size"'
    """
    return ".".join(f'"{p}"' if re.search(r"[.\[\]\s]", p) else p for p in parts)


def _into_axes(raw: dict[str, Any], parts: list[str], value: Any) -> int:
    """Remove axes set by ``parts``, change values of axes above it; return the number of changed values."""
    reached = 0
    for table in [raw.get("axes"), *(raw.get("axes_zipped") or [])]:
        for axis in list(table) if isinstance(table, dict) else ():
            keys = parse_path(axis)
            if keys[: len(parts)] == parts:
                del table[axis]
            elif parts[: len(keys)] == keys:
                reached += _into_values(table[axis], parts[len(keys) :], value, group=keys[0])
    if "axes_zipped" in raw and isinstance(raw["axes_zipped"], list):
        raw["axes_zipped"] = [table for table in raw["axes_zipped"] if table != {}]
    for key in ("axes", "axes_zipped"):
        if raw.get(key) in ({}, []):
            del raw[key]
    return reached


def _into_values(values: Any, parts: list[str], value: Any, *, group: str) -> int:
    reached = 0
    for i, choice in enumerate(values if isinstance(values, list) else []):
        labelled = isinstance(choice, dict) and choice.keys() == {"label", "value"}
        holder = {"value": choice["value"]} if labelled else {"value": choice}
        try:
            _set(holder, ["value", *parts], value, "", group=group)
        except PathError:
            continue
        values[i] = {"label": choice["label"], **holder} if labelled else holder["value"]
        reached += 1
    return reached


def _set(node: Any, parts: list[str], value: Any, path: str, *, group: str) -> None:
    key, rest = parts[0], parts[1:]
    if isinstance(node, list):
        for i in _matching_entries(node, key, rest, path, group):
            # A plug-in by its name alone gets a table when something of it is set.
            if rest and isinstance(node[i], str):
                node[i] = {"name": node[i]}
            if rest:
                _set(node[i], rest, value, path, group=group)
            else:
                node[i] = value
    elif not isinstance(node, dict):
        raise PathError(path, needs="a path to a table or list", got=f"'{key}' below the value {node!r}")
    elif not rest:
        node[key] = value
    else:
        if key not in node:
            # A table may begin here, an entry of a list that is not there may not.
            if rest[0] == "*" or rest[0].isdigit():
                raise PathError(path, needs=f"entries in '{key}'", got="none")
            node[key] = {}
        _set(node[key], rest, value, path, group=group)


def _matching_entries(entries: list[Any], key: str, rest: list[str], path: str, group: str) -> list[int]:
    """Indices of the entries that ``key`` selects."""
    if key.isdigit():
        if int(key) >= len(entries):
            raise PathError(path, needs=f"an index below {len(entries)}", got=key)
        return [int(key)]
    names = [{"name": e} if isinstance(e, str) else e if isinstance(e, dict) else {} for e in entries]
    hits = [i for i, e in enumerate(names) if key in ("*", e.get("name"), e.get("label"), e.get("use"))]
    if not hits:
        alternatives = tuple(str(e[k]) for e in names for k in ("name", "label") if k in e)
        hint = registry.nearest_names(key, alternatives)
        raise PathError(path, needs="an index, '*', or the name of an entry", got=f"'{key}'", hint=hint)
    taking = [i for i in hits if not rest or _takes(group, names[i].get("name"), rest)]
    if key == "*" and not taking:
        raise PathError(
            path, needs=f"an entry that takes '{join_path(rest)}'", got=f"none of {len(entries)} does"
        )
    return taking if key == "*" else hits


def _takes(group: str, name: object, path: list[str]) -> bool:
    """Whether the plug-in ``name`` takes the argument at ``path``; unknown ones are reported later."""
    if group not in _ENTRIES or path[0] in ("name", "label"):
        return True
    try:
        return registry.takes(registry.load(group, str(name)), path)
    except GlasshouseError:
        return True
