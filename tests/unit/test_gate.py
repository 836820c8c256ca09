"""The gate can fail: in CI, and only there, a skip for a missing extra is a failure; warnings are errors."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ONE_TEST = "import pytest\ndef test_it():\n    pytest.skip({!r})\n"
WHOLE_FILE = "import pytest\npytest.importorskip('no_such_library')\ndef test_it(): pass\n"


def run(folder: Path, test: str, *, ci: bool) -> subprocess.CompletedProcess[str]:
    shutil.copy(ROOT / "conftest.py", folder)
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_inner.py").write_text(test)
    environment = {k: v for k, v in os.environ.items() if k not in ("GLASSHOUSE_CI", "PYTEST_XDIST_WORKER")}
    if ci:
        environment["GLASSHOUSE_CI"] = "1"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    return subprocess.run(command, cwd=folder, env=environment, text=True, capture_output=True, check=False)


@pytest.mark.parametrize("test", [ONE_TEST.format("opacus is not installed"), WHOLE_FILE])
def test_a_skip_fails_in_ci_only(tmp_path, test):
    assert run(tmp_path, test, ci=False).returncode in (0, 5)  # 5: nothing was left to run
    result = run(tmp_path, test, ci=True)
    assert result.returncode not in (0, 5)
    assert "skipped in CI" in result.stdout


def test_a_skip_for_absent_data_is_allowed_in_ci(tmp_path):
    test = ONE_TEST.format("needs ../shared/data/cifar10")
    assert run(tmp_path, test, ci=True).returncode == 0


def test_a_warning_is_an_error(tmp_path):
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "test_inner.py").write_text("import warnings\ndef test_it(): warnings.warn('careful')\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_inner.py"]
    result = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, check=False)
    assert result.returncode == 1
    assert "UserWarning: careful" in result.stdout
