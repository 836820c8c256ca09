"""The audit of properties: who is given one, which prefix is judged, what is shown, and a run end to end."""

from pathlib import Path

import numpy as np
import pytest
import torch

from glasshouse.attacks.base import About, Appendix, ClientScores
from glasshouse.audit.attacking.claims import Outcome, read_outcome, write_outcome
from glasshouse.audit.run import audit
from glasshouse.audit.scoring.pair import longest_prefix
from glasshouse.audit.scoring.truth import GroundTruth, shift_victims
from glasshouse.audit.simulation.build import build
from glasshouse.errors import BadScenario, Undefined
from glasshouse.figures.base import (
    AttackEvidence,
    CellEvidence,
    Federation,
    GroupEvidence,
    PluginSettings,
)
from glasshouse.figures.client_scores import ClientScoresFigure
from glasshouse.metrics.base import ScoreContext
from glasshouse.results.exhibits import Place
from glasshouse.rng import Rng
from glasshouse.scenario.load import from_dict, load
from glasshouse.truth.record import Truth
from glasshouse.wire import Batch

BASE = {
    "name": "members",
    "data": {"examples": 4, "members": 3, "auxiliary": 60, "heldout": 20},
    "model": {"name": "mlp", "hidden": 8},
    "federation": {"protocol": "fedavg", "clients": 7, "cohort": 0.5, "rounds": 4, "batch_size": 4,
                   "secure_sum": True, "keep": {"rounds": "all"}},
    "grants": {"challenge": True},
    "attacks": [{"name": "reg", "method": {"pairs": 10}, "every": 2}],
    "audit": {"metrics": ["f1", "auc"], "controls": False},
}  # fmt: skip


def test_members_hold_the_challenge_in_place_of_one_of_theirs():
    built = build(from_dict(BASE), seed=0)
    (members,) = built.marked.values()
    assert len(members) == 3
    for client, rows in enumerate(built.setting.shards):
        data = built.setting.private.pick(rows)
        heldout = (data.inputs == built.challenge.inputs).flatten(1).all(1).sum()
        assert (len(rows), int(heldout)) == (4, int(client in members))
    assert build(from_dict(BASE), seed=1).marked != built.marked


def test_holders_of_an_attribute_are_marked():
    attack = {"name": "reg", "looks_for": "attribute", "settings": {"label": 1}}
    federation = {**BASE["federation"], "clients": 5}
    data = {"members": 0, "examples": 12, "private_classes": (1, 2), "partition": "dirichlet", "alpha": 1.0}
    changes = {"data": {**BASE["data"], **data}, "federation": federation}
    built = build(from_dict({**BASE, **changes, "grants": {}, "attacks": [attack]}), seed=0)
    labels = built.setting.private.labels
    expected = tuple(c for c, s in enumerate(built.setting.shards) if (labels[s] == 1).sum() * 2 > len(s))
    assert built.marked == {"attribute 1": expected}
    assert 0 < len(expected) < 5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"looks_for": "nothing"}, "registered name of properties"),
        ({"settings": {"scale": 2}}, "settings among target"),
        ({"method": {"pears": 3}}, "one of pairs"),
        ({"every": 0}, "every  needs an int >= 1"),
    ],
)
def test_wrong_settings_are_refused_at_the_door(change, words):
    with pytest.raises(BadScenario, match=words):
        from_dict({**BASE, "attacks": [{**BASE["attacks"][0], **change}]})


def scores(rounds: int, decisions: list[bool]) -> ClientScores:
    about = About(rounds=tuple(range(rounds)))
    return ClientScores(
        about=about, scores=torch.tensor(decisions).double(), decisions=torch.tensor(decisions)
    )


def ground(marked: dict[str, tuple[int, ...]]) -> GroundTruth:
    private = Batch(inputs=torch.zeros(1, 1, 8, 8), labels=torch.zeros(1, dtype=torch.long))
    truth = Truth(private=private, shards=dict.fromkeys(range(4), (0,)), used={}, marked=marked)
    return GroundTruth(truth=truth, context=ScoreContext())


