"""Victims in one batch: the claims that each gets alone, filed one by one."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from glasshouse import registry
from glasshouse.attacks.inversion.dlg import DLG
from glasshouse.attacks.inversion.ggl.attack import GGL
from glasshouse.attacks.inversion.ggl.search import LatentSearch
from glasshouse.attacks.inversion.ggl.wgan import GeneratorTraining
from glasshouse.attacks.inversion.gradinversion.attack import GradInversion
from glasshouse.attacks.inversion.idlg import IDLG
from glasshouse.attacks.inversion.inverting_gradients import InvertingGradients
from glasshouse.attacks.parts.matching.exact import QuasiNewton
from glasshouse.attacks.parts.search.adam import Descent
from glasshouse.attacks.together import TogetherAttack
from glasshouse.audit.attacking import call as module
from glasshouse.audit.attacking.call import pieces, run_piece
from glasshouse.audit.attacking.claims import read_outcome, same_claims
from glasshouse.audit.plan import attack_tasks, plan
from glasshouse.audit.simulation.group import simulate
from glasshouse.federation.defenses.clip import Clip
from glasshouse.federation.defenses.prune import Prune
from glasshouse.rng import Rng
from glasshouse.scenario.load import from_dict, write_resolved
from glasshouse.scenario.suite import Member, Suite
from glasshouse.testing.toys import AUXILIARY, toy
from glasshouse.transcript.grants import Grants

SHORT = Descent(iterations=4, restarts=2)
TINY = {"latent": 4, "training": GeneratorTraining(width=4, steps=2, batch_size=4)}
ATTACKS = [
    DLG(search=QuasiNewton(iterations=1, restarts=2)),
    IDLG(search=QuasiNewton(iterations=1, restarts=2)),
    InvertingGradients(search=replace(SHORT, signed=True)),
    GradInversion(search=replace(SHORT, schedule="warm_cosine", noise=0.2)),
    GGL(**TINY, search=LatentSearch(optimizer="adam", evaluations=4, restarts=2)),
]
FEDERATIONS = {
    "one image": {"clients": 3, "model": "lenet_sigmoid"},
    "two images": {"clients": 3, "examples": 2},
    "clipped": {"clients": 3, "defenses": [Clip(norm=0.1)]},
    "pruned": {"clients": 3, "defenses": [Prune(share=0.7)]},
}


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("federation", FEDERATIONS)
def test_victims_together_are_victims_alone(attack, federation, monkeypatch):
    """Every tensor of every claim; a few steps are too few for rounding to matter."""
    monkeypatch.setattr("glasshouse.attacks.parts.matching.exact.INNER", 3)
    if federation in ("clipped", "pruned") and hasattr(attack, "adaptive"):
        attack = replace(attack, adaptive=True)
    played = toy(**FEDERATIONS[federation])
    views = [played.view(client=c, grants=Grants(auxiliary=AUXILIARY)) for c in range(3)]
    rngs = [Rng.root(c) for c in range(3)]
    assert isinstance(attack, TogetherAttack)
    together = attack.run_together(views, rngs=rngs)
    for view, rng, claims in zip(views, rngs, together, strict=True):
        for one, other in zip(attack.run(view, rng=rng), claims, strict=True):
            assert one.about == other.about
            for name, value in vars(one).items():
                if isinstance(value, torch.Tensor):
                    torch.testing.assert_close(getattr(other, name), value, rtol=1e-3, atol=2e-3)


def test_those_who_cannot_share_a_batch_are_told_so():
    """Several local steps, other numbers of images, another broadcast."""
    attack = ATTACKS[2]
    steps = toy(protocol="fedavg", local_epochs=2)
    other = toy(seed=1)
    rngs = [Rng.root(0), Rng.root(1)]
    for views in (
        [steps.view(client=0), steps.view(client=1)],
        [toy(examples=1).view(), toy(examples=2).view()],
        [toy().view(), other.view()],
    ):
        assert attack.run_together(views, rngs=rngs) == ()


SCENARIO = {
    "name": "together",
    "data": {"source": "digits", "examples": 1, "heldout": 60},
    "model": {"name": "lenet_sigmoid"},
    "federation": {"protocol": "fedsgd", "clients": 5, "rounds": 1, "batch_size": 1},
    "attacks": [
        {"name": "inverting_gradients", "search": {"iterations": 6, "restarts": 8}},
        {"name": "linear_input"},
    ],
    "audit": {"victims": 5, "distractors": 49, "controls": False},
}


@pytest.fixture
def tasks(tmp_path):
    scenario = from_dict(SCENARIO)
    suite = Suite(name="together", members=(Member(scenario=scenario),))
    (planned,) = plan(suite, tmp_path / "run")
    for group in planned.groups:
        write_resolved(scenario, Path(group.folder) / "scenario.toml")
        simulate(group)
    return list(attack_tasks(planned, "cpu"))


def test_pieces_fill_a_batch_with_restarts_and_victims(tasks):
    sizes = [(piece[0].attack, len(piece)) for piece in pieces(tasks)]
    assert sizes == [("inverting_gradients", n) for n in (2, 2, 1)] + [("linear_input", 1)] * 5


def test_a_piece_that_was_cut_short_ends_as_if_it_had_not_been(tasks):
    """What is filed stays as it is; the rest comes out to the bit as without the interruption."""
    piece = pieces(tasks)[0]
    run_piece(piece)
    whole = [read_outcome(Path(task.out)) for task in piece]
    first = (Path(piece[0].out) / "claims.json").stat().st_mtime_ns
    shutil.rmtree(piece[1].out)
    run_piece(piece)
    again = [read_outcome(Path(task.out)) for task in piece]
    assert all(same_claims(a.claims, b.claims) for a, b in zip(whole, again, strict=True))
    assert (Path(piece[0].out) / "claims.json").stat().st_mtime_ns == first
    assert len(whole[1].curve) > 1
    assert whole[0].curve != whole[1].curve


def test_a_victim_that_cannot_be_attacked_does_not_stop_the_others(tasks, monkeypatch):
    """The batch fails as a whole; alone, one is refused and the other claimed."""
    piece = pieces(tasks)[0]
    attack = registry.load("attacks", "inverting_gradients")
    alone = attack.run

    def run(self, view, *, rng):
        if next(iter(view.rounds[0].updates)) == 0:
            raise RuntimeError("not this one")
        return alone(self, view, rng=rng)

    def together(self, views, *, rngs):
        if len(views) > 1:
            raise RuntimeError("one of them")
        return whole(self, views, rngs=rngs)

    whole = attack.run_together
    monkeypatch.setattr(attack, "run", run)
    monkeypatch.setattr(attack, "run_together", together)
    run_piece(piece)
    refused, claimed = (read_outcome(Path(task.out)) for task in piece)
    assert "not this one" in refused.refusal.got
    assert claimed.refusal is None
    assert claimed.claims


def test_a_gpu_takes_more_at_once(tasks):
    away = [replace(task, device="cuda") for task in tasks if task.attack == "inverting_gradients"]
    assert [len(piece) for piece in pieces(away)] == [5]
    assert module.MANY // away[0].plugin.arguments["search"]["restarts"] >= 5
