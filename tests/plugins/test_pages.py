"""Every page of docs/plugins is a package that pip installs and whose tests pass, also under another name."""

import importlib
import pkgutil
import re
from pathlib import Path

import pytest
from packages import glasshouse, glasshouse_each, pip_install, run_python

import glasshouse.testing as glasshouse_testing
from glasshouse import registry
from glasshouse.cli.new import package_files

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "plugins").glob("*.md"))
KINDS = {
    "attack",
    "active-attack",
    "defence",
    "metric",
    "claim",
    "data",
    "model",
    "figure",
    "executor",
    "modality",
    "task",
}


def outcomes(place: Path, packages: list[Path]) -> str:
    """What pytest says of all tests of packages that are installed in ``place``, in one process."""
    pip_install(place, packages)
    (place / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    tests = [str(test) for package in packages for test in sorted(package.glob("test_*.py"))]
    alone = ["-c", "pytest.ini", "--rootdir=.", "-p", "no:cacheprovider", "-p", "no:xdist"]
    return run_python(place, ["-m", "pytest", "-v", *alone, *tests]).stdout


def require_passed(output: str, test: str) -> None:
    """All tests of a file ran and passed."""
    lines = [line for line in output.splitlines() if f"{test}::" in line and "::test" in line.lower()]
    assert lines, output[-3000:]
    assert [line for line in lines if "PASSED" not in line] == [], output[-3000:]


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """The packages as the pages show them."""
    place = tmp_path_factory.mktemp("shown")
    for page in PAGES:
        folder = place / "packages" / page.stem
        folder.mkdir(parents=True)
        for name, text in package_files(page.read_text()).items():
            (folder / name).write_text(text)
    return outcomes(place, [place / "packages" / page.stem for page in PAGES])


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """The packages that ``glasshouse new`` writes: their folder, and what pytest said."""
    place = tmp_path_factory.mktemp("started")
    for done in glasshouse_each(place, [("new", page.stem, own_name(page)) for page in PAGES]):
        assert done.returncode == 0, done.stderr
    return place, outcomes(place, [place / own_name(page) for page in PAGES])


def own_name(page: Path) -> str:
    return f"zz_{page.stem.replace('-', '_')}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_the_page_is_a_package_whose_tests_pass(page, shown):
    (test,) = [name for name in package_files(page.read_text()) if name.startswith("test_")]
    require_passed(shown, test)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_new_writes_a_package_whose_tests_pass(page, started):
    _, output = started
    require_passed(output, f"test_{own_name(page)}.py")


def test_what_new_writes_is_registered_under_its_own_name_alone(started):
    place, _ = started
    for page in PAGES:
        folder, before = place / own_name(page), package_files(page.read_text())
        files = {path.name for path in folder.iterdir() if path.is_file()}
        code = {"pyproject.toml", f"{own_name(page)}.py", f"test_{own_name(page)}.py"}
        assert code <= files <= code | {"try.toml"}
        (test,) = [name for name in before if name.startswith("test_")]
        shown = test.removeprefix("test_").removesuffix(".py")
        written = "".join(path.read_text() for path in folder.glob("*.py"))
        assert shown not in written
        assert shown.replace("_", "").lower() not in written.lower()
    attack = own_name(ROOT / "attack.md")
    checked, described = glasshouse_each(
        place, [("check", str(place / attack / "try.toml")), ("show", attack)]
    )
    assert checked.returncode == 0, checked.stderr
    assert "zz_attack: 16 calls" in checked.stdout
    assert described.returncode == 0, described.stderr
    assert described.stdout.startswith("zz_attack (attacks): classes whose bias gradient")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("atack", "mine"), "did you mean attack"),
        (("attack", "My-attack"), "small letters, digits and underscores"),
        (("attack", "class"), "small letters, digits and underscores"),
        (("attack", "../mine"), "small letters, digits and underscores"),
        (("attack", "dlg"), "the name of something installed"),
        (("attack", "json"), "the name of something installed"),
        (("attack", "there"), "a folder that does not exist yet"),
    ],
)
def test_new_refuses_names_that_cannot_be_used(tmp_path, arguments, words):
    (tmp_path / "there").mkdir()
    done = glasshouse(tmp_path, "new", *arguments)
    assert done.returncode == 2, done.stdout
    assert words in " ".join(done.stderr.split())
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == ["there"]


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


def test_the_reference_shows_every_contract_that_is_shipped():
    page = (ROOT / "docs" / "api" / "testing.md").read_text()
    named = set(re.findall(r"^::: glasshouse\.testing\.(\w+)$", page, re.MULTILINE))
    shipped = {m.name for m in pkgutil.iter_modules(glasshouse_testing.__path__)}
    assert named == shipped - {"fixtures"}  # pytest finds those by itself


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_a_page_imports_from_the_front_door_alone(page):
    modules = re.findall(r"^\s*(?:from|import) (glasshouse[\w.]*)", page.read_text(), re.MULTILINE)
    assert modules
    assert {m for m in modules if not m.startswith("glasshouse.testing")} <= {
        "glasshouse",
        "glasshouse.plugins",
    }
