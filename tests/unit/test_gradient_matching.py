"""Objectives: zero at the truth, for one gradient and for local training; adaptive matching; refusals."""

import logging

import pytest
import torch

from glasshouse.attacks.parts.matching.distance import objective, schedule
from glasshouse.attacks.parts.matching.transforms import Adaptation, estimate
from glasshouse.attacks.parts.replica import Replica, replica
from glasshouse.errors import BadValue, Inapplicable
from glasshouse.federation.defenses.clip import Clip
from glasshouse.federation.defenses.clip_layers import ClipLayers
from glasshouse.federation.defenses.prune import Prune
from glasshouse.federation.defenses.soteria import Soteria
from glasshouse.settings import Optimizer
from glasshouse.testing.toys import Toy, toy

CONVNET = {"model": "convnet", "arguments": {"width": 2}}


def client(made: Toy) -> Replica:
    return replica(made.view(), subject="a test")


def value(made: Toy, **settings) -> float:
    """The objective at the private images of client 0, in the order in which they are stored."""
    rebuilt, private = client(made), made.setting.shard(0)
    result = objective(rebuilt, **settings)(private.inputs[None], private.labels[None], create_graph=False)
    return float(result)


@pytest.mark.parametrize("distance", ["cosine", "squared"])
@pytest.mark.parametrize("examples", [1, 3])
def test_zero_at_the_truth(distance, examples):
    assert abs(value(toy(examples=examples, **CONVNET), distance=distance)) < 1e-5


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("sends", ["delta", "parameters"])
def test_simulated_local_steps_are_zero_at_the_truth(sends, momentum):
    """Full batches, so that the unknown order does not matter: three steps on the candidate."""
    result = toy(
        protocol="fedavg",
        examples=2,
        local_epochs=3,
        learning_rate=0.5,
        optimizer=Optimizer(momentum=momentum),
        sends=sends,
        **CONVNET,
    )
    assert client(result).update.steps == 3
    assert abs(value(result, distance="cosine")) < 1e-4
    assert value(result, distance="cosine", steps="one_step") > 1e-3


def test_one_local_step_is_one_gradient():
    sgd, average = toy(examples=2), toy(protocol="fedavg", examples=2, learning_rate=0.3)
    torch.testing.assert_close(client(average).gradient(), client(sgd).gradient(), rtol=1e-4, atol=1e-6)


def test_the_schedule_of_candidates():
    result = toy(protocol="fedavg", examples=5, batch_size=2, local_epochs=2)
    steps = schedule(client(result))
    assert [rows.tolist() for rows in steps] == [[0, 1], [2, 3], [4]] * 2


@pytest.mark.parametrize(
    ("defense", "distance"),
    [
        (Clip(norm=0.05), "squared"),
        (ClipLayers(norm=0.01), "cosine"),
        (ClipLayers(norm=0.01), "squared"),
        (Prune(share=0.9), "cosine"),
        (Prune(share=0.9), "squared"),
        (Soteria(share=0.8), "cosine"),
        (Soteria(share=0.8), "squared"),
    ],
    ids=lambda x: x if isinstance(x, str) else type(x).__name__,
)
def test_adaptive_matching_undoes_the_defence(defense, distance):
    """What the defence did shows in the update: repeated on the truth, nothing is left to match."""
    result = toy(defenses=(defense,), **CONVNET)
    size = sum(float(t.square().sum()) for t in client(result).update.tensors.values())
    unit = size if distance == "squared" else 1.0
    naive, adaptive = (value(result, distance=distance, adaptive=flag) / unit for flag in (False, True))
    assert abs(adaptive) < 1e-4
    assert naive > 100 * abs(adaptive)


def test_an_undefended_update_looks_untouched():
    """Dead units leave rows and columns of zeros, which are not taken for pruning."""
    adaptation = estimate(client(toy()).update.tensors, last="head")
    assert not any(mask.shape[0] > 1 for mask in adaptation.masks.values())
    assert adaptation.layer_clip is None
    assert adaptation.clip == pytest.approx(
        sum(float(t.double().square().sum()) for t in client(toy()).update.tensors.values()) ** 0.5
    )


def test_clipping_never_enlarges():
    square, dot = torch.tensor([[1.0, 9.0], [1.0, 9.0]]), torch.tensor([[2.0, 3.0], [1.0, 3.0]])
    assert Adaptation(clip=2.0).scale(square, dot).tolist() == [[1.0, pytest.approx(2 / 18**0.5)]]
    assert Adaptation(layer_clip=2.0).scale(square, dot).tolist() == [[1.0, pytest.approx(2 / 3)]] * 2
    assert Adaptation(shortened=True).scale(square, dot).tolist() == [[1.0, pytest.approx(1 / 3)]]
    assert Adaptation(shortened=True).scale(square, -dot).tolist() == [[0.0, 0.0]]
    assert Adaptation().scale(square, dot).tolist() == [[1.0]]


def test_says_when_restarts_are_not_batched(caplog):
    with caplog.at_level(logging.INFO, logger="glasshouse"):
        objective(client(toy()), distance="cosine")
        assert caplog.messages == []
        objective(client(toy(protocol="fedavg", local_epochs=2)), distance="cosine")
        assert caplog.messages == ["matching 2 local steps by simulation, one restart after the other"]
        rebuilt = client(toy(**CONVNET))
        rebuilt.model.features.relu0.inplace = True
        objective(rebuilt, distance="cosine")
    assert caplog.messages[-1].endswith("'features.relu0' (ReLU) overwrites its input (inplace=True)")


def test_refuses_an_update_of_zeros():
    rebuilt = client(toy())
    for t in rebuilt.update.tensors.values():
        t.zero_()
    with pytest.raises(Inapplicable, match="not zero everywhere"):
        objective(rebuilt, distance="cosine")


def test_a_gradient_is_no_change_of_parameters():
    with pytest.raises(Inapplicable, match="an update of kind delta"):
        client(toy()).delta()


def test_refuses_what_does_not_fit_the_model():
    view = toy().view()
    update = view.rounds[0].updates[0]
    update.tensors["head.bias"] = torch.zeros(3)
    with pytest.raises(BadValue, match=r"of another shape: head\.bias"):
        replica(view, subject="a test")
    update.tensors["head.bias"] = torch.full((10,), torch.nan)
    with pytest.raises(BadValue, match="not finite"):
        replica(view, subject="a test")


def test_units_of_the_model_input():
    """The zoo's MLP normalises by (x - 0.5) / 0.5: the box is ±1, and the way back is exact."""
    rebuilt = client(toy())
    low, high = rebuilt.box()
    assert (low.unique().tolist(), high.unique().tolist()) == ([-1.0], [1.0])
    x = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(rebuilt.to_pixels(rebuilt.model.normalize(x)), x)
