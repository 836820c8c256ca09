"""Clients of one federation in several processes: the same records, to the bit."""

from pathlib import Path

import pytest

from glasshouse.audit.simulation import group as groups
from glasshouse.audit.simulation.group import Group, simulate
from glasshouse.audit.simulation.record import read_record
from glasshouse.federation.crew import ProcessCrew
from glasshouse.scenario.load import from_dict, write_resolved

FEDERATION = {"protocol": "fedavg", "clients": 7, "cohort": 0.8, "rounds": 3, "batch_size": 4}
BASE = {
    "name": "toy",
    "data": {"source": "digits", "examples": 8},
    "model": {"name": "mlp", "hidden": 8},
    "federation": FEDERATION,
    "attacks": [{"name": "label_inference"}],
    "audit": {"victims": 1, "controls": False},
}


def played(folder: Path, processes: int, **federation: object) -> Path:
    folder.mkdir()
    scenario = from_dict({**BASE, "federation": {**FEDERATION, **federation}})
    write_resolved(scenario, folder / "scenario.toml")
    return Path(simulate(Group(folder=str(folder), seed=3, processes=processes)))


def files(folder: Path) -> dict[str, bytes]:
    parts = [folder / part for part in ("transcript", "truth", "own")]
    return {str(f.relative_to(folder)): f.read_bytes() for p in parts for f in p.rglob("*") if f.is_file()}


@pytest.mark.parametrize(
    "federation",
    [
        {"secure_sum": True, "options": {"sum_bits": 12}, "keep": {"rounds": "all"}},
        {"dropout": 0.3, "weighting": "size"},
    ],
)
def test_two_processes_play_the_same_federation_as_one(tmp_path, monkeypatch, federation):
    crews = []

    class Counted(ProcessCrew):
        def answers(self, requests):
            crews.append(len(requests))
            return super().answers(requests)

    monkeypatch.setattr(groups, "ProcessCrew", Counted)
    alone = files(played(tmp_path / "one", 1, **federation))
    monkeypatch.setattr(groups, "WORTH", 1)
    beside = files(played(tmp_path / "two", 2, **federation))
    assert len(crews) == FEDERATION["rounds"]
    assert len(alone) > 4
    assert alone == beside


def test_small_federations_and_clients_that_remember_train_one_after_the_other(tmp_path, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("processes were started")

    monkeypatch.setattr(groups, "ProcessCrew", refuse)
    played(tmp_path / "small", 2)
    monkeypatch.setattr(groups, "WORTH", 1)
    riders = [{"name": "free_rider", "sends": "repeat", "clients": 2}]  # what they repeat they remember
    played(tmp_path / "riders", 2, behaviours=riders)
    (tmp_path / "guarded").mkdir()
    guarded = from_dict({**BASE, "guard": {"models": "watched"}})
    write_resolved(guarded, tmp_path / "guarded" / "scenario.toml")
    record = read_record(Path(simulate(Group(folder=str(tmp_path / "guarded"), seed=3, processes=2))))
    assert len(record.guard) == 3 * 6  # rounds, and clients of each


def test_what_a_client_raises_in_its_process_refuses_the_federation(tmp_path, monkeypatch):
    monkeypatch.setattr(groups, "WORTH", 1)
    folder = played(tmp_path / "diverging", 2, learning_rate=1e30)
    refusal = read_record(folder).refusal
    assert refusal is not None
    assert "finite" in refusal.needs + refusal.got
