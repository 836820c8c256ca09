"""``[guard]`` in a scenario: clients that look at models and updates, and what the report says of it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from glasshouse.audit.run import audit
from glasshouse.audit.simulation.guard import SimulatedGuard
from glasshouse.errors import BadScenario
from glasshouse.figures.base import CellEvidence, Federation, GuardDecision
from glasshouse.figures.crafted_models import ClientGuardFigure
from glasshouse.results.exhibits import Place
from glasshouse.results.files import read_result
from glasshouse.scenario.load import from_dict
from glasshouse.scenario.suite import Member, Suite
from glasshouse.scenario.table import Guard
from glasshouse.testing.figure_contract import FigureContract, toy_cell
from glasshouse.wire import Batch, Update

TRAPS = {
    "name": "guarded",
    "data": {"examples": 64, "auxiliary": 270, "heldout": 100},
    "model": {"name": "mlp", "hidden": "256,32"},
    "federation": {"clients": 2, "batch_size": 64, "rounds": 2},
    "threat": {"changes": ["parameters"]},
    "attacks": [{"name": "cah"}],
    "audit": {"metrics": ["rate_blind"], "rounds": [1], "controls": False},
}


class TestClientGuardFigure(FigureContract):
    @pytest.fixture
    def figure(self):
        return ClientGuardFigure()

    @pytest.fixture
    def cell(self, tmp_path):
        cell = toy_cell(tmp_path)
        seen = GuardDecision(round=0, client=0, about="model", findings=("odd",), outcome="refused")
        federations = tuple(replace(one, guard=(seen,)) for one in cell.federations)
        return replace(cell, federations=federations)


def play(run: Path, **guard: str) -> None:
    """The audit of trap weights, with a guard that does this."""
    member = Member(scenario=from_dict({**TRAPS, "guard": guard}))
    audit(Suite(name="guarded", members=(member,)), out=run, jobs=1)


def tables(run: Path) -> dict[str, list[list[object]]]:
    shown = read_result(run / "result.json").exhibits
    return {one.title: one.data["rows"] for one in shown if "clients looked" in one.title}


def test_clients_refuse_a_crafted_model_in_its_round(tmp_path):
    play(tmp_path / "run", models="refused")
    rows = tables(tmp_path / "run")["Models that clients looked at"]
    assert [row[:6] for row in rows] == [["cah", 1, 2, 2, 2, 2], ["cah", "all others", 2, 0, 0, 2]]
    assert "would give away" in rows[0][6]
    result = read_result(tmp_path / "run" / "result.json")
    assert not result.findings
    assert any("round 1: neither" in one.got for one in result.refusals)


@pytest.mark.slow
def test_a_watched_model_is_trained_on_all_the_same(tmp_path):
    play(tmp_path / "run", models="watched")
    rows = tables(tmp_path / "run")["Models that clients looked at"]
    assert rows[0][:5] == ["cah", 1, 2, 2, 0]
    assert read_result(tmp_path / "run" / "result.json").findings


@pytest.mark.slow
def test_mitigated_updates_leak_less(tmp_path):
    leaks = []
    for does in ("sent", "mitigated"):
        play(tmp_path / does, updates=does)
        leaks.append(read_result(tmp_path / does / "result.json").findings[0].value)
    assert leaks[0] > 0.2
    assert leaks[1] < leaks[0] / 4
    rows = tables(tmp_path / "mitigated")["Updates that clients looked at"]
    assert sum(row[2] for row in rows) == 4
    assert "sent" not in tables(tmp_path / "sent")


def test_a_table_that_asks_for_nothing_checks_nothing():
    guard = SimulatedGuard(does=Guard(), agreed=nn.Linear(2, 2))
    batch = Batch(inputs=torch.rand(1, 1, 1, 2), labels=torch.zeros(1, dtype=torch.int64))
    update = Update(round=0, client=0, kind="gradient", tensors={"weight": torch.ones(2, 2)}, examples=1)
    assert guard.accepts(nn.Linear(3, 3), batch, round=0, client=0)
    assert guard.release(update, nn.Linear(2, 2), batch) is update
    assert not guard.decisions


def test_a_look_at_too_few_examples_is_recorded_as_none():
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2))
    guard = SimulatedGuard(does=Guard(models="refused"), agreed=model)
    batch = Batch(inputs=torch.rand(4, 1, 4, 4), labels=torch.tensor([0, 1, 0, 1]))
    assert guard.accepts(model, batch, round=0, client=0)
    assert guard.decisions[0]["outcome"] == "trained on, not judged: 4 examples are too few, 16 are needed"


def test_the_figure_counts_answers_before_the_first_refusal():
    def look(round: int, client: int, odd: bool) -> GuardDecision:
        findings, outcome = (("odd",), "refused") if odd else ((), "trained on")
        return GuardDecision(round=round, client=client, about="model", findings=findings, outcome=outcome)

    looks = tuple(look(r, c, r == 2 and c == 1) for r in range(4) for c in range(2))
    one = Federation(folder=Path("none"), active="cah", guard=looks)
    cell = CellEvidence(place=Place(scenario="toy", axes={}), federations=(one,), attacks=())
    (shown,) = ClientGuardFigure().draw(cell)
    assert shown.data["rows"] == [["cah", 2, 2, 1, 1, 4, "odd"], ["cah", "all others", 6, 0, 0, 4, ""]]


@pytest.mark.parametrize(
    ("federation", "guard", "path"),
    [
        ({"protocol": "fedmd"}, {"models": "refused"}, "guard.models"),
        ({"protocol": "fedavg", "sends": "parameters"}, {"updates": "mitigated"}, "guard.updates"),
        ({}, {"models": "asked"}, "guard.models"),
    ],
)
def test_what_cannot_be_guarded_is_refused(federation, guard, path):
    with pytest.raises(BadScenario, match=path):
        from_dict({"name": "toy", "attacks": ["idlg"], "federation": federation, "guard": guard})
