"""L-BFGS for many independent problems at once: each restart has its own curvature, all share one loss call.

Shape letters: R restarts, D unknowns of one restart, M remembered steps.

Without a line search and with unit steps, as DLG uses ``torch.optim.LBFGS``: the iterates from a given start
are the same (a test compares them), but there is no inner and outer loop: one outer step of the papers is up
to 20 iterations here. The inverse Hessian is applied in compact form instead of by the two-loop recursion.

Source: Nocedal 1980, Math. Comp. 35(151); Byrd, Nocedal & Schnabel 1994, Math. Programming 63, equation 3.1.
"""

from collections.abc import Iterable, Sequence
from typing import final

import torch
from torch import Tensor

from glasshouse.attacks.objective import record_loss
from glasshouse.attacks.parts.search.adam import Found
from glasshouse.attacks.parts.search.rows import LOOKS, Evaluation, RowLoss, Rows
from glasshouse.tensors import wide_type, widen


@final
class _Memory:
    """The last M steps ``s`` and gradient changes ``y`` of every restart, with their inner products.

    One pass over the memory per iteration: its products with the change of the gradient are the products with
    the new gradient minus those with the previous one.
    """

    def __init__(self, size: int, gradient: Tensor) -> None:
        restarts, unknowns = gradient.shape
        self.size, self.count = size, 0
        self.pairs = gradient.new_zeros(restarts, 2 * size, unknowns)  # steps, then changes
        wide = wide_type(gradient.device)
        self.along = gradient.new_zeros(restarts, 2 * size, dtype=wide)  # their products with g
        self.mixed = gradient.new_zeros(restarts, size, size, dtype=wide)  # s_i · y_j, i not after j
        self.curved = gradient.new_zeros(restarts, size, size, dtype=wide)  # y_i · y_j
        self.scale = gradient.new_ones(restarts, dtype=wide)

    def push(self, step: Tensor, change: Tensor, gradient: Tensor) -> None:
        """Store one step of each restart; where the curvature is not positive, a zero step.

        Args:
            step: change of the point, (R, D).
            change: change of the gradient, (R, D).
            gradient: the new gradient, (R, D).
        """
        product = (step * change).sum(1)
        good = product > 1e-10
        step, change = (torch.where(good[:, None], x, 0.0) for x in (step, change))
        at, old = self.count % self.size, self.along
        self.pairs[:, at], self.pairs[:, self.size + at] = step, change
        self.along = torch.bmm(self.pairs, gradient[:, :, None])[:, :, 0].to(self.along.dtype)
        products = torch.where(good[:, None], self.along - old, 0.0)
        self.mixed[:, :, at], self.curved[:, :, at] = products[:, : self.size], products[:, self.size :]
        length = change.square().sum(1)
        curvature = torch.where(good, product, 0.0)
        self.mixed[:, at, at], self.curved[:, at, at] = widen(curvature), widen(length)
        self.curved[:, at] = self.curved[:, :, at]
        self.scale = torch.where(good, widen(product / length.clamp_min(1e-30)), self.scale)
        self.count += 1

    def direction(self, gradient: Tensor) -> Tensor:
        """Minus the inverse Hessian estimate times the ``gradient`` that was pushed last, (R, D)."""
        stored = min(self.count, self.size)
        start = self.count % self.size if self.count > self.size else 0
        order = (torch.arange(stored, device=gradient.device) + start) % self.size
        mixed = self.mixed[:, order[:, None], order]
        own = mixed.diagonal(dim1=1, dim2=2)
        upper = mixed.triu() + torch.diag_embed((own == 0).to(own.dtype))  # empty steps: keep it invertible
        scale = self.scale[:, None, None]
        across = self.along[:, self.size + order, None]
        p = torch.linalg.solve_triangular(upper, self.along[:, order, None], upper=True)
        inner = own[:, :, None] * p + scale * (self.curved[:, order[:, None], order] @ p - across)
        q = torch.linalg.solve_triangular(upper.mT, inner, upper=False)
        weights = torch.zeros_like(self.along)
        weights[:, order], weights[:, self.size + order] = q[:, :, 0], -(scale * p)[:, :, 0]
        correction = torch.bmm(weights[:, None].to(gradient.dtype), self.pairs)[:, 0]
        return -(self.scale[:, None].to(gradient.dtype) * gradient + correction)

    def keep(self, rows: Tensor) -> None:
        """Drop all restarts but those at the indices ``rows``."""
        self.pairs, self.along, self.scale = self.pairs[rows], self.along[rows], self.scale[rows]
        self.mixed, self.curved = self.mixed[rows], self.curved[rows]


def minimize(
    loss: RowLoss,
    start: Tensor,
    *,
    iterations: Iterable[int],
    history: int = 100,
    goal: float = 0.0,
    patience: int = 200,
    units: Sequence[float] = (1.0,),
) -> Found:
    """Run every restart until one of its victim's restarts reaches ``goal``, it stops, or the iterations end.

    A restart stops when its loss or gradient is not finite (its best point is kept), or when its best loss
    has not fallen by a thousandth within ``patience`` iterations; checked every ``LOOKS`` iterations.

    Args:
        loss: (r, D) → (r,), differentiable, rows independent; called with fewer rows as restarts end.
        start: (N, D): R restarts for every victim, victim after victim.
        iterations: one iteration per item.
        history: M.
        goal: loss at which a victim counts as solved, which ends all its restarts; in its unit.
        patience: see above.
        units: for every victim the unit in which its losses are reported.
    """
    wide = wide_type(start.device)
    points, losses = start.detach().clone(), start.new_full((len(start),), torch.inf, dtype=wide)
    rows, evaluate = Rows.of(start, victims=len(units)), Evaluation(loss)
    unit = torch.tensor(units, dtype=wide).to(start.device)[:, None]  # (V, 1)
    memory = _Memory(history, start)
    point = start.detach()
    value, gradient = evaluate(point, rows)
    step = -gradient * (1 / gradient.abs().sum(1).clamp_min(1.0))[:, None]
    reference, stale = losses.clone(), torch.zeros_like(rows.index)
    for i in iterations:
        better = value < losses[rows.index]  # False for NaN
        best = torch.where(better, value.to(wide), losses[rows.index])
        points = points.index_copy(0, rows.index, torch.where(better[:, None], point, points[rows.index]))
        losses = losses.index_copy(0, rows.index, best)
        by_victim = losses.reshape(len(units), -1) / unit
        record_loss(i, by_victim)
        fell = best < 0.999 * reference
        reference, stale = torch.where(fell, best, reference), torch.where(fell, 0, stale + 1)
        if i % LOOKS == 0:
            solved = (by_victim <= goal).any(1, keepdim=True).expand_as(by_victim).flatten()[rows.index]
            alive = value.isfinite() & gradient.isfinite().all(1) & (gradient != 0).any(1)
            survivors = (alive & (stale < patience) & ~solved).nonzero()[:, 0]
            if len(survivors) < len(rows):
                rows, reference, stale = rows.keep(survivors), reference[survivors], stale[survivors]
                point, gradient, step = point[survivors], gradient[survivors], step[survivors]
                memory.keep(survivors)
                if not len(rows):
                    break
        next_point = point + step
        value, new = evaluate(next_point, rows)
        memory.push(step, new - gradient, new)
        point, gradient = next_point, new
        step = memory.direction(gradient)
    return Found(points=points, losses=losses)
