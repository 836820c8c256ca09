"""Glasshouse: replay what a federated-learning server can see, attack it, and report what came out.

``import glasshouse as gh`` loads nothing: a name is imported when it is first used, as most need torch.
docs/python.md shows how the names are used, docs/api lists the public modules behind them.
"""

import inspect
import sys
from importlib import import_module
from types import ModuleType
from typing import Any, Final, final

__all__ = [
    "GlasshouseError",
    "Run",
    "Scenario",
    "__version__",
    "adapt",
    "attack",
    "audit",
    "check",
    "defenses",
    "guard",
    "load",
    "view",
]

__version__ = "0.2.0"

PUBLIC: Final = {
    "GlasshouseError": "glasshouse.errors",
    "Run": "glasshouse.api.run",
    "Scenario": "glasshouse.scenario.spec",
    "adapt": "glasshouse.models.adapt",
    "attack": "glasshouse.api.attack",
    "audit": "glasshouse.api.audit",
    "check": "glasshouse.api.check",
    "defenses": "glasshouse.api.defenses",
    "guard": "glasshouse.api.guard",
    "load": "glasshouse.api.run",
    "view": "glasshouse.api.attack",
}
"""Where each public name is. ``__init__.pyi`` tells type checkers the same."""


def _find(name: str) -> Any:
    """The public object called ``name``."""
    return getattr(import_module(PUBLIC[name]), name)


@final
class CallablePackage(ModuleType):
    """A package that shares its name with a public function, and calls it."""

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._function())

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call the function."""
        return self._function()(*arguments, **options)

    def _function(self) -> Any:
        return _find(self.__name__.rpartition(".")[2])


def make_callable(package: str) -> None:
    """Let ``package`` be called as the public function of its name.

    Python binds a package that was imported to its name in ``glasshouse``, in the place of any function.
    """
    sys.modules[package].__class__ = CallablePackage


def __getattr__(name: str) -> Any:
    if name in ("audit", "guard"):  # packages too, which can be called
        return import_module(f"glasshouse.{name}")
    if name in PUBLIC:
        return _find(name)
    raise AttributeError(f"module 'glasshouse' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC})
