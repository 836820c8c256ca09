"""Plug-in descriptions for ``glasshouse list``, kept between calls so that most need not import torch."""

import functools
import hashlib
import json
import re
from contextlib import suppress
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, requires
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from glasshouse import registry
from glasshouse.disk import cache_folder, write_text
from glasshouse.errors import GlasshouseError

FIELDS = ("summary", "source", "threat", "grants", "extra")
"""The fields of a card that a list shows."""
FOLDER = "cards"
"""Folder of the cache with one file per plug-in."""


def card_row(group: str, name: str) -> dict[str, Any]:
    """The fields of a plug-in's card that a list shows.

    The plug-in is imported once, and again after any file of its package has changed.

    Raises:
        NotInstalled: the plug-in had to be imported, and its extra is missing.
    """
    point = registry.entry(group, name)
    key = hashlib.sha256(repr((group, name, point.value, _state_of(point))).encode()).hexdigest()
    path = cache_folder() / FOLDER / f"{key[:32]}.json"
    with suppress(OSError, ValueError):
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return {field: kept[field] for field in FIELDS if field in kept}
    card = registry.card(group, name)
    row = {field: getattr(card, field) for field in FIELDS}
    with suppress(GlasshouseError):  # a cache that cannot be written costs time, nothing else
        write_text(path, json.dumps(row))
    return {**row, "grants": list(row["grants"])}


def _state_of(point: EntryPoint) -> tuple[str, int, int]:
    """The folder of a plug-in's package, how many source files it has, and when the last one changed."""
    return _state_of_package(point.module.partition(".")[0])


@functools.cache
def _state_of_package(package: str) -> tuple[str, int, int]:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return package, 0, 0
    origin = Path(spec.origin)
    files = list(origin.parent.rglob("*.py")) if origin.name == "__init__.py" else [origin]
    return str(origin), len(files), max(file.stat().st_mtime_ns for file in files)


def missing_packages(extra: str) -> tuple[str, ...]:
    """Packages of the optional dependency group ``extra`` that are not installed."""
    marker = re.compile(rf"extra == ['\"]{re.escape(extra)}['\"]")
    requirements = (line for line in requires("glasshouse") or () if marker.search(line))
    packages = (re.match(r"[\w.-]+", line) for line in requirements)
    return tuple(package[0] for package in packages if package and not _is_installed(package[0]))


def _is_installed(package: str) -> bool:
    try:
        distribution(package)
    except PackageNotFoundError:
        return False
    return True
