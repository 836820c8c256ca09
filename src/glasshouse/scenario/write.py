"""Write a scenario as TOML, with every default."""

import json
import re
from collections.abc import Mapping
from typing import Any

from glasshouse.scenario.axes import plain
from glasshouse.scenario.spec import Scenario


def resolved_toml(scenario: Scenario) -> str:
    """TOML that loads as the same scenario. Keys without a value are left out."""
    return toml(plain(scenario))


def toml(table: Mapping[str, Any]) -> str:
    """Format ``table`` as TOML; values are strings, numbers, booleans, lists and tables of them.

    Examples:
        >>> print(toml({"seed": 0, "data": {"source": "digits"}, "attacks": [{"name": "dlg"}]}))
        seed = 0
        <BLANKLINE>
        [data]
        source = "digits"
        <BLANKLINE>
        [[attacks]]
        name = "dlg"
        <BLANKLINE>
    """
    return "\n".join(_lines(table, ())) + "\n"


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    lines = [f"{_key(k)} = {_value(v)}" for k, v in table.items() if not _is_section(v)]
    for key, value in table.items():
        if not _is_section(value):
            continue
        full_path = (*path, key)
        name = ".".join(_key(k) for k in full_path)
        if isinstance(value, Mapping):
            lines += ["", f"[{name}]", *_lines(value, full_path)]
        else:
            for entry in value:
                lines += ["", f"[[{name}]]", *_lines(entry, full_path)]
    return lines


def _is_section(value: Any) -> bool:
    if isinstance(value, Mapping):
        return True
    return isinstance(value, list) and bool(value) and all(isinstance(v, Mapping) for v in value)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _text(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + "}"
    return "[" + ", ".join(_value(v) for v in value) + "]"


def _text(text: str) -> str:
    """A TOML string: JSON's escapes are valid, but DEL must be escaped too, and surrogate pairs avoided."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
