"""Defences and behaviours inside real rounds: all run, and tell no more than they should."""

import pytest
import torch
from torch import nn

from glasshouse import registry
from glasshouse.federation import rounds
from glasshouse.federation.setting import Setting
from glasshouse.interfaces import Recorder
from glasshouse.rng import Rng
from glasshouse.wire import Architecture, Batch, Terms, Update

DEFENSES = [
    [],
    [("clip", {"norm": 1.0}), ("gaussian_noise", {"std": 0.01}), ("prune", {"share": 0.5})],
    [("soteria", {"share": 0.5}), ("quantise", {"bits": 4})],
    [("dp_sgd", {"clip": 1.0, "noise_multiplier": 1.0}), ("subsample", {"share": 0.7})],
    [("gaussian_mechanism", {"epsilon": 8.0, "delta": 1e-5, "clip": 1.0, "rounds": 2}), ("sign", {})],
]
BEHAVIOURS = {
    0: ("gradient_ascent", {"clip_norm": 1.0}),
    1: ("free_rider", {"sends": "repeat", "std": 0.01}),
    2: ("label_flip", {}),
    3: ("intermittent", {"probability": 0.5, "behaviour": "gradient_inversion"}),
}


class Updates(Recorder):
    """A recorder that keeps updates, and how many examples each step truly used."""

    def __init__(self) -> None:
        self.updates: list[Update] = []
        self.used: list[tuple[int, ...]] = []

    def update(self, update: Update) -> None:
        self.updates.append(update)

    def private(self, round, client, *, index, trained, behaviour) -> None:
        self.used.append(tuple(len(rows) for rows in trained.order))


def build(architecture: Architecture) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


def play(
    defenses, *, sends="gradient", behaviours=None, batch_size=2
) -> tuple[Updates, dict[str, torch.Tensor]]:
    architecture = Architecture.of("toy", (1, 4, 4), 3)
    generator = Rng.root(0).torch()
    data = Batch(
        inputs=torch.rand(20, 1, 4, 4, generator=generator),
        labels=torch.randint(3, (20,), generator=generator),
    )
    setting = Setting(
        terms=Terms(
            protocol="fedsgd",
            architecture=architecture,
            sends=sends,
            clients=4,
            cohort=4,
            batch_size=batch_size,
        ),
        rounds=3,
        private=data,
        shards=tuple(torch.arange(20).split(5)),
        start=build(architecture).state_dict(),
        build=build,
        defenses=tuple(registry.load("defenses", name)(**settings) for name, settings in defenses),
        behaviours={c: (n, registry.load("behaviours", n)(**s)) for c, (n, s) in (behaviours or {}).items()},
    )
    recorder = Updates()
    return recorder, rounds.play(setting, recorder=recorder, rng=Rng.root(1))


@pytest.mark.parametrize("sends", ["gradient", "delta"])
@pytest.mark.parametrize(
    "defenses", DEFENSES, ids=lambda chain: "+".join(name for name, _ in chain) or "none"
)
def test_every_chain_runs_with_every_behaviour(defenses, sends):
    recorder, final = play(defenses, sends=sends, behaviours=BEHAVIOURS)
    assert len(recorder.updates) == 12
    assert all(t.isfinite().all() for t in final.values())
    assert all(u.tensors.keys() == final.keys() for u in recorder.updates)


def test_defences_do_what_they_say_on_the_wire():
    recorder, _ = play([("prune", {"share": 0.5}), ("clip", {"norm": 0.1})])
    for update in recorder.updates:
        assert all((t == 0).sum() >= t.numel() // 2 for t in update.tensors.values())
        assert torch.cat([t.flatten() for t in update.tensors.values()]).norm() <= 0.1 * (1 + 1e-5)


def test_the_stated_size_of_a_private_step_is_not_its_true_one():
    """Poisson sampling hides how many examples a step used; the update's weight must not tell."""
    recorder, _ = play([("dp_sgd", {"clip": 1.0, "noise_multiplier": 1.0})])
    assert {u.examples for u in recorder.updates} == {2}
    assert len(set(recorder.used)) > 1


def test_two_clients_draw_different_noise():
    recorder, _ = play([("clip", {"norm": 1e-9}), ("gaussian_noise", {"std": 1.0})])
    first, second = (u.tensors["1.weight"] for u in recorder.updates[:2])
    assert abs(torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1]) < 0.5
