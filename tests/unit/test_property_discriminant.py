"""Gradients that are never formed, and the detector made of them: equal to what forming everything gives."""

from dataclasses import replace

import pytest
import torch

from glasshouse.attacks.property.discriminant import check_means, fisher, fit_discriminant
from glasshouse.attacks.property.evidence import Method
from glasshouse.attacks.property.gathering import shadow_pairs
from glasshouse.attacks.property.per_example import PerExample
from glasshouse.attacks.property.properties import Attribute, GradientInversion, LabelFlip, Membership, Scene
from glasshouse.attacks.property.shadow import flatten
from glasshouse.errors import BadValue, Inapplicable
from glasshouse.federation.client import LocalTraining
from glasshouse.models import build as models
from glasshouse.rng import Rng
from glasshouse.transcript.threat import Threat
from glasshouse.transcript.view import View
from glasshouse.wire import Architecture, Batch, Terms

SHAPES = {"lenet5": (3, 32, 32), "mlp": (1, 8, 8)}


def terms(model="mlp", **changes) -> Terms:
    small = {"hidden": 6} if model == "mlp" else {}
    architecture = Architecture.of(model, SHAPES[model], 10, small)
    usual = {"protocol": "fedavg", "sends": "delta", "clients": 6, "cohort": 3, "batch_size": 5}
    return Terms(architecture=architecture, **{**usual, "learning_rate": 0.1, **changes})


def data(count: int, shape=(1, 8, 8), seed=0) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    return Batch(
        inputs=torch.rand(count, *shape, generator=draw),
        labels=torch.randint(10, (count,), generator=draw),
    )


def scene(agreed: Terms, *, seed=0) -> Scene:
    return Scene(auxiliary=data(60, seed=seed), challenge=data(1, seed=9), terms=agreed, examples=5)


