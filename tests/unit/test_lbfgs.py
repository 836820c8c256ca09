"""Batched L-BFGS against torch's, restart by restart; how restarts end."""

import pytest
import torch
from torch import Tensor

from glasshouse.attacks.parts.search.lbfgs import minimize
from glasshouse.attacks.parts.search.rows import Rows


def bowl(x: Tensor, rows: Rows | None = None) -> Tensor:
    """Smooth, convex and not quadratic, (R, 12) → (R,)."""
    scale = torch.linspace(0.3, 3.0, 12, dtype=x.dtype)
    return (scale * x.square()).sum(1) + 0.1 * (x - 1).pow(4).sum(1)


@pytest.mark.parametrize("history", [3, 100])
@pytest.mark.parametrize("iterations", [1, 4, 9])
def test_same_iterates_as_torch(history, iterations):
    start = torch.randn(3, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = []
    for row in start:
        x = row.clone().requires_grad_()
        optimizer = torch.optim.LBFGS(
            [x], max_iter=iterations, history_size=history, tolerance_grad=0, tolerance_change=0
        )

        def closure(x=x, optimizer=optimizer):
            optimizer.zero_grad()
            loss = bowl(x[None])[0]
            loss.backward()
            return loss

        optimizer.step(closure)
        expected.append(x.detach())
    # one more: torch does not evaluate its last point, and what is not evaluated cannot be the best
    minima = minimize(bowl, start, iterations=range(iterations + 1), history=history)
    torch.testing.assert_close(minima.points, torch.stack(expected), rtol=1e-9, atol=1e-12)


def test_a_restart_that_diverges_keeps_its_best_point_and_leaves_the_others_alone():
    def cliff(x: Tensor, _: Rows) -> Tensor:
        return bowl(x) * torch.where(x[:, 0] > 5, torch.nan, 1.0)

    start = torch.ones(2, 12, dtype=torch.float64)
    start[1, 0] = 6.0
    minima = minimize(cliff, start, iterations=range(50))
    alone = minimize(bowl, start[:1], iterations=range(50))
    torch.testing.assert_close(minima.points[0], alone.points[0], rtol=1e-6, atol=1e-9)
    assert minima.losses[1] == torch.inf
    assert minima.points[1, 0] == 6.0


def test_ends_for_all_when_one_is_good_enough():
    items = []
    start = torch.stack([torch.full((12,), 0.1), torch.full((12,), 50.0)]).double()
    minima = minimize(bowl, start, iterations=(items.append(i) or i for i in range(500)), goal=1.2)
    assert float(minima.losses[0]) <= 1.2
    assert len(items) < 10


def test_ends_where_nothing_gets_better():
    items = []
    start = torch.randn(2, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    minimize(bowl, start, iterations=(items.append(i) or i for i in range(500)), patience=20)
    assert len(items) < 100


def test_several_victims_end_each_at_its_own_goal():
    """The second victim is solved early; the first goes on, as it does alone."""
    start = torch.stack([torch.full((12,), x) for x in (9.0, 7.0, 0.2, 50.0)]).double()
    units = (1.0, 4.0)
    both = minimize(bowl, start, iterations=range(30), goal=0.3, units=units)
    for victim, unit in enumerate(units):
        own = slice(2 * victim, 2 * victim + 2)
        alone = minimize(bowl, start[own], iterations=range(30), goal=0.3, units=(unit,))
        torch.testing.assert_close(both.points[own], alone.points, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(both.losses[own], alone.losses)
