"""The register: every audit begun is counted, and no line can be changed, removed or moved unnoticed."""

import json
from pathlib import Path

import pytest
from tests.evidence.test_attest import SCENARIO, command

from glasshouse.audit.provenance.stamp import stamp
from glasshouse.errors import BadFile
from glasshouse.evidence import register
from glasshouse.evidence.register import Planned, append_begin, append_end, new_audit, read_register, standing
from glasshouse.report.verdicts.answer import registered
from glasshouse.results.files import read_result
from glasshouse.scenario.load import load

HASH = "a" * 64


def planned(name: str = "s", *, seed: int = 0, scenario: str = HASH) -> Planned:
    return Planned(name=name, scenario=scenario, policy=HASH, seed=seed, attack_seed=0)


@pytest.fixture
def log(tmp_path) -> Path:
    """Four audits, three of one scenario; the second did not end."""
    path = tmp_path / "runs" / "register.jsonl"
    for seed in range(4):
        audit = new_audit()
        append_begin(
            path, [planned(seed=seed, scenario=HASH if seed < 3 else "b" * 64)], digest=HASH, audit=audit
        )
        if seed != 1:
            append_end(path, audit, digest=HASH)
    return path


def test_attempts_count_whatever_their_seed(log):
    lines = read_register(log)
    audits = [line.audit for line in lines if line.event == "begun"]
    assert standing(lines, audits[2]) == {"s": {"place": 3, "begun": 3, "others_ended": 1}}
    assert standing(lines, audits[3]) == {"s": {"place": 1, "begun": 1, "others_ended": 0}}
    assert standing(lines, "0" * 16) == {}


def test_the_words_claim_selection_only_where_the_register_shows_none():
    one = {"kept": True, "scenarios": {"s": {"place": 1, "begun": 1, "others_ended": 0}}}
    assert registered(one) == "the 1st of 1 audit of this scenario begun; nothing was selected afterwards"
    three = {"kept": True, "scenarios": {"s": {"place": 3, "begun": 3, "others_ended": 2}}}
    assert registered(three) == "the 3rd of 3 audits of this scenario begun; of the other 2, 2 ended"
    two = {"kept": True, "scenarios": {"s": one["scenarios"]["s"], "t": three["scenarios"]["s"]}}
    assert registered(two) == "the 3rd of 3 audits of 't' begun; of the other 2, 2 ended"
    assert "selected" not in registered({"kept": False})
    assert registered(None) == ""


@pytest.mark.parametrize("number", range(7))
@pytest.mark.parametrize("how", ["changed", "removed", "moved", "added", "rehashed"])
def test_every_change_of_every_line_is_found(log, number, how):
    rows = log.read_text().splitlines(keepends=True)
    if how == "changed":
        rows[number] = rows[number].replace('"when":"2', '"when":"1')
    elif how == "removed":
        del rows[number]
    elif how == "moved":
        rows[number], rows[number - 1] = rows[number - 1], rows[number]
    elif how == "added":
        rows.insert(number, rows[number])
    else:  # whoever changes a line and computes its hash again breaks the line after it
        raw = {**json.loads(rows[number]), "when": "1999"}
        raw["hash"] = register.digests.of_value({k: v for k, v in raw.items() if k != "hash"})
        rows[number] = json.dumps(raw) + "\n"
    head = read_register(log)[-1].hash
    log.write_text("".join(rows))
    if number == 6 and how in ("removed", "rehashed"):  # the last line: found by a head kept elsewhere
        assert head not in {line.hash for line in read_register(log)}
        return
    with pytest.raises(BadFile, match="line"):
        read_register(log)


def test_what_a_killed_writer_left_is_no_line(log):
    before = read_register(log)
    with log.open("a") as file:
        file.write('{"audit": "half')
    assert read_register(log) == before
    append_begin(log, [planned()], digest=HASH, audit=new_audit())
    assert len(read_register(log)) == len(before) + 1


@pytest.mark.parametrize("row", ["{}", "[]", "x", '{"format":2}', "\x00", "{" * 10_000])
def test_a_line_that_is_none_is_refused(log, row):
    log.write_text(log.read_text() + row + "\n")
    with pytest.raises(BadFile, match="line 8"):
        read_register(log)


def test_audits_of_one_scenario_are_counted_on_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GLASSHOUSE_REGISTER")
    Path("mini.toml").write_text(SCENARIO)
    for seed in (1, 2):
        assert command("audit", "mini.toml", "--jobs", 1, "--out", f"r{seed}", "--set", f"seed={seed}") == 1
    counts = [read_result(Path(f"r{seed}/result.json")).manifest["register"]["scenarios"] for seed in (1, 2)]
    assert counts[0] == {"mini": {"place": 1, "begun": 1, "others_ended": 0}}
    assert counts[1] == {"mini": {"place": 2, "begun": 2, "others_ended": 1}}
    assert "the 2nd of 2 audits of this scenario begun" in Path("r2/report.html").read_text()
    assert command("audit", "mini.toml", "--jobs", 1, "--out", "r3", "--no-register") == 1
    assert "none was kept, so nobody can say how often" in Path("r3/report.html").read_text()
    capsys.readouterr()
    assert command("register") == 0
    assert "2 audits begun, 2 ended; the chain holds" in capsys.readouterr().out


def test_a_register_that_was_removed_meanwhile_counts_nothing(tmp_path):
    (tmp_path / "mini.toml").write_text(SCENARIO)
    begun = stamp(load(str(tmp_path / "mini.toml")), tmp_path, tmp_path / "register.jsonl")
    assert begun.facts()["scenarios"]
    (tmp_path / "register.jsonl").unlink()
    assert begun.facts() == {"kept": False, "audit": begun.audit}
    begun.close(tmp_path)
    assert not (tmp_path / "register.jsonl").exists()


def test_an_audit_beside_a_changed_register_does_not_begin(tmp_path, log, capsys):
    (tmp_path / "mini.toml").write_text(SCENARIO)
    log.write_text(log.read_text().replace('"seed":1', '"seed":9'))
    out = tmp_path / "run"
    assert command("audit", tmp_path / "mini.toml", "--jobs", 1, "--out", out, "--register", log) == 2
    assert "line 3" in capsys.readouterr().err
    assert not (out / "result.json").exists()
