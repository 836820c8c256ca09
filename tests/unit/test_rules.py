"""Rules of verdicts and policies that a mutant would break, each in a test that takes no time."""

from types import SimpleNamespace

import pytest
import report_specimen as specimen

from glasshouse.audit.scoring.judging import control as module
from glasshouse.audit.scoring.judging.policy import state_of_accuracy, state_of_gain
from glasshouse.metrics.statistics.interval import Interval
from glasshouse.results.records import Control, Utility
from glasshouse.scenario.table import Plugin


def interval(low: float, high: float) -> Interval:
    return Interval(value=(low + high) / 2, low=low, high=high, n=6, level=0.95)


class Numbers:
    values = (1, 2, 3)
    clients = ()


@pytest.mark.parametrize(
    ("honest", "unrelated", "passed"),
    [((1.0, 3.0), (-3.0, 1.0), True), ((1.0, 3.0), (1.0, 3.0), False), ((-1.0, 3.0), (-3.0, 1.0), False)],
)
def test_an_attack_that_gains_on_unrelated_victims_fails_its_control(honest, unrelated, passed, monkeypatch):
    gains = iter([interval(*honest), interval(*unrelated)])
    monkeypatch.setattr(module, "gain_of", lambda scored, metric, rng: next(gains))
    monkeypatch.setattr(module, "score_outcomes", lambda *_: Numbers())
    monkeypatch.setattr(module, "rotate_victims", lambda truth: truth)
    ground = SimpleNamespace(truth=None, against=lambda truth: None)
    monkeypatch.setattr(module, "read_ground", lambda *_: (ground, None))
    task = module.ControlTask(key="", plugin=Plugin(name="linear_input"), folder="")
    failed = Control(passed=False, setting="", n=0, metric="psnr")
    result = module._judge(task, {"metric": "psnr"}, [], failed)
    assert (result.passed, result.n) == (passed, 3)


@pytest.mark.parametrize(
    ("low", "high", "state"),
    [(0.1, 0.2, "holds"), (0.2, 0.5, "undecided"), (0.25, 0.9, "undecided"), (0.4, 0.6, "broken")],
)
def test_a_limit_holds_only_where_the_whole_interval_is_within_it(low, high, state):
    finding = specimen.finding(gain=(low + high) / 2, half=(high - low) / 2)
    assert state_of_gain(finding, 0.36)[0] == state


@pytest.mark.parametrize(
    ("low", "high", "state"), [(0.8, 0.9, "holds"), (0.6, 0.9, "undecided"), (0.5, 0.6, "broken")]
)
def test_an_accuracy_below_the_least_one_is_broken(low, high, state):
    utility = Utility(
        scenario="s",
        cell="c",
        axes={},
        defenses=(),
        metric="accuracy",
        value=(low + high) / 2,
        low=low,
        high=high,
        n=60,
        rounds=1,
    )
    assert state_of_accuracy(utility, 0.7)[0] == state
