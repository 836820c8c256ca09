"""The clients' optimizer in an attack: inverted where that is exact, else simulated on a candidate.

With plain SGD, momentum, weight decay and any schedule, one step is inverted exactly; several steps are read
as if the gradient had been constant. Adam's first step is ``u = g / (|g| + eps)`` per coordinate, nearly a
sign. The gradient itself cannot be recovered, and attacks that need it refuse; but ``1 - |u|`` separates
small entries from large ones down to the rounding of the update, which gives the gradient clamped at a level
far above ``eps``: in a ConvNet nearly all of it. Several steps of Adam are simulated.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, final

import torch
from torch import Tensor

from glasshouse.attacks.base import Needs
from glasshouse.errors import Inapplicable
from glasshouse.settings import ORDINARY, Optimizer, Training
from glasshouse.wire import Terms

Gradient = Callable[[Mapping[str, Tensor], Tensor], Mapping[str, Tensor]]
"""(parameters, rows of the images) → gradient of the loss."""

LINEAR: Final = frozenset({"sgd", "momentum", "weight_decay", "schedule", "proximal", "personal", "control"})
"""Traits (``Optimizer.traits``) under which one step is a multiple of the gradient plus a known term."""
CLIPPED: Final = LINEAR | {"nesterov", "accumulate", "clip_norm"}
"""Also traits that scale the gradient by an unknown factor, or add nothing to the first step."""
ANY: Final = CLIPPED | {"adam", "adamw"}
"""All traits."""

ON_LENET: Final = {
    "setting": "a LeNet with sigmoid and DLG's initialisation, digits, one example, no defence"
}
"""Control of an attack that succeeds in the built-in scenario."""
ON_MLP: Final = {
    "setting": "a two-layer network, digits, one example, no defence",
    "scenario": {"model": {"name": "mlp"}},
}
"""Control of an attack that needs another model."""

_LEAST: Final = 1e-30
"""Added under Adam's square root, whose slope at 0 is infinite; its root is far below any ``eps`` in use."""


PICTURES: Final = frozenset({"image"})
SENTENCES: Final = frozenset({"sentence"})


def update_needs(
    optimizers: frozenset[str],
    *uses: str,
    repeats: bool = True,
    modalities: frozenset[str] = frozenset(),
    alone: bool = False,
    one_label: bool = False,
    twice: bool = False,
) -> Needs:
    """Needs of an attack on single updates; ``uses``: grants used where given; others as in ``Needs``."""
    return Needs(
        sees=frozenset({"broadcast", "update"}),
        scope="update",
        optimizers=optimizers,
        uses=frozenset(uses),
        modalities=modalities,
        continuous=not modalities,
        alone=alone,
        one_label=one_label,
        repeats=repeats,
        twice=twice,
    )


def check_linear(terms: Terms, *, subject: str) -> None:
    """Refuse updates from which no gradient can be read.

    Raises:
        Inapplicable: clients step by Adam or AdamW.
    """
    if terms.sends in ("delta", "parameters") and terms.optimizer.name != "sgd":
        raise Inapplicable(
            subject,
            needs="clients that step by sgd, whose change of parameters is a multiple of the gradient",
            got=f"{terms.optimizer.name}, whose first step keeps little but the signs",
            fix="use inverting_gradients, gradinversion or ggl, which repeat the clients' steps, or "
            'federation.optimizer.name = "sgd"',
        )


def known_decay(before: Mapping[str, Tensor], terms: Terms, *, round: int, steps: int) -> dict[str, Tensor]:
    """The amount that weight decay subtracts from ``before``; exact for one step, approximate for several.

    Several steps are treated as if nothing else had changed the parameters. Empty without weight decay, and
    under ``adam``, which adds it to the gradient.
    """
    how = terms.optimizer
    if not how.weight_decay or how.name == "adam":
        return {}
    factor = terms.learning_rate * how.weight_decay * how.weight(round=round, steps=steps)
    return {name: factor * t for name, t in before.items()}


def clamp_softly(gradient: Mapping[str, Tensor], levels: Mapping[str, float]) -> dict[str, Tensor]:
    """``g · level / (|g| + level)`` per tensor: about ``g`` where it is small, below the level everywhere.

    Examples:
        >>> clamp_softly({"w": Tensor([-9.0, 1.0])}, {"w": 1.0})["w"].tolist()
        [-0.9000000357627869, 0.5]
    """
    return {name: g * (levels[name] / (g.abs() + levels[name])) for name, g in gradient.items()}


