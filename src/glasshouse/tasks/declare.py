"""A task by its name: what a scenario leaves out is taken from the data."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from glasshouse.errors import BadValue
from glasshouse.registry import create, load, nearest_names
from glasshouse.tasks.base import Task


def declared_task(name: str, arguments: Mapping[str, Any], *, facts: Mapping[str, Any]) -> Task:
    """The task registered as ``name``.

    Args:
        name: as in ``glasshouse list tasks``.
        arguments: its fields that a scenario sets.
        facts: what the data say: ``classes``, ``targets`` (numbers per example), and the fields of the
            modality; taken for fields that ``arguments`` leave out.

    Raises:
        UnknownName: no such task.
        BadValue: a field that it does not have, or a value that it refuses.

    Examples:
        >>> declared_task("classification", {"smoothing": 0.1}, facts={"classes": 3, "length": 8})
        Classification(classes=3, weights=(), smoothing=0.1, criterion='cross_entropy', ...)
    """
    factory = load("tasks", name)
    known = {field.name for field in fields(factory)} if is_dataclass(factory) else set()
    if unknown := sorted(arguments.keys() - known):
        raise BadValue(
            f"task '{name}'",
            needs=f"settings among {', '.join(sorted(known))}",
            got=unknown[0],
            fix=nearest_names(unknown[0], tuple(known)),
        )
    taken = {key: value for key, value in facts.items() if key in known}
    task: Task = create(factory, {**taken, **arguments})
    return task
