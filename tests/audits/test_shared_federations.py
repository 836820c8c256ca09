"""Rows that differ in the attack alone: their federation is played once."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import glasshouse as gh
from glasshouse.audit.captured import group as recording
from glasshouse.audit.count import count
from glasshouse.audit.plan import plan
from glasshouse.audit.provenance.hashes import verify_hashes
from glasshouse.audit.simulation.record import read_record, write_record
from glasshouse.scenario.load import load, write_resolved
from glasshouse.wire import Refusal

SMALL = (
    'attacks=[{name="inverting_gradients", search={iterations=3, restarts=1}}]',
    "defenses=[]",
    "audit.controls=false",
    "audit.victims=2",
    "model.pretraining.epochs=0",
)
BOTH = (*SMALL, 'axes={"attacks.*.tv"=[0.0, 0.1]}')


def planned(out: Path, *sets: str):
    plans = plan(load("digits-inversion", [*SMALL, *sets]), out)
    for one in plans:
        for group in one.groups:
            Path(group.folder).mkdir(parents=True)
            write_resolved(one.cell.scenario, Path(group.folder) / "scenario.toml")
    return [group for one in plans for group in one.groups]


def files(folder: Path) -> dict[str, bytes]:
    """All but the record, which says how long it took."""
    found = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    return {name: content for name, content in found.items() if name not in ("group.json", "scenario.toml")}


def test_rows_that_differ_in_the_attack_share_a_federation_and_others_do_not(tmp_path):
    first, second = planned(tmp_path / "a", BOTH[-1])
    assert (first.same_as, second.same_as) == ("", first.folder)
    rates = planned(tmp_path / "b", 'axes={"federation.learning_rate"=[0.1, 0.2]}')
    assert [group.same_as for group in rates] == ["", ""]
    seeds = planned(tmp_path / "c", BOTH[-1], "audit.seeds=[1, 2]")
    assert [group.same_as for group in seeds] == ["", "", seeds[0].folder, seeds[1].folder]


def test_a_copied_federation_is_the_one_that_would_have_been_played(tmp_path):
    first, second = planned(tmp_path / "copied", BOTH[-1])
    recording.record(first)
    (Path(first.folder) / "claims" / "of the first").mkdir(parents=True)
    (Path(first.folder) / "claims" / "of the first" / "claims.json").write_text("{}")
    recording.record(second)
    _, alone = planned(tmp_path / "played", BOTH[-1])
    recording.simulate(alone)
    assert files(Path(second.folder)) == files(Path(alone.folder))
    assert read_record(Path(second.folder)).seconds == 0.0
    assert read_record(Path(first.folder)).seconds > 0.0


def test_where_files_cannot_be_linked_they_are_copied(tmp_path, monkeypatch):
    first, second = planned(tmp_path, BOTH[-1])
    recording.record(first)

    def refuse(self, target):
        raise OSError("no links here")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    recording.record(second)
    played = files(Path(first.folder))
    shutil.rmtree(Path(first.folder))
    assert played
    assert files(Path(second.folder)) == played


def test_pictures_that_scoring_added_to_the_first_are_not_taken(tmp_path):
    first, second = planned(tmp_path, BOTH[-1])
    recording.record(first)
    (Path(first.folder) / "truth" / "gallery-attack.npz").write_bytes(b"of the first row")
    recording.record(second)
    assert not (Path(second.folder) / "truth" / "gallery-attack.npz").exists()


def test_a_refused_federation_is_refused_in_every_row(tmp_path):
    first, second = planned(tmp_path, BOTH[-1])
    recording.record(first)
    refusal = Refusal(subject="a federation", needs="to converge", got="nan", fix="a lower rate")
    write_record(replace(read_record(Path(first.folder)), refusal=refusal), Path(first.folder))
    recording.record(second)
    assert read_record(Path(second.folder)).refusal == refusal


def test_a_half_copied_row_is_copied_again_on_resume(tmp_path):
    run = gh.audit("digits-inversion", sets=BOTH, out=tmp_path / "run", jobs=1)
    second = next(p for p in (tmp_path / "run" / "cells").iterdir() if read_record(p).seconds == 0.0)
    pictures = {p: p.read_bytes() for p in (tmp_path / "run" / "cells").glob("*/truth/*.npz")}
    (second / "group.json").unlink()
    next((second / "transcript").glob("*.safetensors")).unlink()
    again = gh.audit("digits-inversion", sets=BOTH, out=tmp_path / "run", jobs=2, resume=True)
    assert [f.value for f in again.result.findings] == [f.value for f in run.result.findings]
    assert pictures
    assert {p: p.read_bytes() for p in pictures} == pictures
    verify_hashes(tmp_path / "run")


def test_an_audit_finds_the_same_with_and_without_sharing(tmp_path):
    both = gh.audit("digits-inversion", sets=BOTH, out=tmp_path / "both", jobs=1)
    for weight in (0.0, 0.1):
        alone = gh.audit(
            "digits-inversion",
            sets=(*SMALL, f'axes={{"attacks.*.tv"=[{weight}]}}'),
            out=tmp_path / str(weight),
            jobs=1,
        )
        ours = [f for f in both.result.findings if f.cell in {g.cell for g in alone.result.findings}]
        assert ours
        assert [f.value for f in ours] == [f.value for f in alone.result.findings]


def _simulations(*changes):
    (row,) = [row for row in count(load("digits-inversion", [*BOTH, *changes])) if row.part == "simulation"]
    return row.calls


def test_a_shared_federation_is_counted_once():
    assert _simulations() == 1


@pytest.mark.parametrize("seeds", [1, 3])
def test_each_seed_has_a_federation_of_its_own(seeds):
    assert _simulations(f"audit.seeds={list(range(seeds))}") == seeds
