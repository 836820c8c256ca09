"""The clients' optimizer as an attack sees it: undone where that is exact, else repeated on a candidate.

With plain SGD, momentum, weight decay and any schedule, one step is undone exactly; several steps are read
as if the gradient had stayed the same along the way. Adam's first step is ``u = g / (|g| + eps)`` by
coordinate, nearly a sign. The gradient itself does not come back, and whoever needs it refuses; but
``1 - |u|`` tells small entries from large ones down to the rounding of the update, which gives the gradient
clamped at a level far above ``eps``: in a ConvNet nearly all of it. Several steps are repeated as they are.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, final

from torch import Tensor

from glasshouse.errors import Inapplicable
from glasshouse.settings import Optimizer
from glasshouse.wire import Terms

Gradient = Callable[[Mapping[str, Tensor], Tensor], Mapping[str, Tensor]]
"""Of the loss, by (parameters, rows of the images)."""

LINEAR: Final = frozenset({"sgd", "momentum", "weight_decay", "schedule"})
"""Traits (``Optimizer.traits``) under which one step is a multiple of the gradient but for what is known."""
ANY: Final = LINEAR | {"adam", "adamw"}
"""All traits."""

LEVEL: Final = 0.1
"""See :func:`clamped_gradient`."""
_LEAST: Final = 1e-30
"""Added under Adam's root, whose slope at 0 is infinite; its root is far below any ``eps`` in use."""


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
    """What weight decay alone takes off ``before``; exact for one step, else as if nothing else had moved.

    Empty where there is none, and under ``adam``, which hides it in the gradient.
    """
    how = terms.optimizer
    if not how.weight_decay or how.name == "adam":
        return {}
    factor = terms.learning_rate * how.weight_decay * how.weight(round=round, steps=steps)
    return {name: factor * t for name, t in before.items()}


def clamp_softly(gradient: Mapping[str, Tensor], levels: Mapping[str, float]) -> dict[str, Tensor]:
    """``g · level / (|g| + level)`` by tensor: ``g`` where it is small, at most the level.

    Examples:
        >>> clamp_softly({"w": Tensor([-9.0, 1.0])}, {"w": 1.0})["w"].tolist()
        [-0.9000000357627869, 0.5]
    """
    return {name: g * (levels[name] / (g.abs() + levels[name])) for name, g in gradient.items()}


def clamped_gradient(
    change: Mapping[str, Tensor],
    before: Mapping[str, Tensor],
    *,
    eps: float,
    rate: float,
    precision: float,
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """The gradient behind one step of Adam, softly clamped, and the levels: as high as rounding allows.

    With ``u = g / (|g| + eps)`` and any level s, ``g s / (|g| + s) = u s eps / (eps |u| + s (1 - |u|))``. An
    error r of ``u`` moves this by s r / eps of itself at most, so that s is ``LEVEL`` times eps / r. What
    exceeds 1 in ``|u|`` is noise, and counts into r: the level falls to ``eps``, and signs are left.

    Args:
        change: of the parameters, freed of known decay.
        before: the parameters received.
        eps: of the optimizer.
        rate: of the step.
        precision: relative rounding of the numbers that were sent.
    """
    clamped, levels = {}, {}
    for name, t in change.items():
        u = t.double() / -rate
        size = u.abs()
        reach = 1 + float((before[name] + t).abs().max()) / rate
        error = max(precision * reach, float(size.max()) - 1)
        levels[name] = level = max(eps, LEVEL * eps / error)
        below = eps * size + level * (1 - size).clamp_min(0)
        clamped[name] = (u * level * eps / below.clamp_min(1e-300)).to(t.dtype)
    return clamped, levels


@final
@dataclass(frozen=True, kw_only=True)
class LocalSteps:
    """A client's steps, to be repeated on a candidate.

    Attributes:
        rows: for each step the candidate's images that it uses.
        rates: learning rate of each step.
        how: the rule.
        soften: of Adam, a share of the mean of each tensor's ``|g|`` that is added to ``eps``, so that steps
            have a slope to search along; 0: as they are.
    """

    rows: tuple[Tensor, ...]
    rates: tuple[float, ...]
    how: Optimizer
    soften: float = 0.0

    def repeat(self, start: Mapping[str, Tensor], gradient: Gradient, *, through: bool) -> dict[str, Tensor]:
        """Parameters after all steps from ``start``, as ``torch.optim`` would leave them but for rounding.

        Args:
            start: parameters by name, which require a gradient.
            gradient: of the loss at given parameters over the images of a step.
            through: derivatives of the result by the images are wanted.
        """
        now, state = dict(start), {name: _State() for name in start}
        for number, (rows, rate) in enumerate(zip(self.rows, self.rates, strict=True), start=1):
            slope = gradient(now, rows)
            for name, p in now.items():
                p, g = self._decayed(p, slope[name], rate)
                now[name] = p - rate * self._direction(g, state[name], number)
            if not through:
                now = {name: p.detach().requires_grad_() for name, p in now.items()}
        return now

    def _decayed(self, p: Tensor, g: Tensor, rate: float) -> tuple[Tensor, Tensor]:
        decay = self.how.weight_decay
        if not decay:
            return p, g
        return (p * (1 - rate * decay), g) if self.how.name == "adamw" else (p, g + decay * p)

    def _direction(self, g: Tensor, state: "_State", number: int) -> Tensor:
        """What a step of rate 1 goes against; updates ``state``."""
        if self.how.name == "sgd":
            first = state.mean is None or not self.how.momentum
            state.mean = g if first else self.how.momentum * state.mean + g  # type: ignore[operator]
            return state.mean
        kept, squared = self.how.betas
        state.mean = (1 - kept) * g + (0 if state.mean is None else kept * state.mean)
        state.square = (1 - squared) * g * g + (0 if state.square is None else squared * state.square)
        size = g.abs() if number == 1 else (state.square / (1 - squared**number) + _LEAST).sqrt()
        eps = self.how.eps + self.soften * float(size.detach().mean())
        return (g if number == 1 else state.mean / (1 - kept**number)) / (size + eps)


@dataclass(kw_only=True)
class _State:
    """An optimizer's memory of one tensor."""

    mean: Tensor | None = None
    square: Tensor | None = None
