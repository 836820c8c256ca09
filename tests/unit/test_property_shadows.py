"""Shadow updates, detectors and their features: equal to the federation's own training, and additive."""

import math

import pytest
import torch

from glasshouse.attacks.property.detector import fit, fit_sgd, standardize
from glasshouse.attacks.property.gathering import client_sizes, join_casts, note_unequal, shadow_pairs
from glasshouse.attacks.property.properties import (
    Ascent,
    Attribute,
    GradientInversion,
    LabelFlip,
    Membership,
    Pairs,
    Scene,
)
from glasshouse.attacks.property.shadow import Cast, Conduct, _train_clients, flatten, mean_gradients, updates
from glasshouse.errors import BadValue, Inapplicable
from glasshouse.federation.client import LocalTraining
from glasshouse.models import build as models
from glasshouse.rng import Rng
from glasshouse.transcript.threat import Threat
from glasshouse.transcript.view import RoundView, View
from glasshouse.wire import Aggregate, Architecture, Batch, Broadcast, Terms

SHAPES = {"lenet5": (3, 32, 32), "lenet_dropout": (1, 28, 28), "mlp": (1, 8, 8)}


def terms(model="mlp", **changes) -> Terms:
    architecture = Architecture.of(model, SHAPES[model], 10)
    usual = {"protocol": "fedavg", "sends": "delta", "clients": 6, "cohort": 3, "batch_size": 5}
    return Terms(architecture=architecture, **{**usual, "learning_rate": 0.1, **changes})


def data(count: int, shape=(1, 8, 8), seed=0) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    return Batch(
        inputs=torch.rand(count, *shape, generator=draw),
        labels=torch.randint(10, (count,), generator=draw),
    )


def cast(model="mlp", clients=4, size=5) -> Cast:
    pool = data(12, SHAPES[model])
    draw = torch.Generator().manual_seed(3)
    return Cast(
        pool=pool, rows=torch.stack([torch.randperm(12, generator=draw)[:size] for _ in range(clients)])
    )


@pytest.mark.parametrize("model", ["lenet5", "lenet_dropout", "mlp"])
def test_one_step_is_the_mean_of_per_example_gradients(model):
    """Against autograd one example at a time, and against the client's own code."""
    agreed, shadows = terms(model), cast(model)
    network = models.build(agreed.architecture, rng=Rng.root(1))
    result = updates(network, agreed, shadows, rng=Rng.root(2))
    one = LocalTraining(kind="gradient", batch_size=1)
    each = torch.stack(
        [
            flatten(one(network, shadows.pool.pick(torch.tensor([i])), rng=Rng.root(0)).tensors)
            for i in range(12)
        ]
    )
    torch.testing.assert_close(result, -0.1 * each[shadows.rows].mean(1), atol=1e-7, rtol=1e-4)
    torch.testing.assert_close(
        result,
        _train_clients(network, agreed, shadows, Conduct(), round=0, rng=Rng.root(0)),
        atol=1e-7,
        rtol=1e-4,
    )


@pytest.mark.parametrize(("ascend", "epochs"), [(False, 1), (False, 3), (True, 2)])
def test_several_steps_equal_the_clients_own_code(ascend, epochs):
    """With whole-batch steps the order does not matter, so the streams need not agree."""
    agreed, shadows = terms(local_epochs=epochs), cast()
    network = models.build(agreed.architecture, rng=Rng.root(1))
    before = flatten(models.state(network))
    tensor = updates(network, agreed, shadows, conduct=Conduct(ascend=ascend), rng=Rng.root(2))
    assert torch.equal(flatten(models.state(network)), before)
    expected = _train_clients(network, agreed, shadows, Conduct(ascend=ascend), round=0, rng=Rng.root(0))
    torch.testing.assert_close(tensor, expected, atol=1e-6, rtol=1e-4)


