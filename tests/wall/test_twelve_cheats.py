"""What twelve cheating plug-ins gain in a real audit, and what notices each (docs/plug-ins-that-cheat.md)."""

import json
import shutil

import pytest
from tests.wall.cheated import CHEATS, PLUGINS, RAW, finding, refusals, run_audit

from glasshouse.audit import replay as replaying
from glasshouse.audit.replay import replay
from glasshouse.errors import Inapplicable

EXACT = 80.0  # dB of gain: the closed form, or the truth itself
NOTHING = 1.0


def notes(run, attack: str) -> str:
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return " ".join(line["note"] for line in lines if attack in line.get("attack", ""))


def test_undeclared_grants_are_not_there(cheated):
    result, run = cheated
    assert len(refusals(result, "undeclared_grants")) == 8
    assert not [f for f in result.findings if f.attack == "undeclared_grants" and f.gain > 0]
    assert "KeyError" in notes(run, "undeclared_grants")  # its traceback is in the log


def test_claims_about_other_rounds_are_refused_and_the_audit_ends_well(cheated):
    result, _ = cheated
    assert refusals(result, "other_rounds") == ["claims about rounds of [0], each named once"] * 8


def test_honest_attacks_get_the_same_beside_cheats_as_alone(cheated, tmp_path):
    """Neither edits in place, nor seeds, nor a patched scorer of an attack before reach the next one."""
    result, _ = cheated
    alone = run_audit(tmp_path / "alone", [RAW["attacks"][0], RAW["attacks"][-1]])
    scored = {"linear_input": ("psnr", "identification", "label_accuracy")}
    # It uses the labels that are granted here, so that they are not scored.
    scored["inverting_gradients"] = ("psnr", "identification")
    for attack, beside in (
        ("linear_input", "linear_input"),
        ("linear_input", "honest, after the cheats"),
        ("inverting_gradients", "inverting_gradients"),
    ):
        for metric in scored[attack]:
            assert finding(result, beside, metric).value == finding(alone, attack, metric).value


@pytest.mark.parametrize("attack", ["edits_in_place", "reseeds", "patches_the_scorer"])
def test_what_disturbs_others_gains_nothing(cheated, attack):
    result, _ = cheated
    assert finding(result, attack).value < 20
    assert finding(result, attack).gain < NOTHING


def test_a_changed_global_state_is_noted(cheated):
    assert "global random generators" in notes(cheated[1], "reseeds")


@pytest.mark.parametrize("attack", ["copies_claims", "searches_the_disk"])
def test_what_reads_the_disk_gains_everything_until_it_is_replayed(cheated, attack):
    """Only malice: trusted code can read what its user can read."""
    result, run = cheated
    assert finding(result, attack).gain > EXACT
    rows = replay(run, attack)
    assert len(rows) == 8
    assert not any(row["same"] for row in rows)


def test_what_is_kept_between_calls_is_noticed_by_a_replay(cheated):
    result, run = cheated
    assert finding(result, "remembers_victims").gain > EXACT  # what it read off its own update alone
    rows = replay(run, "remembers_victims")
    assert sum(row["same"] for row in rows) <= 1


def test_an_honest_attack_claims_the_same_again_and_follows_other_private_data(cheated):
    _, run = cheated
    assert all(row["same"] for row in replay(run, "linear_input"))
    rows = replay(run, "linear_input", swap=True)
    assert not any(row["same"] for row in rows)
    assert rows[0]["metric"] == "psnr"
    assert rows[0]["in_the_run"] > EXACT
    assert rows[0]["new_victims"] > EXACT
    assert rows[0]["old_victims"] < 20


@pytest.fixture
def no_namespaces(monkeypatch):
    """A system that does not allow namespaces."""
    real = replaying._start
    monkeypatch.setattr(
        replaying, "_start", lambda tasks, orders, place: not orders["seal"] and real(tasks, orders, place)
    )


def test_what_reads_the_truth_knows_nothing_of_other_private_data(cheated):
    rows = replay(cheated[1], "searches_the_disk", swap=True)
    assert rows[0].get("new_victims", 0.0) < 20


def test_without_a_namespace_the_truth_is_moved_aside_and_comes_back(cheated, no_namespaces):
    _, run = cheated
    before = sorted(str(p.relative_to(run)) for p in run.rglob("*"))
    rows = replay(run, "searches_the_disk")
    assert {row["isolation"] for row in rows} == {"the truth moved aside"}
    assert not any(row["same"] for row in rows)
    assert sorted(str(p.relative_to(run)) for p in run.rglob("*")) == before
    with pytest.raises(Inapplicable, match="a process that cannot see them"):
        replay(run, "linear_input", swap=True)


def test_a_truth_that_a_crash_left_aside_comes_back(cheated, tmp_path):
    from glasshouse.audit.replay import bring_back, moved_aside

    run = tmp_path / "run"
    shutil.copytree(cheated[1], run)
    truths = list(run.glob("cells/*/truth"))
    block = moved_aside(run, truths)
    block.__enter__()  # the process dies here: nothing leaves the block
    assert not truths[0].exists()
    bring_back(run)
    assert (truths[0] / "private.safetensors").is_file()
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_the_list_is_a_dozen():
    assert len(CHEATS) == 12
    assert (PLUGINS / "cheating_attacks.py").is_file()
