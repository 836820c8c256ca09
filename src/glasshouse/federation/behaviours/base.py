"""Shared helpers of the behaviours: reading the trainer's settings, and changing what it sends."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import ClassVar, Protocol, runtime_checkable

from torch import Tensor, nn

from glasshouse.errors import Inapplicable
from glasshouse.federation.client import LocalTraining
from glasshouse.interfaces import Trainer
from glasshouse.limits import check_ranges
from glasshouse.tensors import difference, norm, scale_tensors
from glasshouse.wire import Trained

Change = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]


@runtime_checkable
class WrappedTrainer(Protocol):
    """A trainer around another one: a local defence, or a further behaviour."""

    @property
    def inner(self) -> Trainer: ...


class NamedBehaviour(Protocol):
    """Base class of the built-in behaviours: settings with declared ranges."""

    name: ClassVar[str]

    def __post_init__(self) -> None:
        check_ranges(self, f"behaviour '{self.name}'")


def settings_of(train: Trainer, *, name: str) -> LocalTraining:
    """The federation's own trainer, inside all wrappers.

    Raises:
        Inapplicable: the protocol trains differently, which behaviour ``name`` cannot imitate.
    """
    while isinstance(train, WrappedTrainer):
        train = train.inner
    if not isinstance(train, LocalTraining):
        raise Inapplicable(
            f"behaviour '{name}'",
            needs="the federation's own trainer",
            got=type(train).__name__,
            fix="use a protocol that exchanges gradients or parameters",
        )
    return train


def copy_parameters(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the received parameters, which training does not change."""
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def replace_change(trained: Trained, before: Mapping[str, Tensor], change: Change, *, name: str) -> Trained:
    """``trained`` with ``change`` applied to its model change; new parameters are relative to ``before``.

    Raises:
        Inapplicable: it contains logits.
    """
    if trained.kind == "logits":
        raise Inapplicable(
            f"behaviour '{name}'",
            needs="a gradient, a change or new parameters",
            got="logits",
            fix="use label_flip, which acts on the data",
        )
    if trained.kind != "parameters":
        return dataclasses.replace(trained, tensors=change(trained.tensors))
    start = {key: before[key] for key in trained.tensors}
    changed = change(difference(trained.tensors, start))
    return dataclasses.replace(trained, tensors={key: start[key] + changed[key] for key in start})


def clip_to_radius(tensors: Mapping[str, Tensor], radius: float | None) -> Mapping[str, Tensor]:
    """The tensors, scaled to an L2 norm of at most ``radius`` over all of them; None: unchanged."""
    size = norm(tensors)
    return tensors if radius is None or size <= radius else scale_tensors(tensors, radius / size)
