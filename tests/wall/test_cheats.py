"""The three cheating attacks fail behind the wall, and each succeeds without it: the tests can fail.

All on images, and on sentences.
"""

from pathlib import Path

import pytest
import torch
from tests.wall.cheats import ReadsTheTruth, RebuildsTheData, RegeneratesTheNoise
from tests.wall.conftest import Case

from glasshouse.attacks.sequences import Sequences
from glasshouse.audit.attacking.call import adversary_side
from glasshouse.audit.attacking.needs import threat_of
from glasshouse.audit.simulation.build import build
from glasshouse.rng import Rng
from glasshouse.scenario.load import from_dict
from glasshouse.transcript.cut import cut
from glasshouse.transcript.view import View
from glasshouse.truth.record import Truth, read_truth

END = 1
"""The last of the vocabulary's marks."""
RNG = Rng.root(0).child("attack/cheat").child("round0-client1")


@pytest.fixture
def view(case: Case, side: Path) -> View:
    """Client 1's update, as an attack gets it."""
    records = vars(adversary_side(str(side)))
    return cut(**records, threat=threat_of(from_dict(case.raw)), rounds=(0,), client=1)


@pytest.fixture
def truth(group: Path) -> Truth:
    return read_truth(group / "truth")


def error(claims, truth: Truth) -> float:
    """Largest pixel error of the claim nearest to the victim's example, or share of words that differ."""
    victim, _ = truth.batch(0, 1)
    if isinstance(claims[0], Sequences):
        words = victim.inputs[0] > END
        differ = claims[0].tokens[:, words] != victim.inputs[0, words]
        return float(differ.double().mean(1).min()) if len(differ) else 1.0
    return float((claims[0].inputs - victim.inputs).abs().amax((1, 2, 3)).min())


@pytest.fixture
def root(case: Case) -> Rng:
    """The stream that the simulation really used: what no attack is given."""
    return build(from_dict(case.raw), seed=case.raw["seed"]).rng


def test_the_data_cannot_be_rebuilt(case, view, truth, root):
    assert error(RebuildsTheData(source=case.source).run(view, rng=RNG), truth) > 0.1  # 264 guesses
    assert error(RebuildsTheData(source=case.source, root=root).run(view, rng=RNG), truth) == 0


def test_the_noise_cannot_be_regenerated(case, view, truth, root):
    assert error(RegeneratesTheNoise(std=case.noise).run(view, rng=RNG), truth) > 0.01
    assert error(RegeneratesTheNoise(std=case.noise, root=root).run(view, rng=RNG), truth) < 1e-3


def test_the_truth_is_not_there(view, truth, group, monkeypatch):
    assert error(ReadsTheTruth().run(view, rng=RNG), truth) > 0.2
    monkeypatch.chdir(group)
    assert error(ReadsTheTruth().run(view, rng=RNG), truth) == 0


def test_an_attack_stream_leads_to_no_other(root):
    """Siblings and parents are unrelated: guesses from what an attack holds never meet the client's."""
    expected = root.child("federation").child("round/0").child("client/1").key
    items = [RNG, Rng.root(RNG.seed()), *(Rng.root(s) for s in range(20))]
    tries = {r.child("federation").child("round/0").child("client/1").key for r in items} | {
        r.key for r in items
    }
    assert expected not in tries
    assert torch.equal(torch.randn(3, generator=RNG.torch()), torch.randn(3, generator=RNG.torch()))
