"""Scale-MIA: the crafted head does what its derivation says, and images come out of a secure sum."""

from copy import deepcopy

import pytest
import torch
from linear_attacks import AUXILIARY, attacked, errors, silenced
from torch.nn import functional as F

from glasshouse.attacks.linear.scale_mia.attack import ScaleMia
from glasshouse.attacks.linear.scale_mia.autoencoder import AutoencoderTraining, train_autoencoder
from glasshouse.attacks.linear.scale_mia.crafting import Strength, craft_head, ladder, measure_of, strength
from glasshouse.attacks.linear.scale_mia.decoders import Reader, decoder_for
from glasshouse.attacks.parts.readout.linear_tail import find_tail, latents
from glasshouse.errors import BadValue, Inapplicable
from glasshouse.models.build import build
from glasshouse.rng import Rng
from glasshouse.settings import Optimizer
from glasshouse.wire import Architecture, Terms

RNG = Rng.root(0)
SMALL = {"name": "scale_mia_cnn", "inputs": (1, 8, 8), "task": 10, "arguments": {"bins": 64}}
QUICK = {"training": AutoencoderTraining(steps=200, batch_size=32, mirror=False)}


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def target():
    architecture = Architecture.of(**SMALL)
    model = build(architecture).eval()
    return model, find_tail(model, (1, 8, 8), subject="test")


@pytest.mark.parametrize("span", [3.0, 100.0])
def test_ladder_sums_to_nothing_and_has_no_faint_class(span):
    deltas, chances = ladder(10, span, rng=RNG)
    assert float((deltas * chances).sum()) == pytest.approx(0, abs=1e-12)
    assert float(chances.sum()) == pytest.approx(1)
    assert float(deltas.abs().min()) == pytest.approx(1)
    assert int((deltas < 0).sum()) == 1


