"""Digest of all code that a control depends on: the plug-in's package, glasshouse, and the libraries."""

import hashlib
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from glasshouse.registry import load

LIBRARIES: Final = ("torch", "numpy", "scipy")


def sources_digest(group: str, name: str) -> str:
    """Digest of all source files of the plug-in's package and of glasshouse, and of the libraries' versions.

    For a plug-in outside any package, its own file is hashed. Its imports from other packages are not.

    Args:
        group: of the registry.
        name: of the plug-in.
    """
    module = getattr(load(group, name), "__module__", "")
    total = hashlib.sha256(f"{module} {sys.version}".encode())
    for library in LIBRARIES:
        try:
            total.update(f"{library} {_version(library)}".encode())
        except PackageNotFoundError:
            total.update(f"{library} not installed".encode())
    for package in sorted({__name__.partition(".")[0], module.partition(".")[0]}):
        total.update(_digest(package).encode())
    return total.hexdigest()


def package_digest(package: str) -> str:
    """SHA-256 of all source files of an imported package, or of a module outside any package."""
    total = hashlib.sha256()
    for path in _files(package):
        total.update(path.name.encode() + b"\0")
        total.update(path.read_bytes())
    return total.hexdigest()


_digest = cache(package_digest)  # many controls need that of glasshouse
_version = cache(version)  # each look reads a file of the library


def _files(package: str) -> Iterator[Path]:
    module = sys.modules.get(package)
    folders = [Path(p) for p in getattr(module, "__path__", ())]
    for folder in folders:
        yield from sorted(folder.rglob("*.py"))
    file = getattr(module, "__file__", None)
    if not folders and file:
        yield Path(file)
