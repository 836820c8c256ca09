"""GGL: what it promises, what its detector sees, and how its parts behave on their own."""

import copy
import dataclasses
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from glasshouse import registry
from glasshouse.attacks.base import DefenseGuess, PriorSamples, Reconstruction
from glasshouse.attacks.inversion.ggl import attack as attack_file
from glasshouse.attacks.inversion.ggl import cma_es, turbo
from glasshouse.attacks.inversion.ggl.attack import GGL
from glasshouse.attacks.inversion.ggl.objective import Fit
from glasshouse.attacks.inversion.ggl.optimizers import minimize
from glasshouse.attacks.inversion.ggl.search import LatentSearch, adam, normal_starts
from glasshouse.attacks.parts import detect
from glasshouse.attacks.parts.labels import known_labels
from glasshouse.attacks.parts.matching.distance import objective
from glasshouse.attacks.parts.matching.transforms import Adaptation
from glasshouse.attacks.parts.replica import replica
from glasshouse.errors import BadFile, BadValue, GlasshouseError, Inapplicable
from glasshouse.federation.defenses.soteria import Soteria, feature_scores
from glasshouse.images import mse
from glasshouse.rng import Rng
from glasshouse.testing.toys import toy
from glasshouse.transcript.grants import Grants

RNG = Rng.root(0)


