"""Honest models of an architecture: parametrised weights, and what a module's initialisation forgets."""

import pytest
import torch
from benchmarks.guard.architectures import Masked
from torch import Tensor, nn
from torch.nn import functional as F

from glasshouse.guard.pursuit.examples import Own
from glasshouse.guard.pursuit.fresh import draw_buffers, initialise_again, kept_buffers
from glasshouse.guard.pursuit.pulls import pulls_of


class Scaled(nn.Linear):
    """A subclass that does not initialise what it adds."""

    def __init__(self) -> None:
        super().__init__(12, 6)
        self.scale = nn.Parameter(torch.ones(6))
        self.register_buffer("mask", torch.ones(6, 12))
        self.register_buffer("order", torch.arange(12))

    def forward(self, inputs: Tensor) -> Tensor:
        return F.linear(inputs[:, self.order], self.weight * self.mask * self.scale[:, None], self.bias)


def test_what_a_modules_own_initialisation_forgets_is_not_inherited() -> None:
    model = nn.Sequential(Scaled(), nn.ReLU(), nn.Linear(6, 3))
    with torch.no_grad():
        for t in (*model.parameters(), model[0].mask):
            t.fill_(77.0)
    fresh, helped = initialise_again(model, seed=0)
    assert helped == ("0",)
    assert all(float(p.detach().abs().max()) < 5 for p in fresh.parameters())
    assert fresh[0].mask.unique().tolist() == [10.0]
    assert kept_buffers(model) == ("0.mask", "0.order")
    draw_buffers(fresh, kept_buffers(model), 0)
    assert sorted(fresh[0].order.tolist()) == list(range(12)) != fresh[0].order.tolist()


class Doubled(nn.Module):
    """A parametrisation without an inverse, and a buffer that nobody initialises."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("added", torch.zeros(6, 12))

    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight + self.added


def parametrised() -> dict[str, nn.Module]:
    ways = nn.utils.parametrizations
    plain = nn.Linear(12, 6)
    nn.utils.parametrize.register_parametrization(plain, "weight", Doubled())
    return {
        "lengths": ways.weight_norm(nn.Linear(12, 6)),
        "spectral norm": ways.spectral_norm(nn.Linear(12, 6)),
        "orthogonal": ways.orthogonal(nn.Linear(12, 6)),
        "square": ways.orthogonal(nn.Linear(12, 12)),
        "own": plain,
    }


@pytest.mark.parametrize("kind", ["lengths", "spectral norm", "orthogonal", "square", "own"])
def test_a_parametrised_weight_starts_as_where_its_parametrisation_was_set_up(kind: str) -> None:
    layer = parametrised()[kind]
    with torch.no_grad():
        for t in (*layer.parameters(), *layer.buffers()):
            t.fill_(77.0)
    fresh, helped = initialise_again(layer, seed=0)
    assert all(float(t.detach().abs().max()) <= 10 for t in fresh.state_dict().values())
    plain = nn.Linear(12, len(fresh.bias))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        plain.reset_parameters()
    weight = fresh.eval().weight.detach()
    assert torch.equal(fresh.bias, plain.bias)
    if kind == "own":
        assert (helped, kept_buffers(layer)) == (
            ("parametrizations.weight.0",),
            ("parametrizations.weight.0.added",),
        )
        assert torch.allclose(weight, 2 * plain.weight + 10)
        return
    assert (helped, kept_buffers(layer)) == ((), ())
    if kind == "lengths":
        assert torch.allclose(weight, plain.weight)
    elif kind == "spectral norm":
        assert torch.allclose(weight, plain.weight / torch.linalg.matrix_norm(plain.weight, 2), rtol=0.02)
    else:
        assert torch.allclose(weight @ weight.T, torch.eye(len(weight)), atol=1e-5)


@pytest.mark.parametrize("kind", ["lengths", "spectral norm", "orthogonal", "own"])
def test_a_parametrised_weight_is_looked_at_as_the_weight_it_makes(kind: str) -> None:
    torch.manual_seed(0)
    layer = parametrised()[kind].eval()
    plain = nn.Linear(12, 6)
    plain.load_state_dict({"weight": layer.weight.detach(), "bias": layer.bias.detach()})
    head = nn.Linear(6, 3)
    own = Own(inputs=torch.randn(32, 12), targets=torch.arange(32) % 3)
    models = [nn.Sequential(one, nn.ReLU(), head) for one in (layer, plain)]
    made, usual = (pulls_of(model, own) for model in models)
    assert [side.name for side in made.sides if not side.mixed] == ["0.weight", "2.weight"]
    assert torch.allclose(made.sides[0].pulls, usual.sides[0].pulls, atol=1e-6)
    starts = {name for name, _ in models[0].named_parameters()}
    assert (made.lengths.keys(), made.seen, made.unseen) == (starts, 1.0, {})
    # Before sending, read-outs are those of what is sent.
    sent = pulls_of(models[0], own, as_sent=True)
    assert any(side.name.startswith("0.parametrizations.weight.original") for side in sent.sides)


class Twice(nn.Module):
    """What a weight is computed from is read once more."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.utils.parametrizations.weight_norm(nn.Linear(12, 6)), nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        original = self.layer.get_parameter("parametrizations.weight.original1")
        out: Tensor = self.head(F.relu(self.layer(inputs)) + inputs @ original.T)
        return out


def test_a_parametrised_weight_whose_start_has_another_use_is_looked_at_as_it_is_sent() -> None:
    own = Own(inputs=torch.randn(32, 12), targets=torch.arange(32) % 3)
    pulls = pulls_of(Twice(), own)
    assert "layer.weight" not in {side.name for side in pulls.sides}
    assert pulls.unseen or "layer.parametrizations.weight.original1" in pulls.lengths


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("layer", [nn.BatchNorm2d, nn.GroupNorm, nn.PReLU])
def test_a_layer_that_initialises_itself_keeps_nothing_however_small_it_is(layer, channels) -> None:
    """A single number as a mark must not be the 1 that variances and scales start from."""
    model = nn.Sequential(layer(1, channels) if layer is nn.GroupNorm else layer(channels))
    assert kept_buffers(model) == ()
    assert initialise_again(model, seed=1)[1] == ()


def test_buffers_are_drawn_apart_from_the_weights_that_they_multiply() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(200, 6)
    nn.utils.parametrize.register_parametrization(layer, "weight", Masked(6, 200))
    names = kept_buffers(layer)
    for seed in range(4):
        fresh, _ = initialise_again(layer, seed=seed)
        draw_buffers(fresh, names, seed)
        assert abs(float(fresh.weight.detach().sign().mean())) < 0.2
