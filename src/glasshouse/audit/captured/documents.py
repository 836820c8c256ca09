"""Whose rows stand behind a captured document, from what test clients recorded."""

from collections import Counter

from torch import Tensor

from glasshouse.cache import digest
from glasshouse.errors import BadValue
from glasshouse.modalities.row import Row
from glasshouse.tasks.base import Task
from glasshouse.truth.recorded import Recorded
from glasshouse.wire import Architecture


def people_behind(
    one: Recorded, architecture: Architecture, pool: dict[str, tuple[int, Tensor, Tensor]]
) -> tuple[tuple[int, ...], ...]:
    """The rows of a table behind a document, as people: equal rows are as many people as there are rows.

    They were recorded as the app's numbers, and are encoded as the schema says.
    """
    table, steps = architecture.inputs, []
    assert isinstance(table, Row)  # documents are about tables
    for batch in one.steps:
        if batch.inputs.ndim != 2 or batch.inputs.shape[1] != len(table.columns):
            raise BadValue(
                "rows that test clients recorded",
                needs=f"numbers (N, {len(table.columns)}), by the columns of the schema",
                got=f"shape {tuple(batch.inputs.shape)}",
                fix="give used(...) the columns that Documents names, in its order",
            )
        rows = table.encode(batch.inputs.double())
        table.check(rows, subject="rows that test clients recorded", fix="widen the ranges of the schema")
        labels = targets_of(batch.labels.long(), len(rows), architecture.task)
        seen: Counter[str] = Counter()
        people = []
        for row, label in zip(rows, labels, strict=True):
            like = f"{one.node} {digest(row)} {label.tolist()}"
            seen[like] += 1
            people.append(pool.setdefault(f"{like} {seen[like]}", (len(pool), row, label))[0])
        steps.append(tuple(people))
    return tuple(steps)


def targets_of(labels: Tensor, count: int, task: Task) -> Tensor:
    """The labels of the loss, as targets of the task; blank ones where the inputs are the targets.

    Binary cross-entropy takes its labels as floats in a column; as classes they are whole numbers in a row.
    """
    if labels.ndim == 2 and labels.shape[1] == 1 and not task.target_shape:
        labels = labels[:, 0]
    if task.blank(1, task.outputs).is_floating_point():
        labels = labels.float()
    elif labels.is_floating_point() and labels.equal(labels.round()):
        labels = labels.long()
    fits = len(labels) == count and task.violation(labels) is None
    return labels if fits else task.blank(count, task.outputs)
