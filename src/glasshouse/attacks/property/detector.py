"""The detector of one round: a logistic regression whose logit is a linear feature of an update.

Shape letters: S shadow updates, z numbers in one.

The updates are standardised per coordinate by the training part's mean and standard deviation, in place.
The returned detector undoes this: the feature of an update x is ``x @ direction + offset``, and of a sum of m
updates ``sum @ direction + m * offset``, so the feature of a sum is the sum of features.

Source: Kerkouche et al. 2023, arXiv:2303.03908, section 5.2.1. Where we differ: L-BFGS on the penalised loss
by default (the data are separable, so without a penalty there is no optimum; the paper stops SGD at the epoch
that is best on the test part); ``fit_sgd`` is the paper's.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from glasshouse.errors import BadValue
from glasshouse.rng import Rng

TINY = 1e-7
"""Added to standard deviations, as in the authors' code, so that constant coordinates stay finite."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Detector:
    """A linear feature of updates; above 0 means "has the property".

    Attributes:
        direction: (z,) float32.
        offset: per update.
        norm: L2 norm of the weights on standardised coordinates, the paper's ‖α‖.
    """

    direction: Tensor
    offset: float
    norm: float

    def features(self, updates: Tensor) -> Tensor:
        """(S, z) → (S,)."""
        return updates @ self.direction + self.offset


def fit(updates: Tensor, labels: Tensor, *, penalty: float, iterations: int) -> Detector:
    """Penalised logistic regression by L-BFGS: mean loss + penalty / 2 · ‖w‖² on standardised updates.

    Args:
        updates: (S, z) float32; overwritten with their standardised values.
        labels: (S,) bool.
        penalty: > 0.
        iterations: maximum number.

    Raises:
        BadValue: one of the two classes is missing, or the penalty is not positive.
    """
    _check(updates, labels, penalty)
    mean, std = standardize(updates)
    sign = torch.where(labels, 1.0, -1.0)

    def loss(point: Tensor) -> tuple[float, Tensor]:
        w = point[:-1]
        margin = sign * (updates @ w + point[-1])
        pull = -sign * torch.sigmoid(-margin) / len(sign)
        value = float(F.softplus(-margin).mean()) + penalty / 2 * float(w @ w)
        return value, torch.cat([torch.addmv(w * penalty, updates.T, pull), pull.sum()[None]])

    weights = minimize(loss, torch.zeros(updates.shape[1] + 1), iterations=iterations)
    return _undo_scaling(weights[:-1], float(weights[-1]), mean, std)


def minimize(
    loss: Callable[[Tensor], tuple[float, Tensor]], start: Tensor, *, iterations: int, memory: int = 10
) -> Tensor:
    """L-BFGS with backtracking, for a strictly convex loss that returns its value and gradient.

    Implemented here because with a library whose vector operations run in their own threads a step costs as
    much as the loss itself. Ends early when the gradient, or the step, is nearly zero.

    Source: Nocedal & Wright 2006, "Numerical Optimization", algorithms 7.4 and 3.1.
    """
    x = start
    value, slope = loss(x)
    pairs: deque[tuple[Tensor, Tensor, float]] = deque(maxlen=memory)
    for _ in range(iterations):
        step = _quasi_newton(slope, pairs)
        descent = float(slope @ step)
        if descent > -1e-12:
            break
        # Without curvature yet the first step has length 1 at most; later Newton's length mostly fits at
        # once.
        length = 1.0 if pairs else min(1.0, 1.0 / float(slope.norm()))
        new, new_value, new_slope = x, value, slope
        for _ in range(20):
            new = x + length * step
            new_value, new_slope = loss(new)
            if new_value <= value + 1e-4 * length * descent:
                break
            length /= 2
        else:
            break
        moved, bent = new - x, new_slope - slope
        # A pair along which the slope hardly changes would blow the next step up.
        curve = float(moved @ bent)
        if curve > 1e-10 * float(bent @ bent):
            pairs.append((moved, bent, curve))
        x, value, slope = new, new_value, new_slope
    return x


