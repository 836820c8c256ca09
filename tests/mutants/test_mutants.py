"""Every mutant dies: the named test passes on the source as it is and fails on each edited copy."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.mutants.edits import EDITS, SOURCE, Edit

ROOT = SOURCE.parent


def run_test(source: Path, test: str) -> subprocess.CompletedProcess[str]:
    """Run one test with the package imported from ``source``."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", test]
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(source), str(ROOT)])},
        capture_output=True,
        text=True,
        check=False,
    )


def edited(edit: Edit, place: Path) -> Path:
    """A copy of the source with the edit."""
    copy = place / "src"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    path = copy / "glasshouse" / edit.file
    path.write_text(path.read_text().replace(edit.old, edit.new))
    return copy


@pytest.mark.parametrize("name", EDITS)
def test_the_text_of_an_edit_occurs_once(name):
    edit = EDITS[name]
    assert (SOURCE / "glasshouse" / edit.file).read_text().count(edit.old) == 1
    assert edit.old != edit.new
    assert (ROOT / edit.test.partition("::")[0]).is_file()


@pytest.mark.slow
@pytest.mark.parametrize("test", sorted({edit.test for edit in EDITS.values()}))
def test_the_named_tests_pass_on_an_unedited_copy(test, tmp_path):
    shutil.copytree(SOURCE, tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    result = run_test(tmp_path / "src", test)
    assert result.returncode == 0, result.stdout[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("name", EDITS)
def test_the_named_test_fails_on_the_mutant(name, tmp_path):
    result = run_test(edited(EDITS[name], tmp_path), EDITS[name].test)
    assert result.returncode == 1, result.stdout[-2000:]  # 1: a test failed; anything else is no answer
