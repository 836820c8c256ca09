"""What is released beside the code: pipelines, lists, the paper. Each names commands and files that exist."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click import Option
from typer.main import get_command

import glasshouse
from glasshouse.cli.main import COMMANDS, application

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[2]
PIPELINES = [
    *sorted((ROOT / ".github/workflows").glob("*.yml")),
    *sorted((ROOT / "examples/pipeline").glob("*.yml")),
]
PIPELINES += [*sorted((ROOT / "examples/pipeline").glob("*.yaml")), ROOT / ".pre-commit-hooks.yaml"]
CALL = re.compile(r"glasshouse (\w+)((?:[^\n;|&#`]|\\\\\n)*)")


def calls(text: str) -> list[tuple[str, list[str]]]:
    """(command, its options) of every call of the command line in a text."""
    found = [(name, re.findall(r"(?<!\S)--[a-z][\w-]*", rest)) for name, rest in CALL.findall(text)]
    return [(name, options) for name, options in found if name in COMMANDS]


def options_of(command: str) -> set[str]:
    """Every option of a command, in all its spellings."""
    parameters = get_command(application([command])).commands[command].params
    return {
        text for p in parameters if isinstance(p, Option) or p.opts for text in (*p.opts, *p.secondary_opts)
    }


@pytest.mark.parametrize("path", PIPELINES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_pipeline_is_yaml_and_its_commands_exist(path):
    assert yaml.safe_load(path.read_text())
    for command, options in calls(path.read_text()):
        assert set(options) <= options_of(command), (command, options)


@pytest.mark.parametrize("name", ["docs/evidence.md", "README.md", "examples/pipeline/README.md"])
def test_commands_of_the_pages_exist(name):
    found = calls((ROOT / name).read_text())
    assert found
    for command, options in found:
        assert set(options) <= options_of(command), (command, options)


def test_targets_of_the_workflows_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = {t for path in PIPELINES for t in re.findall(r"run: make (\w+)", path.read_text())}
    assert used
    assert used <= targets


def test_the_matrix_is_what_the_classifiers_say():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    said = {c.rpartition(" ")[2] for c in project["classifiers"] if re.search(r":: 3\.\d+$", c)}
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    gate = next(step["with"]["python-version"] for step in jobs["gate"]["steps"] if "with" in step)
    assert said == {gate, *jobs["pythons"]["strategy"]["matrix"]["python"]}
    assert project["requires-python"] == f">={gate}"


@pytest.mark.parametrize("name", ["llms.txt", "paper.md", "docs/compatibility.md", "docs/evidence.md"])
def test_links_lead_somewhere(name):
    path = ROOT / name
    targets = re.findall(r"\]\(([^)#\s]+)", path.read_text())
    assert targets
    for target in targets:
        assert target.startswith("https://") or (path.parent / target).exists(), target


def test_the_paper_is_short_and_cites_what_it_lists():
    _, head, body = (ROOT / "paper.md").read_text().split("---", 2)
    assert yaml.safe_load(head)["bibliography"] == "paper.bib"
    assert 750 <= len(re.findall(r"\w[\w'-]*", body)) <= 1100
    cited = set(re.findall(r"@(\w+)", body))
    assert cited == set(re.findall(r"^@\w+\{(\w+),", (ROOT / "paper.bib").read_text(), re.MULTILINE))


def test_the_package_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "glasshouse", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"glasshouse {glasshouse.__version__}\n"


def test_hooks_end_with_the_code_of_the_first_file_that_fails(tmp_path):
    hooks = {hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())}
    for name in ("good", "bad", "other"):
        (tmp_path / f"{name}.toml").write_text(
            f'name = "{name}"\nattacks = ["idlg"]\n'
            + ("nonsense = 1\n" if name == "bad" else "")
            + "[federation]\n"
        )
    place = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = [*shlex.split(hooks["glasshouse-check"]["entry"]), "good.toml", "bad.toml", "other.toml"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PATH": place}, check=False
    )
    assert done.returncode == 2
    assert "nonsense" in done.stderr
    assert "other" not in done.stdout


def test_one_command_writes_the_version_wherever_it_stands(tmp_path):
    """Nothing but ``make release`` is left to do for another version."""
    files = ("Makefile", "CITATION.cff", "CHANGELOG.md", "src/glasshouse/__init__.py")
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    changes = tmp_path / "CHANGELOG.md"  # after a release, the next change begins a section
    if "(unreleased)" not in changes.read_text():
        changes.write_text(changes.read_text().replace("\n## ", "\n## 9.8 (unreleased)\n\n- This.\n\n## ", 1))
    subprocess.run(["make", "--silent", "release", "VERSION=9.8.7"], cwd=tmp_path, check=True)
    texts = {name: (tmp_path / name).read_text() for name in files}
    assert '__version__ = "9.8.7"' in texts["src/glasshouse/__init__.py"]
    assert "\nversion: 9.8.7\n" in texts["CITATION.cff"]
    assert re.search(r"^date-released: \d{4}-\d\d-\d\d$", texts["CITATION.cff"], re.MULTILINE)
    assert re.search(r"^## 9\.8\.7 \(\d{4}-\d\d-\d\d\)$", texts["CHANGELOG.md"], re.MULTILINE)
    assert {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()} == set(files)
    assert f"\nversion: {glasshouse.__version__}\n" in (ROOT / "CITATION.cff").read_text()