class Pixels(nn.Module):
    """Every latent entry is a pixel: the one generator whose ceiling is perfect."""

    def forward(self, latent: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return latent.sigmoid().reshape(-1, 1, 8, 8)


def pixels(input_shape, classes, *, latent):
    return Pixels()


def bright(input_shape, classes, *, latent):
    return nn.Sequential(nn.Identity())


def local(input_shape, classes, *, latent):
    class Local(Pixels):
        pass

    return Local()


QUICK = GGL(
    generator=f"{__name__}:pixels",
    latent=64,
    search=LatentSearch(optimizer="adam", evaluations=2),
    regularizer="none",
)


def toy_fit():
    result = toy()
    client = replica(result.view(), subject="test")
    labels = result.setting.shard(0).labels
    return Fit(distance=objective(client, distance="squared"), prior=Pixels(), labels=labels[None], latent=64)


def sphere(points, *, differentiable=False, rows=None):
    return (points - 1).square().sum(1)


def ackley(points, *, differentiable=False, rows=None):
    """Ackley's function on [-2, 2]^20, its minimum moved off the centre."""
    x = 10 * points - torch.linspace(-5, 5, 20)
    return (
        20 + math.e - 20 * (-0.2 * x.square().mean(1).sqrt()).exp() - torch.cos(2 * math.pi * x).mean(1).exp()
    )


class TestPromises:
    def test_registered_with_a_card(self):
        assert registry.load("attacks", "ggl") is GGL
        assert registry.card("attacks", "ggl").extra == "ggl"

    @pytest.mark.parametrize("optimizer", ["adam", "cma_es", "turbo"])
    def test_the_claims_are_well_formed(self, optimizer):
        result = toy(examples=2)
        attack = GGL(
            generator=QUICK.generator,
            latent=64,
            search=LatentSearch(optimizer=optimizer, evaluations=7, population=4),
        )
        image, guess, draws = attack.run(result.view(), rng=RNG)
        assert isinstance(image, Reconstruction)
        assert isinstance(guess, DefenseGuess)
        assert isinstance(draws, PriorSamples)
        assert image.inputs.shape == result.setting.shard(0).inputs.shape
        assert image.labels.tolist() == sorted(result.setting.shard(0).labels.tolist())
        assert image.confidence.shape == (2,)
        assert not any(t.requires_grad for t in (image.inputs, image.confidence, draws.inputs))

    @pytest.mark.parametrize("optimizer", ["adam", "cma_es", "turbo"])
    def test_same_rng_same_claim_and_nothing_else_is_touched(self, optimizer):
        view, state = toy().view(), torch.get_rng_state()
        attack = GGL(
            generator=QUICK.generator,
            latent=64,
            search=LatentSearch(optimizer=optimizer, evaluations=24, population=4),
        )
        one, two = (attack.run(view, rng=RNG) for _ in range(2))
        assert torch.equal(one[0].inputs, two[0].inputs)
        assert torch.equal(one[2].inputs, two[2].inputs)
        assert torch.equal(state, torch.get_rng_state())

    @pytest.mark.parametrize("optimizer", ["adam", "cma_es"])
    def test_the_best_of_several_trials_is_the_same_in_any_number_of_processes(self, optimizer):
        view = toy(examples=2).view()
        search = LatentSearch(optimizer=optimizer, evaluations=20, population=5, restarts=3)
        one, two = (
            replace(QUICK, search=replace(search, processes=n), regularizer="kl").run(view, rng=RNG)[0]
            for n in (1, 2)
        )
        assert torch.equal(one.inputs, two.inputs)
        assert torch.equal(one.confidence, two.confidence)

    @pytest.mark.parametrize(("optimizer", "bf16"), [("adam", False), ("cma_es", False), ("cma_es", True)])
    def test_the_mean_of_the_trials_may_be_claimed(self, optimizer, bf16, monkeypatch):
        found, real = [], attack_file.minimize
        monkeypatch.setattr(attack_file, "minimize", lambda *a, **k: found.extend(real(*a, **k)) or found)
        view = toy().view()
        search = LatentSearch(optimizer=optimizer, evaluations=12, population=4, restarts=3)
        attack = replace(QUICK, search=search, strength=0.1, regularizer="kl", average=True, bf16=bf16)
        claim = attack.run(view, rng=RNG)[0]
        (trials,) = found
        each = torch.stack([Pixels()(t.point.reshape(1, 64), claim.labels) for t in trials])
        torch.testing.assert_close(claim.inputs, each.mean(0))
        assert not any(torch.equal(claim.inputs, one) for one in each)

    def test_a_trial_that_diverged_is_left_out_of_the_mean(self, monkeypatch):
        real = attack_file.minimize

        def with_one_diverged(*arguments, **settings):
            (trials,) = real(*arguments, **settings)
            diverged = replace(trials[-1], point=torch.full_like(trials[-1].point, torch.nan), loss=math.inf)
            return [(*trials, diverged)]

        attack = replace(
            QUICK, search=LatentSearch(optimizer="adam", evaluations=4, restarts=2), average=True
        )
        before = attack.run(toy().view(), rng=RNG)[0]
        monkeypatch.setattr(attack_file, "minimize", with_one_diverged)
        after = attack.run(toy().view(), rng=RNG)[0]
        assert torch.equal(before.inputs, after.inputs)
        assert torch.equal(before.confidence, after.confidence)

    def test_a_generator_that_no_other_process_can_be_handed_is_searched_in_this_one(self, caplog):
        search = LatentSearch(evaluations=8, population=4, restarts=2)
        here = GGL(generator=QUICK.generator, latent=64, search=search).run(toy().view(), rng=RNG)[0]
        several = replace(search, processes=2)
        other = GGL(generator=f"{__name__}:local", latent=64, search=several).run(toy().view(), rng=RNG)[0]
        assert torch.equal(here.inputs, other.inputs)
        assert "trials run one after the other" in caplog.text

    def test_a_longer_search_comes_nearer(self):
        """With a generator that can make every image, GGL is plain gradient matching."""
        result = toy(model="lenet_sigmoid", seed=1)
        errors = []
        for evaluations in (1, 250):
            attack = GGL(
                generator=QUICK.generator,
                latent=64,
                search=LatentSearch(optimizer="adam", evaluations=evaluations),
                regularizer="none",
            )
            image = attack.run(result.view(), rng=RNG)[0]
            errors.append(float(mse(image.inputs, result.setting.shard(0).inputs)))
        assert errors[1] < 0.3 * errors[0]

    def test_several_local_steps_are_simulated(self):
        result = toy(protocol="fedavg", local_epochs=2)
        image = QUICK.run(result.view(), rng=RNG)[0]
        assert image.inputs.shape == (1, 1, 8, 8)

    @pytest.mark.parametrize("rate", [0.01, 0.001])
    def test_the_regulariser_weighs_the_same_at_any_learning_rate(self, rate):
        """The change after two small steps is a gradient times 2 rate: its square is lost beside λ R."""
        gradient, change = (
            replica(toy(protocol=protocol, local_epochs=2, learning_rate=rate).view(), subject="test")
            for protocol in ("fedsgd", "fedavg")
        )
        labels = known_labels(toy().view(), gradient, rng=RNG)
        points = torch.randn(4, 64, generator=RNG.torch())
        fits = (QUICK.fit([c], Pixels(), [labels], [Adaptation()]).scaled([RNG]) for c in (gradient, change))
        one, two = (fit(points) for fit in fits)
        torch.testing.assert_close(one, two, rtol=0.05, atol=0)

    def test_the_unit_of_a_distance_is_that_of_a_typical_draw_for_each_victim(self):
        """Ten times the gradient is a hundred times the distance, and the same loss."""
        client = replica(toy().view(), subject="test")
        tensors = {name: 10 * t for name, t in client.update.tensors.items()}
        larger = dataclasses.replace(client, update=dataclasses.replace(client.update, tensors=tensors))
        labels = known_labels(toy().view(), client, rng=RNG)
        fits = [QUICK.fit([c], Pixels(), [labels], [Adaptation()]) for c in (client, larger)]
        units = [fit.scaled([RNG]).scales[0] for fit in fits]
        points = torch.randn(32, 64, generator=RNG.torch())
        for fit, unit in zip(fits, units, strict=True):
            plain = dataclasses.replace(fit, regularizer="none")(points)
            assert float(plain.median()) == pytest.approx(unit)
        both = dataclasses.replace(fits[0], labels=torch.stack([labels, labels]), scales=(1.0, 4.0))
        distances = both.distance
        twice = dataclasses.replace(
            both,
            regularizer="none",
            distance=lambda i, t, *, create_graph, victims: distances(i, t, create_graph=create_graph),
        )
        values = twice(points[:1].expand(4, -1))
        assert values.tolist() == pytest.approx([float(values[0])] * 2 + [float(values[0]) / 4] * 2)

    def test_refuses_secure_sums_and_missing_auxiliary_images(self):
        with pytest.raises(Inapplicable, match="exactly one client's update"):
            QUICK.run(toy(secure_sum=True).view(client=None), rng=RNG)
        assert "auxiliary" in GGL().needs.grants
        assert not QUICK.needs.grants
        with pytest.raises(Inapplicable, match="auxiliary images to train on"):
            GGL().run(toy().view(grants=Grants()), rng=RNG)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"search": {"restarts": 0}}, "restarts >= 1"),
            ({"search": {"evaluations": 0}}, "evaluations >= 1"),
            ({"search": {"processes": 0}}, "processes >= 1"),
            ({"search": {"optimizer": "sgd"}}, "optimizer one of adam, cma_es, turbo"),
            ({"regularizer": "tv"}, "regularizer one of kl, norm, none"),
            ({"average": True}, "several trials whose images can be averaged"),
        ],
    )
    def test_refuses_wrong_settings(self, settings, message):
        with pytest.raises(BadValue, match=message):
            registry.create(GGL, settings)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nowhere_at_all:it", BadFile),
        (f"{__name__}:missing", BadValue),
        (f"{__name__}:bright", BadValue),
        ("biggan", GlasshouseError),
    ],
)
def test_generators_that_cannot_be_used_are_refused(name, kind):
    with pytest.raises(kind, match=r"generator '"):
        GGL(generator=name, latent=64).run(toy().view(), rng=RNG)