@pytest.mark.parametrize("design", ["ladder", "paper"])
def test_every_row_has_the_same_delta_and_it_names_the_class(target, design):
    """The level of a class is dL/dy of every row that an example of it opens: checked with autograd."""
    model, tail = target
    with torch.no_grad():
        u = latents(model, tail.names[0])(AUXILIARY.inputs).mean(1)
    thresholds = torch.linspace(float(u.min()), float(u.max()), 64, dtype=torch.float64)
    head = craft_head(
        tail,
        thresholds,
        deviation=float(u.std()),
        design=design,
        strength=Strength(span=30.0, against=2.5, gain=1.0, contrast=1e-3),
        rng=RNG,
    )
    model.load_state_dict({**model.state_dict(), **head.tensors})
    middle = int(u.argsort()[len(u) // 2])
    for label in range(10):
        loss = F.cross_entropy(model(AUXILIARY.inputs[middle][None]), torch.tensor([label]))
        (rows,) = torch.autograd.grad(loss, [model.get_submodule(tail.names[0]).bias])
        opened = rows[rows != 0]
        assert len(opened) > 10
        assert float(opened.std()) < 1e-5 * float(opened.abs().mean())
        if design == "ladder":  # the paper's p moves with the example, and its levels with p
            assert float(opened[0]) == pytest.approx(float(head.levels[label]), rel=0.02)


@pytest.mark.parametrize(
    ("settings", "least"),
    [
        ({}, 10),
        ({"protocol": "fedavg", "sends": "parameters"}, 10),
        ({"protocol": "fedavg", "local_epochs": 3}, 10),
        ({"protocol": "fedavg", "local_epochs": 5, "optimizer": Optimizer(momentum=0.5)}, 10),
    ],
)
def test_images_and_labels_out_of_a_secure_sum(settings, least):
    attack = ScaleMia(**QUICK)
    crafted, view, played = attacked(
        attack, model="scale_mia_cnn", arguments={"bins": 512}, clients=3, examples=4, **settings
    )
    assert crafted.default.architecture == played.setting.terms.architecture
    assert not view.rounds[0].updates
    (claim,) = attack.run(view, rng=RNG)
    private = played.setting.private
    error = errors(claim, private)
    good = error < 0.03
    assert int(good.sum()) >= least
    apart = (claim.inputs.flatten(1)[None] - private.inputs.flatten(1)[:, None]).square().mean(2)
    right = claim.labels[apart.argmin(1)] == private.labels
    assert int((right & good).sum()) >= int(good.sum()) - 2
    assert len(claim.inputs) <= 12
    assert claim.source is None


def test_several_batches_come_out_if_the_attacker_says_so():
    found = {}
    for batches in (0, 2):
        attack = ScaleMia(**QUICK, local_steps=batches)
        settings = {"model": "scale_mia_cnn", "arguments": {"bins": 512}, "clients": 3, "examples": 4}
        _, view, played = attacked(attack, **settings, protocol="fedavg", batch_size=2, seed=1)
        (claim,) = attack.run(view, rng=RNG)
        found[batches] = int((errors(claim, played.setting.private) < 0.03).sum())
    assert found[2] >= 11
    assert found[0] < found[2]


def test_an_unrelated_sum_gives_nothing():
    attack = ScaleMia(**QUICK)
    settings = {"model": "scale_mia_cnn", "arguments": {"bins": 512}, "clients": 3, "examples": 4}
    _, view, played = attacked(attack, **settings)
    (claim,) = attack.run(view, rng=RNG)
    _, _, other = attacked(attack, **settings, seed=9)
    assert not (errors(claim, other.setting.private) < 0.03).any()
    assert (errors(claim, played.setting.private) < 0.03).any()
    (nothing,) = attack.run(silenced(view), rng=RNG)
    assert (len(nothing.inputs), len(nothing.labels), len(nothing.confidence)) == (0, 0, 0)


def test_a_model_without_two_linear_layers_is_refused():
    with pytest.raises(Inapplicable, match="two or more consecutive linear layers"):
        attacked(ScaleMia(**QUICK), model="convnet", arguments={"width": 4})


def test_two_linear_layers_are_enough():
    """Nothing of the derivation needs a third."""
    attack = ScaleMia(training=AutoencoderTraining(steps=100, batch_size=16, mirror=False))
    _, view, played = attacked(attack, model="mlp", arguments={"hidden": "512"}, clients=2, examples=3)
    (claim,) = attack.run(view, rng=RNG)
    assert int((errors(claim, played.setting.private) < 0.05).sum()) >= 4


def test_the_order_of_auxiliary_images_does_not_matter_and_training_is_cached(target, monkeypatch):
    _, tail = target
    architecture, recipe = Architecture.of(**SMALL), AutoencoderTraining(steps=3, learning_rate=4e-3)
    first = train_autoencoder(architecture, AUXILIARY.inputs, tail=tail, recipe=recipe)
    monkeypatch.setattr("glasshouse.attacks.linear.scale_mia.autoencoder._train", None)
    again = train_autoencoder(architecture, AUXILIARY.inputs.flip(0), tail=tail, recipe=recipe)
    for a, b in zip(first.decoder.parameters(), again.decoder.parameters(), strict=True):
        assert torch.equal(a, b)


def test_interrupted_training_goes_on_where_it_stopped(target, monkeypatch, tmp_path):
    _, tail = target
    architecture, recipe = (
        Architecture.of(**SMALL),
        AutoencoderTraining(steps=6, learning_rate=4e-3, variational=1e-4),
    )
    module = "glasshouse.attacks.linear.scale_mia.autoencoder"
    whole = train_autoencoder(architecture, AUXILIARY.inputs, tail=tail, recipe=recipe)
    shorter = AUXILIARY.inputs.clone()
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path))
    monkeypatch.setattr(f"{module}._SAVE_EVERY", 2)
    real = latents

    def failing(model, layer):
        before, calls = real(model, layer), []

        def count(images):
            calls.append(1)
            if len(calls) == 4:
                raise KeyboardInterrupt
            return before(images)

        return count

    monkeypatch.setattr(f"{module}.latents", failing)
    with pytest.raises(KeyboardInterrupt):
        train_autoencoder(architecture, shorter, tail=tail, recipe=recipe)
    monkeypatch.setattr(f"{module}.latents", real)
    resumed = train_autoencoder(architecture, shorter, tail=tail, recipe=recipe)
    for a, b in zip(whole.decoder.parameters(), resumed.decoder.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("family", ["cnn", "alexnet", "vgg", "resnet", "vit"])
def test_every_family_has_a_tail_and_a_decoder(family):
    architecture = Architecture.of(f"scale_mia_{family}", (3, 32, 32), 10)
    model = build(architecture).eval()
    tail = find_tail(model, (3, 32, 32), subject="test")
    assert tail.names == ("features.fc1", "features.fc2", "head")
    decoder = decoder_for(architecture, tail.latent).eval()
    with torch.no_grad():
        again = decoder(latents(model, tail.names[0])(torch.rand(2, 3, 32, 32)))
    assert again.shape == (2, 3, 32, 32)
    assert 0 <= float(again.min()) <= float(again.max()) <= 1


@pytest.mark.parametrize(("side", "channels"), [(28, 1), (64, 1), (64, 3)])
def test_the_cnn_fits_other_sizes(side, channels):
    architecture = Architecture.of("scale_mia_cnn", (channels, side, side), 4)
    model = build(architecture).eval()
    tail = find_tail(model, architecture.input_shape, subject="test")
    assert decoder_for(architecture, tail.latent)(torch.rand(2, tail.latent)).shape[2:] == (side, side)


def test_strength_grows_gentler_with_local_steps():
    sizes = {"clients": 1, "cohort": 1, "batch_size": 8}
    terms = Terms(protocol="fedavg", architecture=Architecture.of(**SMALL), sends="delta", **sizes)
    one = strength(terms, 0, design="ladder", steps=1, span=0)
    three = strength(terms, 0, design="ladder", steps=3, span=0)
    assert three.contrast / three.gain**2 < one.contrast / one.gain**2
    assert three.span < one.span


def test_bad_settings_are_refused():
    with pytest.raises(BadValue, match="fit"):
        ScaleMia(fit="laplace")
    with pytest.raises(BadValue, match="steps"):
        AutoencoderTraining(steps=0)


@pytest.mark.parametrize(("precision", "apart"), [(torch.float32, 1e-6), (torch.bfloat16, 0.02)])
def test_the_faster_decoder_gives_the_same_images(precision, apart):
    decoder = decoder_for(Architecture.of("scale_mia_cnn", (3, 32, 32), 10), 1024).eval()
    latent = torch.rand((3, 1024), generator=RNG.torch())
    quick = Reader(deepcopy(decoder), precision=precision)
    assert [type(layer) for layer in quick.layers] != [type(layer) for layer in decoder]
    with torch.no_grad():
        result = quick(latent)
        torch.testing.assert_close(result, decoder(latent), rtol=1e-5, atol=apart)
    assert result.dtype == torch.float32


def test_steps_on_one_batch_count_once_and_do_not_cost_images():
    """The first step closes every row that it opened: five steps give the images that one step gives."""
    attack = ScaleMia(**QUICK)
    settings = {"model": "scale_mia_cnn", "arguments": {"bins": 512}, "clients": 3, "examples": 4}
    settings |= {"protocol": "fedavg"}
    claims = []
    for steps in (1, 5):
        _, view, played = attacked(attack, **settings, local_epochs=steps)
        claims.append(attack.run(view, rng=RNG)[0])
    one, five = (errors(claim, played.setting.private) for claim in claims)
    assert float(five.mean()) < 1.1 * float(one.mean()) + 1e-5


def test_behind_a_layer_norm_half_of_the_entries_are_measured():
    """Normed entries add up to nothing, and rounding would fill the bins."""
    plain = torch.rand((50, 8), generator=RNG.torch())
    assert torch.equal(measure_of(plain), torch.full((8,), 0.125, dtype=torch.float64))
    normed = F.layer_norm(plain, (8,))
    assert measure_of(normed).tolist() == [0.0, 0.25] * 4
    assert float((normed.double() @ measure_of(normed)).std()) > 0.05


def test_images_out_of_a_transformer():
    attack = ScaleMia(**QUICK)
    settings = {"model": "scale_mia_vit", "arguments": {"bins": 512, "patch": 4, "width": 64}}
    _, view, played = attacked(attack, **settings, clients=3, examples=4)
    (claim,) = attack.run(view, rng=RNG)
    decoder_limit = 0.1  # pixels are noise here: what counts is which of them it is
    apart = (
        (claim.inputs.flatten(1)[None] - played.setting.private.inputs.flatten(1)[:, None]).square().mean(2)
    )
    assert len(claim.inputs) >= 9
    assert int((apart.min(1).values < decoder_limit).sum()) >= 9