@final
@dataclass(frozen=True, kw_only=True)
class LocalSteps:
    """A client's local steps, to be simulated on a candidate.

    Attributes:
        rows: for each step the candidate's images that it uses.
        rates: learning rate of each step.
        how: the optimizer.
        training: what else happens in a step: clipping, the proximal term.
        batch: images that are passed together in a step, whose mean gradient over such parts is taken
            (accumulation); 0: all at once.
        control: SCAFFOLD's correction, added to every gradient, by parameter name.
        soften: for Adam, the share of each tensor's mean ``|g|`` that is added to ``eps``, so that steps have
            a useful gradient; 0: unchanged.
    """

    rows: tuple[Tensor, ...]
    rates: tuple[float, ...]
    how: Optimizer
    training: Training = ORDINARY
    batch: int = 0
    control: Mapping[str, Tensor] = field(default_factory=dict)
    soften: float = 0.0

    def repeat(self, start: Mapping[str, Tensor], gradient: Gradient, *, through: bool) -> dict[str, Tensor]:
        """Parameters after all steps from ``start``, equal to those of ``torch.optim`` up to rounding.

        Args:
            start: parameters by name, with ``requires_grad``.
            gradient: of the loss at given parameters over the images of a step.
            through: keep the result differentiable with respect to the images.
        """
        now, state = dict(start), {name: _State() for name in start}
        for number, (rows, rate) in enumerate(zip(self.rows, self.rates, strict=True), start=1):
            slope = self._bounded(self._mean(gradient, now, rows), now, start)
            for name, p in now.items():
                p, g = self._decayed(p, slope[name], rate)
                now[name] = p - rate * self._direction(g, state[name], number)
            if not through:
                now = {name: p.detach().requires_grad_() for name, p in now.items()}
        return now

    def _mean(self, gradient: Gradient, now: Mapping[str, Tensor], rows: Tensor) -> Mapping[str, Tensor]:
        """The mean gradient over the parts of a step."""
        parts = torch.split(rows, self.batch or len(rows))
        divisor = self.training.divisor(len(parts))
        if len(parts) == divisor == 1:
            return gradient(now, rows)
        each = [gradient(now, part) for part in parts]
        return {name: torch.stack([g[name] for g in each]).sum(0) / divisor for name in now}

    def _bounded(
        self, slope: Mapping[str, Tensor], now: Mapping[str, Tensor], start: Mapping[str, Tensor]
    ) -> Mapping[str, Tensor]:
        """The gradient with the proximal term, clipped, as the clients' trainer computes it."""
        how = self.training
        if self.control:
            slope = {n: g + self.control[n] if n in self.control else g for n, g in slope.items()}
        if how.proximal:
            slope = {name: g + how.proximal * (now[name] - start[name]) for name, g in slope.items()}
        if how.clip_norm is None:
            return slope
        size = torch.stack([g.square().sum() for g in slope.values()]).sum().clamp_min(_LEAST).sqrt()
        scale = (how.clip_norm / size).clamp_max(1.0)
        return {name: g * scale for name, g in slope.items()}

    def _decayed(self, p: Tensor, g: Tensor, rate: float) -> tuple[Tensor, Tensor]:
        decay = self.how.weight_decay
        if not decay:
            return p, g
        return (p * (1 - rate * decay), g) if self.how.name == "adamw" else (p, g + decay * p)

    def _direction(self, g: Tensor, state: "_State", number: int) -> Tensor:
        """The direction that a step subtracts, times its learning rate; updates ``state``."""
        if self.how.name == "sgd":
            first = state.mean is None or not self.how.momentum
            state.mean = g if first else self.how.momentum * state.mean + g  # type: ignore[operator]
            return g + self.how.momentum * state.mean if self.how.nesterov else state.mean
        beta1, beta2 = self.how.betas
        state.mean = (1 - beta1) * g + (0 if state.mean is None else beta1 * state.mean)
        state.square = (1 - beta2) * g * g + (0 if state.square is None else beta2 * state.square)
        size = g.abs() if number == 1 else (state.square / (1 - beta2**number) + _LEAST).sqrt()
        eps = self.how.eps + self.soften * float(size.detach().mean())
        return (g if number == 1 else state.mean / (1 - beta1**number)) / (size + eps)


@dataclass(kw_only=True)
class _State:
    """An optimizer's state for one tensor."""

    mean: Tensor | None = None
    square: Tensor | None = None
