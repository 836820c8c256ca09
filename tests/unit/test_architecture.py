"""The architecture as a newcomer sees it: rooms of a size, a core that names no plug-in, strict contracts."""

import ast
import re
import tomllib
from pathlib import Path

from glasshouse import registry

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "glasshouse"
CORE = ("audit", "results", "report", "scenario", "federation")
NAMED = re.compile(r"maui|prolin|ggl|scale_mia|loki|pli\b|tbi", re.IGNORECASE)
MOST_MODULES = 15
ALLOWED = {
    "scenario/spec.py": frozenset({"identification", "mse", "psnr", "ssim"}),  # defaults of audit.metrics
    "audit/simulation/build.py": frozenset({"perceptual"}),  # a stream of randomness: renamed, numbers change
}
LISTS_OF_PLUGINS = ("federation/defenses",)


def core_files() -> list[Path]:
    return [p for room in CORE for p in sorted((SOURCE / room).rglob("*.py"))]


def folders() -> list[Path]:
    return sorted({p.parent for p in SOURCE.rglob("*.py")})


def test_the_core_names_no_particular_attack():
    lines = [
        f"{path.relative_to(SOURCE)}: {line}"
        for path in core_files()
        for line in path.read_text().splitlines()
        if NAMED.search(line)
    ]
    assert lines == []


def test_no_string_of_the_core_is_the_name_of_an_attack_or_a_metric():
    found = []
    for path in core_files():
        place = str(path.relative_to(SOURCE))
        names = {*registry.names("attacks"), *registry.names("metrics")} - ALLOWED.get(place, frozenset())
        strings = {n.value for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Constant)}
        found += [f"{place}: {s}" for s in strings if isinstance(s, str) and s in names]
    assert found == []


def test_a_folder_is_a_room_and_no_warehouse():
    crowded = []
    for folder in folders():
        place = folder.relative_to(SOURCE).as_posix()
        modules = [p for p in folder.glob("*.py") if p.name not in ("__init__.py", "__main__.py")]
        if len(modules) > MOST_MODULES and place not in LISTS_OF_PLUGINS:
            crowded.append(f"{place}: {len(modules)} modules")
    assert crowded == []


def test_import_contracts_have_no_exceptions():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert [c["id"] for c in contracts if "ignore_imports" in c] == []
