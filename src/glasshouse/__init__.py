"""Glasshouse: replay what a federated-learning server can see, attack it, and report what came out.

``import glasshouse as gh`` loads nothing; a name is imported when it is first used. docs/python.md shows
how the names are used, docs/api lists the public modules behind them.
"""

from importlib import import_module
from typing import Any

from glasshouse.public import PUBLIC, find

__all__ = [
    "GlasshouseError",
    "Run",
    "Scenario",
    "__version__",
    "adapt",
    "attack",
    "audit",
    "check",
    "guard",
    "load",
    "view",
]

__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    if name in ("audit", "guard"):  # packages too, which can be called
        return import_module(f"glasshouse.{name}")
    if name in PUBLIC:
        return find(name)
    raise AttributeError(f"module 'glasshouse' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC})
