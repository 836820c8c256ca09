import math

import pytest
import torch
from torch import nn

from glasshouse.cache import Checkpoint
from glasshouse.data.sources import load
from glasshouse.errors import BadValue, Undefined
from glasshouse.models.build import build, state
from glasshouse.models.fit import accuracy, fit, predict
from glasshouse.rng import Rng
from glasshouse.settings import Recipe
from glasshouse.wire import Architecture, Batch

MLP = Architecture.of("mlp", (1, 8, 8), 10, {"hidden": 32})
RNG = Rng.root(0)


@pytest.fixture(scope="module")
def digits():
    return {name: part.batch() for name, part in load("digits").splits.items()}


def equal(left, right):
    return all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize(
    ("architecture", "recipe"),
    [
        (MLP, Recipe(epochs=6, learning_rate=0.1)),
        (MLP, Recipe(epochs=6, optimizer="adam", learning_rate=0.01, weight_decay=0, schedule="cosine")),
        (
            Architecture.of("resnet18", (1, 8, 8), 10, {"width": 4}),
            Recipe(epochs=3, batch_size=32, learning_rate=0.1, channels_last=True, precision="bfloat16"),
        ),
    ],
    ids=["sgd", "adam", "resnet"],
)
def test_digits_are_learnt(digits, architecture, recipe):
    model = build(architecture, rng=RNG)
    losses = fit(model, digits["train"], recipe, rng=RNG)
    assert len(losses) == recipe.epochs
    assert losses[-1] < 0.4 * losses[0]
    assert accuracy(model, digits["test"]) > 0.85  # chance is 0.1
    assert all(p.is_contiguous() for p in model.parameters())  # whatever layout it was trained in


def test_the_stream_decides_and_the_global_generator_is_left_alone(digits):
    before = torch.get_rng_state()
    recipe = Recipe(epochs=1, flip=True, shift=1)
    states = []
    for seed in (1, 1, 2):
        model = build(MLP, rng=RNG)
        fit(model, digits["train"], recipe, rng=Rng.root(seed))
        states.append(state(model))
    assert equal(states[0], states[1])
    assert not equal(states[0], states[2])
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_an_interrupted_training_ends_as_an_uninterrupted_one(digits, tmp_path, optimizer):
    recipe = Recipe(epochs=3, optimizer=optimizer, learning_rate=0.01)
    whole = build(MLP, rng=RNG)
    losses = fit(whole, digits["train"], recipe, rng=RNG)

    checkpoint = Checkpoint(path=tmp_path / "c.safetensors")
    steps = 0

    def stop(model, inputs, labels, generator):
        nonlocal steps
        steps += 1
        if steps == 30:  # in the second epoch: 22 steps each
            raise KeyboardInterrupt
        return inputs

    with pytest.raises(KeyboardInterrupt):
        fit(build(MLP, rng=RNG), digits["train"], recipe, rng=RNG, checkpoint=checkpoint, perturb=stop)
    resumed = build(MLP, rng=Rng.root(9))
    again = fit(resumed, digits["train"], recipe, rng=RNG, checkpoint=checkpoint)
    assert again == losses
    assert equal(state(whole), state(resumed))


def test_frozen_parameters_stay(digits):
    model = build(MLP, rng=RNG)
    for p in model.features.parameters():
        p.requires_grad_(False)
    before = state(model)
    fit(model, digits["train"], Recipe(epochs=1), rng=RNG)
    after = state(model)
    assert torch.equal(before["features.fc1.weight"], after["features.fc1.weight"])
    assert not torch.equal(before["head.weight"], after["head.weight"])


def test_modes_are_given_back(digits):
    model = build(MLP).eval()
    fit(model, digits["train"], Recipe(epochs=1), rng=RNG)
    assert not model.training
    model.train()
    predict(model, digits["test"].inputs)
    assert model.training


def test_prediction_does_not_depend_on_the_batch_size():
    model = build(Architecture.of("resnet18", (1, 8, 8), 3, {"width": 2}))
    x = torch.rand(7, 1, 8, 8, generator=RNG.torch())
    torch.testing.assert_close(predict(model, x, batch_size=2), predict(model, x, batch_size=7))


