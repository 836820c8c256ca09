"""Maui: heads that leak as they were calibrated to, the attack on a toy federation, and NEX beside it."""

from dataclasses import replace

import pytest
import torch
from reproduce.preimages import preimage_distance

from glasshouse.attacks.base import Appendix, Reconstruction, Representations
from glasshouse.attacks.parts.readout.head_gradient import Inversion
from glasshouse.attacks.transfer.maui.attack import Maui
from glasshouse.attacks.transfer.maui.exemplars import exemplars
from glasshouse.attacks.transfer.maui.head import HeadSettings, calibrate, craft_head
from glasshouse.attacks.transfer.maui.leakage import Sample, Spab, accuracy, alone, gradient_of_units, leakage
from glasshouse.attacks.transfer.maui.tune import search_recipe
from glasshouse.attacks.transfer.nex import Nex
from glasshouse.errors import BadValue, Inapplicable
from glasshouse.registry import create
from glasshouse.rng import Rng
from glasshouse.testing.toys import toy
from glasshouse.transcript.cut import cut
from glasshouse.transcript.grants import Grants
from glasshouse.transcript.threat import Threat
from glasshouse.transcript.view import RoundView
from glasshouse.wire import Batch

MODEL = {"model": "maui_cnn", "arguments": {"width": 8, "hidden": 64}, "trained": "head."}
QUANTILE = HeadSettings(mode="quantile")
ATTACK = Maui(head=QUANTILE, inversion=Inversion(invert="none"))


def with_shares(shares):
    return replace(ATTACK, head=replace(QUANTILE, shares=shares))


def head_for(sample, *, units=512, behind=512, **settings):
    return craft_head(
        sample, units=units, classes=4, behind=behind, settings=HeadSettings(**settings), rng=Rng.root(0)
    )


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path))


def sample(n=400, size=32, seed=0):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (n,), generator=g)
    features = torch.relu(torch.randn((n, size), generator=g) + torch.eye(4, size)[labels] * 3)
    return Sample(features=features, labels=labels)


def test_the_gradient_of_units_is_autograds():
    one, head = sample(9), Spab(32, 16, 4)
    z = head.hidden(one.features).detach().requires_grad_()
    loss = torch.nn.functional.cross_entropy(head.out(torch.relu(z)), one.labels)
    (slope,) = torch.autograd.grad(loss, z)
    torch.testing.assert_close(gradient_of_units(head, one.features, one.labels).float(), slope)


@pytest.mark.parametrize("share", [0.02, 0.1])
def test_units_pass_the_share_that_was_asked_for(share):
    one, head = sample(1000), Spab(32, 16, 4)
    calibrate(head, one.features, (share,))
    passed = (head.hidden(one.features) > 0).double().mean(0)
    assert float((passed - share).abs().max()) < 0.003


def test_a_ladder_passes_shares_from_one_end_to_the_other():
    one, head = sample(1000), Spab(32, 9, 4)
    calibrate(head, one.features, (0.01, 0.16))
    passed = (head.hidden(one.features) > 0).double().mean(0)
    assert float(passed[0]) == pytest.approx(0.16, abs=0.005)
    assert float(passed[4]) == pytest.approx(0.04, abs=0.005)
    assert float(passed[-1]) == pytest.approx(0.01, abs=0.005)


def test_training_makes_a_head_sparse_and_calibration_fits_it_to_the_batch():
    def head(**changes):
        settings = {"epochs": 6, "batches": 40, "shares": (1 / 16,), **changes}
        return head_for(sample(), units=64, behind=16, **settings)

    trained, both = head(mode="trained"), head(mode="trained+quantile")
    assert len(trained.leakage) == 7
    assert 0 <= trained.best < 6
    assert trained.leakage[trained.best] >= 0.95 * trained.leakage[:-1].max()
    assert both.leakage[-1] > 0.5
    assert head(mode="quantile").best == -1


def test_training_the_output_makes_the_head_classify():
    one = sample(800)
    random = head_for(one, mode="quantile", shares=(0.2,), units=64)
    fitted = head_for(one, mode="quantile", shares=(0.2,), units=64, output_epochs=20)
    assert accuracy(random.head, one) < 0.5
    assert accuracy(fitted.head, one) > 0.6


