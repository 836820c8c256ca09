"""Shared by the behaviours: reading the trainer's settings, and changing what it sends."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol, final, runtime_checkable

from torch import Tensor, nn

from glasshouse.errors import Inapplicable
from glasshouse.federation.client import LocalTraining
from glasshouse.interfaces import Trainer
from glasshouse.limits import check_ranges
from glasshouse.rng import Rng
from glasshouse.tensors import difference, norm, scale_tensors
from glasshouse.wire import Batch, Trained


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


@final
@dataclass(frozen=True, kw_only=True)
class ChangedTrainer:
    """``inner``, with its model change scaled and clipped: with new parameters, their change.

    Attributes:
        inner: the trainer of the honest client.
        name: of the behaviour.
        clip_norm: L2 bound on the scaled change over all tensors; None: no bound.
        scale: factor of the gradient, or of the change of the parameters.
        ascends: train with the sign of the loss reversed.
    """

    inner: Trainer
    name: str
    clip_norm: float | None
    scale: float = 1.0
    ascends: bool = False

    def __call__(self, model: nn.Module, data: Batch, *, rng: Rng, ascend: bool = False) -> Trained:
        """Train, then change what is sent.

        Raises:
            Inapplicable: it contains logits.
        """
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        trained = self.inner(model, data, rng=rng, ascend=ascend != self.ascends)
        if trained.kind == "logits":
            raise Inapplicable(
                f"behaviour '{self.name}'",
                needs="a gradient, a change or new parameters",
                got="logits",
                fix="use label_flip, which acts on the data",
            )
        if trained.kind != "parameters":
            return dataclasses.replace(trained, tensors=self._changed(trained.tensors))
        start = {key: before[key] for key in trained.tensors}
        changed = self._changed(difference(trained.tensors, start))
        return dataclasses.replace(trained, tensors={key: start[key] + changed[key] for key in start})

    def _changed(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        scaled = scale_tensors(tensors, self.scale)
        size = norm(scaled)
        if self.clip_norm is None or size <= self.clip_norm:
            return scaled
        return scale_tensors(scaled, self.clip_norm / size)
