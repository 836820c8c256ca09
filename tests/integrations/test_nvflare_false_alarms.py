"""How often the check of FLARE's filters calls an honest one a fault, and whether it names what is wrong.

All filters are FLARE's own code, with settings, sizes and shapes of changes drawn anew for each federation.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("nvflare")

from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.filters.exclude_vars import ExcludeVars
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy
from nvflare.app_common.filters.svt_privacy import SVTPrivacy
from scipy.stats import binomtest
from test_nvflare_filters import EXCLUDE, FAULTS, PERCENTILE, SVT, defenses, site, transcript_of

pytestmark = pytest.mark.slow
RUNS, FEWER = 200, 25
STEPS = "NUM_STEPS_CURRENT_ROUND"


def filtered(one, update):
    """What a filter of FLARE makes of an update of one step."""
    data = {name: tensor.numpy() for name, tensor in update.tensors.items()}
    dxo = DXO(data_kind=DataKind.WEIGHT_DIFF, data=data, meta={STEPS: 1})
    sent = one.process_dxo(dxo, dxo.to_shareable(), FLContext())
    kept = (sent or dxo).data
    return replace(update, tensors={n: torch.from_numpy(np.asarray(a)) for n, a in kept.items()})


class Draw:
    """One federation's size and form of changes, and settings that bind on them."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.scale, self.heavy = 10 ** rng.uniform(-2, 1), rng.choice([3.0, 8.0, 100.0])
        self.percentile = int(rng.integers(5, 90))
        self.gamma = float(1e-3 * self.scale * rng.uniform(0.3, 1.5))
        self.fraction, self.noise = float(rng.uniform(0.05, 0.5)), float(10 ** rng.uniform(-1, 1))
        self.seed = seed

    def shaped(self, update):
        """Student's t in the place of the Gaussian changes, at this federation's size."""
        rng = np.random.default_rng([self.seed, update.round, update.client])
        np.random.seed(rng.integers(2**31))  # noqa: NPY002 — the filters draw from it
        tensors = {
            n: torch.from_numpy((1e-3 * self.scale * rng.standard_t(self.heavy, t.shape)).astype(np.float32))
            for n, t in update.tensors.items()
        }
        return replace(update, tensors=tensors)

    @property
    def svt(self):
        return {
            "fraction": self.fraction,
            "noise_var": self.noise,
            "gamma": self.gamma,
            "epsilon_release": 1.0,
        }


def rate(tmp_path, change_of, declared_of, runs):
    """Runs with a fault, and the settings that were named in them."""
    named = []
    for seed in range(runs):
        draw, folder = Draw(seed), tmp_path / str(seed)
        folder.mkdir()
        run = transcript_of(folder, lambda u, _, draw=draw: change_of(draw, draw.shaped(u)))
        (checked,) = defenses(run, files=[site(folder, declared_of(draw))])
        named.append({(row.setting, row.ruling) for row in checked.rows if row.ruling in FAULTS})
    return named


def tell(capsys, what, count, n):
    interval = binomtest(count, n).proportion_ci(0.95, method="exact")
    with capsys.disabled():
        print(f"\n{what}: {count} of {n} [{interval.low:.3f}, {interval.high:.3f}]", end="")


def percentile(draw, update):
    return filtered(PercentilePrivacy(percentile=draw.percentile, gamma=draw.gamma), update)


def exclude(draw, update):
    del draw
    sent = filtered(ExcludeVars(exclude_vars="fc2"), update)
    return replace(sent, tensors={n: t for n, t in sent.tensors.items() if "fc2" not in n})


HONEST = {
    "percentile": (
        percentile,
        lambda draw: {**PERCENTILE, "args": {"percentile": draw.percentile, "gamma": draw.gamma}},
    ),
    "svt": (lambda draw, u: filtered(SVTPrivacy(**draw.svt), u), lambda draw: {**SVT, "args": draw.svt}),
    "exclude": (exclude, lambda draw: {**EXCLUDE, "args": {"exclude_vars": "fc2"}}),
}
WRONG = {
    "percentile off": (
        lambda draw, u: u,
        HONEST["percentile"][1],
        "percentile / 100",
    ),
    "percentile half as strict": (
        lambda draw, u: filtered(PercentilePrivacy(percentile=draw.percentile // 2, gamma=draw.gamma), u),
        HONEST["percentile"][1],
        "percentile / 100",
    ),
    "percentile, bound twice as wide": (
        lambda draw, u: filtered(PercentilePrivacy(percentile=draw.percentile, gamma=2 * draw.gamma), u),
        HONEST["percentile"][1],
        "bound",
    ),
    "svt off": (lambda draw, u: u, HONEST["svt"][1], "noise per step"),
    "svt, half the noise": (
        lambda draw, u: filtered(SVTPrivacy(**{**draw.svt, "epsilon_release": 2.0}), u),
        HONEST["svt"][1],
        "noise per step",
    ),
    "exclude off": (lambda draw, u: u, HONEST["exclude"][1], "exclude_vars"),
}


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_filter_is_called_a_fault_in_at_most_two_of_a_hundred_runs(tmp_path, name, capsys):
    found = rate(tmp_path, *HONEST[name], RUNS)
    alarms = sum(bool(one) for one in found)
    tell(capsys, f"false alarms, {name} {sorted(set().union(*found))}", alarms, RUNS)
    assert alarms <= 0.02 * RUNS


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named_with_its_parameter(tmp_path, name, capsys):
    change, declared, setting = WRONG[name]
    found = rate(tmp_path, change, declared, FEWER)
    right = sum(any(word.startswith(setting) for word, _ in one) for one in found)
    tell(capsys, f"{name}: '{setting}' named {sorted(set().union(*found))}", right, FEWER)
    assert right >= 0.9 * FEWER
