"""The command line answers without importing torch wherever it computes nothing."""

import inspect
import json
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from glasshouse import __version__, registry
from glasshouse.cli.cards import FIELDS, card_row, missing_packages
from glasshouse.cli.main import COMMANDS, help_line, load_command, main
from glasshouse.errors import NotInstalled

WITHOUT_TORCH = """
import sys
from glasshouse.cli import main
try:
    main(sys.argv[1:])
except SystemExit as stop:
    assert stop.code == 0, stop.code
heavy = {"torch", "scipy", "sklearn"} & sys.modules.keys()
assert not heavy, heavy
"""


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], *(["list", group] for group in (*registry.GROUPS, "scenarios"))],
    ids=" ".join,
)
def test_answers_without_torch(arguments):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


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
def test_what_is_read_from_the_source_is_what_the_class_holds(group):
    for name in registry.names(group):
        try:
            card = registry.card(group, name)
        except NotInstalled:
            continue
        assert card_row(group, name) == {field: getattr(card, field) for field in FIELDS}, name


def test_a_missing_extra_is_said(monkeypatch, capsys):
    monkeypatch.setattr("glasshouse.cli.cards.requires", lambda _: ['no-such-package>=1; extra == "dp"'])
    assert missing_packages("dp") == ("no-such-package",)
    assert missing_packages("vision") == ()
    with pytest.raises(SystemExit):
        main(["list", "defenses", "--json"])
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["dp_sgd"]["summary"].endswith("(not installed: pip install 'glasshouse[dp]')")
    assert "not installed" not in rows["clip"]["summary"]


MAKER = """
from glasshouse.registry import Card
HOME = "where it is made"
def make(summary, *, source=HOME, extra=""):
    return Card(summary=summary, source=source, extra=extra)
"""
USER = """
raise SystemExit("this module was imported")
from maker import make
from glasshouse.registry import Card, carded
SOURCE = "a paper"
class Class:
    card = make("by a function", extra="text")
class Sourced:
    card = make("by a function", source=SOURCE)
class Computed:
    card = make("by" + " a sum", source=SOURCE.upper())
@Card(summary="a decorator", source=SOURCE)
def function(): ...
@carded(Card(summary="as before", source=SOURCE))
def earlier(): ...
"""


@pytest.mark.parametrize(
    ("name", "summary", "source", "extra"),
    [
        ("Class", "by a function", "where it is made", "text"),
        ("Sourced", "by a function", "a paper", ""),
        ("function", "a decorator", "a paper", ""),
        ("earlier", "as before", "a paper", ""),
    ],
)
def test_a_card_is_read_without_importing_its_module(name, summary, source, extra, tmp_path, monkeypatch):
    (tmp_path / "maker.py").write_text(MAKER)
    (tmp_path / "user_of_it.py").write_text(USER)
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint(name="x", value=f"user_of_it:{name}", group="glasshouse.models")
    monkeypatch.setattr(registry, "entry", lambda group, name: point)
    row = card_row("models", "x")
    assert (row["summary"], row["source"], row["extra"]) == (summary, source, extra)


def test_a_card_that_cannot_be_read_is_imported(tmp_path, monkeypatch):
    (tmp_path / "maker.py").write_text(MAKER)
    (tmp_path / "user_of_it.py").write_text(USER)
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint(name="x", value="user_of_it:Computed", group="glasshouse.models")
    monkeypatch.setattr(registry, "entry", lambda group, name: point)
    with pytest.raises(SystemExit, match="was imported"):
        card_row("models", "x")


def test_a_card_of_an_earlier_plugin_is_attached():
    @registry.carded(registry.Card(summary="as before"))
    def factory() -> None: ...

    assert factory.card.summary == "as before"
