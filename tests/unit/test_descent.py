"""Adam on all restarts at once: against torch's, inside the box, the best iterate, and when it ends."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from glasshouse.attacks.parts.replica import Replica
from glasshouse.attacks.parts.search.adam import Descent, Found, adam, roughness, stepwise
from glasshouse.attacks.parts.search.rows import Rows
from glasshouse.errors import Undefined
from glasshouse.rng import Rng
from glasshouse.settings import Training
from glasshouse.wire import Architecture, Terms, Update

RNG = Rng.root(0)
BOX = partial(torch.clamp, min=-1.0, max=1.0)
START = torch.rand((3, 1, 1, 4, 4), generator=torch.Generator().manual_seed(0))


def bowl(points: Tensor, rows: Rows | None = None) -> Tensor:
    return (points - 0.3).square().flatten(1).sum(1)


def test_each_restart_goes_as_if_alone():
    how = Descent(iterations=20, learning_rate=0.1, schedule="constant")
    whole = adam(bowl, START, how, onto=BOX, rngs=(RNG,))
    for r in range(3):
        alone = adam(bowl, START[r : r + 1], how, onto=BOX, rngs=(RNG,))
        torch.testing.assert_close(whole.points[r : r + 1], alone.points)


def test_same_path_as_torch_on_signs():
    x = START[:1].clone().requires_grad_()
    optimizer, best = torch.optim.Adam([x], lr=0.1), []
    for _ in range(6):
        optimizer.zero_grad()
        loss = bowl(x).sum()
        best.append((loss.item(), x.detach().clone()))
        loss.backward()
        x.grad = x.grad.sign()
        optimizer.step()
    how = Descent(iterations=6, learning_rate=0.1, schedule="constant", signed=True)
    result = adam(bowl, START[:1], how, onto=BOX, rngs=(RNG,))
    expected = min(best, key=lambda entry: entry[0])
    assert result.losses.item() == pytest.approx(expected[0], rel=1e-5)
    torch.testing.assert_close(result.points, expected[1])


def test_stays_in_the_box():
    how = Descent(iterations=30, learning_rate=0.5, noise=1.0)
    result = adam(lambda p, _: -p.flatten(1).sum(1), START * 10, how, onto=BOX, rngs=(RNG,))
    assert float(result.points.max()) == 1.0


def test_keeps_the_best_iterate_not_the_last():
    """A loss that turns over: later iterates are worse, and NaN never wins."""
    calls = []

    def turning(points: Tensor, _: Rows) -> Tensor:
        calls.append(points.detach().clone())
        k = len(calls)
        return bowl(points) * 0 + (abs(k - 4) if k < 8 else torch.nan)

    result = adam(turning, START, Descent(iterations=10, learning_rate=0.1), onto=BOX, rngs=(RNG,))
    assert result.losses.tolist() == [0.0] * 3
    torch.testing.assert_close(result.points, calls[3])


def test_a_pull_moves_but_does_not_decide():
    how = Descent(iterations=1, learning_rate=0.1)
    pulled = adam(bowl, START, how, onto=BOX, rngs=(RNG,), pulls=[lambda p: p.flatten(1).sum(1) * 100])
    torch.testing.assert_close(pulled.losses, bowl(START).double())


def test_ends_when_settled():
    items = []

    def counted(points: Tensor, _: Rows) -> Tensor:
        items.append(1)
        return bowl(points) + 1

    adam(counted, START, Descent(iterations=2000, learning_rate=0.1), onto=BOX, rngs=(RNG,))
    assert 2000 * 5 / 8 < len(items) < 1400  # not before the rate has fallen to a hundredth


def test_a_race_goes_on_with_the_better_half_as_if_the_others_had_never_been():
    """Four starts of two victims: who is dropped keeps its best, who is kept ends where it ends without."""
    start = torch.cat([START, START[:1] + 1.0] * 2).clamp(-1, 1)
    sizes = []

    def weighed(points: Tensor, rows: Rows) -> Tensor:
        sizes.append((len(points), rows.victims))
        return bowl(points) * torch.tensor([1.0, 9.0, 5.0, 3.0] * 2)[rows.index]

    how = Descent(iterations=16, learning_rate=0.05, schedule="constant")
    rngs = (RNG, RNG)
    whole = adam(weighed, start, how, onto=BOX, rngs=rngs)
    sizes.clear()
    raced = adam(weighed, start, replace(how, race=True), onto=BOX, rngs=rngs)
    assert [size for size, _ in sizes] == [8] * 6 + [4] * 4 + [2] * 6
    assert sizes[-1][1] == (0, 1)
    for one, other in zip(raced.by_victim(2), whole.by_victim(2), strict=True):
        best = one.best()
        torch.testing.assert_close(one.points[best], other.points[best])
        assert bool((one.losses >= other.losses - 1e-9).all())


def test_no_finite_loss_is_not_a_reconstruction():
    result = adam(
        lambda p, _: bowl(p) * torch.nan,
        START,
        Descent(iterations=2, learning_rate=0.1),
        onto=BOX,
        rngs=(RNG,),
    )
    with pytest.raises(Undefined, match="finite loss"):
        result.best()
    assert Found(points=START, losses=torch.tensor([torch.nan, 2.0, 1.0])).best() == 2


def client_of(model: nn.Module, mode: str = "training") -> Replica:
    terms = Terms(
        protocol="fedsgd",
        architecture=Architecture.of("mlp", (1, 2, 2), 2),
        sends="gradient",
        clients=1,
        cohort=1,
        batch_size=2,
        training=Training(mode=mode),
    )
    update = Update(round=0, client=0, kind="gradient", tensors={}, examples=2)
    one = torch.ones(1, 1, 1, 1)
    return Replica(model=model.eval(), update=update, received={}, terms=terms, scale=one, shift=one * 0)


def test_decays_and_roughness():
    assert [stepwise(x) for x in (0, 3 / 8, 5 / 8, 7 / 8)] == [1.0, 0.1, 0.01, 0.001]
    points = torch.zeros(2, 2, 1, 2, 2)
    points[0, 1, 0, 0, 1] = 1.0  # one of two pictures, half of its neighbours, both ways
    assert roughness(client_of(nn.Conv2d(1, 1, 1)), points).tolist() == [0.5, 0.0]


def test_roughness_is_relative_to_the_contrast_under_statistics_of_the_batch():
    points = torch.rand((2, 2, 1, 2, 2), generator=torch.Generator().manual_seed(0))
    client, frozen = client_of(nn.BatchNorm2d(1)), client_of(nn.BatchNorm2d(1), mode="evaluation")
    torch.testing.assert_close(roughness(client, points), roughness(client, points * 0.1))
    torch.testing.assert_close(roughness(frozen, points) * 0.1, roughness(frozen, points * 0.1))
