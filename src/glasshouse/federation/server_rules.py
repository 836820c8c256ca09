"""What a server makes of the clients' mean change: the step that it adds to its model.

A protocol that steps otherwise than by the mean returns another rule from ``ParameterRounds.server_rule``;
``federation.server_rate`` multiplies every step.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, final, runtime_checkable

import torch
from torch import Tensor

from glasshouse.rng import Rng
from glasshouse.wire import Aggregate, Update

Tensors = Mapping[str, Tensor]
Second = Callable[[Tensor, Tensor], Tensor]
"""(v, square of the change) → the next v."""


class ServerRule(Protocol):
    """The server's optimizer, with its state over the rounds of one run."""

    def step(self, change: Tensors) -> Tensors:
        """The step at server rate 1.

        Args:
            change: the clients' mean change by parameter name, float64; minus the mean gradient times the
                learning rate where they send gradients.
        """


@runtime_checkable
class Screening(ServerRule, Protocol):
    """A rule that acts on single updates and on their sum, too: all clients weigh the same under it."""

    def admit(self, update: Update) -> Update:
        """What of an update enters the sum."""

    def release(self, total: Aggregate, *, rng: Rng) -> Aggregate:
        """What the server goes on with instead of the sum."""


@final
class Mean:
    """Plain averaging: the step is the mean change."""

    def step(self, change: Tensors) -> Tensors:
        """``change`` itself."""
        return change


@final
@dataclass(kw_only=True)
class Momentum:
    """Momentum on the mean change: ``m = momentum · m + change``; the step is ``m``."""

    momentum: float
    _moving: dict[str, Tensor] = field(default_factory=dict)

    def step(self, change: Tensors) -> Tensors:
        """The moving sum of changes; in the first round the change itself."""
        for name, t in change.items():
            self._moving[name] = self.momentum * self._moving[name] + t if name in self._moving else t
        return dict(self._moving)


@final
@dataclass(kw_only=True)
class Adaptive:
    """The common part of FedAdagrad, FedAdam and FedYogi (Reddi et al. 2021, Algorithm 2).

    ``m = beta1 · m + (1 - beta1) · change``; ``v`` by ``second``; the step is ``m / (sqrt(v) + tau)``. Both
    start at 0, as in Flower; the paper starts ``v`` at ``tau²``.

    Args:
        beta1: decay of the mean of changes.
        tau: added to the square root; the smaller, the more adaptive.
        second: how the mean of squares goes on.
        correct: factor of the step in a round, counted from 1; None: 1.
    """

    beta1: float
    tau: float
    second: Second
    correct: Callable[[int], float] | None = None
    _mean: dict[str, Tensor] = field(default_factory=dict)
    _square: dict[str, Tensor] = field(default_factory=dict)
    _rounds: int = 0

    def step(self, change: Tensors) -> Tensors:
        """The change, scaled entry by entry."""
        self._rounds += 1
        factor, steps = self.correct(self._rounds) if self.correct else 1.0, {}
        for name, t in change.items():
            zero = torch.zeros_like(t)
            self._mean[name] = self.beta1 * self._mean.get(name, zero) + (1 - self.beta1) * t
            self._square[name] = self.second(self._square.get(name, zero), t.square())
            steps[name] = factor * self._mean[name] / (self._square[name].sqrt() + self.tau)
        return steps
