"""The names of ``import glasshouse``: each is imported on its first use, as most need torch."""

import inspect
import sys
from importlib import import_module
from types import ModuleType
from typing import Any, Final, final

PUBLIC: Final = {
    "GlasshouseError": "glasshouse.errors",
    "Run": "glasshouse.api.run",
    "Scenario": "glasshouse.scenario.spec",
    "adapt": "glasshouse.models.adapt",
    "attack": "glasshouse.api.attack",
    "audit": "glasshouse.api.audit",
    "check": "glasshouse.api.check",
    "guard": "glasshouse.api.guard",
    "load": "glasshouse.api.run",
    "view": "glasshouse.api.attack",
}
"""Where each name is. ``src/glasshouse/__init__.pyi`` tells type checkers the same."""


def find(name: str) -> Any:
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
        return find(self.__name__.rpartition(".")[2])


def make_callable(package: str) -> None:
    """Let ``package`` be called as the public function of its name.

    Python binds a package that was imported to its name in ``glasshouse``, in the place of any function.
    """
    sys.modules[package].__class__ = CallablePackage
