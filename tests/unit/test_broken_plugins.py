"""One broken entry point of a foreign package is a warning: every other name works."""

import json
import sys

import pytest

from glasshouse import registry
from glasshouse.cli import main
from glasshouse.errors import BrokenPlugin

ENTRIES = """[glasshouse.attacks]
needs_missing = broken_package:Attack
fails = failing_package:Attack
linear_input = failing_package:Another
"""


def run(arguments):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    return stop.value.code


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """An installed package whose modules cannot be imported."""
    info = tmp_path / "broken_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    (tmp_path / "broken_package.py").write_text("import a_module_that_nobody_has\n")
    (tmp_path / "failing_package.py").write_text("1 / 0\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    registry.look_again()
    yield
    registry.look_again()


@pytest.mark.parametrize(
    ("name", "got"),
    [
        ("needs_missing", "No module named 'a_module_that_nobody_has'"),
        ("fails", "ZeroDivisionError"),
        ("linear_input", "glasshouse.attacks.inversion.linear_input:LinearInput"),
    ],
)
def test_a_broken_plugin_says_what_is_wrong(broken, name, got):
    with pytest.raises(BrokenPlugin) as caught:
        registry.load("attacks", name)
    assert got in caught.value.got


def test_the_other_names_work_and_the_list_warns(broken, capsys):
    assert registry.card("attacks", "dlg").summary
    assert run(["list", "attacks", "--json"]) == 0
    summaries = {row["name"]: row["summary"] for row in json.loads(capsys.readouterr().out)}
    assert "warning: cannot be used: ModuleNotFoundError" in summaries["needs_missing"]
    assert "warning" not in summaries["idlg"]


def test_a_scenario_that_names_a_broken_plugin_is_refused_without_a_traceback(broken, tmp_path, capsys):
    scenario = tmp_path / "scenario.toml"
    scenario.write_text('name = "x"\n[[attacks]]\nname = "needs_missing"\n')
    assert run(["check", str(scenario)]) == 2
    printed = capsys.readouterr()
    assert "a_module_that_nobody_has" in printed.out + printed.err
