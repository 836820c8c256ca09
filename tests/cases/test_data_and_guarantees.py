"""DP-SGD on recurrent and folding networks, noise of a fixed size, arrays of two bytes."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import glasshouse as gh
from glasshouse.errors import BadFile
from glasshouse.federation.defenses.clip import Clip
from glasshouse.federation.defenses.gaussian_mechanism import GaussianMechanism
from glasshouse.federation.defenses.gaussian_noise import GaussianNoise
from glasshouse.federation.defenses.guarantee import Exposure, guarantee


class Recurrent(nn.Module):
    """An LSTM over the rows of a picture."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.cell(x[:, 0])[0][:, -1])


class Positions(nn.Module):
    """Positions that all examples share."""

    def __init__(self):
        super().__init__()
        self.place, self.head = nn.Embedding(8, 8), nn.Linear(64, 4)

    def forward(self, x):
        return self.head((x[:, 0] + self.place(torch.arange(8))[None]).flatten(1))


class Patches(nn.Module):
    """Patches folded into the rows of a linear layer."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Linear(8, 4), nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.embed(x.reshape(-1, 8)).relu().reshape(len(x), 32))


@pytest.mark.parametrize("network", [Recurrent, Positions, Patches])
def test_dp_sgd_trains_networks_whose_layers_fold_or_recur(network, tmp_path):
    images, labels = np.random.default_rng(0).integers(0, 256, (60, 8, 8), dtype=np.uint8), np.arange(60) % 4
    mine = {
        "name": "dp", "data": {"auxiliary": 15, "heldout": 15, "examples": 4}, "attacks": ["label_inference"],
        "federation": {"clients": 3, "protocol": "fedavg", "batch_size": 2},
        "defenses": [{"name": "dp_sgd", "clip": 1.0, "noise_multiplier": 0.5}],
        "audit": {"victims": 3, "controls": False, "metrics": ["label_accuracy"], "planted": 0},
    }  # fmt: skip
    result = gh.audit(mine, data=(images, labels), model=network(), out=str(tmp_path / "dp"))
    assert [finding.n for finding in result.findings] == [3]


def test_clipping_and_noise_of_a_fixed_size_are_a_mechanism():
    sigma = math.sqrt(2 * math.log(1.25 / 1e-5)) / 10
    parts = guarantee([Clip(norm=1.0), GaussianNoise(std=sigma)], Exposure(rounds=20))
    stated = GaussianMechanism(noise_multiplier=sigma, clip=1.0, delta=1e-5, rounds=20)
    whole = guarantee([stated], Exposure(rounds=20))
    assert parts.epsilon == pytest.approx(whole.epsilon)
    assert (parts.epsilon, parts.any_two) == pytest.approx((81.15, 248.25), abs=0.01)


def scenario():
    return {
        "name": "scans", "data": {"auxiliary": 15, "heldout": 15}, "federation": {"clients": 3},
        "attacks": ["linear_input"], "audit": {"distractors": 9}, "model": {"name": "mlp"},
    }  # fmt: skip


def test_arrays_of_two_bytes_are_taken_as_they_are():
    ramp = np.linspace(0, 4000, 64).reshape(1, 8, 8)
    scans = (ramp + np.random.default_rng(0).integers(0, 200, (60, 8, 8))).astype(np.uint16)
    assert "linear_input" in str(gh.check(scenario(), data=(scans, np.arange(60) % 4), probe=False))


def test_the_hint_for_signed_scans_maps_their_range_and_advises_no_cast_that_wraps():
    scans = np.random.default_rng(0).integers(-1000, 3000, (60, 8, 8)).astype(np.int16)
    with pytest.raises(BadFile) as caught:
        gh.check(scenario(), data=(scans, np.arange(60) % 4), probe=False)
    assert "(x - low) / (high - low)" in caught.value.fix
    assert "astype" not in str(caught.value)
