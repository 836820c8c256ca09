"""GGL gains over a random draw of its own generator where an update mixes several images or several steps."""

from pathlib import Path

import numpy as np
import pytest
import torch

from glasshouse.attacks.base import PriorSamples, Reconstruction
from glasshouse.audit.attacking.call import AttackTask, run_attack
from glasshouse.audit.attacking.claims import Unit, read_outcome
from glasshouse.audit.attacking.needs import threat_of
from glasshouse.audit.simulation.group import Group, simulate
from glasshouse.metrics.match import assign, mse_table
from glasshouse.metrics.statistics.interval import paired_gain
from glasshouse.rng import Rng
from glasshouse.scenario.load import load, write_resolved
from glasshouse.scenario.table import Plugin
from glasshouse.truth.record import read_truth

VICTIMS, GUESSES = 6, 8
SEARCH = {"search": {"optimizer": "adam", "evaluations": 100, "restarts": 2}}


def error(claimed, truth):
    """Mean squared error under the best assignment."""
    table = mse_table(truth, claimed)
    return table[np.arange(len(table)), assign(table)].mean()


def errors(place, sets):
    """(claimed, drawn) mean squared errors, a pair per victim: digits, a sigmoid LeNet, no defence."""
    sets = [*sets, "defenses=[]", f"federation.clients={VICTIMS}"]
    (scenario,) = load("quickstart-ggl", sets).scenarios
    write_resolved(scenario, place / "scenario.toml")
    simulate(Group(folder=str(place), seed=0))
    truth, rng = read_truth(place / "truth"), Rng.root(0)
    claimed, result = [], []
    for client in range(VICTIMS):
        task = AttackTask(
            folder=str(place),
            out=str(place / f"claims-{client}"),
            plugin=Plugin.model_validate({"name": "ggl", **scenario.attacks[0].arguments, **SEARCH}),
            threat=threat_of(scenario),
            attack_seed=0,
            unit=Unit(rounds=(0,), client=client),
        )
        image, _, draws = read_outcome(Path(run_attack(task))).claims
        assert isinstance(image, Reconstruction)
        assert isinstance(draws, PriorSamples)
        private = truth.private.inputs[list(truth.shards[client])]
        rows = torch.randperm(len(draws.inputs), generator=rng.child(str(client)).torch())
        guesses = rows.reshape(GUESSES, -1)[:, : len(private)]
        claimed.append(error(image.inputs, private))
        result.append(np.mean([error(draws.inputs[guess], private) for guess in guesses]))
    return np.array(claimed), np.array(result)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("examples", "further"),
    [
        (2, []),
        (4, []),
        (1, ['federation.protocol="fedavg"', "federation.local_epochs=2"]),
        (2, ['federation.protocol="fedavg"', "federation.local_epochs=2"]),
    ],
    ids=["two images", "four images", "two local steps", "two local steps on two images"],
)
def test_its_image_is_nearer_than_a_random_draw(tmp_path, examples, further):
    batch = [f"data.examples={examples}", f"federation.batch_size={examples}"]
    claimed, result = errors(tmp_path, [*batch, *further])
    gain = paired_gain(claimed, result, rng=Rng.root(0), higher_leaks=False)
    assert gain.above_zero, (claimed, result)