def test_a_loud_head_gives_updates_of_the_length_asked_for_and_classifies_as_before():
    one = sample(800)
    plain = {"mode": "quantile", "shares": (0.2,), "units": 64, "behind": 16, "output_epochs": 20}
    quiet, loud = head_for(one, **plain), head_for(one, **plain, update_norm=40)
    assert accuracy(loud.head, one) == pytest.approx(accuracy(quiet.head, one), abs=0.01)
    few, head = one.pick(torch.arange(400)), loud.head.requires_grad_()
    lengths = []
    for part in (few.pick(rows) for rows in torch.arange(400).split(16)):
        loss = torch.nn.functional.cross_entropy(head(part.features), part.labels)
        sent = torch.autograd.grad(loss, list(head.parameters()))
        lengths.append(float(sum(g.square().sum() for g in sent)) ** 0.5)
    assert 30 < sum(lengths) / len(lengths) < 50


def test_the_search_starts_from_the_given_settings_and_is_never_worse():
    settings, sizes = HeadSettings(mode="trained", epochs=2, batches=5), {"units": 32, "behind": 16}
    head_settings = search_recipe(sample(), classes=4, **sizes, settings=settings, trials=3, rng=Rng.root(0))
    again = search_recipe(sample(), classes=4, **sizes, settings=settings, trials=3, rng=Rng.root(0))
    leaks = [head_for(sample(), **sizes, **vars(s)).leakage[-1] for s in (settings, head_settings)]
    assert leaks[1] >= leaks[0]
    assert head_settings == again
    assert head_settings.epochs == 2


def test_the_search_leaves_a_setting_of_zero_alone():
    settings, sizes = (
        HeadSettings(mode="trained", epochs=1, batches=3, noise=0.0),
        {"units": 16, "behind": 16},
    )
    head_settings = search_recipe(
        sample(100), classes=4, **sizes, settings=settings, trials=3, rng=Rng.root(0)
    )
    assert head_settings.noise == 0
    for name in ("rate", "beta1", "beta2"):
        assert getattr(head_settings, name) == pytest.approx(getattr(settings, name), rel=10)
    assert (
        search_recipe(sample(100), classes=4, **sizes, settings=settings, trials=3, rng=Rng.root(0))
        == head_settings
    )


@pytest.mark.parametrize("mode", ["quantile", "exemplars"])
def test_a_mode_that_trains_nothing_is_not_searched(mode):
    with pytest.raises(BadValue, match="a mode that trains the head"):
        search_recipe(
            sample(100), units=16, classes=4, behind=16, settings=HeadSettings(mode=mode), trials=2,
            rng=Rng.root(0),
        )  # fmt: skip
    with pytest.raises(BadValue, match="trials = 2, mode = "):
        Maui(head=HeadSettings(mode=mode), trials=2)


def test_alone_counts_what_the_paper_counts():
    dz = torch.tensor([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 3.0, 0.0], [0.0, 0.0, 0.0]])
    assert alone(dz).tolist() == [True, False, False, False]
    head = Spab(32, 16, 4)
    assert 0 <= leakage(head, sample(), batch=8, rng=Rng.root(0)) <= 1


def auxiliary():
    g = torch.Generator().manual_seed(5)
    inputs = torch.rand((300, 1, 8, 8), generator=g)
    return Grants(auxiliary=Batch(inputs=inputs, labels=torch.randint(0, 10, (300,), generator=g)))


def attacked(attack, *, number=0, **terms):
    """A toy federation under the attack in round ``number``, and what the server then sees of it."""
    terms = {"protocol": "transfer", "examples": 4, **MODEL, **terms, "rounds": number + 1}
    grants = auxiliary()
    honest = toy(**terms)
    view = cut(honest.transcript, threat=Threat(), grants=grants, own={}, memory={})
    first = view.rounds[number].broadcast
    result = replace(view, rounds=(*view.rounds[:number], RoundView(round=number, broadcast=first)))
    crafted = attack.craft(result, rng=Rng.root(0))
    outcome = toy(tamper=lambda n: crafted if n == number else None, **terms)
    view = cut(
        outcome.transcript,
        threat=Threat(),
        grants=grants,
        own={},
        memory=crafted.memory,
        rounds=(number,),
        client=None,
    )
    return outcome, first, crafted, view


def truth(made, client=None):
    from glasshouse.models.build import build, load

    setting = made.setting
    rows = torch.cat(setting.shards) if client is None else setting.shards[client]
    model = build(setting.terms.architecture)
    load(model, setting.start)
    return model.eval().representation(setting.private.inputs[rows]).detach()


