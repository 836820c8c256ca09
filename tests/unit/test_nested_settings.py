"""Settings of one thing stand in one table: a dataclass field of the plug-in, and a table of the scenario."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import pytest

from glasshouse import registry
from glasshouse.audit.attacking.needs import attack_of
from glasshouse.registry import Card
from glasshouse.scenario.plugins import plugin_problems
from glasshouse.scenario.table import Plugin


@dataclass(frozen=True, kw_only=True)
class Training:
    steps: int = 100
    schedule: Literal["constant", "cosine"] = "constant"
    shares: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Trained:
    card: ClassVar[Card] = Card(summary="toy")

    training: Training = field(default_factory=lambda: Training(schedule="cosine"))
    restarts: int = 1


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    monkeypatch.setattr(registry, "names", lambda group: ("trained",))
    monkeypatch.setattr(registry, "load", lambda group, name: Trained)
    monkeypatch.setattr("glasshouse.audit.attacking.needs.load", lambda group, name: Trained)


def problems(**arguments):
    return plugin_problems("attacks", "attacks[0]", Plugin.model_validate({"name": "trained", **arguments}))


def test_a_table_becomes_the_dataclass():
    assert attack_of(
        Plugin.model_validate({"name": "trained", "training": {"steps": 5}, "restarts": 2})
    ) == Trained(training=Training(steps=5, schedule="cosine"), restarts=2)
    assert attack_of(Plugin(name="trained")) == Trained()


def test_all_arguments_with_their_values_by_path():
    assert registry.flat_settings(Trained, {"training": {"steps": 5}}) == {
        "training.steps": 5,
        "training.schedule": "cosine",
        "training.shares": (),
        "restarts": 1,
    }


@pytest.mark.parametrize(
    ("path", "takes"),
    [("training", True), ("training.steps", True), ("training.step", False), ("steps", False)],
)
def test_a_path_leads_to_an_argument_or_nowhere(path, takes):
    assert registry.takes(Trained, path.split(".")) is takes


def test_a_right_table_has_no_problems():
    assert problems(training={"steps": 5, "schedule": "cosine", "shares": (0.1, 0.2)}) == []


@pytest.mark.parametrize(
    ("table", "path", "needs", "hint"),
    [
        ({"step": 5}, "attacks[0].training.step", "one of steps, schedule, shares", "did you mean steps?"),
        ({"steps": 0.5}, "attacks[0].training.steps", "an int", ""),
        ({"schedule": "cosin"}, "attacks[0].training.schedule", "one of constant, cosine", "mean cosine"),
        (5, "attacks[0].training", "a table", ""),
    ],
)
def test_every_mistake_in_a_table_is_named_by_its_path(table, path, needs, hint):
    (problem,) = problems(training=table)
    assert (problem.path, problem.needs) == (path, needs)
    assert hint in problem.hint
