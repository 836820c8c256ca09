"""The small stumbles of a first hour, each with what it should have said."""

import json
import warnings

import pytest
import torch
from torch import nn

import glasshouse as gh
from glasshouse import registry
from glasshouse.audit.resume import record_code
from glasshouse.cli import main
from glasshouse.errors import BadFile, BadScenario, BadValue
from glasshouse.scenario.load import load, load_table
from glasshouse.scenario.shipped import presets

TINY = """
name = "tiny"
attacks = ["linear_input"]
data = {auxiliary = 20, heldout = 20}
federation = {clients = 2}
audit = {victims = 2, metrics = ["psnr"], controls = false, distractors = 9, utility = false}
"""


def run(arguments, capsys):
    """(exit code, output, errors) of a command."""
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    out = capsys.readouterr()
    return stop.value.code, out.out, out.err


def test_list_without_a_group_lists_the_groups(capsys):
    code, out, _ = run(["list"], capsys)
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == [*registry.GROUPS, "scenarios"]
    assert [row["name"] for row in json.loads(run(["list", "--json"], capsys)[1])][-1] == "scenarios"


@pytest.mark.parametrize("group", [*registry.GROUPS, "scenarios"])
def test_lists_break_no_word_at_80_columns(group, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run(["list", group], capsys)
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    rows = json.loads(run(["list", group, "--json"], capsys)[1])
    assert out.split() == [word for row in rows for word in [row["name"], *row["summary"].split()]]


def test_show_of_a_preset_that_shares_its_attacks_name_shows_both(capsys):
    shared = sorted(set(presets()) & set(registry.names("attacks")))
    assert shared
    _, out, _ = run(["show", shared[0]], capsys)
    assert f"{shared[0]} (attacks): " in out
    assert f"{shared[0]} (scenarios):" in out
    assert f'name = "{shared[0]}"' in out
    groups = [row["group"] for row in json.loads(run(["show", shared[0], "--json"], capsys)[1])]
    assert groups[-1] == "scenarios"


def test_show_names_settings_as_a_scenario_writes_them(capsys):
    _, out, _ = run(["show", "pli"], capsys)
    assert "  training.epochs = 3\n" in out
    for group in registry.GROUPS:
        for name in registry.names(group):
            shown = json.loads(run(["show", name, "--json"], capsys)[1])
            settings = [value for row in shown for value in row.get("arguments", {}).values()]
            assert not [value for value in settings if "<factory>" in value or " at 0x" in value], name


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["shwo", "dlg"], "Did you mean 'show'"),
        (["show", "dlgg"], "did you mean dlg, idlg"),
        (["show", "digits-inversoin"], "did you mean digits-inversion"),
        (["list", "atacks"], "did you mean attacks"),
        (["audit", "quikstart"], "did you mean quickstart"),
        (["audit", "digits-inversion", "--jbos", "2"], "--jobs"),
        (["check", "tiny.toml", "--set", "federation.bach_size=1"], "did you mean batch_size"),
        (["check", "tiny.toml", "--set", "federaton.clients=2"], "did you mean federation"),
        (["check", "tiny.toml", "--set", 'attacks=["idlgg"]'], "did you mean idlg"),
        (["check", "tiny.toml", "--set", "attacks.liner_input.label=1"], "did you mean linear_input"),
        (["check", "tiny.toml", "--set", 'audit.metrics=["ssmi"]'], "did you mean ssim"),
        (["check", "tiny.toml", "--set", 'defenses=["clp"]'], "did you mean clip"),
        (["check", "tiny.toml", "--set", 'model.name="lenett5"'], "did you mean lenet5"),
        (["check", "tiny.toml", "--set", 'data.source="digts"'], "did you mean digits"),
        (["check", "tiny.toml", "--set", "policy.max_gain.psn=1"], "did you mean psnr"),
        (["check", "tiny.toml", "--set", 'axes."federation.bach_size"=[1]'], "did you mean batch_size"),
    ],
)
def test_what_was_meant_is_guessed(arguments, meant, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(TINY)
    code, _, errors = run(arguments, capsys)
    assert code == 2
    assert meant in errors


def test_a_byte_order_mark_is_read_over(tmp_path):
    (tmp_path / "tiny.toml").write_bytes(b"\xef\xbb\xbf" + TINY.encode())
    assert load(str(tmp_path / "tiny.toml")).name == "tiny"


@pytest.mark.parametrize(
    ("options", "words"),
    [(["--jobs", "-3"], "fix    0 for one per core"), (["--out", ""], "the path of a folder")],
)
def test_options_that_mean_nothing(options, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, errors = run(["audit", "digits-inversion", *options], capsys)
    assert code == 2
    assert words in errors
    assert list(tmp_path.iterdir()) == []


def test_an_axis_with_a_value_twice():
    raw = {"name": "x", "attacks": ["idlg"], "axes": {"federation.clients": [2, 4, 2]}}
    with pytest.raises(BadScenario, match="different values; got 2 2 times"):
        gh.scenario(raw)


def test_an_axis_that_stands_twice():
    with pytest.raises(BadScenario, match="every path in one axis only"):
        gh.scenario(
            {
                "name": "x",
                "attacks": ["idlg"],
                "axes": {"federation.clients": [2, 4]},
                "axes_zipped": [{"federation.clients": [1, 3]}],
            }
        )


MINE = """
from torch import nn
def make(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, classes))
"""


def test_resume_notices_that_the_users_code_was_changed(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "factory_that_changes.py"
    file.write_text(MINE.replace("WIDTH", "16"))
    suite = load_table({"name": "x", "attacks": ["idlg"], "model": {"name": "factory_that_changes:make"}})
    record_code(suite, tmp_path / "run")
    record_code(suite, tmp_path / "run")
    file.write_text(MINE.replace("WIDTH", "32"))
    with pytest.raises(BadFile, match="source files of factory_that_changes that were changed since"):
        record_code(suite, tmp_path / "run")


def test_torchs_advice_to_load_pickles_is_not_ours(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(nn.Linear(2, 2), torch.zeros(1, 2)), tmp_path / "m.pt")
    with pytest.raises(BadFile) as caught:
        gh.guard(tmp_path / "m.pt")
    assert "weights_only" not in str(caught.value)
    assert "TorchScript" in caught.value.got
    assert "state_dict" in caught.value.fix


def test_an_architecture_with_half_an_argument(tmp_path):
    with pytest.raises(BadValue, match="write it like that"):
        gh.guard({"fc.weight": torch.ones(8, 16)}, agreed="mlp 1x8x8 10 hidden=")
