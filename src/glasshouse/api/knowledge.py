"""What an adversary knows beside an update in memory, checked against the network that made it."""

from typing import Any, Final

import torch
from torch import Tensor

from glasshouse.errors import BadValue
from glasshouse.tensors import tensor_of
from glasshouse.transcript.grants import Grants
from glasshouse.wire import Architecture, Batch

__all__ = ["known"]

_SUBJECT: Final = "side knowledge beside an update in memory"


def known(auxiliary: Any, labels: Any, architecture: Architecture, *, examples: int) -> Grants:
    """The grants of an adversary.

    Args:
        auxiliary: a pair of examples and their targets, tensors or arrays; None: none.
        labels: the targets behind the update; None: unknown.
        architecture: of the network.
        examples: behind the update.

    Raises:
        BadValue: labels of another number or of no class, or auxiliary examples unlike the client's.
    """
    granted = {} if labels is None else {(0, 0): _labels(labels, architecture, examples)}
    return Grants(auxiliary=None if auxiliary is None else _batch(auxiliary, architecture), labels=granted)


def _tensor(value: Any, what: str) -> Tensor:
    try:
        t = tensor_of(value).detach().cpu()
    except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:
        got = f"an object of type {type(value).__name__}: {str(error).splitlines()[0]}"
        fix = "auxiliary=(examples, classes), labels=[...]; classes as numbers from 0"
        raise BadValue(_SUBJECT, needs=f"{what} as numbers", got=got, fix=fix) from error
    return t.to_dense()


def _labels(labels: Any, architecture: Architecture, examples: int) -> Tensor:
    """The targets of the client's examples."""
    t, task = _tensor(labels, f"labels of the {examples} examples"), architecture.task
    if not task.one_label:
        return t
    t, classes = t.reshape(1) if t.ndim == 0 else t, architecture.classes
    whole = not (t.is_floating_point() or t.is_complex() or t.dtype is torch.bool)
    if t.shape != (examples,) or not whole or not bool(((t >= 0) & (t < classes)).all()):
        raise BadValue(
            _SUBJECT,
            needs=f"labels of the {examples} examples, each from 0 to {classes - 1}",
            got=f"{t.tolist() if t.numel() <= 8 else f'shape {tuple(t.shape)}'} of {t.dtype}",
            fix="give them all as whole numbers, or none; of one-hot rows their argmax(1)",
        )
    return t.long()


def _batch(auxiliary: Any, architecture: Architecture) -> Batch:
    """Auxiliary examples in the form of the client's."""
    if not isinstance(auxiliary, tuple | list) or len(auxiliary) != 2:
        raise BadValue(
            _SUBJECT,
            needs="auxiliary = (examples, labels)",
            got=f"an object of type {type(auxiliary).__name__}",
            fix="of a data set: inputs, labels = map(torch.as_tensor, zip(*dataset)), stacked",
        )
    inputs, labels = (_tensor(one, what) for one, what in zip(auxiliary, ("examples", "labels"), strict=True))
    task = architecture.task
    labels = labels.long() if task.one_label and not labels.is_floating_point() else labels
    if len(labels):
        task.check(labels, subject=f"{_SUBJECT}, auxiliary", fix="give classes of the network")
    if not architecture.inputs.continuous:
        return Batch(inputs=inputs, labels=labels)
    (low, high), shape = architecture.inputs.range, tuple(architecture.input_shape)
    fits = tuple(inputs.shape[1:]) == shape and len(inputs) == len(labels) > 0
    # NaN is within no range.
    if not fits or not bool(((inputs >= low) & (inputs <= high)).all()):
        ends = f" from {float(inputs.min()):.3g} to {float(inputs.max()):.3g}" if inputs.numel() else ""
        raise BadValue(
            _SUBJECT,
            needs=f"auxiliary examples (N, *{shape}) from {low:g} to {high:g}, and a label each",
            got=f"{tuple(inputs.shape)}{ends}, and {len(labels)} labels",
            fix="resize and scale them like the client's",
        )
    return Batch(inputs=inputs.float(), labels=labels)
