"""Choose the executor of an audit."""

from typing import Final

from glasshouse.errors import BadValue
from glasshouse.executors.base import Executor
from glasshouse.executors.local import Local
from glasshouse.registry import create, load

HERE: Final = "local"
"""Registered name of the executor on this machine."""


def choose_executor(name: str, *, jobs: int = 0, address: str = "", here: bool = False) -> Executor:
    """The executor plug-in ``name``; ``here``: only this process has what the pieces need.

    Raises:
        UnknownName: no such plug-in.
        BadValue: only this process can do the work, but another executor was requested.
    """
    if not here:
        executor: Executor = create(load("executors", name), {"jobs": jobs, "address": address})
        return executor
    if name != HERE:
        raise BadValue(
            f"executor '{name}'",
            needs="a model that other machines can build",
            got="a network in memory",
            fix="name it as module:factory in [model], or leave executor out",
        )
    return Local(here=True)