def test_one_step_is_gradient_descent():
    batch = Batch(inputs=torch.rand(4, 1, 8, 8, generator=RNG.torch()), labels=torch.tensor([0, 1, 2, 3]))
    model, twin = build(MLP, rng=RNG), build(MLP, rng=RNG)
    recipe = Recipe(
        epochs=1, batch_size=4, learning_rate=0.5, schedule="constant", momentum=0, weight_decay=0
    )
    (loss,) = fit(model, batch, recipe, rng=RNG)
    expected = nn.functional.cross_entropy(twin(batch.inputs), batch.labels)
    gradients = torch.autograd.grad(expected, list(twin.parameters()))
    assert loss == pytest.approx(expected.item())
    for p, q, g in zip(model.parameters(), twin.parameters(), gradients, strict=True):
        torch.testing.assert_close(p, q - 0.5 * g)


def test_augmentation_moves_whole_images():
    """A pixel in the middle, shift 1: it ends on one of 9 places, all of them taken, all nine alike."""
    inputs = torch.zeros(900, 1, 5, 5)
    inputs[:, :, 2, 2] = 1
    items = []

    def look(model, inputs, labels, generator):
        items.append(inputs)
        return inputs

    model = nn.Sequential(nn.Flatten(), nn.Linear(25, 2))
    batch = Batch(inputs=inputs, labels=torch.zeros(900, dtype=torch.int64))
    fit(model, batch, Recipe(epochs=1, batch_size=900, shift=1), rng=RNG, perturb=look)
    places = items[0].sum(0).squeeze()
    assert places[1:4, 1:4].min() > 60
    assert places.sum() == 900


def test_schedules():
    recipe = Recipe(epochs=1, learning_rate=2.0)
    assert recipe.rate(0.0) == pytest.approx(2 / 25)
    assert recipe.rate(0.3) == pytest.approx(2)
    assert recipe.rate(1.0) == pytest.approx(2e-4 / 25)
    assert recipe.rate(0.15) == pytest.approx((2 + 2 / 25) / 2)
    assert Recipe(epochs=1, learning_rate=2.0, schedule="constant").rate(0.9) == 2


def test_onecycle_is_that_of_torch():
    """``torch.optim.lr_scheduler.OneCycleLR`` with its defaults, up to how it counts the last step."""
    n = 1000
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1)
    theirs = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=n, cycle_momentum=False)
    for step in range(n - 1):
        assert theirs.get_last_lr()[0] == pytest.approx(
            Recipe(epochs=1, learning_rate=1).rate(step / n), abs=0.01
        )
        optimizer.step()
        theirs.step()


def test_a_diverging_training_says_so(digits):
    recipe = Recipe(epochs=5, learning_rate=1e20, schedule="constant")
    with pytest.raises(Undefined, match="finite loss") as caught:
        fit(build(MLP, rng=RNG), digits["train"], recipe, rng=RNG)
    assert "epoch 1 of 5" in caught.value.got


def test_refusals_by_their_words(digits):
    frozen = build(MLP)
    for p in frozen.parameters():
        p.requires_grad_(False)
    with pytest.raises(BadValue, match="0 trainable tensors"):
        fit(frozen, digits["train"], Recipe(epochs=1), rng=RNG)
    nothing = digits["train"].pick(torch.zeros(0, dtype=torch.int64))
    with pytest.raises(Undefined, match="0 examples"):
        accuracy(frozen, nothing)
    broken = build(MLP)
    nn.init.constant_(broken.head.bias, math.nan)
    with pytest.raises(Undefined, match="NaN outputs"):
        accuracy(broken, digits["test"])


@pytest.mark.parametrize(
    "wrong", [{"epochs": -1}, {"batch_size": 0}, {"learning_rate": 0}, {"momentum": 1}, {"shift": -1}]
)
def test_recipes_that_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Recipe(**{"epochs": 1, **wrong})
