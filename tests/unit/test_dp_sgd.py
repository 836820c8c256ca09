"""DP-SGD against a slow twin (one backward pass per example), and what it refuses."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from glasshouse.errors import BadValue, Inapplicable
from glasshouse.federation.client import LocalTraining
from glasshouse.federation.defenses.dp_sgd import DpSgd, PrivateTraining, poisson
from glasshouse.federation.defenses.guarantee import Exposure
from glasshouse.federation.defenses.per_example import prepare_model
from glasshouse.rng import Rng
from glasshouse.settings import Optimizer
from glasshouse.wire import Batch

RNG = Rng.root(0)
SILENT = 1e-20  # noise too small to see


@pytest.fixture
def model() -> nn.Module:
    """With everything that needs care: trained statistics, an activation in place, a strided shortcut."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(),
            nn.Linear(144, 6), nn.ReLU(), nn.Linear(6, 3),
        )  # fmt: skip
        model.train()(torch.rand(64, 1, 8, 8))
    return model.eval()


@pytest.fixture
def data() -> Batch:
    inputs = torch.rand(6, 1, 8, 8, generator=RNG.torch())
    return Batch(inputs=inputs, labels=torch.tensor([0, 1, 2, 0, 1, 1]))


def private(defense: DpSgd, **settings) -> PrivateTraining:
    train = defense.local(LocalTraining(**settings))
    assert isinstance(train, PrivateTraining)
    return train


def slow(model: nn.Module, data: Batch, *, clip: float) -> dict[str, torch.Tensor]:
    """Algorithm 1 without noise, word for word."""
    names = [name for name, _ in model.named_parameters()]
    total = [torch.zeros_like(p) for p in model.parameters()]
    for i in range(len(data)):
        loss = F.cross_entropy(model(data.inputs[i : i + 1]), data.labels[i : i + 1])
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        size = torch.cat([g.flatten() for g in gradients]).norm()
        total = [t + g * min(1.0, clip / float(size)) for t, g in zip(total, gradients, strict=True)]
    return {name: t / len(data) for name, t in zip(names, total, strict=True)}


@pytest.mark.parametrize("clip", [0.1, 1.5, 100.0])
def test_gradient_is_the_mean_of_clipped_gradients(model, data, clip):
    train = private(DpSgd(clip=clip, noise_multiplier=SILENT), kind="gradient", batch_size=6)
    sent = train(model, data, rng=RNG).tensors
    for name, expected in slow(model, data, clip=clip).items():
        torch.testing.assert_close(sent[name], expected, rtol=1e-4, atol=1e-6)


def test_noise_has_the_stated_size(model, data):
    """Standard deviation clip · multiplier ÷ batch size on every entry, within 5 standard errors."""
    settings = {"kind": "gradient", "batch_size": 6}
    loud = private(DpSgd(clip=2.0, noise_multiplier=30.0), **settings)(model, data, rng=RNG).tensors
    quiet = private(DpSgd(clip=2.0, noise_multiplier=SILENT), **settings)(model, data, rng=RNG).tensors
    noise = torch.cat([(loud[name] - quiet[name]).flatten() for name in loud])
    assert noise.std() == pytest.approx(2.0 * 30.0 / 6, rel=5 / (2 * len(noise)) ** 0.5)


