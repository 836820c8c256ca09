"""Type, content and replay: each fence holds, and each is noticed when it is broken. Images and sentences."""

import dataclasses
import inspect
import json
import shutil
import typing
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.wall.conftest import SECRET_NAME, Case

from glasshouse import registry
from glasshouse.attacks.base import Attack, Reconstruction
from glasshouse.attacks.sequences import Sequences
from glasshouse.audit import replay as replaying
from glasshouse.audit.attacking.call import adversary_side
from glasshouse.audit.attacking.claims import read_outcome
from glasshouse.audit.attacking.needs import threat_of
from glasshouse.audit.provenance.hashes import write_hashes
from glasshouse.audit.scoring.read import read_ground
from glasshouse.audit.scoring.score import score_outcomes
from glasshouse.audit.scoring.truth import rotate_victims
from glasshouse.errors import BadFile
from glasshouse.scenario.load import from_dict
from glasshouse.store import read_tensors, write_tensors
from glasshouse.tensors import copy_to
from glasshouse.transcript.cut import cut
from glasshouse.transcript.view import View


def takes_only_a_view(attack: type) -> bool:
    """Whether ``run`` takes (self, view, *, rng) and nothing else."""
    parameters = inspect.signature(attack.run).parameters
    return (
        list(parameters) == ["self", "view", "rng"]
        and parameters["rng"].kind is inspect.Parameter.KEYWORD_ONLY
    )


@pytest.mark.parametrize("name", registry.names("attacks"))
def test_type_an_attack_takes_a_view_and_a_stream(name):
    attack = registry.load("attacks", name)
    assert takes_only_a_view(attack)
    hints = typing.get_type_hints(attack.run)
    assert hints["view"] is View
    assert dataclasses.is_dataclass(attack)
    assert attack.__dataclass_params__.frozen


def test_type_a_further_argument_is_noticed():
    class Greedy:
        def run(self, view, truth, *, rng): ...

    assert not takes_only_a_view(Greedy)
    assert takes_only_a_view(Attack)


def words(value: object) -> list[str]:
    """Every string and number in a view, tensors left out."""
    if isinstance(value, torch.Tensor):
        return []
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [w for f in dataclasses.fields(value) for w in [f.name, *words(getattr(value, f.name))]]
    if isinstance(value, Mapping):
        return [w for k, v in value.items() for w in [*words(k), *words(v)]]
    if isinstance(value, (list, tuple, frozenset)):
        return [w for v in value for w in words(v)]
    return [str(value)]


@pytest.fixture
def view(case: Case, group: Path) -> View:
    records = vars(adversary_side(str(group)))
    return cut(**records, threat=threat_of(from_dict(case.raw)), rounds=(0,), client=1)


def test_content_an_attack_gets_plain_tensors_and_no_reader_of_a_file(view):
    (update,) = copy_to(view, "cpu").rounds[0].updates.values()
    assert type(update.tensors) is dict
    assert update.tensors


def test_content_a_view_names_neither_seed_nor_path_nor_scenario_nor_defence(case, view, group):
    output = " ".join(words(view))
    for secret in ("seed", SECRET_NAME, str(group), "cells", case.source, "gaussian_noise", str(case.noise)):
        assert secret not in output


def test_content_a_granted_defence_is_noticed(group, view):
    side = adversary_side(str(group))
    given = dataclasses.replace(side.grants, defense=from_mechanism())
    records = cut(**{**vars(side), "grants": given}, threat=view.threat, rounds=(0,), client=1)
    assert "gaussian_noise" in " ".join(words(records))


def from_mechanism():
    return (registry.load("defenses", "gaussian_noise")(std=0.001).describe(),)


def test_content_one_client_is_all_that_an_update_view_holds(view):
    assert [list(r.updates) for r in view.rounds] == [[1]]
    assert view.grants.labels == {}


def test_replay_in_another_process_gives_the_same_claims(case, run):
    rows = replaying.replay(run, case.attack)
    assert len(rows) == len(case.units)
    assert all(row["same"] for row in rows)


def test_replay_notices_another_transcript_and_ignores_another_truth(case, run, tmp_path):
    """One update changed after the fact: its claims do not come from what the adversary saw. All truth
    exchanged as well: that changes no claim."""
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    (group,) = (copy / "cells").iterdir()
    lines = [json.loads(x) for x in (group / "transcript" / "rounds.jsonl").read_text().splitlines()]
    name = next(x["file"] for x in lines if x["message"] == "update" and x["client"] == 2)
    tensors = read_tensors(group / "transcript" / name)
    write_tensors(group / "transcript" / name, {n: t + 0.1 for n, t in tensors.items()})
    pool = read_tensors(group / "truth" / "private.safetensors")
    write_tensors(group / "truth" / "private.safetensors", {**pool, "inputs": pool["inputs"].flip(0)})
    with pytest.raises(BadFile, match=rf"{name}(?s:.*)changed since"):
        replaying.replay(copy, case.attack)
    write_hashes(group)
    with pytest.raises(BadFile, match="since the manifest was written"):
        replaying.replay(copy, case.attack)
    (copy / "manifest.json").unlink()
    rows = {row["unit"]: row["same"] for row in replaying.replay(copy, case.attack)}
    assert rows == {unit: unit not in ("round0", "round0-client2") for unit in case.units}


def test_swapping_the_truth_changes_the_scores(case, group):
    scenario, metric = from_dict(case.raw), registry.create(registry.load("metrics", case.metric), {})
    ground, book = read_ground(group, scenario)
    folders = sorted((group / "claims").glob("*/*"))
    before = [read_outcome(f) for f in folders]
    other = ground.against(rotate_victims(ground.truth))
    mine = score_outcomes(case.metric, metric, before, ground, book)
    theirs = score_outcomes(case.metric, metric, before, other, book)
    assert mine is not None
    assert theirs is not None
    assert np.mean([v.mean() for v in mine.values]) > max(v.mean() for v in theirs.values)


def test_claims_are_about_private_data_at_all(group):
    """Both attacks read something under this little noise: there is something to protect."""
    outcome = read_outcome(next(iter(sorted((group / "claims").glob("*/*")))))
    assert isinstance(outcome.claims[0], Reconstruction | Sequences)
    assert len(outcome.claims[0].confidence)
