"""What an attack does to its process ends nothing but its own unit; honest ones after it are as alone."""

import sys

import pytest
from tests.wall.cheated import PLUGINS, RAW, finding, refusals, run_audit
from tests.wall.plugins.hostile_attacks import DOES, SLOW
from tests.worlds import installed

from glasshouse.audit.attacking.patience import CALL_LIMIT, call_limit
from glasshouse.errors import BadValue

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes start and end otherwise")
RAISES = {"cancels": "CancelledError", "interrupts": "KeyboardInterrupt"}
CLAIMS = ("loses the folder", "shouts", "closes the streams")


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    """One audit in which an honest attack follows every hostile one, with what its processes wrote."""
    place = tmp_path_factory.mktemp("hostile")
    attacks = []
    for how in DOES:
        attacks += [
            {"name": "hostile", "label": how, "how": how},
            {"name": "linear_input", "label": f"after: {how}"},
        ]
    with installed(place, PLUGINS, "hostile_attacks", {"hostile": "Hostile"}):
        yield run_audit(place / "run", [RAW["attacks"][0], *attacks])


@pytest.mark.parametrize("how", DOES)
def test_an_honest_attack_gets_the_same_after_it(how, audited):
    alone, after = (finding(audited, name) for name in ("linear_input", f"after: {how}"))
    assert (after.value, after.gain, after.verdict, after.n) == (alone.value, alone.gain, "leaks", 8)


@pytest.mark.parametrize("how", RAISES)
def test_what_is_raised_is_a_refusal_of_every_unit(how, audited):
    said = [r.got for r in audited.refusals if r.needs == "a plug-in that runs through"]
    assert sum(got.startswith(RAISES[how]) for got in said) == 8
    assert finding(audited, how) is None


def test_an_attack_that_ends_its_process_is_refused_and_the_audit_goes_on(audited):
    assert refusals(audited, "hostile").count("a process that lives until its claims are made") == 8


@pytest.mark.parametrize("how", CLAIMS)
def test_who_only_disturbs_is_scored(how, audited):
    assert finding(audited, how).verdict == "leaks"


def test_who_replaces_what_files_are_written_with_loses_its_own_claims_alone(audited):
    assert refusals(audited, "hostile").count("claims that are written as they are") == 8


def test_its_control_is_as_far_from_others_as_its_claims(tmp_path, monkeypatch):
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path / "cache"))
    hostile = {"name": "hostile", "how": "replaces json.dumps"}
    with installed(tmp_path, PLUGINS, "hostile_attacks", {"hostile": "Hostile"}):
        audited = run_audit(tmp_path / "run", [hostile, RAW["attacks"][0]], victims=1, controls=True)
    honest = finding(audited, "linear_input")
    assert honest.control.passed
    assert refusals(audited, "hostile") == ["claims that are written as they are"]


@pytest.mark.parametrize("how", SLOW)
def test_a_call_that_does_not_end_is_refused_at_the_users_limit(tmp_path, monkeypatch, how):
    """One that answers to an interrupt in time, one that hears none with its process."""
    monkeypatch.setenv(CALL_LIMIT, "0.5 s")
    hostile = {"name": "hostile", "how": how}
    with installed(tmp_path, PLUGINS, "hostile_attacks", {"hostile": "Hostile"}):
        audited = run_audit(tmp_path / "run", [RAW["attacks"][0], hostile], victims=1)
    assert finding(audited, "linear_input").n == 1
    says = {"waits long": "a call that ends within GLASSHOUSE_CALL_LIMIT = 0.5 s",
            "hangs": "a process that lives until its claims are made"}  # fmt: skip
    assert says[how] in refusals(audited, "hostile")


@pytest.mark.parametrize("text", ["soon", "0 s", "-1 h"])
def test_a_limit_is_a_duration(monkeypatch, text):
    monkeypatch.setenv(CALL_LIMIT, text)
    with pytest.raises(BadValue, match=CALL_LIMIT):
        call_limit()
