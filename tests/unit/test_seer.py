"""SEER: the brightest example of a sum comes out, others do not, and where it cannot work it says so."""

import pytest
import torch
from linear_attacks import attacked, silenced
from torch import nn

from glasshouse.attacks.linear.seer.attack import Seer
from glasshouse.attacks.linear.seer.chosen import brightness, choose, with_brightness
from glasshouse.attacks.linear.seer.secret import last_layer, read_out
from glasshouse.attacks.linear.seer.training import SecretTraining, train_secret
from glasshouse.errors import BadValue, Inapplicable
from glasshouse.models.build import build
from glasshouse.rng import Rng
from glasshouse.wire import Architecture

RNG = Rng.root(0)
SIDE, EXAMPLES, ROUNDS = 8, 16, 20
CLOSE = 2.5e-3  # mean squared error; images differ by five times as much from flat ones
SHORT = Seer(training=SecretTraining(steps=3))
MLP = Architecture.of("mlp", (1, SIDE, SIDE), 10, {"hidden": "128,128"})


def pictures(number, *, seed):
    """Smooth images that differ in brightness and in five patterns, (N, 1, 8, 8)."""
    draws = torch.Generator().manual_seed(seed)
    across = torch.linspace(0, 3.1416, SIDE)
    patterns = torch.stack([(k * across).cos() for k in (1, 2)] + [(3 * across).sin()])
    both = torch.cat((patterns[:, :, None] + 0 * across, patterns[:2, None, :] + 0 * across[:, None]))
    amounts = 0.24 * torch.rand(number, 5, generator=draws) - 0.12
    levels = 0.3 + 0.4 * torch.rand(number, generator=draws)
    images = levels[:, None, None] + (amounts[:, :, None, None] * both).sum(1)
    return images[:, None].clamp(0, 1)


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLASSHOUSE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module", params=["brightest", "darkest"])
def secret(request, own_cache):
    """Trained in a few seconds for sums of 16."""
    trained, _ = train_secret(
        MLP, pictures(800, seed=0), examples=EXAMPLES, looks_for=request.param,
        recipe=SecretTraining(steps=800, learning_rate=2e-3, silence=0.05, code=32),
    )  # fmt: skip
    return trained, request.param


def gradient_of(model, images, labels):
    """Of the last layer's weight under the mean loss, as a client computes it."""
    model.train()
    loss = nn.functional.cross_entropy(model(images), labels)
    (gradient,) = torch.autograd.grad(loss, [model.head.weight])
    return gradient.double()


def rounds(looks_for, *, planted):
    """Batches in which exactly one example has the property, or none; its number."""
    pool = pictures(4000, seed=1)
    size = brightness(pool, looks_for)
    with_it, without = pool[size > size.quantile(0.95)], pool[size < size.quantile(0.85)]
    for i in range(ROUNDS):
        images = without[i * EXAMPLES : (i + 1) * EXAMPLES].clone()
        if planted:
            images[i % EXAMPLES] = with_it[i]
        yield images, torch.arange(EXAMPLES) * 7 % 10, i % EXAMPLES


def apart(image, images):
    return (image - images).square().flatten(1).mean(1)


def test_the_planted_example_comes_out_with_its_class(secret):
    trained, looks_for = secret
    hits, classes = 0, 0
    for images, labels, planted in rounds(looks_for, planted=True):
        found = read_out(trained, gradient_of(trained.model, images, labels))
        error = apart(found.image, images)
        hits += bool(error[planted] < CLOSE and error.argmin() == planted)
        classes += int(found.label) == int(labels[planted])
    assert hits >= 0.8 * ROUNDS
    assert classes >= 0.8 * ROUNDS


def test_nobody_comes_out_where_nobody_has_the_property(secret):
    trained, looks_for = secret
    hits = 0
    for images, labels, _ in rounds(looks_for, planted=False):
        found = read_out(trained, gradient_of(trained.model, images, labels))
        hits += bool(apart(found.image, images).min() < CLOSE)
    assert hits <= 0.3 * ROUNDS


def test_what_comes_out_is_of_that_batch_and_no_other(secret):
    trained, looks_for = secret
    strangers = 0
    batches = list(rounds(looks_for, planted=True))
    for i, (images, labels, _) in enumerate(batches):
        found = read_out(trained, gradient_of(trained.model, images, labels))
        other, _, planted = batches[(i + 1) % ROUNDS]
        strangers += bool(apart(found.image, other)[planted] < CLOSE)
    assert strangers <= 0.1 * ROUNDS


def test_an_honest_model_gives_nothing_to_the_same_reader(secret):
    trained, looks_for = secret
    honest = build(MLP, rng=RNG)
    hits = 0
    for images, labels, planted in rounds(looks_for, planted=True):
        found = read_out(trained, gradient_of(honest, images, labels))
        hits += bool(apart(found.image, images)[planted] < CLOSE)
    assert hits <= 0.1 * ROUNDS


@pytest.mark.parametrize("looks_for", ["brightest", "darkest"])
def test_made_images_have_the_property(looks_for):
    images = pictures(400, seed=2)
    chosen = choose(images, 20, looks_for=looks_for, generator=torch.Generator().manual_seed(0))
    assert len(chosen.natural) == 20
    assert len(chosen.others) == 380
    assert float(brightness(chosen.others, looks_for).max()) < chosen.threshold
    assert float(brightness(chosen.adjusted, looks_for).min()) > chosen.threshold - 5e-3
    assert 0 <= float(chosen.adjusted.min()) <= float(chosen.adjusted.max()) <= 1


def test_brightness_is_set_by_an_exponent():
    images, goals = pictures(50, seed=3), torch.linspace(0.45, 0.9, 50)
    torch.testing.assert_close(brightness(with_brightness(images, goals)), goals, atol=2e-3, rtol=0)


def test_it_sends_a_model_of_the_agreed_shapes():
    crafted, _, played = attacked(SHORT, examples=2)
    start = played.setting.start
    assert crafted.default.tensors.keys() == start.keys()
    assert all(t.shape == start[n].shape for n, t in crafted.default.tensors.items())


def test_it_files_nothing_of_an_empty_sum():
    _, view, _ = attacked(SHORT, examples=2)
    (claim,) = SHORT.run(silenced(view), rng=RNG)
    assert len(claim.inputs) == 0


def test_it_refuses_images_that_are_alike():
    with pytest.raises(Inapplicable, match="auxiliary images of different brightness"):
        choose(torch.full((9, 1, 8, 8), 0.5), 4, looks_for="brightest", generator=torch.Generator())


@pytest.mark.parametrize(
    ("model", "arguments", "match"),
    [
        ("convnet", {"width": 2}, "gradient depends on it alone"),
        ("lenet_dropout", {}, "gradient depends on it alone"),
    ],
)
def test_it_refuses_models_that_mix_examples(model, arguments, match):
    with pytest.raises(Inapplicable, match=match):
        last_layer(Architecture.of(model, (3, 32, 32), 10, arguments))


def test_settings_are_checked():
    with pytest.raises(BadValue, match="looks_for"):
        Seer(looks_for="reddest")
    with pytest.raises(BadValue, match="steps"):
        SecretTraining(steps=0)