@pytest.mark.parametrize("model", ["lenet5", "mlp"])
def test_products_sums_and_means_are_those_of_the_gradients(model):
    agreed, pool = terms(model), data(12, SHAPES[model])
    network = models.build(agreed.architecture, rng=Rng.root(1))
    one = LocalTraining(kind="gradient", batch_size=1)
    each = torch.stack(
        [flatten(one(network, pool.pick(torch.tensor([i])), rng=Rng.root(0)).tensors) for i in range(12)]
    ).double()
    result = PerExample.of(network, agreed, pool, rng=Rng.root(0))
    weights = torch.linspace(-1, 1, 12, dtype=torch.float64)
    direction = torch.randn(each.shape[1], generator=torch.Generator().manual_seed(4))
    rows = torch.tensor([[0, 3, 5], [11, 2, 7]])
    close = {"atol": 1e-5, "rtol": 1e-4}
    torch.testing.assert_close(result.gram(), each @ each.T, **close)
    torch.testing.assert_close(result.weighted(weights).double(), weights @ each, **close)
    torch.testing.assert_close(result.along(direction), each @ direction.double(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(result.means(rows).double(), each[rows].mean(1), **close)
    torch.testing.assert_close(result.squared().weighted(weights).double(), weights @ each.square(), **close)


def test_it_is_fishers_discriminant_of_the_updates():
    """Against the formula in the space of updates, with covariance and means written out."""
    agreed = terms()
    network = models.build(agreed.architecture, rng=Rng.root(1))
    pairs = Membership().pairs(scene(agreed), count=4, rng=Rng.root(0))
    examples = PerExample.of(network, agreed, pairs.negative.pool, rng=Rng.root(0))
    low, high = pairs.negative.shares.double(), pairs.positive.shares.double()
    detector = fisher(examples, low, high, count=5, rate=-0.1, shrinkage=1e-3)
    each = -0.1 * examples.means(torch.arange(61)[:, None]).double()
    centred = each[:60] - each[:60].mean(0)
    covariance = centred.T @ centred / 60 / 5
    expected = each[:60].mean(0) + (each[60] - each[:60].mean(0)) / 5
    covariance += 1e-3 * covariance.trace() * torch.eye(len(expected), dtype=torch.float64)
    direction = torch.linalg.solve(covariance, expected - each[:60].mean(0))
    torch.testing.assert_close(detector.direction.double(), direction, atol=1e-3, rtol=1e-3)
    middle = (expected + each[:60].mean(0)) / 2
    assert detector.offset == pytest.approx(-float(direction @ middle), rel=1e-3)
    deviation = (covariance.diagonal() - 1e-3 * centred.square().sum() / 300).clamp_min(0).sqrt()
    assert detector.norm == pytest.approx(float((direction * deviation).norm()), rel=1e-2)


@pytest.mark.parametrize("looks_for", [Membership(), GradientInversion(), LabelFlip()])
def test_features_of_the_held_out_are_those_of_their_updates(looks_for):
    agreed = terms()
    network = models.build(agreed.architecture, rng=Rng.root(1))
    fresh = looks_for.pairs(scene(agreed), count=4, rng=Rng.root(0))
    heldout = looks_for.pairs(scene(agreed, seed=1), count=30, rng=Rng.root(1))
    detector, features = fit_discriminant(
        network, agreed, fresh, heldout, shrinkage=1e-2, round=0, rng=Rng.root(2)
    )
    view = View(terms=agreed, threat=Threat(), rounds=())
    sent = shadow_pairs(network, view, (heldout,), round=0, rng=Rng.root(3))
    torch.testing.assert_close(features.flatten(), detector.features(sent).double(), atol=1e-3, rtol=1e-3)
    assert features[1].mean() > features[0].mean()


@pytest.mark.parametrize("looks_for", [Membership(), GradientInversion(), LabelFlip()])
def test_after_several_steps_the_held_out_have_taken_them_all(looks_for):
    """The direction is the first step's; the features are those of updates of three epochs."""
    agreed, single = terms(local_epochs=3), terms()
    network = models.build(agreed.architecture, rng=Rng.root(1))
    fresh = looks_for.pairs(scene(agreed), count=4, rng=Rng.root(0))
    heldout = looks_for.pairs(scene(agreed, seed=1), count=30, rng=Rng.root(1))
    detector, features = fit_discriminant(
        network, agreed, fresh, heldout, shrinkage=1e-2, round=0, rng=Rng.root(2)
    )
    first, _ = fit_discriminant(network, single, fresh, heldout, shrinkage=1e-2, round=0, rng=Rng.root(2))
    assert torch.equal(detector.direction, first.direction)
    view = View(terms=agreed, threat=Threat(), rounds=())
    sent = shadow_pairs(network, view, (heldout,), round=0, rng=Rng.root(3))
    torch.testing.assert_close(features.flatten(), detector.features(sent).double(), atol=1e-3, rtol=1e-3)
    assert features[1].mean() > 0 > features[0].mean()
    assert features.mean() == pytest.approx(0, abs=1e-6 * float(features.abs().max()))


def test_skewed_shadow_clients_hold_few_or_many_classes():
    uneven = Scene(auxiliary=data(400), challenge=data(1, seed=9), terms=terms(), examples=20, skewed=True)
    pairs = Membership().pairs(uneven, count=300, rng=Rng.root(0))
    labels = uneven.auxiliary.labels
    total = len(torch.unique(labels))
    held = [len(torch.unique(labels[row])) for row in pairs.negative.rows]
    assert set(held) == set(range(1, total + 1))
    assert all(len(torch.unique(row)) == 20 for row in pairs.negative.rows)  # nothing twice
    even = Membership().pairs(replace(uneven, skewed=False), count=300, rng=Rng.root(0))
    assert min(len(torch.unique(labels[row])) for row in even.negative.rows) > 1
    assert (pairs.positive.rows[:, 0] == len(labels)).all()  # the target


@pytest.mark.parametrize(
    ("changes", "looks_for", "got"),
    [
        ({"batch_size": 2}, Membership(), "batches of 2 of 5"),
        ({"batch_size": 2, "sends": "gradient", "protocol": "fedsgd"}, Membership(), "batches of 2 of 5"),
        ({"sends": "parameters"}, Membership(), "sends = 'parameters'"),
        ({}, Attribute(label=3), "does not say it"),
        ({}, GradientInversion(clip_norm=1.0), "no factor"),
    ],
)
def test_what_is_no_mean_of_gradients_is_refused(changes, looks_for, got):
    agreed = terms(**changes)
    network = models.build(agreed.architecture, rng=Rng.root(1))
    pairs = looks_for.pairs(
        Scene(auxiliary=data(200), challenge=data(1, seed=9), terms=agreed, examples=5),
        count=4,
        rng=Rng.root(0),
    )
    with pytest.raises(Inapplicable, match=got):
        check_means(network, agreed, pairs)


@pytest.mark.parametrize("settings", [{"features": 2}, {"shrinkage": 0.0}])
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(BadValue, match="shrinkage"):
        Method(detector="discriminant", **settings)