@pytest.mark.parametrize(
    "how",
    [
        Optimizer(momentum=0.9),
        Optimizer(name="adam", weight_decay=0.1),
        Optimizer(name="adamw", weight_decay=0.1, schedule="step", over="steps", period=1),
    ],
    ids=lambda how: how.name,
)
@pytest.mark.parametrize("kind", ["delta", "parameters"])
def test_without_clip_and_noise_full_batches_train_as_usual(model, data, kind, how):
    """Three epochs of one full batch; the model ends where the honest trainer leaves it."""
    settings = {
        "kind": kind,
        "batch_size": 8,
        "epochs": 3,
        "optimizer": Optimizer(momentum=0.9),
        "learning_rate": 0.05,
    }
    start = {name: t.clone() for name, t in model.state_dict().items()}
    honest = LocalTraining(**settings)(model, data, rng=RNG)
    left = {name: t.clone() for name, t in model.state_dict().items()}
    model.load_state_dict(start)
    sent = private(DpSgd(clip=1e6, noise_multiplier=SILENT), **settings)(model, data, rng=RNG)
    assert (sent.kind, sent.steps) == (honest.kind, honest.steps)
    for name, expected in honest.tensors.items():
        torch.testing.assert_close(sent.tensors[name], expected, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(model.state_dict()[name], left[name], rtol=1e-4, atol=1e-6)


def test_trains_and_sends_only_the_trained_part(model, data):
    train = private(DpSgd(clip=1.0, noise_multiplier=1.0), kind="delta", batch_size=3, trained="6.")
    assert train(model, data, rng=RNG).tensors.keys() == {"6.weight", "6.bias"}


def test_ascent_climbs(model, data):
    settings = {"kind": "gradient", "batch_size": 6}
    train = private(DpSgd(clip=1.0, noise_multiplier=SILENT), **settings)
    down, up = train(model, data, rng=RNG).tensors, train(model, data, rng=RNG, ascend=True).tensors
    assert all(torch.allclose(down[name], -up[name]) for name in down)


def test_a_step_may_see_nobody_and_then_sends_noise(model, data):
    rng = next(
        r
        for r in (Rng.root(seed) for seed in range(1000))
        if not len(poisson(6, 1 / 6, 1, rng=r.child("order"))[0])
    )
    train = private(DpSgd(clip=1.0, noise_multiplier=1.0), kind="gradient", batch_size=1)
    trained = train(model, data, rng=rng)
    assert len(trained.order[0]) == 0
    assert all(t.isfinite().all() and t.abs().sum() > 0 for t in trained.tensors.values())


def test_poisson_steps_hold_the_expected_number():
    steps = poisson(200, 0.1, 500, rng=RNG)
    sizes = torch.tensor([len(rows) for rows in steps], dtype=torch.float64)
    assert sizes.mean() == pytest.approx(20, abs=5 * (200 * 0.1 * 0.9 / 500) ** 0.5)
    assert sizes.var() == pytest.approx(18, rel=0.3)


def test_epsilon_sets_the_noise_of_the_clients_own_schedule():
    defense = DpSgd(clip=1.0, epsilon=4.0, rounds=5)
    train = private(defense, kind="delta", batch_size=10, epochs=2)
    exposure = train.exposure(25, rounds=5)
    assert exposure == Exposure(rounds=5, steps=6, batch_rate=0.4)
    assert 3.9 < defense.spent(exposure).epsilon <= 4.0


def test_model_without_statistics_of_batches_computes_the_same(model, data):
    work = prepare_model(model, trained=dict(model.named_parameters()).keys(), dropout=False)
    torch.testing.assert_close(work(data.inputs), model(data.inputs))


def test_drop_out_is_on_only_where_training_asks_for_it(data):
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 3))
    settings = {"kind": "gradient", "batch_size": 6}
    off = private(DpSgd(clip=1e6, noise_multiplier=SILENT), **settings)
    on = private(DpSgd(clip=1e6, noise_multiplier=SILENT), dropout=True, **settings)
    dropped = on(model, data, rng=RNG).tensors["2.weight"]
    assert torch.equal(dropped, on(model, data, rng=RNG).tensors["2.weight"])
    assert not torch.allclose(dropped, off(model, data, rng=RNG).tensors["2.weight"])


class Functional(nn.Module):
    """Drop-out by function: it asks the mode of the module around it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(F.dropout(x.flatten(1), training=self.training))


def test_functional_drop_out_stays_off_too(data):
    model = Functional().eval()
    train = private(DpSgd(clip=1e6, noise_multiplier=SILENT), kind="gradient", batch_size=6)
    for name, expected in slow(model, data, clip=1e6).items():
        torch.testing.assert_close(train(model, data, rng=RNG).tensors[name], expected, rtol=1e-4, atol=1e-6)


def test_refuses_batch_norm_with_statistics_of_the_batch(model, data):
    train = private(DpSgd(clip=1.0, noise_multiplier=1.0), kind="gradient", batch_size=6, dropout=True)
    with pytest.raises(Inapplicable) as caught:
        train(model, data, rng=RNG)
    assert caught.value.needs == "layers in which no example influences another"
    assert caught.value.got == "layer '1' (BatchNorm2d)"


def test_refuses_a_wrapped_trainer():
    inner = private(DpSgd(clip=1.0, noise_multiplier=1.0), kind="gradient", batch_size=6)
    with pytest.raises(Inapplicable) as caught:
        DpSgd(clip=1.0, noise_multiplier=1.0).local(inner)
    assert caught.value.got == "one wrapped as PrivateTraining"


def test_refuses_fewer_examples_than_one_batch(model, data):
    train = private(DpSgd(clip=1.0, noise_multiplier=1.0), kind="gradient", batch_size=7)
    with pytest.raises(BadValue, match="at least 7 examples"):
        train(model, data, rng=RNG)


@pytest.mark.parametrize(
    "settings",
    [{}, {"noise_multiplier": 1.0, "epsilon": 1.0}, {"noise_multiplier": 0.0}, {"epsilon": -1.0}],
)
def test_wants_either_noise_or_epsilon(settings):
    with pytest.raises(BadValue) as caught:
        DpSgd(clip=1.0, **settings)
    assert caught.value.needs == "either noise_multiplier or epsilon, in (0, 1e6)"
