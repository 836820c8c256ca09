"""What ``check`` says an audit will cost: how evaluations are counted, and what a probe shortens."""

import json

import pytest

from glasshouse.attacks.inversion.ggl.attack import GGL
from glasshouse.attacks.inversion.inverting_gradients import InvertingGradients
from glasshouse.attacks.inversion.linear_input import LinearInput
from glasshouse.audit import cost as costs
from glasshouse.scenario.load import load


def rows(name, *sets, probe=False):
    (scenario,) = load(name, list(sets)).scenarios
    return {row["attack"]: row for row in costs.cost(scenario, probe=probe)}


def test_evaluations_are_calls_times_trials_times_the_length_of_a_search():
    """Seven settings of four clients: 28 calls."""
    found = rows("ggl-paper")
    assert found["GGL"]["calls"] == 28
    assert found["GGL"]["evaluations"] == 28 * 4 * 40_000
    assert found["IG, adaptive"]["evaluations"] == 28 * 4 * 8_000
    assert found["GGL"]["seconds"] is None


def test_a_closed_form_counts_once_per_call():
    assert costs.budget_of(LinearInput()) is None
    assert costs._evaluations(LinearInput()) == 1


@pytest.mark.parametrize(
    ("attack", "short"),
    [
        (InvertingGradients(), {"iterations": 3}),
        (InvertingGradients(iterations=2), {"iterations": 2}),
        (GGL(), {"evaluations": 50, "training_steps": 3, "processes": 1}),
        (GGL(population=2, processes=4), {"evaluations": 3, "training_steps": 3, "processes": 1}),
        (GGL(evaluations=7), {"evaluations": 7, "training_steps": 3, "processes": 1}),
    ],
)
def test_a_probe_is_shorter_in_whatever_the_attack_calls_its_budget(attack, short):
    assert costs.shortened(attack) == short


def test_a_search_in_a_generator_is_probed_by_one_population(tmp_path, monkeypatch):
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path))
    tasks, ran = [], costs.run_attack
    monkeypatch.setattr(costs, "run_attack", lambda task: (tasks.append(task), ran(task))[1])
    monkeypatch.setattr(costs.time, "process_time", lambda: 2.0 * len(tasks))  # two seconds a call
    short = ["defenses=[]", "attacks.0.restarts=2", "attacks.0.evaluations=1000", "attacks.0.population=4"]
    (row,) = rows("quickstart-ggl", *short, probe=True).values()
    assert {json.loads(task.arguments)["evaluations"] for task in tasks} == {4}
    assert row["evaluations"] == 8 * 2 * 1000
    assert row["seconds"] == pytest.approx(2.0 / (2 * 4) * row["evaluations"])
