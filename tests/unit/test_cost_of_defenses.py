"""What ``check`` says defences at gradients cost: pieces if they have some, else one client's whole call."""

import math
import time
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from glasshouse.audit.cost import clock as clocks
from glasshouse.audit.cost import defended
from glasshouse.audit.cost import estimate as costs
from glasshouse.audit.cost.cached import CountedWork
from glasshouse.audit.cost.defended import Defenses, pieces_of
from glasshouse.audit.cost.probe import Stopwatch
from glasshouse.audit.cost.timings import Known, Timing
from glasshouse.audit.simulation import rehearsal
from glasshouse.audit.simulation.rehearsal import Played, shortened, without_timed_defenses
from glasshouse.federation.defenses.soteria import _ROWS, Soteria
from glasshouse.interfaces import HasPieces, Piece
from glasshouse.rng import Rng
from glasshouse.scenario.axes import cells
from glasshouse.scenario.load import load
from glasshouse.wire import Batch, Mechanism, Update

SCENARIO = ["axes={}", "federation.clients=3", "federation.rounds=5"]


class Slow:
    """A defence of a minute per client, as an author would write it who knows nothing of ``check``."""

    place = "gradient"

    def __init__(self, called):
        self.called = called

    def describe(self):
        return Mechanism(name="slow", place="gradient", parameters={})

    def gradient(self, update, batch, model, *, rng):
        self.called.append("whole")
        return update


class Declared(Slow):
    """The same, in pieces: one thousandth of the work of an example, and what it does once."""

    def pieces(self, update, batch, model):
        return (
            Piece(run=lambda: self.called.append("example"), times=1000 * len(batch)),
            Piece(run=lambda: self.called.append("once"), times=1),
        )


def scenario_with(monkeypatch, defense, *sets):
    """A federation of three clients and five rounds whose one defence is ``defense``."""
    for module in (rehearsal, defended):
        monkeypatch.setattr(module, "timed_defenses", lambda s: [(p, defense) for p in s.defenses])
    sets = [*SCENARIO, 'defenses=[{name="soteria", share=0.5}]', *sets]
    (scenario,) = load("quickstart-ggl", sets).scenarios
    return scenario


def clock(monkeypatch, called, seconds):
    """CPU time that passes only in the calls of a defence."""
    now = SimpleNamespace(process_time=lambda: sum(seconds[name] for name in called))
    monkeypatch.setattr(clocks, "time", now)


def seconds_of(scenario, **keywords):
    return Defenses(**{"exhausted": lambda: False, "gradient": lambda _: 1.0, **keywords}).seconds(scenario)


def test_a_slow_defence_without_pieces_is_called_once_for_one_client(monkeypatch):
    called = []
    clock(monkeypatch, called, {"whole": 60.0})
    scenario = scenario_with(monkeypatch, Slow(called))
    assert seconds_of(scenario) == 60.0
    assert called == ["whole"]


def test_a_slow_defence_with_pieces_is_never_called(monkeypatch):
    called = []
    clock(monkeypatch, called, {"example": 0.06, "once": 2.0})
    scenario = scenario_with(monkeypatch, Declared(called), "federation.batch_size=4", "data.examples=4")
    assert seconds_of(scenario) == pytest.approx(4 * 60.0 + 2.0)
    assert "whole" not in called
    assert called.count("once") == 1  # of two seconds: not repeated


def test_a_setting_is_timed_once_and_told_from_another_when_time_is_over(monkeypatch):
    called, over = [], []
    clock(monkeypatch, called, {"whole": 60.0})
    (one, four) = (
        scenario_with(monkeypatch, Slow(called), f"federation.batch_size={size}", "data.examples=4")
        for size in (1, 4)
    )
    timer = Defenses(exhausted=lambda: bool(over), gradient=lambda s: 0.5 * s.federation.batch_size)
    assert (timer.seconds(one), timer.seconds(one)) == (60.0, 60.0)
    over.append(True)
    assert timer.seconds(four) == 4 * 60.0
    assert called == ["whole"]


def test_a_federation_is_played_without_them_and_every_client_of_every_round_pays(monkeypatch):
    asked = []

    class Timer:
        device, exhausted, spent = "cpu", False, False

        def simulation(self, scenario, *, cold):
            asked.append((len(scenario.defenses), cold))
            return Played(first=1.0 if cold else 0.0, one=2.0, further=0.5)

        def defenses(self, scenario):
            return 10.0

        def pretraining(self, scenario):
            return Timing(unit=0.0)

        def scoring(self, scenario):
            return None

        def attack(self, scenario, plugin, budget):
            return None

    soteria = '[{label="plain", value=[]}, {label="soteria", value=[{name="soteria", share=0.5}]}]'
    axes = f"axes={{defenses={soteria}}}"
    (scenario,) = load("quickstart-ggl", [*SCENARIO[1:], axes, "audit.controls=false"]).scenarios
    rows = {row["part"]: row for row in costs.cost(scenario, Known(Timer()), CountedWork())}
    assert asked == [(0, True)]  # one play for both federations
    assert rows["simulation"]["seconds"] == 1.0 + 2 * (2.0 + 4 * 0.5) + 5 * 3 * 10.0
    defended_cell = cells(scenario)[1].scenario
    assert shortened(defended_cell).defenses == without_timed_defenses(defended_cell).defenses == ()


def test_the_defence_that_is_a_minute_long_has_pieces_that_add_up():
    """Soteria differentiates every feature of every example, ``_ROWS`` features in one backward pass."""
    model = nn.Sequential(nn.Conv2d(1, 40, 3), nn.ReLU(), nn.Flatten(), nn.Linear(40 * 36, 3))
    batch = Batch(inputs=torch.rand(3, 1, 8, 8), labels=torch.tensor([0, 1, 2]))
    tensors = {name: p.detach() for name, p in model.named_parameters()}
    update = Update(round=0, client=0, kind="gradient", tensors=tensors, examples=3)
    soteria = Soteria(share=0.5)
    assert isinstance(soteria, HasPieces)
    pieces = pieces_of(soteria, update, batch, model)
    assert [piece.times for piece in pieces] == [1, 3, 3 * math.ceil(40 * 36 / _ROWS)]

    def spent(run):
        started = time.process_time()
        run()
        return time.process_time() - started

    for piece in pieces:
        piece.run()
    told = sum(piece.times * min(spent(piece.run) for _ in range(5)) for piece in pieces)
    whole = min(spent(lambda: soteria.gradient(update, batch, model, rng=Rng.root(0))) for _ in range(3))
    assert whole / 2 < told < 2 * whole


def test_a_federation_that_will_refuse_costs_no_defence():
    sets = ['defenses=[{name="soteria", share=0.5, layer="nowhere"}]', "axes={}"]
    (scenario,) = load("quickstart-ggl", sets).scenarios
    assert Stopwatch().defenses(scenario) == 0.0