def test_small_batches_use_every_example_once_per_epoch():
    """At a learning rate of almost 0 the steps of an epoch add up to one step on everything."""
    agreed = terms(batch_size=2, learning_rate=1e-4)
    network, shadows = models.build(agreed.architecture, rng=Rng.root(1)), cast()
    result = updates(network, agreed, shadows, rng=Rng.root(2))
    pool = shadows.pool
    sizes = torch.tensor([2.0, 2.0, 2.0, 2.0, 1.0])
    each = mean_gradients(network, agreed, Cast(pool=pool, rows=torch.arange(12)[:, None]), rng=Rng.root(0))
    low, high = each[shadows.rows].abs().sum(1) * 1e-4 / 2, each[shadows.rows].abs().sum(1) * 1e-4
    assert sizes.sum() == 9
    assert (result.abs() <= high + 1e-6).all()
    assert float(result.norm()) > 0.2 * float(low.norm())


def test_dropout_draws_a_mask_per_entry():
    agreed = terms("lenet_dropout", options={"dropout": True})
    pool = data(1, SHAPES["lenet_dropout"]).pick(torch.zeros(3, dtype=torch.long))
    network = models.build(agreed.architecture, rng=Rng.root(1))
    alone = Cast(pool=pool, rows=torch.arange(3)[:, None])
    tensor = updates(network, agreed, alone, rng=Rng.root(2))
    assert not torch.allclose(tensor[0], tensor[1])
    torch.testing.assert_close(tensor, updates(network, agreed, alone, rng=Rng.root(2)))


def scene(agreed: Terms, **changes) -> Scene:
    usual = {"auxiliary": data(60), "challenge": data(1, seed=9), "terms": agreed, "examples": 5}
    return Scene(**{**usual, **changes})


def made(agreed: Terms, pairs: Pairs) -> torch.Tensor:
    network = models.build(agreed.architecture, rng=Rng.root(1))
    view = View(terms=agreed, threat=Threat(), rounds=())
    return shadow_pairs(network, view, (pairs,), round=0, rng=Rng.root(5))


def test_members_hold_the_challenge_and_the_others_do_not():
    pairs = Membership().pairs(scene(terms()), count=7, rng=Rng.root(0))
    heldout = pairs.positive.pool.inputs[pairs.positive.rows]
    target = data(1, seed=9).inputs[0]
    assert (heldout == target).flatten(2).all(2).sum(1).tolist() == [1] * 7
    assert not (pairs.negative.pool.inputs[pairs.negative.rows] == target).flatten(2).all(2).any()
    assert all(len(set(row)) == 5 for row in pairs.positive.rows.tolist())


def test_membership_without_a_challenge_is_refused():
    with pytest.raises(Inapplicable, match="a challenge with an example number 0"):
        Membership().pairs(scene(terms(), challenge=None), count=2, rng=Rng.root(0))


def test_inverters_are_honest_clients_turned_around():
    tensor = made(terms(), GradientInversion(scale=2.0).pairs(scene(terms()), count=4, rng=Rng.root(0)))
    torch.testing.assert_close(tensor[4:], -2 * tensor[:4])


def test_a_clipped_inverter_is_the_behaviour_itself():
    tensor = made(terms(), GradientInversion(clip_norm=1e-3).pairs(scene(terms()), count=3, rng=Rng.root(0)))
    torch.testing.assert_close(tensor[3:].norm(dim=1), torch.full((3,), 1e-3), rtol=1e-4, atol=0)


def test_ascent_is_inversion_with_one_step_and_not_with_two():
    one = made(terms(), Ascent().pairs(scene(terms()), count=3, rng=Rng.root(0)))
    torch.testing.assert_close(one[3:], -one[:3])
    twice = terms(local_epochs=2)
    two = made(twice, Ascent().pairs(scene(twice), count=3, rng=Rng.root(0)))
    assert not torch.allclose(two[3:], -two[:3], rtol=1e-3)
    assert (torch.nn.functional.cosine_similarity(two[3:], -two[:3]) > 0.5).all()


