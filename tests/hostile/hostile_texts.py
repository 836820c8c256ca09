"""Three hundred texts that steer terminals, break files or pass for something else."""

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from glasshouse.outside.text import ACTIVE

_SEEDS = (
    "\x00", "\x07", "\x08", "\x0b", "\x0c", "\r", "\r\n", "\n", "\t", "\x1b[2J", "\x1b]0;a\x07", "\x1b[31m",
    "\x1b]8;;http://evil.example\x1b\\click\x1b]8;;\x1b\\", "\x7f", "\x85", "\x90", "\x9b2J", "\x9d0;x\x9c",
    "\u200e", "\u200f", "\u202a", "\u202d", "\u202e", "\u2066", "\u2069", "\u061c", "\u2028", "\u2029",
    "\u200b",
    "\ufeff", "\u00ad", "\u2060", "\ufffe", "\uffff", "\ud800", "\udfff", "\udc80\ud800", "\U000e0041",
    "\U0001fffe",
    "=1+1", "+1", "-1", "@SUM(A1)", "=cmd|' /C calc'!A0", '=HYPERLINK("http://evil.example")', "\t=1", "\r=1",
    "# heading", "[a](http://evil.example)", "<script>alert(1)</script>", "]]>", "http://evil.example",
    "__x__ | <b>y", "\\input{/etc/passwd}", "$x$ % & _", "e\u0301" * 9, "../../../evil", "{}", "x" * 5000,
)  # fmt: skip
_FRAMES = ("*", "a*b", "**", "name *", "* 7 %", "(*)")
TEXTS = [frame.replace("*", seed) for frame in _FRAMES for seed in _SEEDS if "*" not in seed][:300]
ACTS = re.compile(f"[{ACTIVE}]")
"""What may stand in no file and on no terminal; newlines and TABs are layout there."""
_KEPT = {"verdict", "kind", "file", "display", "severity", "state", "guarantee", "private", "unit_of_value"}
_SOURCE = {"landmarks", "join", "sentence"}


def poisoned(raw: dict[str, Any], texts: Iterator[str]) -> dict[str, Any]:
    """A result in which every name is a hostile text; equal names stay equal."""
    renamed: dict[str, str] = {}

    def change(value: Any, key: str) -> Any:
        if isinstance(value, dict):
            keys = {k: change(k, "") if key in ("axes", "defenses", "manifest") else k for k in value}
            return {keys[k]: change(v, k) for k, v in value.items()}
        if isinstance(value, list):
            return [change(item, key) for item in value]
        if not isinstance(value, str) or not value or key in _KEPT | _SOURCE:
            return value
        if value not in renamed:
            renamed[value] = next(texts) + f" {len(renamed)}"  # different names stay different
        return renamed[value]

    return {key: change(value, key) if key != "format" else value for key, value in raw.items()}


def hostile_results(honest: dict[str, Any]) -> list[dict[str, Any]]:
    """Results until every one of the texts has stood in one."""
    results, used = [], 0
    cycle = itertools.cycle(TEXTS)

    def counted() -> Iterator[str]:
        nonlocal used
        for text in cycle:
            used += 1
            yield text

    texts = counted()
    while used < len(TEXTS) or not results:
        results.append(poisoned(honest, texts))
    return results


def write(raw: dict[str, Any], folder: Path) -> Path:
    """The result as ``result.json``; JSON can hold lone surrogates and NUL as escapes."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(raw))
    return folder
