"""One digest of all code that a control depends on: the plug-in's package, ours, and the libraries."""

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
    """Changes with any source file of the plug-in's package or of ours, and with the libraries' versions.

    A plug-in outside every package counts with its own file. What it imports from other packages does not.

    Args:
        group: of the registry.
        name: of the plug-in.
    """
    module = getattr(load(group, name), "__module__", "")
    total = hashlib.sha256(f"{module} {sys.version}".encode())
    for library in LIBRARIES:
        try:
            total.update(f"{library} {version(library)}".encode())
        except PackageNotFoundError:
            total.update(f"{library} not installed".encode())
    for package in sorted({__name__.partition(".")[0], module.partition(".")[0]}):
        total.update(_digest(package).encode())
    return total.hexdigest()


def package_digest(package: str) -> str:
    """SHA-256 of every source file of an imported package, or of a module outside every package."""
    total = hashlib.sha256()
    for path in _files(package):
        total.update(path.name.encode() + b"\0")
        total.update(path.read_bytes())
    return total.hexdigest()


_digest = cache(package_digest)  # many controls ask for ours


def _files(package: str) -> Iterator[Path]:
    module = sys.modules.get(package)
    folders = [Path(p) for p in getattr(module, "__path__", ())]
    for folder in folders:
        yield from sorted(folder.rglob("*.py"))
    file = getattr(module, "__file__", None)
    if not folders and file:
        yield Path(file)