@pytest.mark.parametrize(("sends", "number"), [("gradient", 0), ("delta", 1)])
def test_representations_come_out_of_every_update(sends, number):
    result, _, _, view = attacked(ATTACK, sends=sends, number=number)
    claims = ATTACK.run(view, rng=Rng.root(0))
    assert isinstance(claims[0], Appendix)
    table = {c.about.client: c.vectors for c in claims if isinstance(c, Representations)}
    assert table.keys() == {0, 1, 2}
    for client, vectors in table.items():
        near = torch.cdist(vectors, truth(result, client)).min(1).values
        assert float((near < 1e-2 * vectors.norm(dim=1)).double().mean()) > 0.6


def test_and_out_of_a_secure_sum():
    result, _, _, view = attacked(ATTACK, secure_sum=True)
    (claim,) = (c for c in ATTACK.run(view, rng=Rng.root(0)) if isinstance(c, Representations))
    assert claim.about.client is None
    near = torch.cdist(claim.vectors, truth(result)).min(1).values
    assert int((near < 1e-3 * claim.vectors.norm(dim=1)).sum()) >= 4


LOCAL = {"sends": "delta", "examples": 24, "batch_size": 2, "learning_rate": 0.01}


def read_rightly(attack, **how):
    """How many vectors read from all updates are features of the client that sent them."""
    result, _, crafted, view = attacked(attack, **LOCAL, **how)
    table = {c.about.client: c.vectors for c in attack.run(view, rng=Rng.root(0))[1:]}
    near = {n: torch.cdist(v, truth(result, n)).min(1).values / v.norm(dim=1) for n, v in table.items()}
    return sum(int((x < 2e-2).sum()) for x in near.values()), crafted


@pytest.mark.parametrize("secure", [False, True])
def test_a_change_of_many_steps_is_of_all_local_examples(secure):
    """Clients hold 24 examples and step over 2 at a time; what they send is fitted to 24, or 3 · 24."""
    share = 1 / 72 if secure else 1 / 24
    result, given = (
        read_rightly(with_shares(shares), number=1, secure_sum=secure) for shares in ((), (share,))
    )
    assert result[0] == given[0] >= (5 if secure else 15)
    for name, t in given[1].memory.items():
        assert torch.equal(t, result[1].memory[name])
    by_batch, _ = read_rightly(with_shares((0.5,)), number=1, secure_sum=secure)
    assert by_batch < result[0] / 3


def test_the_leakage_of_the_head_is_reported_for_the_examples_behind_an_update():
    model = {"width": 8, "hidden": 256}
    few, many = (
        attacked(with_shares((1 / 24,)), number=1, **{**LOCAL, "examples": n, "arguments": model})
        for n in (8, 24)
    )
    assert float(few[2].memory["leakage.1"][-1]) > float(many[2].memory["leakage.1"][-1])


def test_where_nothing_tells_how_many_examples_will_be_behind_it_asks_for_shares():
    with pytest.raises(Inapplicable, match=r"shares to \[1 / that number\]"):
        attacked(ATTACK, **LOCAL)
    right, _ = read_rightly(with_shares((1 / 24,)))
    assert right >= 15


def test_the_features_and_the_architecture_stay_as_they_were():
    _, first, crafted, _ = attacked(ATTACK)
    sent = crafted.default
    assert sent.architecture == first.architecture
    assert all(torch.equal(t, first.tensors[n]) for n, t in sent.tensors.items() if n.startswith("features."))
    assert not torch.equal(sent.tensors["head.hidden.bias"], first.tensors["head.hidden.bias"])


def test_images_are_claimed_within_the_range():
    attack = Maui(head=QUANTILE, inversion=Inversion(iterations=5))
    _, _, _, view = attacked(attack)
    images = [c for c in attack.run(view, rng=Rng.root(0)) if isinstance(c, Reconstruction)]
    assert images
    assert all(c.inputs.shape[1:] == (1, 8, 8) for c in images)


def test_a_free_ball_reaches_any_features_and_a_small_one_does_not():
    mix = torch.randn((64, 20), generator=torch.Generator().manual_seed(0)) / 8

    def features(inputs):
        return inputs.flatten(1) @ mix

    x = torch.rand((6, 1, 8, 8), generator=torch.Generator().manual_seed(1))
    goals = features(x[:3])
    wide, small = (preimage_distance(features, goals, x[3:], radius=r) for r in (1.0, 4 / 255))
    assert float(wide.max()) < 0.01
    assert float(small.min()) > 0.3


