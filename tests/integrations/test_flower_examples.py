"""The examples of the documentation run, what they capture can be audited, and they add few lines."""

import ast
import importlib
import tomllib
from pathlib import Path

import pytest

from glasshouse.api.scenario import ask
from glasshouse.audit.captured.collect import collect
from glasshouse.audit.captured.terms import check_terms
from glasshouse.integrations.flower.in_process import InProcessGrid, run_in_process
from glasshouse.transcript.files import read_transcript

EXAMPLES = Path(__file__).parents[2] / "examples"


def settings(folder):
    """What the app's own file configures, for two rounds."""
    stated = tomllib.loads((EXAMPLES / folder / "pyproject.toml").read_text())
    return {**stated["tool"]["flwr"]["app"]["config"], "num-server-rounds": 2}


@pytest.mark.parametrize(
    ("folder", "package", "capture", "truth"),
    [
        ("flower-quickstart", "quickstart", "capture", "truth"),
        ("flower-secagg", "secagg", "capture-secagg", "truth-secagg"),
    ],
)
def test_an_example_runs_and_is_audited(folder, package, capture, truth, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.syspath_prepend(EXAMPLES / folder)
    server = importlib.import_module(f"{package}.server_app").app
    client = importlib.import_module(f"{package}.client_app").app
    run_in_process(server, InProcessGrid(apps=dict.fromkeys((1, 2, 3), client), run_config=settings(folder)))
    place = tmp_path / "glasshouse" / capture
    recorded = collect(place, [tmp_path / "glasshouse" / truth])
    assert len(recorded.used) == 6
    checked = check_terms(place, read_transcript(place / "transcript", trust_factory=True), recorded)
    assert (checked.n, checked.suspect) == (6, "")
    (scenario,) = ask(str(EXAMPLES / "flower-quickstart/audit.toml"), captured=place).scenarios
    assert scenario.federation.clients == 3
    assert scenario.attacks


class Plain(ast.NodeTransformer):
    """A module of an app without anything of ours; ``ours`` are the lines that were added or changed."""

    def __init__(self):
        self.names, self.ours = set(), set()

    def visit_ImportFrom(self, node):
        if not node.module.startswith("glasshouse"):
            return node
        self.names |= {alias.asname or alias.name for alias in node.names}
        return self.lines(node)

    def visit_Assign(self, node):
        made = (
            node.value.func.id if isinstance(node.value, ast.Call) and hasattr(node.value.func, "id") else ""
        )
        return self.lines(node) if made in self.names else self.generic_visit(node)

    def visit_Call(self, node):
        if getattr(node.func, "id", "") in self.names:
            self.lines(node)
            return node.args[0]  # watch(strategy, grid)
        for word in node.keywords:
            if word.arg == "mods":
                word.value.elts = [mod for mod in word.value.elts if not self.is_ours(mod)]
        return self.generic_visit(node)

    def is_ours(self, mod):
        if ours := isinstance(mod, ast.Call) and mod.func.id in self.names:
            self.lines(mod)
        return ours

    def lines(self, node):
        self.ours |= set(range(node.lineno, node.end_lineno + 1))


@pytest.mark.parametrize(
    ("folder", "package"), [("flower-quickstart", "quickstart"), ("flower-secagg", "secagg")]
)
def test_an_example_has_few_lines_more_than_a_plain_app(folder, package, tmp_path, monkeypatch):
    """Capture and truth: at most five lines, imports among them."""
    added = 0
    (tmp_path / f"plain_{package}").mkdir()
    for file in (EXAMPLES / folder / package).glob("*.py"):
        plain = Plain()
        code = ast.unparse(plain.visit(ast.parse(file.read_text())))
        assert "glasshouse" not in code.replace("~/glasshouse", "")
        added += len(plain.ours)
        (tmp_path / f"plain_{package}" / file.name).write_text(code.replace(f"from {package}.", "from ."))
    assert 0 < added <= 5
    run_plain(tmp_path, monkeypatch, package, folder)


def run_plain(place, monkeypatch, package, folder):
    """The app without anything of ours runs."""
    monkeypatch.syspath_prepend(place)
    server = importlib.import_module(f"plain_{package}.server_app").app
    client = importlib.import_module(f"plain_{package}.client_app").app
    run_in_process(server, InProcessGrid(apps=dict.fromkeys((1, 2, 3), client), run_config=settings(folder)))


def test_a_guarded_app_is_a_plain_one_with_another_import(tmp_path, monkeypatch):
    """One line is changed, and none is added."""
    changed = 0
    (tmp_path / "plain_careful").mkdir()
    for file in (EXAMPLES / "flower-guard/careful").glob("*.py"):
        ours = file.read_text().splitlines()
        plain = [
            "from flwr.clientapp import ClientApp"
            if line == "from glasshouse.integrations.flower import GuardedClientApp as ClientApp"
            else line.replace("from careful.", "from .")
            for line in ours
        ]
        changed += sum("glasshouse" in line for line in ours)
        code = "\n".join(plain)
        assert "glasshouse" not in code
        assert len(plain) == len(ours)
        (tmp_path / "plain_careful" / file.name).write_text(code)
    assert changed == 1
    run_plain(tmp_path, monkeypatch, "careful", "flower-guard")
