"""An error that nobody foresaw: exit code 70, a report of it, and no traceback unless asked for."""

import pytest

from glasshouse.cli.main import main
from glasshouse.cli.parts.failure import failure_report, write_failure
from glasshouse.errors import BadValue


def outcome(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    return stop.value.code, capsys.readouterr().err


@pytest.fixture
def broken(monkeypatch):
    """An audit that fails in the middle, after the command line was read."""

    def fails(*_: object, **__: object) -> None:
        raise ZeroDivisionError("nobody thought of this")

    monkeypatch.setattr("glasshouse.api.audit.audit", fails)


def test_a_report_in_the_run_directory_and_exit_code_70(broken, tmp_path, capsys):
    run = tmp_path / "run"
    code, output = outcome(["audit", "dlg", "--out", str(run), "--device", "cpu"], capsys)
    assert code == 70
    assert "got     ZeroDivisionError: nobody thought of this" in output
    assert str(run / "failure.txt") in output
    assert "--resume" in output
    assert "Traceback" not in output
    report = (run / "failure.txt").read_text()
    assert "Traceback" in report
    assert "nobody thought of this" in report


@pytest.mark.parametrize("place", [0, 1, 4])
def test_debug_shows_the_traceback_wherever_it_stands(place, broken, tmp_path):
    arguments = ["audit", "dlg", "--out", str(tmp_path / "run")]
    arguments.insert(place, "--debug")
    with pytest.raises(ZeroDivisionError):
        main(arguments)


def test_an_error_of_ours_leaves_no_report(tmp_path):
    error = BadValue("x", needs="a", got="b", fix="c")
    with pytest.raises(BadValue), failure_report(tmp_path):
        raise error
    assert not (tmp_path / "failure.txt").exists()


def test_a_report_that_cannot_be_written_hides_nothing(tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert "could not be written" in write_failure(ValueError("x"), tmp_path / "file")
