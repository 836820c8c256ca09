"""Certificates and controls fail closed, and what a loss learns of the truth reaches no claim."""

from pathlib import Path

import pytest
from tests.worlds import installed

from glasshouse.audit.replay import replay
from glasshouse.audit.run import audit
from glasshouse.scenario.load import from_dict
from glasshouse.scenario.suite import Member, Suite

PLUGINS = Path(__file__).parent / "plugins"
LIARS = {
    "only_in_its_control": "OnlyInItsControl",
    "more_effort": "MoreEffortInItsControl",
    "nothing_about_anybody": "NothingAboutAnybody",
    "remembers_the_truth": "RemembersTheTruth",
    "reads_earlier_runs": "ReadsEarlierRuns",
    "says_what_it_met": "SaysWhatItMet",
}
SAID = (
    "raises",
    "warns",
    "answers",
    "answers in Python",
    "answers a number",
    "answers no losses",
    "answers NaN",
)


@pytest.fixture(scope="module")
def liars(tmp_path_factory):
    place = tmp_path_factory.mktemp("liars")
    with installed(place, PLUGINS, "liars", LIARS):
        yield place


def run(out: Path, attacks: list, clients: int = 40, **changes):
    """An undefended federation that ``linear_input`` opens."""
    raw = {
        "name": "liars",
        "data": {"auxiliary": 200, "heldout": 100, "examples": 1},
        "model": {"name": "mlp"},
        "federation": {"clients": clients, "batch_size": 1},
        "attacks": attacks,
        "audit": {"metrics": ["psnr"], "victims": clients, "utility": False},
        "policy": {"max_gain": {"psnr": 1.0}},
        **changes,
    }
    suite = Suite(name="liars", members=(Member(scenario=from_dict(raw)),), given="liars")
    return audit(suite, out=out, jobs=1)


@pytest.fixture(scope="module")
def result(liars):
    kinds = ("constant", "nan", "infinite", "raises", "noise", "honest")
    attacks = [{"name": "only_in_its_control", "label": kind, "loss": kind} for kind in kinds]
    others = [{"name": name} for name in ("more_effort", "nothing_about_anybody", "linear_input")]
    return run(liars / "run", [*attacks, *others])


@pytest.mark.parametrize("kind", ["constant", "nan", "infinite", "raises", "noise", "honest"])
def test_an_attack_that_works_in_its_control_alone_shows_nothing(result, kind):
    (finding,) = [f for f in result.findings if f.attack == kind]
    assert finding.control.passed
    assert finding.verdict == "not shown"
    assert finding.unfinished == finding.n or finding.power is None or finding.power.found == 0


@pytest.mark.parametrize("attack", ["more_effort", "nothing_about_anybody"])
def test_more_effort_in_the_control_and_empty_claims_have_no_power(result, attack):
    (finding,) = [f for f in result.findings if f.attack == attack]
    assert finding.verdict == "no power"
    assert "effort" in finding.reason or "claimed nothing" in finding.reason


def test_no_limit_holds_on_the_word_of_a_liar(result):
    states = [limit.state for limit in result.limits]
    assert len(states) == len({f.attack for f in result.findings})
    assert "holds" not in states
    assert states.count("broken") == 1
    assert next(f for f in result.findings if f.attack == "linear_input").verdict == "leaks"


def test_what_a_loss_was_asked_about_makes_no_later_run_better(liars):
    """Behind noise of deviation 10 the second run was perfect, controls passed and both replays equal."""
    defended = {"defenses": [{"name": "gaussian_noise", "std": 10.0}], "policy": {}}
    attacks = [{"name": "remembers_the_truth"}]
    first, second = (run(liars / name, attacks, clients=6, **defended) for name in ("first", "second"))
    values = [finding.value for one in (first, second) for finding in one.findings]
    assert max(values) < 25
    assert all(row["same"] for row in replay(liars / "second", "remembers_the_truth"))


def test_a_replay_hides_other_runs_of_the_same_data(liars):
    """They are of the same private data, and lie beside the run by default."""
    place = liars / "runs"
    reader = [{"name": "reads_earlier_runs", "place": str(place)}]
    defended = {"defenses": [{"name": "gaussian_noise", "std": 10.0}], "policy": {}}
    for name in ("first", "second"):
        result = run(place / name, reader, clients=4, **defended)
    assert max(finding.value for finding in result.findings) > 60
    assert not any(row["same"] for row in replay(place / "second", "reads_earlier_runs"))


@pytest.mark.integration
def test_no_word_of_a_loss_that_met_the_truth_leaves_its_process(liars, capfd):
    """In the text of an error a whole digit stood in result.json, on the page and in the log."""
    place = liars / "said"
    attacks = [{"name": "says_what_it_met", "label": how, "how": how} for how in SAID]
    result = run(place, attacks, clients=2, policy={})
    assert "MET#" not in "".join(capfd.readouterr())
    written = [p for p in place.rglob("*") if p.suffix in (".json", ".jsonl", ".html")]
    assert {p.name for p in written} >= {"result.json", "log.jsonl"}
    assert not [p for p in written if "MET#" in p.read_text(encoding="utf-8")]
    reasons = {f.attack: " ".join(s.reason for s in f.searches) for f in result.findings}
    assert "RuntimeError; what it said is withheld" in reasons["raises"]
    assert {f.verdict for f in result.findings} == {"not shown"}
    assert all(f.unfinished == f.n for f in result.findings if f.attack != "warns")