def test_nex_needs_no_tampering():
    result = toy(protocol="transfer", examples=1, **MODEL)
    view = cut(
        result.transcript, threat=Threat(), grants=Grants(), own={}, memory={}, rounds=(0,), client=None
    )
    claims = Nex(inversion=Inversion(invert="none")).run(view, rng=Rng.root(0))
    assert len(claims) == 3
    for claim in claims:
        torch.testing.assert_close(claim.vectors, truth(result, claim.about.client), rtol=1e-3, atol=1e-4)


def test_a_single_layer_head_is_refused_with_the_way_out():
    single = {**MODEL, "arguments": {"width": 4, "hidden": 0}}
    result = toy(protocol="transfer", examples=1, **single)
    view = cut(
        result.transcript, threat=Threat(), grants=Grants(), own={}, memory={}, rounds=(0,), client=None
    )
    for run in (
        lambda: Nex(inversion=Inversion(invert="none")).run(view, rng=Rng.root(0)),
        lambda: attacked(ATTACK, **single),
    ):
        with pytest.raises(Inapplicable, match="two or more consecutive linear layers") as caught:
            run()
        assert caught.value.fix == "set model.hidden, or use a model with a two-layer head"


@pytest.mark.parametrize(
    "wrong",
    [
        {"head": {"mode": "best"}},
        {"head": {"shares": (0.1, 0.2, 0.3)}},
        {"head": {"shares": (2.0,)}},
        {"head": {"epochs": 0}},
        {"inversion": {"invert": "x"}},
    ],
)
def test_settings_are_checked(wrong):
    with pytest.raises(
        BadValue, match=r"mode one of|at most two shares in \(0, 1\)|epochs >= 1|invert one of"
    ):
        create(Maui, wrong)


def test_units_made_from_examples_leak_more_than_random_ones():
    """Loud examples top most random directions; a direction made of one example is topped by its own kind."""
    one = sample(1500)
    loud = Sample(features=one.features * torch.linspace(0.3, 3, len(one))[:, None], labels=one.labels)
    leaks = {
        mode: head_for(loud, mode=mode, shares=(1 / 128,), units=128, behind=128).leakage[-1]
        for mode in ("quantile", "exemplars")
    }
    assert leaks["exemplars"] > leaks["quantile"] + 0.03


def test_a_feature_that_is_never_on_leaves_no_column_of_zeros_for_a_guard_to_see():
    one = sample(60)
    one.features[:, 3] = 0
    head = head_for(one, mode="exemplars", shares=(0.1,), units=16).head
    assert bool((head.hidden.weight[:, 3] != 0).all())


@pytest.mark.parametrize(
    "features",
    [torch.ones(1, 4), torch.ones(9, 4), torch.zeros(0, 4), torch.full((9, 4), torch.nan)],
    ids=["one", "alike", "none", "nan"],
)
def test_a_head_needs_examples_that_differ(features):
    with pytest.raises(BadValue, match="at least two examples that differ"):
        exemplars(features, units=3, share=0.1)


def test_units_beyond_the_examples_repeat_them():
    directions = exemplars(sample(5).features, units=12, share=0.2)
    assert directions.shape == (12, 32)
    assert len(directions.unique(dim=0)) == 5


@pytest.mark.parametrize(("examples", "width"), [(24, 60), (60, 24), (24, 24)])
def test_directions_are_those_of_the_covariance_also_where_it_is_not_formed(examples, width):
    """More features than examples: products of examples are solved instead, and say the same."""
    y = torch.randn(examples, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = y @ torch.linspace(0.1, 3, width, dtype=torch.float64).diag()
    centred = y - y.mean(0)
    covariance = centred.T @ centred / examples
    ridge = covariance.diagonal().mean() * torch.eye(width, dtype=torch.float64)
    expected = torch.nn.functional.normalize(centred @ torch.linalg.inv(covariance + ridge), dim=1).float()
    directions = exemplars(y, units=examples, share=0.1)
    nearest = (directions @ expected.T).argmax(1)
    assert sorted(nearest.tolist()) == list(range(examples))
    torch.testing.assert_close(directions, expected[nearest], rtol=1e-5, atol=1e-6)
