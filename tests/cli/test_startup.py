"""The command line answers without importing torch wherever it computes nothing."""

import inspect
import json
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from glasshouse import __version__, registry
from glasshouse.cli.main import COMMANDS, help_line, load_command, main
from glasshouse.cli.parts.cards import FIELDS, _state_of_package, card_row, missing_packages
from glasshouse.errors import NotInstalled

WITHOUT_TORCH = """
import contextlib, io, json, sys
from glasshouse.cli import main
for arguments in json.loads(sys.argv[1]):
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            main(arguments)
    except SystemExit as stop:
        assert stop.code == 0, (arguments, stop.code)
    assert said.getvalue().strip(), arguments
    heavy = {"torch", "scipy", "sklearn"} & sys.modules.keys()
    assert not heavy, (arguments, heavy)
"""
HELP = [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)]
LISTS = [["list", group] for group in (*registry.GROUPS, "scenarios")]


def test_nothing_answers_with_torch_but_what_computes(tmp_path, monkeypatch):
    """A list imports its plug-ins once; after that, and for all else, nothing heavy is imported."""
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path))
    for arguments in LISTS:
        with pytest.raises(SystemExit):
            main(arguments)
    command = [sys.executable, "-c", WITHOUT_TORCH, json.dumps([*HELP, *LISTS])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_prints_its_version(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"glasshouse {__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_the_first_line_of_each_command(name):
    line = help_line(COMMANDS[name])
    assert line
    assert inspect.getdoc(load_command(COMMANDS[name])).splitlines()[0] == line


@pytest.mark.parametrize("group", registry.GROUPS)
def test_what_is_kept_is_what_the_class_holds(group):
    for name in registry.names(group):
        try:
            card = registry.card(group, name)
        except NotInstalled:
            continue
        shown = {field: getattr(card, field) for field in FIELDS}
        assert card_row(group, name) == {**shown, "grants": list(shown["grants"])}, name


def test_a_missing_extra_is_said(monkeypatch, capsys):
    monkeypatch.setattr(
        "glasshouse.cli.parts.cards.requires", lambda _: ['no-such-package>=1; extra == "dp"']
    )
    assert missing_packages("dp") == ("no-such-package",)
    assert missing_packages("vision") == ()
    with pytest.raises(SystemExit):
        main(["list", "defenses", "--json"])
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["dp_sgd"]["summary"].endswith("(not installed: pip install 'glasshouse[dp]')")
    assert "not installed" not in rows["clip"]["summary"]


def test_a_card_is_kept_until_a_file_of_its_package_changes(tmp_path, monkeypatch):
    """The second list of the same files imports nothing; a changed file is imported again."""
    package = tmp_path / "listed_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    source = "from glasshouse.registry import Card\nclass One:\n    card = Card(summary={!r})\n"
    (package / "one.py").write_text(source.format("first"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path / "cache"))
    point = EntryPoint(name="x", value="listed_package.one:One", group="glasshouse.models")
    monkeypatch.setattr(registry, "entry", lambda group, name: point)
    assert card_row("models", "x")["summary"] == "first"
    monkeypatch.setattr(registry, "card", lambda group, name: pytest.fail("imported again"))
    assert card_row("models", "x")["summary"] == "first"
    _state_of_package.cache_clear()
    (package / "two.py").write_text("")
    with pytest.raises(pytest.fail.Exception, match="imported again"):
        card_row("models", "x")
