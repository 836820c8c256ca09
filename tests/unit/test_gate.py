"""The gate can fail: in CI, and only there, a skip for a missing extra is a failure; warnings are errors."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
ONE_TEST = "import pytest\ndef test_it():\n    pytest.skip({!r})\n"
FILES = {
    "test_one.py": ONE_TEST.format("opacus is not installed"),
    "test_whole.py": "import pytest\npytest.importorskip('no_such_library')\ndef test_it(): pass\n",
    "test_data.py": ONE_TEST.format("needs ../shared/data/cifar10"),
}


def run(folder: Path, *, ci: bool) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("GLASSHOUSE_CI", "PYTEST_XDIST_WORKER")}
    if ci:
        environment["GLASSHOUSE_CI"] = "1"
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += ["--continue-on-collection-errors"]
    return subprocess.run(command, cwd=folder, env=environment, text=True, capture_output=True, check=False)


def test_a_skip_fails_in_ci_only_unless_it_is_for_absent_data(tmp_path):
    shutil.copy(ROOT / "conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    assert run(tmp_path, ci=False).returncode in (0, 5)  # 5: nothing was left to run
    result = run(tmp_path, ci=True)
    assert result.returncode not in (0, 5)
    failed = [line for line in result.stdout.splitlines() if "skipped in CI" in line]
    assert any("test_one.py" in line for line in failed)
    assert any("test_whole.py" in line for line in failed)
    assert not any("test_data.py" in line for line in failed)


def test_a_warning_is_an_error(tmp_path):
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "test_inner.py").write_text("import warnings\ndef test_it(): warnings.warn('careful')\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_inner.py"]
    result = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, check=False)
    assert result.returncode == 1
    assert "UserWarning: careful" in result.stdout
