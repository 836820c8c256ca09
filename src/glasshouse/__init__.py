"""Glasshouse: replay what a federated-learning server can see, attack it, and report what leaks.

``import glasshouse as gh`` loads nothing: each name is imported on first use, as most of them need torch.
docs/python.md shows how to use the names; docs/api lists the public modules that define them.
"""

import inspect
import sys
from importlib import import_module
from types import ModuleType
from typing import Any, Final, final

__version__ = "1.0.0"

PUBLIC: Final = {
    "GlasshouseError": "glasshouse.errors",
    "Run": "glasshouse.api.run",
    "Scenario": "glasshouse.scenario.spec",
    "adapt": "glasshouse.models.adapt",
    "attack": "glasshouse.api.attack",
    "audit": "glasshouse.api.audit",
    "check": "glasshouse.api.check",
    "defenses": "glasshouse.api.defenses",
    "explain": "glasshouse.api.explain",
    "guard": "glasshouse.api.guard",
    "load": "glasshouse.api.run",
    "scenario": "glasshouse.api.scenario",
    "terms": "glasshouse.api.terms",
    "view": "glasshouse.api.attack",
}
"""The module of each public name; ``__init__.pyi`` declares the same."""

__all__ = ["__version__", *PUBLIC]  # noqa: PLE0604  (every element is a text)


def _find(name: str) -> Any:
    """The public object called ``name``."""
    return getattr(import_module(PUBLIC[name]), name)


@final
class CallablePackage(ModuleType):
    """A package that shares its name with a public function; calling the package calls the function."""

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._function())

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call the function."""
        return self._function()(*arguments, **options)

    def _function(self) -> Any:
        return _find(self.__name__.rpartition(".")[2])


def make_callable(package: str) -> None:
    """Make ``package`` callable as the public function of the same name.

    Importing a package binds it to its name in ``glasshouse`` and so replaces a function of that name.
    """
    sys.modules[package].__class__ = CallablePackage


def __getattr__(name: str) -> Any:
    if name in ("audit", "guard", "scenario"):  # callable packages
        return import_module(f"glasshouse.{name}")
    if name in PUBLIC:
        return _find(name)
    raise AttributeError(f"module 'glasshouse' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC})
