"""What defences refuse, by the words of the refusal."""

import pytest
import torch

from glasshouse import registry
from glasshouse.errors import BadValue, Inapplicable
from glasshouse.rng import Rng
from glasshouse.wire import Update

RNG = Rng.root(0)


def update(kind="gradient", **tensors: torch.Tensor) -> Update:
    return Update(round=2, client=5, kind=kind, tensors=tensors, examples=1)


@pytest.mark.parametrize(
    ("name", "settings", "needs"),
    [
        ("gaussian_noise", {"std": -0.1}, "std >= 0"),
        ("gaussian_noise", {"std": float("nan")}, "std >= 0"),
        ("laplace_noise", {"scale": float("inf")}, "scale <= 1e+30"),
        ("clip", {"norm": 0.0}, "norm > 0"),
        ("clip_layers", {"norm": float("nan")}, "norm > 0"),
        ("clip_values", {"bound": -1.0}, "bound > 0"),
        ("prune", {"share": 1.0}, "share < 1"),
        ("prune", {"share": 90.0}, "share < 1"),
        ("quantise", {"bits": 1}, "bits >= 2"),
    ],
)
def test_refuses_settings_out_of_range(name, settings, needs):
    with pytest.raises(BadValue) as caught:
        registry.load("defenses", name)(**settings)
    assert caught.value.subject == f"defense '{name}'"
    assert caught.value.needs == needs
    (setting, value) = next(iter(settings.items()))
    assert caught.value.got == f"{setting} = {value}"
    assert caught.value.fix != "correct it"


CHANGED = {
    "clip": {"norm": 1.0},
    "clip_layers": {"norm": 1.0},
    "clip_values": {"bound": 1.0},
    "prune": {"share": 0.5},
    "quantise": {"bits": 4},
    "sign": {},
}


@pytest.mark.parametrize("kind", ["parameters", "logits"])
@pytest.mark.parametrize("name", sorted(CHANGED))
def test_what_acts_on_changes_refuses_other_kinds(name, kind):
    """Clipping or pruning new parameters would damage the model instead of hiding the change."""
    with pytest.raises(Inapplicable) as caught:
        registry.load("defenses", name)(**CHANGED[name]).update(update(kind, w=torch.ones(2)), rng=RNG)
    assert caught.value.needs == "an update of kind delta or gradient"
    assert caught.value.got == f"round 2, client 5: kind {kind}"


@pytest.mark.parametrize("name", ["gaussian_noise", "laplace_noise"])
@pytest.mark.parametrize("kind", ["gradient", "delta", "parameters", "logits"])
def test_noise_acts_on_every_kind(name, kind):
    setting = {"gaussian_noise": "std", "laplace_noise": "scale"}[name]
    defense = registry.load("defenses", name)(**{setting: 1.0})
    sent = defense.update(update(kind, w=torch.zeros(3, 4)), rng=RNG)
    assert sent.kind == kind
    assert sent.tensors["w"].abs().min() > 0


def test_refuses_nan_and_nothing():
    clip = registry.load("defenses", "clip")(norm=1.0)
    with pytest.raises(BadValue, match="'w': 1 of 2 entries not finite"):
        clip.update(update(w=torch.tensor([1.0, float("nan")])), rng=RNG)
    with pytest.raises(BadValue, match="needs  at least one tensor"):
        clip.update(update(), rng=RNG)


@pytest.mark.parametrize("name", sorted(CHANGED))
def test_an_update_of_zeros_stays_zero(name):
    sent = registry.load("defenses", name)(**CHANGED[name]).update(update(w=torch.zeros(5)), rng=RNG)
    assert not sent.tensors["w"].any()
