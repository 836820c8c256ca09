"""Packages installed for a test: a folder on the path, with the entry points that pip would write."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

CLI = "import sys; from glasshouse.cli import main; sys.exit(main(sys.argv[1:]))"
EACH = """
import contextlib, io, json, sys
from glasshouse.cli import main
results = []
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(words)
        except SystemExit as stop:
            code = stop.code
    results.append([words, code or 0, out.getvalue(), err.getvalue()])
print(json.dumps(results))
"""


def register(place: Path, name: str, version: str, groups: Mapping[str, Mapping[str, str]]) -> None:
    """What pip writes beside the modules of a package: its name and its entry points, by group."""
    folder = place / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = []
    for group, entries in groups.items():
        lines += [f"[{group}]", *(f"{entry} = {value}" for entry, value in entries.items())]
    (folder / "entry_points.txt").write_text("\n".join(lines) + "\n")


def pip_install(place: Path, packages: Sequence[Path]) -> None:
    """Install packages into the folder ``place`` as their users would, but for what they depend on."""
    offline = ["--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--quiet"]
    folders = [str(package) for package in packages]
    done = run_python(place, ["-m", "pip", "install", *offline, "--target", str(place), *folders])
    assert done.returncode == 0, done.stderr


def run_python(place: Path, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Python in ``place``, which is on its path; with a cache of its own."""
    path = os.pathsep.join(p for p in (str(place), os.environ.get("PYTHONPATH")) if p)
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    environment["GLASSHOUSE_CACHE"] = str(place / "cache")
    environment.pop("PYTEST_XDIST_WORKER", None)
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=place, env=environment, text=True, capture_output=True, check=False)


def glasshouse(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line, with what is installed in ``place``."""
    return run_python(place, ["-c", CLI, *arguments])


def glasshouse_each(place: Path, commands: Sequence[Sequence[str]]) -> list[subprocess.CompletedProcess[str]]:
    """Several command lines in one process: starting it takes longer than most of them."""
    done = run_python(place, ["-c", EACH, json.dumps(commands)])
    assert done.returncode == 0, done.stderr
    return [subprocess.CompletedProcess(*result) for result in json.loads(done.stdout)]