def test_flipped_labels_and_a_majority_class():
    flipped = LabelFlip(shift=3).pairs(scene(terms()), count=4, rng=Rng.root(0))
    rows = flipped.positive.rows - 60
    truth = data(60).labels[rows]
    assert torch.equal(flipped.positive.pool.labels[flipped.positive.rows], (truth + 3) % 10)
    auxiliary = Batch(inputs=data(60).inputs, labels=torch.arange(60) % 2)
    pairs = Attribute(label=1).pairs(scene(terms(), auxiliary=auxiliary), count=9, rng=Rng.root(0))
    for one, expected in ((pairs.positive, True), (pairs.negative, False)):
        assert [(row.sum() > 2.5) for row in one.pool.labels[one.rows].double()] == [expected] * 9


def test_a_shared_pool_is_kept_once():
    one, other = cast(), cast()
    both = join_casts([one, Cast(pool=one.pool, rows=one.rows[:1]), other])
    assert len(both.pool) == 24
    assert torch.equal(both.pool.inputs[both.rows[-1]], other.pool.inputs[other.rows[-1]])


def shadows(count=60, z=40, gap=1.0) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 2 == 1
    x = torch.randn(count, z, generator=draw) * (1 + torch.arange(z)) + 5
    x[labels, :4] += gap * (1 + torch.arange(4))
    return x, labels


def test_the_penalised_optimum_is_reached():
    """At the optimum the gradient of mean loss + penalty / 2 · ‖w‖² vanishes, in standardised coordinates."""
    x, labels = shadows()
    detector = fit(x.clone(), labels, penalty=0.5, iterations=500)
    flat = x.clone()
    _, std = standardize(flat)
    w = (detector.direction * std).double()
    error = torch.sigmoid(detector.features(x)).double() - labels.double()
    slope = error @ flat.double() / len(flat) + 0.5 * w
    assert float(slope.abs().max()) < 1e-3
    assert detector.norm == pytest.approx(float(w.norm()), rel=1e-4)


@pytest.mark.parametrize("kind", ["lbfgs", "sgd"])
def test_detectors_separate_what_can_be_separated(kind):
    (x, labels), (heldout, truth) = shadows(gap=4.0), shadows(count=40, gap=4.0)
    if kind == "lbfgs":
        detector = fit(x, labels, penalty=0.1, iterations=30)
    else:
        detector = fit_sgd(x, labels, (heldout.clone(), truth), epochs=30, rng=Rng.root(0))
    assert float(((detector.features(heldout) > 0) == truth).double().mean()) > 0.9
    assert math.isfinite(detector.norm)


def test_one_kind_alone_is_no_training_set():
    with pytest.raises(BadValue, match="of both kinds"):
        fit(
            torch.randn(4, 3, generator=torch.Generator().manual_seed(0)),
            torch.ones(4) > 0,
            penalty=0.1,
            iterations=3,
        )


@pytest.mark.parametrize(("sizes", "said"), [((30, 30, 20), False), ((30, 36, 20), True)])
def test_unequal_clients_are_spoken_of(sizes, said, caplog):
    """Round 2 lost a client; where the mean of a client changes from round to round, the report says so."""
    rounds = [
        RoundView(
            round=number,
            broadcast=Broadcast(round=number, architecture=terms().architecture, tensors={}),
            aggregate=Aggregate(
                round=number, kind="delta", tensors={}, weight=float(examples), selected=(0, 1, 2),
                dropped=(0,) if number == 2 else (), examples=examples,
            ),
        )
        for number, examples in enumerate(sizes)
    ]  # fmt: skip
    assert client_sizes(rounds) == [(sizes[0], 3), (sizes[1], 3), (sizes[2], 2)]
    note_unequal(rounds)
    assert ("different numbers of examples" in caplog.text) == said
