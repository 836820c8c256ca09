"""Every page of docs/plugins is a package: it installs, registers itself, and its own tests pass."""

import importlib
import re
import tomllib
from pathlib import Path

import pytest
from packages import register, run_python

from glasshouse import registry

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "plugins").glob("*.md"))
KINDS = {
    "attack",
    "active-attack",
    "defence",
    "metric",
    "data",
    "model",
    "figure",
    "executor",
    "modality",
    "task",
}
FILE = re.compile(r"^\*\*`([\w./-]+)`\*\*\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def install(page: Path, place: Path) -> list[str]:
    """Write the files that a page shows, with its entry points as pip would; returns its tests."""
    files = dict(FILE.findall(page.read_text()))
    project = tomllib.loads(files.pop("pyproject.toml"))["project"]
    for name, text in files.items():
        assert not (place / name).exists(), f"two pages show a file {name}"
        (place / name).write_text(text)
    register(place, project["name"], project["version"], project["entry-points"])
    return [name for name in files if name.startswith("test_")]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """All packages in one folder, tested in one process: the tests of each page, and what pytest said."""
    place = tmp_path_factory.mktemp("packages")
    tests = {page.stem: install(page, place) for page in PAGES}
    (place / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    done = run_python(place, ["-m", "pytest", "-v", "-p", "no:cacheprovider", "-p", "no:xdist"])
    return tests, done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_the_page_is_a_package_whose_tests_pass(page, outcome):
    tests, output = outcome
    assert tests[page.stem], "a page shows the test that holds its plug-in to the contract"
    for name in tests[page.stem]:
        lines = [line for line in output.splitlines() if line.startswith(f"{name}::")]
        assert lines, output[-3000:]
        assert [line for line in lines if "PASSED" not in line] == [], output[-3000:]


def test_there_is_a_page_for_every_kind_that_has_a_contract():
    assert {p.stem for p in PAGES} >= KINDS


def test_the_index_has_every_group_every_page_and_contracts_that_are_shipped():
    index = (ROOT / "docs" / "plugins.md").read_text()
    assert {g for g in registry.GROUPS if f"`{g}`" not in index} == set()
    assert set(re.findall(r"\]\(plugins/([\w-]+)\.md\)", index)) == {p.stem for p in PAGES}
    named = re.findall(r"`(\w+)\.(\w+Contract)`", index)
    assert len(named) == len(registry.GROUPS) - 3  # four kinds have none, attacks two
    for module, contract in named:
        assert hasattr(importlib.import_module(f"glasshouse.testing.{module}"), contract)
