"""How clients deviate: what each sends, compared with what an honest client would have sent."""

import pytest
import torch
from torch import nn

from glasshouse import registry
from glasshouse.errors import BadValue, Inapplicable, UnknownName
from glasshouse.federation.behaviours.free_rider import FreeRider
from glasshouse.federation.behaviours.gradient_ascent import GradientAscent
from glasshouse.federation.behaviours.gradient_inversion import GradientInversion
from glasshouse.federation.behaviours.intermittent import Intermittent
from glasshouse.federation.behaviours.label_flip import LabelFlip
from glasshouse.federation.client import LocalTraining
from glasshouse.federation.defenses.dp_sgd import DpSgd
from glasshouse.federation.defenses.subsample import Subsample
from glasshouse.rng import Rng
from glasshouse.tensors import norm
from glasshouse.wire import Batch, Trained

RNG = Rng.root(0)
KINDS = ["gradient", "delta", "parameters"]
DATA = Batch(inputs=torch.rand(6, 1, 2, 2, generator=RNG.torch()), labels=torch.tensor([0, 1, 2, 0, 1, 2]))


@pytest.fixture
def model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(4, 3))


def training(kind: str, **settings) -> LocalTraining:
    return LocalTraining(kind=kind, batch_size=settings.pop("batch_size", 6), **settings)


def run(train, model: nn.Module, *, rng: Rng = RNG) -> Trained:
    """On a copy, so that every run starts from the same model."""
    start = {name: t.clone() for name, t in model.state_dict().items()}
    trained = train(model, DATA, rng=rng)
    model.load_state_dict(start)
    return trained


def change(trained: Trained, model: nn.Module) -> dict[str, torch.Tensor]:
    """As a direction of parameters, whatever the kind."""
    before = dict(model.named_parameters())
    if trained.kind == "parameters":
        return {name: (t - before[name]).detach() for name, t in trained.tensors.items()}
    return {name: -t if trained.kind == "gradient" else t for name, t in trained.tensors.items()}


def test_every_registered_behaviour_has_a_card():
    names = registry.names("behaviours")
    assert names == ("free_rider", "gradient_ascent", "gradient_inversion", "intermittent", "label_flip")
    assert all(registry.card("behaviours", name).summary for name in names)


@pytest.mark.parametrize("kind", KINDS)
def test_inversion_sends_the_scaled_opposite(model, kind):
    honest = run(training(kind, epochs=2), model)
    train = GradientInversion(scale=0.5).deviate(training(kind, epochs=2), round=0, rng=RNG)
    sent = run(train, model)
    assert (sent.kind, sent.steps) == (honest.kind, honest.steps)
    assert all(torch.equal(a, b) for a, b in zip(sent.order, honest.order, strict=True))
    opposite, direction = change(sent, model), change(honest, model)
    for name in direction:
        torch.testing.assert_close(opposite[name], -0.5 * direction[name])


@pytest.mark.parametrize("kind", KINDS)
def test_ascent_is_inversion_for_one_step_and_not_for_several(model, kind):
    def apart(epochs: int) -> float:
        ascent = run(GradientAscent().deviate(training(kind, epochs=epochs), round=0, rng=RNG), model)
        opposite = run(GradientInversion().deviate(training(kind, epochs=epochs), round=0, rng=RNG), model)
        up, back = change(ascent, model), change(opposite, model)
        return norm({name: up[name] - back[name] for name in up}) / norm(up)

    assert apart(epochs=1) < 1e-5
    if kind != "gradient":
        assert apart(epochs=5) > 1e-3


def test_ascent_raises_the_loss(model):
    def loss() -> float:
        return nn.functional.cross_entropy(model(DATA.inputs), DATA.labels).item()

    before = loss()
    GradientAscent().deviate(training("delta", epochs=5), round=0, rng=RNG)(model, DATA, rng=RNG)
    assert loss() > before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("behaviour", [GradientAscent, GradientInversion])
def test_clip_bounds_what_is_sent(model, kind, behaviour):
    sent = run(behaviour(clip_norm=0.01).deviate(training(kind), round=0, rng=RNG), model)
    assert norm(change(sent, model)) == pytest.approx(0.01, rel=1e-4)
    free = run(behaviour(clip_norm=100.0).deviate(training(kind), round=0, rng=RNG), model)
    unbounded = run(behaviour().deviate(training(kind), round=0, rng=RNG), model)
    assert all(torch.equal(free.tensors[name], t) for name, t in unbounded.tensors.items())


@pytest.mark.parametrize(
    ("flip", "expected"), [(LabelFlip(), [1, 2, 0, 1, 2, 0]), (LabelFlip(shift=2), [2, 0, 1, 2, 0, 1]),
                           (LabelFlip(to=2), [2] * 6)],
)  # fmt: skip
def test_label_flip_trains_on_the_wrong_labels(model, flip, expected):
    wrong = Batch(inputs=DATA.inputs, labels=torch.tensor(expected))
    sent = run(flip.deviate(training("gradient"), round=0, rng=RNG), model)
    honest_on_wrong = training("gradient")(model, wrong, rng=RNG)
    for name, t in honest_on_wrong.tensors.items():
        torch.testing.assert_close(sent.tensors[name], t)


