"""The package as a whole: every module imports, its metadata agree, and its import contracts can fail."""

import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from contextlib import contextmanager
from importlib.metadata import metadata, version
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import glasshouse
from glasshouse import registry
from glasshouse.errors import NotInstalled

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
MODULES = sorted(
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    for path in SOURCE.rglob("*.py")
    if path.stem != "__main__"
)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PLUGINS = [
    (group.removeprefix("glasshouse."), name)
    for group, entries in PROJECT["project"]["entry-points"].items()
    for name in entries
]


@contextmanager
def vision_may_be_missing():
    """Every other extra is installed where tests run."""
    try:
        yield
    except NotInstalled as missing:
        if find_spec("torchvision") or "vision" not in missing.fix:
            raise


def test_every_module_imports():
    for name in MODULES:
        with vision_may_be_missing():
            importlib.import_module(name)


@pytest.mark.parametrize(("group", "name"), PLUGINS)
def test_plugin_is_installed_and_introduces_itself(group, name):
    assert name in registry.names(group), "not in the installed metadata: run 'make install'"
    with vision_may_be_missing():
        card = registry.card(group, name)
        assert card.summary
        assert "\n" not in card.summary
        assert card.extra in {"", *PROJECT["project"]["optional-dependencies"]}


def test_every_group_of_the_registry_is_in_the_metadata():
    assert set(PROJECT["project"]["entry-points"]) == {f"glasshouse.{group}" for group in registry.GROUPS}


def test_importing_the_package_loads_no_heavy_library():
    code = "import sys, glasshouse; print(sorted({'torch', 'numpy', 'datasets'} & sys.modules.keys()))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_the_report_opens_without_torch():
    modules = [
        "glasshouse.results.records",
        *(name for name in MODULES if name.startswith("glasshouse.report")),
    ]
    code = f"import sys, {', '.join(modules)}; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


def test_one_version_everywhere():
    assert version("glasshouse") == glasshouse.__version__
    # a section that has no date yet is of the next release
    dated = r"^## (\d+\.\d+\.\d+) \(\d{4}-"
    newest = re.search(dated, (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert newest is not None
    assert cited is not None
    assert newest[1] == cited[1] == glasshouse.__version__


def test_type_hints_are_shipped():
    assert (Path(glasshouse.__file__).parent / "py.typed").exists()


def test_every_requirement_is_pinned():
    pins = re.findall(r"^([A-Za-z0-9_.-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    pinned = {pin.lower().replace("_", "-").replace(".", "-") for pin in pins}
    for requirement in metadata("glasshouse").get_all("Requires-Dist") or []:
        name = re.match(r"[A-Za-z0-9_.-]+", requirement)
        assert name is not None
        if not re.search(r"extra == '(vision|biggan)'", requirement):  # CI installs the others, and these not
            assert name[0].lower().replace("_", "-") in pinned, f"{requirement}: run 'make freeze'"


def test_pins_name_no_local_file():
    text = (ROOT / "constraints.txt").read_text()
    assert "file:" not in text
    assert " @ " not in text


def test_torch_runs_on_one_thread():
    assert torch.get_num_threads() == 1


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """Our contracts, as they stand in pyproject.toml, applied to the copy of the package in ``folder``."""
    return subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache", "--no-logo"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "src"), "COLUMNS": "200"},
        text=True,
        capture_output=True,
        check=False,
    )


@pytest.fixture
def copy(tmp_path):
    shutil.copytree(SOURCE, tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_contracts_hold(copy):
    result = lint_imports(copy)
    assert result.returncode == 0, result.stdout


FORBIDDEN = [
    ("wire.py", "glasshouse.attacks", "layers"),
    ("transcript/view.py", "glasshouse.federation", "layers"),
    ("attacks/base.py", "glasshouse.truth", "wall"),
    ("models/build.py", "glasshouse.data", "wall"),  # attacks import models.build
    ("report/__init__.py", "glasshouse.rng", "report"),  # which imports torch
    ("report/__init__.py", "glasshouse.audit", "report"),
    ("results/records.py", "glasshouse.tensors", "report"),
    ("audit/attacking/claims.py", "glasshouse.audit.scoring", "rooms"),
]


def test_a_forbidden_import_breaks_the_contract(copy):
    """All at once, as reading the package takes longest: each is named below the contract that it breaks."""
    for module, imported, _ in FORBIDDEN:
        path = copy / "src" / "glasshouse" / module
        path.write_text(path.read_text() + f"\nimport {imported}\n")
    result = lint_imports(copy)
    assert result.returncode == 1
    names = {each["id"]: each["name"] for each in PROJECT["tool"]["importlinter"]["contracts"]}
    _, *told = re.split(r"^(.+)\n-+\n", result.stdout.partition("Broken contracts")[2], flags=re.MULTILINE)
    broken = dict(zip(told[::2], told[1::2], strict=True))
    for module, imported, contract in FORBIDDEN:
        importer = "glasshouse." + module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        assert f"{importer} -> {imported} " in broken[names[contract]], module


def test_a_package_without_a_place_in_the_layers_breaks_the_contract(copy):
    (copy / "src" / "glasshouse" / "elsewhere.py").write_text("")
    result = lint_imports(copy)
    assert result.returncode == 1
    assert "elsewhere" in result.stdout


EXTRAS = (
    "cma",
    "botorch",
    "cryptography",
    "datasets",
    "dp_accounting",
    "flwr",
    "flwr_datasets",
    "lightgbm",
    "nibabel",
    "nvflare",
    "opacus",
    "optuna",
    "pandas",
    "pyarrow",
    "pydicom",
    "ray",
    "transformers",
    "xgboost",
)


def test_commands_and_workers_start_without_any_extra():
    """The server that forks workers imports PRELOAD beforehand, and skips nothing but an ImportError."""
    script = (
        f"import sys; sys.modules.update(dict.fromkeys({EXTRAS!r}))\n"
        "from contextlib import suppress\n"
        "from importlib import import_module\n"
        "import glasshouse.audit.run\n"
        "from glasshouse.cli import audit, check, defenses, guard, listing, runs\n"
        "from glasshouse.executors.local import PRELOAD\n"
        "for name in PRELOAD:\n"
        "    with suppress(ImportError):\n"
        "        import_module(name)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
