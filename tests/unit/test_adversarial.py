"""Adversarial perturbations: inside the ball and the range, and against the model."""

import pytest
import torch
from torch.nn import functional

from glasshouse.data.sources import load
from glasshouse.errors import BadValue, Undefined
from glasshouse.models.adversarial import PGD10, Ascent, robust_accuracy
from glasshouse.models.build import build
from glasshouse.models.fit import accuracy, fit
from glasshouse.rng import Rng
from glasshouse.settings import Recipe
from glasshouse.wire import Architecture, Batch

MODEL = Architecture.of("mlp", (1, 8, 8), 3, {"hidden": 16})


def batch(n=60):
    g = torch.Generator().manual_seed(n)
    labels = torch.randint(0, 3, (n,), generator=g)
    inputs = torch.rand((n, 1, 8, 8), generator=g) * 0.3
    inputs[torch.arange(n), 0, labels] += 0.15
    return Batch(inputs=inputs, labels=labels)


@pytest.mark.parametrize("method", ["fgsm", "pgd"])
def test_images_stay_near_and_the_loss_rises(method):
    model, data = build(MODEL, rng=Rng.root(0)).eval(), batch()
    ascent = Ascent(method=method, radius=0.05, step=0.5, steps=4)
    moved = ascent(model, data.inputs, data.labels, torch.Generator().manual_seed(0))
    assert float((moved - data.inputs).abs().max()) <= 0.05 + 1e-6
    assert float(moved.min()) >= 0
    assert float(moved.max()) <= 1
    before, after = (functional.cross_entropy(model(x), data.labels) for x in (data.inputs, moved))
    assert after > before


@pytest.mark.parametrize("perturb", [Ascent(radius=0.15), Ascent(method="pgd", radius=0.15, steps=3)])
def test_training_on_them_makes_the_model_robust(perturb):
    digits, result = load("digits").split("train"), {}
    data, heldout = digits.batch(torch.arange(600)), digits.batch(torch.arange(600, 800))
    agreed = Architecture.of("mlp", (1, 8, 8), 10, {"hidden": 32})
    attack = Ascent(method="pgd", radius=0.15, step=0.3, steps=5)
    for name, how in (("natural", None), ("robust", perturb)):
        model = build(agreed, rng=Rng.root(1))
        fit(model, data, Recipe(epochs=20, batch_size=32), rng=Rng.root(2), perturb=how)
        assert accuracy(model, heldout) > 0.8
        result[name] = robust_accuracy(model, heldout, attack=attack, rng=Rng.root(3))
    assert result["robust"] > result["natural"] + 0.1


def test_the_quoted_attack_is_ten_steps_of_2_255_within_4_255():
    assert (PGD10.steps, PGD10.radius, PGD10.step * PGD10.radius) == (10, 4 / 255, 2 / 255)


def test_without_a_step_each_method_takes_its_own():
    """One step of FGSM crosses the ball from nearly anywhere in it; those of PGD are the paper's."""
    assert (Ascent().share, Ascent(method="pgd").share) == (1.25, 0.5)
    assert Ascent(method="pgd") == Ascent(method="pgd", radius=4 / 255, steps=10)
    model, data = build(MODEL, rng=Rng.root(0)).eval(), batch()
    moved = [
        ascent(model, data.inputs, data.labels, torch.Generator().manual_seed(0))
        for ascent in (Ascent(method="pgd"), PGD10, Ascent(method="pgd", step=1.25))
    ]
    assert torch.equal(moved[0], moved[1])
    assert not torch.equal(moved[0], moved[2])


def test_it_refuses():
    with pytest.raises(BadValue, match="needs  radius"):
        Ascent(radius=0.0)
    with pytest.raises(Undefined, match="at least one"):
        robust_accuracy(build(MODEL), batch(5).pick(torch.arange(0)), rng=Rng.root(0))


def test_cutout_covers_a_square_with_grey():
    from glasshouse.models.fit import _augment

    covered = _augment(torch.ones(50, 1, 8, 8), Recipe(epochs=1, cutout=4), torch.Generator().manual_seed(0))
    counts = (covered == 0.5).flatten(1).sum(1)
    assert int(counts.max()) == 16
    assert int(counts.min()) >= 4
    assert bool(((covered == 1) | (covered == 0.5)).all())


def test_quarters_fall_by_tens():
    recipe = Recipe(epochs=8, learning_rate=1.0, schedule="quarters")
    assert [round(recipe.rate(x), 6) for x in (0.0, 0.24, 0.25, 0.6, 0.99)] == [1.0, 1.0, 0.1, 0.01, 0.001]