def report(rounds: int) -> Appendix:
    flat = torch.linspace(0.5, 1, rounds)
    heldout = torch.zeros(rounds, 3)
    about = About(rounds=tuple(range(rounds)))
    parts = {"accuracy": flat, "overlap": 1 - flat, "norm": flat, "without": heldout, "having": heldout + 1}
    return Appendix(about=about, name="detectors", tensors=parts)


def test_only_the_longest_prefix_is_judged(tmp_path):
    short, long = scores(10, [True, True, False, False]), scores(20, [True, False, False, False])
    assert longest_prefix((short, report(20), long))[1:] == [long]
    write_outcome(Outcome(claims=(short, report(20))), tmp_path)
    assert torch.equal(read_outcome(tmp_path).claims[1].tensors["overlap"], report(20).tensors["overlap"])


def test_truth_about_clients_needs_one_property():
    assert ground({"membership": (1, 3)}).truth.with_property(4).tolist() == [False, True, False, True]
    with pytest.raises(Undefined, match="exactly one property"):
        ground({}).truth.with_property(4)


def test_a_negative_control_moves_the_property_to_others():
    assert shift_victims(ground({"membership": (0, 2)}).truth, {}).marked == {"membership": (1, 3)}


def evidence(label, claims, scoring):
    federation = Federation(folder=Path("seed0"))
    group = GroupEvidence(
        federation=federation, claims=claims, truth=scoring.truth, context=scoring.context, rng=Rng.root(0)
    )
    settings = PluginSettings(name=label)
    attack = AttackEvidence(key="00", label=label, settings=settings, attack=None, groups=(group,))
    return CellEvidence(place=Place(scenario="s"), attacks=(attack,), federations=(federation,))


def test_exhibits_of_clients():
    claims = (scores(10, [True, True, False, False]), scores(20, [True, False, False, False]), report(20))
    result = list(ClientScoresFigure().draw(evidence("reg", claims, ground({"membership": (0,)}))))
    assert [e.kind for e in result] == ["lines", "lines", "histogram", "histogram", "histogram"]
    line, null = result[0].data["series"]
    assert (line["x"], line["y"]) == ([10, 20], [pytest.approx(2 / 3), 1.0])
    assert (null["y"], null["null"]) == ([0.25, 0.25], True)
    assert list(ClientScoresFigure().draw(evidence("dlg", (), ground({})))) == []


def test_five_estimators_share_their_evidence_end_to_end(tmp_path, monkeypatch):
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path / "cache"))
    small = ["federation.rounds=8", "federation.clients=8", "audit.controls=false"]
    small += [f"attacks[{i}].{key}" for i in range(5) for key in ("method.pairs=10", "every=4")]
    result = audit(load("quickstart-rounds", small), out=tmp_path / "run", jobs=1)
    assert len(result.findings) == 20
    assert not result.refusals
    assert len(list((tmp_path / "cache" / "property-evidence").glob("*.safetensors"))) == 1
    f1 = next(e for e in result.exhibits if e.title == "F1 against rounds")
    assert len(f1.data["series"]) >= 2
    assert np.isfinite([f.value for f in result.findings]).all()


def test_a_client_who_knows_the_cohorts_infers_what_the_server_infers(tmp_path, monkeypatch):
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path / "cache"))
    small = ["federation.rounds=8", "federation.clients=8", "audit.controls=false", "audit.utility=false"]
    small += [f"attacks[{i}].{key}" for i in range(5) for key in ("method.pairs=10", "every=4")]
    client = ['threat.role="client"', "threat.client=3", 'threat.sees=["broadcast"]']
    with pytest.raises(BadScenario, match="an adversary who sees aggregate"):
        audit(load("quickstart-rounds", [*small, *client]), out=tmp_path / "blind", jobs=1)
    result = audit(
        load("quickstart-rounds", [*small, *client, "grants.cohorts=true"]), out=tmp_path / "told", jobs=1
    )
    assert len(result.findings) == 20
    assert "cohorts" in result.threats[0].given
    assert all("cohorts" in f.given for f in result.findings)
    assert {f.about for f in result.findings} == {"7 rounds"}  # no model follows the last one