def _quasi_newton(slope: Tensor, pairs: "deque[tuple[Tensor, Tensor, float]]") -> Tensor:
    q, alphas = slope.clone(), []
    for step, bent, curve in reversed(pairs):
        alpha = float(step @ q) / curve
        q.sub_(bent, alpha=alpha)
        alphas.append(alpha)
    if pairs:
        _, bent, curve = pairs[-1]
        q.mul_(curve / float(bent @ bent))
    for (step, bent, curve), alpha in zip(pairs, reversed(alphas), strict=True):
        q.add_(step, alpha=alpha - float(bent @ q) / curve)
    return q.neg_()


def fit_sgd(
    updates: Tensor,
    labels: Tensor,
    heldout: tuple[Tensor, Tensor],
    *,
    epochs: int = 50,
    learning_rate: float = 0.01,
    batch_size: int = 16,
    rng: Rng,
) -> Detector:
    """The authors' detector: SGD from torch's initialisation; the epoch that is best on ``heldout`` is kept.

    Args:
        updates: (S, z) float32; overwritten.
        labels: (S,) bool.
        heldout: updates (overwritten) and labels of the test part, which selects the epoch (so its accuracy
            is slightly optimistic, as in the paper).
        epochs: of training.
        learning_rate: the paper says 0.001, its code 0.01.
        batch_size: the paper says 10, its code 16.
        rng: for initial values and order.

    Raises:
        BadValue: one of the two classes is missing.
    """
    _check(updates, labels, 1.0)
    mean, std = standardize(updates)
    # In place, and undone at the end: these are hundreds of megabytes.
    heldout[0].sub_(mean).div_(std)
    z = updates.shape[1]
    bound = z**-0.5
    generator = rng.child("start").torch()
    w = (torch.rand(z, generator=generator) * 2 - 1) * bound
    c = float(torch.rand((), generator=generator) * 2 - 1) * bound
    target = labels.float()
    best = (-1.0, w.clone(), c)
    for epoch in range(epochs):
        order = torch.randperm(len(target), generator=rng.child(f"epoch/{epoch}").torch())
        for rows in torch.split(order, batch_size):
            x = updates[rows]
            error = torch.sigmoid(x @ w + c) - target[rows]
            w.sub_(error @ x, alpha=learning_rate / len(rows))
            c -= learning_rate * float(error.mean())
        accuracy = float(((heldout[0] @ w + c > 0) == heldout[1]).float().mean())
        # The epoch is chosen on the test part, as the authors do.
        if accuracy > best[0]:
            best = (accuracy, w.clone(), c)
    heldout[0].mul_(std).add_(mean)
    return _undo_scaling(best[1], best[2], mean, std)


def standardize(updates: Tensor) -> tuple[Tensor, Tensor]:
    """Centre and scale every coordinate in place; returns mean and standard deviation (z,)."""
    mean = updates.mean(0)
    updates.sub_(mean)
    std = torch.linalg.vector_norm(updates, dim=0).div_(len(updates) ** 0.5).add_(TINY)
    updates.div_(std)
    return mean, std


def _undo_scaling(w: Tensor, c: float, mean: Tensor, std: Tensor) -> Detector:
    direction = w / std
    offset = c - float(mean.double() @ direction.double())
    return Detector(direction=direction, offset=offset, norm=float(w.norm()))


def _check(updates: Tensor, labels: Tensor, penalty: float) -> None:
    positive = int(labels.sum())
    if updates.ndim != 2 or len(labels) != len(updates) or not 0 < positive < len(labels) or penalty <= 0:
        raise BadValue(
            "detector of a property",
            needs="updates (S, z) of both kinds, and penalty > 0",
            got=f"{tuple(updates.shape)}, {positive} of {len(labels)} with the property, penalty = {penalty}",
            fix="raise the number of shadow pairs",
        )