@pytest.mark.parametrize("flip", [LabelFlip(to=3), LabelFlip(shift=3)])
def test_label_flip_refuses_what_changes_nothing_or_does_not_exist(model, flip):
    with pytest.raises(BadValue, match="needs  to < 3, or a shift that is no multiple of 3"):
        run(flip.deviate(training("gradient"), round=0, rng=RNG), model)


@pytest.mark.parametrize("kind", KINDS)
def test_a_plain_free_rider_changes_nothing(model, kind):
    sent = run(FreeRider().deviate(training(kind, batch_size=4), round=0, rng=RNG), model)
    assert (sent.kind, sent.order) == (kind, ())
    assert sent.steps == (1 if kind == "gradient" else 2)
    assert norm(change(sent, model)) == 0


def test_a_disguised_free_rider_adds_noise_and_never_sees_the_data():
    big = nn.Linear(100, 100)
    train = FreeRider(std=0.2).deviate(training("delta"), round=0, rng=RNG)
    nothing = Batch(inputs=torch.full((6, 1, 1, 1), float("nan")), labels=DATA.labels)
    sent = train(big, nothing, rng=RNG).tensors["weight"]
    assert sent.std() == pytest.approx(0.2, rel=5 / (2 * 10_000) ** 0.5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_repeating_free_rider_sends_the_last_global_change(model, kind):
    rider, settings = FreeRider(sends="repeat"), training(kind, learning_rate=0.5)
    first = run(rider.deviate(settings, round=2, rng=RNG), model)
    assert norm(change(first, model)) == 0
    with torch.no_grad():
        model[1].weight += 3.0  # what the server made of rounds 2 to 4
    for _ in range(2):  # a second rider in the same round repeats the same change
        sent = change(run(rider.deviate(settings, round=5, rng=RNG), model), model)
        rate = 0.5 if kind == "gradient" else 1.0
        torch.testing.assert_close(rate * sent["1.weight"], torch.full((3, 4), 3.0))
        assert not sent["1.bias"].any()


def test_a_free_rider_sees_through_wrappers_and_refuses_foreign_trainers(model):
    inner = Subsample(share=0.5).local(DpSgd(clip=1.0, noise_multiplier=1.0).local(training("delta")))
    flipped = LabelFlip().deviate(inner, round=0, rng=RNG)
    ridden = FreeRider().deviate(flipped, round=0, rng=RNG)
    for train in (inner, flipped, ridden):
        assert run(FreeRider().deviate(train, round=0, rng=RNG), model).kind == "delta"

    def foreign(model, data, *, rng, ascend=False):
        raise AssertionError

    with pytest.raises(Inapplicable, match="needs  the federation's own trainer"):
        run(FreeRider().deviate(foreign, round=0, rng=RNG), model)


def test_refuses_to_invert_logits(model):
    def logits(model, data, *, rng, ascend=False):
        return Trained(tensors={"logits": torch.ones(2, 3)}, kind="logits", steps=1, order=())

    with pytest.raises(Inapplicable, match="got    logits"):
        run(GradientInversion().deviate(logits, round=0, rng=RNG), model)


def test_intermittent_is_honest_in_the_other_rounds():
    honest = training("delta")
    behaviour = Intermittent(probability=0.3, behaviour="gradient_inversion", arguments={"scale": 2.0})
    trainers = [behaviour.deviate(honest, round=r, rng=RNG) for r in range(1000)]
    bad = [t for t in trainers if t is not honest]
    assert abs(len(bad) - 300) < 5 * (1000 * 0.3 * 0.7) ** 0.5
    assert bad[0] == GradientInversion(scale=2.0).deviate(honest, round=0, rng=RNG)
    again = [behaviour.deviate(honest, round=r, rng=RNG) is honest for r in range(1000)]
    assert again == [t is honest for t in trainers]


@pytest.mark.parametrize(("probability", "misbehaves"), [(0.0, False), (1.0, True)])
def test_intermittent_at_the_ends_of_the_range(probability, misbehaves):
    honest = training("delta")
    behaviour = Intermittent(probability=probability)
    assert all((behaviour.deviate(honest, round=r, rng=RNG) is not honest) == misbehaves for r in range(50))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("gradient_ascent", {"clip_norm": 0.0}),
        ("gradient_inversion", {"scale": 0.0}),
        ("label_flip", {"to": -1}),
        ("free_rider", {"sends": "everything"}),
        ("free_rider", {"std": -1.0}),
        ("intermittent", {"probability": 1.5}),
        ("intermittent", {"probability": 0.5, "behaviour": "intermittent"}),
    ],
)
def test_refuses_settings_out_of_range(name, settings):
    with pytest.raises(BadValue, match=f"behaviour '{name}'"):
        registry.load("behaviours", name)(**settings)


def test_intermittent_refuses_an_unknown_behaviour():
    with pytest.raises(UnknownName, match="did you mean gradient_ascent"):
        Intermittent(probability=0.5, behaviour="gradient_assent")
