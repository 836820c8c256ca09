"""Batched L-BFGS against torch's, restart by restart; how restarts end."""

import pytest
import torch
from torch import Tensor

from glasshouse.attacks.parts.search.lbfgs import minimise


def bowl(x: Tensor) -> Tensor:
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
        optimiser = torch.optim.LBFGS(
            [x], max_iter=iterations, history_size=history, tolerance_grad=0, tolerance_change=0
        )

        def closure(x=x, optimiser=optimiser):
            optimiser.zero_grad()
            loss = bowl(x[None])[0]
            loss.backward()
            return loss

        optimiser.step(closure)
        expected.append(x.detach())
    # one more: torch does not evaluate its last point, and what is not evaluated cannot be the best
    found = minimise(bowl, start, iterations=range(iterations + 1), history=history)
    torch.testing.assert_close(found.points, torch.stack(expected), rtol=1e-9, atol=1e-12)


def test_a_restart_that_diverges_keeps_its_best_point_and_leaves_the_others_alone():
    def cliff(x: Tensor) -> Tensor:
        return bowl(x) * torch.where(x[:, 0] > 5, torch.nan, 1.0)

    start = torch.ones(2, 12, dtype=torch.float64)
    start[1, 0] = 6.0
    found = minimise(cliff, start, iterations=range(50))
    alone = minimise(bowl, start[:1], iterations=range(50))
    torch.testing.assert_close(found.points[0], alone.points[0], rtol=1e-6, atol=1e-9)
    assert found.losses[1] == torch.inf
    assert found.points[1, 0] == 6.0


def test_ends_for_all_when_one_is_good_enough():
    seen = []
    start = torch.stack([torch.full((12,), 0.1), torch.full((12,), 50.0)]).double()
    found = minimise(bowl, start, iterations=(seen.append(i) or i for i in range(500)), goal=1.2)
    assert float(found.losses[0]) <= 1.2
    assert len(seen) < 10


def test_ends_where_nothing_gets_better():
    seen = []
    start = torch.randn(2, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    minimise(bowl, start, iterations=(seen.append(i) or i for i in range(500)), patience=20)
    assert len(seen) < 100
