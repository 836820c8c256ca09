"""The order of local steps: exchanges find it where the loss shows it, and never make things worse."""

import torch

from glasshouse.attacks.inversion.inverting_gradients import InvertingGradients
from glasshouse.attacks.parts.matching.step_order import exchange_between_steps, step_of, unknown
from glasshouse.attacks.parts.replica import replica
from glasshouse.registry import create
from glasshouse.rng import Rng
from glasshouse.testing.toys import Toy, toy

STEPS = torch.tensor([0, 0, 1, 1, 2])


def place_loss(points: torch.Tensor, labels: torch.Tensor, derivative: bool) -> torch.Tensor:
    """Images know their own step: how many are elsewhere, labels and images together."""
    wrong = (points.flatten(2).mean(2) - STEPS).abs() + (labels - STEPS).abs()
    return wrong.double().sum(1)


def test_exchanges_put_every_image_with_its_label_into_its_step():
    shuffled = torch.stack([torch.randperm(5, generator=torch.Generator().manual_seed(i)) for i in range(4)])
    labels = STEPS[shuffled]
    points = labels[:, :, None, None, None].float().expand(-1, -1, 1, 2, 2)
    result, named = exchange_between_steps(points, labels, STEPS, place_loss, rng=Rng.root(0))
    assert torch.equal(named, STEPS.expand(4, -1))
    assert torch.equal(result.flatten(2).mean(2), STEPS.expand(4, -1).float())


def test_nothing_is_exchanged_where_every_order_is_as_good():
    points, labels = torch.rand(2, 5, 1, 2, 2), torch.arange(5).expand(2, -1)
    result, named = exchange_between_steps(
        points, labels, STEPS, lambda x, y, d: torch.zeros(len(x), dtype=torch.float64), rng=Rng.root(0)
    )
    assert torch.equal(result, points)
    assert torch.equal(named, labels)


def test_one_batch_per_epoch_has_no_order():
    points, labels = torch.rand(1, 5, 1, 2, 2), torch.arange(5)[None]

    def never(x: torch.Tensor, y: torch.Tensor, derivative: bool) -> torch.Tensor:
        raise AssertionError("nothing to try")

    result, named = exchange_between_steps(
        points, labels, torch.zeros(5, dtype=torch.int64), never, rng=Rng.root(0)
    )
    assert result is points
    assert named is labels


def trained(batch_size: int, epochs: int = 1) -> Toy:
    return toy(protocol="fedavg", examples=5, batch_size=batch_size, local_epochs=epochs, learning_rate=0.3)


def test_places_follow_the_batches_of_one_epoch():
    assert step_of(replica(trained(2, epochs=2).view(), subject="t")).tolist() == [0, 0, 1, 1, 2]


def test_the_order_is_unknown_only_where_steps_saw_different_images():
    table = {size: replica(trained(size, epochs=2).view(), subject="t") for size in (1, 2, 5)}
    assert {size: unknown(one) for size, one in table.items()} == {1: True, 2: True, 5: False}


def test_simulation_matches_the_update_of_several_steps_better_than_one_step_can():
    view = trained(1).view()
    losses = {
        steps: -float(
            create(
                InvertingGradients,
                {"search": {"iterations": 60, "restarts": 1}, "tv": 0.0, "local_steps": steps},
            )
            .run(view, rng=Rng.root(1))[0]
            .confidence[0]
        )
        for steps in ("simulate", "one_step")
    }
    assert losses["simulate"] < losses["one_step"]