DEFENSES = {
    "none": [],
    "gaussian_noise": [("gaussian_noise", {"std": 0.1})],
    "clip": [("clip", {"norm": 1.0})],
    "prune": [("prune", {"share": 0.9})],
    "soteria": [("soteria", {"share": 0.8})],
    "quantise": [("quantise", {"bits": 8})],
    "clip_layers": [("clip_layers", {"norm": 0.3})],
}


@pytest.mark.parametrize("name", sorted(DEFENSES))
def test_the_detector_names_the_defence(name):
    chain = [registry.load("defenses", n)(**settings) for n, settings in DEFENSES[name]]
    result = toy(model="lenet_sigmoid", clients=4, defenses=chain)
    for client in range(4):
        finding = detect.detect(replica(result.view(client=client), subject="test"), rng=RNG)
        assert finding.name == name
        if name in ("gaussian_noise", "soteria", "prune"):
            (_, settings), (strength,) = DEFENSES[name][0], finding.parameters.values()
            assert strength == pytest.approx(next(iter(settings.values())), rel=0.25)
    if name == "clip":
        assert finding.parameters["norm"] == pytest.approx(1.0, rel=1e-4)


def _perturbed(result, client, share):
    """The gradient of a loss on what Soteria leaves of the representation, as GGL's text has it."""
    one, shard = replica(result.view(client=client), subject="test"), result.setting.shard(client)
    scores = feature_scores(one.model, one.last_linear(), shard.inputs)
    kept = torch.ones(len(scores))
    kept[scores.argsort()[: int(share * len(scores))]] = 0
    model = copy.deepcopy(one.model).requires_grad_(True)
    model.get_submodule(one.last_linear()).register_forward_pre_hook(lambda _, given: (given[0] * kept,))
    torch.nn.functional.cross_entropy(model(shard.inputs), shard.labels).backward()
    return {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("form", ["none", "published", "perturbed"])
@pytest.mark.parametrize("model", ["lenet_sigmoid", "lenet5"])
def test_both_forms_of_soteria_are_named_in_every_precision(model, form, kind):
    """12 clients of three networks each; the second model's features are often zero by themselves."""
    chain = [Soteria(share=0.8)] if form == "published" else []
    for seed in range(3):
        result = toy(model=model, clients=4, defenses=chain, seed=seed)
        for client in range(4):
            one = replica(result.view(client=client), subject="test")
            sent = _perturbed(result, client, 0.8) if form == "perturbed" else one.update.tensors
            rounded = {name: sent[name].to(kind).float() for name in one.update.tensors}
            changed = dataclasses.replace(one, update=dataclasses.replace(one.update, tensors=rounded))
            finding = detect.detect(changed, rng=RNG)
            assert finding.name == ("none" if form == "none" else "soteria")
            assert finding.parameters.get("loss") == (detect.PERTURBED if form == "perturbed" else None)


@pytest.mark.parametrize("model", ["lenet_sigmoid", "lenet5"])
def test_soteria_by_a_perturbed_loss_sends_what_its_text_says_and_the_true_image_fits(model):
    """Candidates are judged without the hidden features: distance 0, and not without that."""
    result = toy(model=model, clients=2, defenses=[Soteria(share=0.8, loss="perturbed")])
    for client in range(2):
        one, shard = replica(result.view(client=client), subject="test"), result.setting.shard(client)
        for name, expected in _perturbed(result, client, 0.8).items():
            torch.testing.assert_close(one.update.tensors[name], expected, rtol=1e-4, atol=1e-7)
        finding = detect.detect(one, rng=RNG)
        defended, adapted = detect.as_defended(one, finding), detect.adaptation(finding, one)
        shares = []
        for client_model in (defended, one):
            distance = objective(client_model, distance="squared", adaptive=adapted)
            value = float(distance(shard.inputs[None], shard.labels[None], create_graph=False).detach())
            shares.append(abs(value) / distance.target_square)
        assert shares[0] < 1e-4 < 1e-2 < shares[1]
        assert detect.as_defended(one, dataclasses.replace(finding, name="none")) is one


def test_without_a_defence_nothing_is_done_to_the_candidates_of_adaptive_attacks():
    """Taken for clipped, every larger candidate would be scaled down to the update's own norm."""
    one, two = (replica(toy(examples=n).view(), subject="test") for n in (1, 2))
    adaptation = detect.detect_adaptation(one, adaptive=True, rng=RNG)
    assert isinstance(adaptation, Adaptation)
    assert (adaptation.clip, adaptation.layer_clip, dict(adaptation.masks)) == (None, None, {})
    assert detect.detect_adaptation(one, adaptive=False, rng=RNG) is False
    assert (
        detect.detect_adaptation(two, adaptive=True, rng=RNG) is True
    )  # clipping is not looked for in batches


@pytest.mark.parametrize("name", ["clip", "prune", "soteria"])
def test_the_true_image_fits_perfectly_after_adaptation_only(name):
    """T(g(x)) of the private image is the received update: distance 0, without adaptation far from it."""
    chain = [registry.load("defenses", n)(**settings) for n, settings in DEFENSES[name]]
    result = toy(model="lenet_sigmoid", defenses=chain)
    client = replica(result.view(), subject="test")
    shard = result.setting.shard(0)
    adapted = detect.adaptation(detect.detect(client, rng=RNG), client)
    for adaptive, least, most in ((adapted, -1e-4, 1e-4), (False, 1e-2, math.inf)):
        distance = objective(client, distance="squared", adaptive=adaptive)
        value = float(distance(shard.inputs[None], shard.labels[None], create_graph=False).detach())
        assert least <= value / distance.target_square <= most


@pytest.mark.parametrize("steps", ["simulate", "one_step"])
def test_the_bound_after_several_local_steps_is_one_of_what_is_matched(steps):
    """Read as one step the update is a gradient, many times as long as the change of weights."""
    result = toy(model="lenet_sigmoid", protocol="fedavg", local_epochs=2)
    client = replica(result.view(), subject="test")
    adapted = detect.adaptation(detect.detect(client, rng=RNG), client, steps=steps)
    distance = objective(client, distance="squared", steps=steps, adaptive=adapted)
    shard = result.setting.shard(0)
    value = float(distance(shard.inputs[None], shard.labels[None], create_graph=False).detach())
    assert value / distance.target_square < 0.05


def test_behind_clip_and_noise_the_true_image_fits_though_the_bound_is_not_known():
    """The norm of the update is that of the noise, so candidates are shortened by what fits best."""
    spec = [("clip", {"norm": 0.5}), ("gaussian_noise", {"std": 0.01})]
    chain = [registry.load("defenses", n)(**settings) for n, settings in spec]
    result = toy(model="lenet_sigmoid", defenses=chain)
    client = replica(result.view(), subject="test")
    finding = detect.detect(client, rng=RNG)
    assert finding.name == "clip + gaussian_noise"
    shard = result.setting.shard(0)
    values = [
        float(
            objective(client, distance="squared", adaptive=adapted)(
                shard.inputs[None], shard.labels[None], create_graph=False
            )
        )
        for adapted in (detect.adaptation(finding, client), Adaptation())
    ]
    noise = 0.01**2 * sum(t.numel() for t in client.update.tensors.values())
    assert values[0] == pytest.approx(noise, rel=0.1)
    assert values[1] > 2 * noise


def test_the_regulariser_of_batches_counts_every_vector():
    def distance(images, labels, *, create_graph, victims):
        return images.sum((1, 2, 3, 4)) * 0

    fit = Fit(
        distance=distance,
        prior=Pixels(),
        labels=torch.tensor([[0, 1]]),
        latent=64,
        regularizer="norm",
        strength=1.0,
    )
    assert fit.dimension == 128
    assert fit(torch.zeros(3, 128)).tolist() == [64.0**2] * 3
    assert fit.images(torch.zeros(3, 128)).shape == (3, 2, 1, 8, 8)


class TestSearch:
    def test_budgets_are_spent_exactly(self):
        for search in (cma_es.minimize, turbo.minimize):
            counted = []

            def loss(points, *, differentiable=False, rows=None, counted=counted):
                counted.append(len(points))
                return sphere(points)

            best = search(loss, 3, LatentSearch(evaluations=20, population=6), rng=RNG)
            assert sum(counted) == best.evaluations == 20
            assert best.loss == pytest.approx(float(sphere(best.point[None])))

    def test_they_minimise_a_sphere(self):
        assert adam(sphere, normal_starts([RNG], 4), LatentSearch(evaluations=200))[0].loss < 0.01
        search = LatentSearch(evaluations=400, population=8)
        assert cma_es.minimize(sphere, 4, search, rng=RNG).loss < 1e-3

    @pytest.mark.parametrize("name", ["adam", "cma_es"])
    def test_each_trial_has_its_own_stream_and_the_lowest_loss_wins(self, name):
        """More trials leave the first ones as they were: the best of three is no worse than those."""
        fit = toy_fit()
        search = LatentSearch(optimizer=name, evaluations=1, population=4)
        items = [
            minimize(fit, replace(search, restarts=n), rngs=[Rng.root(seed)])[0][0]
            for seed in range(4)
            for n in (1, 2, 3)
        ]
        losses = torch.tensor([best.loss for best in items], dtype=torch.float64).reshape(4, 3)
        assert (losses[:, 1:] <= losses[:, :-1] + 1e-5).all()
        assert (losses[:, 2] < losses[:, 0] - 1e-3).any()

    def test_a_point_that_is_not_finite_is_never_the_best(self):
        def loss(points, *, differentiable=False, rows=None):
            return torch.where(points[:, 0] > 0, points[:, 0] * torch.nan, points[:, 0].abs())

        search = LatentSearch(evaluations=40, population=8)
        assert math.isfinite(cma_es.minimize(loss, 2, search, rng=RNG).loss)

    @pytest.mark.slow
    @pytest.mark.parametrize("seed", range(5))
    def test_turbo_beats_sobol_on_ackley(self, seed):
        """20 dimensions, 200 evaluations each."""
        settings = turbo.Settings(initial=40, candidates=500)
        rng = Rng.root(seed)
        best = turbo.minimize(ackley, 20, LatentSearch(evaluations=200), rng=rng, settings=settings)
        sobol = torch.quasirandom.SobolEngine(20, scramble=True, seed=seed).draw(200)
        assert best.loss < float(ackley(4 * sobol - 2).min())
