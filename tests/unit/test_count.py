"""What ``check`` counts: the same plan as the run, torch's own counters, and an order of magnitude."""

from types import SimpleNamespace

import pytest
import torch

from glasshouse.attacks.parts.matching.step_order import SWAPS, TURNS
from glasshouse.audit import room
from glasshouse.audit.count import GRADIENT, Cost, Speed, count, magnitude, measure_speed
from glasshouse.audit.plan import plan
from glasshouse.audit.remaining import UNSEEN, Remaining
from glasshouse.audit.run import audit
from glasshouse.errors import DiskFull
from glasshouse.scenario.load import load


def rows(*changes):
    return {row.part: row for row in count(load("digits-inversion", list(changes)))}


def test_every_call_of_the_plan_is_counted(tmp_path):
    """The run makes one claim folder per call: clients seen in attacked rounds, by cell and seed."""
    suite = load("digits-inversion", ["audit.seeds=[0, 1, 2]"])
    (scenario,) = suite.scenarios
    victims = min(scenario.audit.victims, scenario.federation.cohort_size)
    plans = plan(suite, tmp_path)
    assert rows("audit.seeds=[0, 1, 2]")["inverting_gradients"].calls == 3 * victims * len(plans)


def test_iterations_are_those_of_the_search():
    few = rows("attacks=[{name='inverting_gradients', search={iterations=7, restarts=2}}]")
    row = few["inverting_gradients"]
    assert (row.unit, row.amount) == ("iterations", 14 * row.calls)


def test_a_search_that_repeats_local_steps_pays_for_each():
    """Eight images in batches of two for two epochs: eight steps, and swaps between them."""
    attack = (
        "attacks=[{{name='inverting_gradients', search={{iterations=40, restarts=1}}, local_steps='{}'}}]"
    )
    fedavg = ["federation.protocol='fedavg'", "federation.batch_size=2", "federation.local_epochs=2"]
    fedavg += ["data.examples=8", "axes={}"]
    once = rows(attack.format("one_step"), *fedavg)["inverting_gradients"]
    each = rows(attack.format("simulate"), *fedavg)["inverting_gradients"]
    searches = once.amount // 40
    gradient = once.cost.operators / (40 * 3 * searches)
    tried = TURNS * SWAPS
    assert each.cost.operators == pytest.approx(searches * gradient * (20 * 3 + (20 * 3 + tried) * 8))
    assert each.cost.operations / once.cost.operations == pytest.approx(0.5 + 2 * (0.5 + tried / 120))


def test_one_batch_in_every_pass_has_no_order_to_be_sought():
    attack = "attacks=[{name='inverting_gradients', search={iterations=40, restarts=1}}]"
    fedavg = ["federation.protocol='fedavg'", "federation.batch_size=8", "data.examples=8", "axes={}"]
    one, three = (
        rows(attack, *fedavg, f"federation.local_epochs={n}")["inverting_gradients"] for n in (1, 3)
    )
    assert three.cost.operations == pytest.approx(3 * one.cost.operations)


def test_scores_are_in_the_total():
    few, many = (rows(f"audit.metrics={names}") for names in ('["psnr"]', '["psnr", "mse", "ssim"]'))
    assert many["scoring"].cost.operators == pytest.approx(3 * few["scoring"].cost.operators)
    assert few["total"].cost.operators > few["scoring"].cost.operators > 0


def test_a_control_is_counted_once_for_all_scenarios():
    parts = [row for row in count(load("quickstart", [])) if row.part == "control: inverting_gradients"]
    assert [row.calls for row in parts] == [1]


def test_operations_of_a_linear_network_are_known(tmp_path, monkeypatch):
    """One linear layer D -> K: 2 D K operations a pass, three passes a gradient."""
    (tmp_path / "own_linear.py").write_text(
        "from torch import nn\n\ndef net(input_shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    changes = ["model.name='own_linear:net'", "attacks=[{name='label_inference'}]", "audit.controls=false"]
    row = {r.part: r for r in count(load("digits-inversion", changes))}["simulation"]
    assert row.cost.operations == GRADIENT * 2 * 64 * 10 * row.amount


def test_a_batch_costs_operations_and_shares_operators():
    one = Cost(operations=10, operators=4)
    assert one.times(3, examples=5) == Cost(operations=150, operators=12)
    assert one.seconds(Speed(operations=5, operators=2)) == pytest.approx(4)


def test_speed_is_measured_and_leaves_threads_alone():
    before = torch.get_num_threads()
    speed = measure_speed(0.05)
    assert speed.operations > 1e7
    assert speed.operators > 100
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(29, "some seconds"), (31, "about a minute"), (7200, "some 2 hours"), (1e9, "some 11574 days")],
)
def test_no_finer_than_an_order_of_magnitude(seconds, words):
    assert magnitude(seconds) == words


def test_remaining_time_corrects_itself():
    run = Remaining(jobs=1, expected={"attacks": 4, "scores": 2}, clock=lambda: 0.0)
    run.finish("attacks", 10)
    assert run.seconds == pytest.approx(30 + UNSEEN * 40)
    run.finish("attacks", 2)  # faster than the first
    assert run.seconds == pytest.approx(12 + UNSEEN * 24)
    run.finish("attacks", 6, steps=2)
    run.finish("scores", 1)
    assert run.seconds == pytest.approx(1)
    run.finish("scores", 1)
    assert run.seconds == 0


def test_remaining_time_is_that_of_a_clock_on_the_wall():
    """Half of the machine is busy with something else: two processes advance as one would."""
    now = [0.0]
    run = Remaining(jobs=2, expected={"attacks": 4}, clock=lambda: now[0])
    now[0] = 20
    run.finish("attacks", 20)
    assert run.seconds == pytest.approx(60)
    now[0] = 40  # the others are gone, and both cores are ours
    for _ in range(2):
        run.finish("attacks", 30)
    assert run.seconds == pytest.approx(80 / 3 / 2)


def test_attacks_of_which_none_has_finished_are_taken_for_the_mean_of_the_others():
    run = Remaining(jobs=1, expected={"attacks: dlg": 2, "attacks: spear": 2}, clock=lambda: 0.0)
    run.finish("attacks: dlg", 100)
    assert run.seconds == pytest.approx(100 + 200)
    run.finish("attacks: spear", 1)
    assert run.seconds == pytest.approx(100 + 1)


def test_the_federations_of_planted_leaks_and_their_attacks_are_counted():
    """A defended cell costs a second federation; an undefended one stands for itself."""
    defended = rows('defenses=[{name="clip", norm=1.0}]')
    assert defended["planted leaks: simulation"].calls == 1
    assert defended["planted leaks: attacks"].calls == 2 * 8  # two attacks on eight canaries
    assert "planted leaks: simulation" not in rows("defenses=[]")
    assert "planted leaks: simulation" not in rows('defenses=[{name="clip", norm=1.0}]', "audit.planted=0")


def test_the_bytes_that_a_run_leaves_are_said_and_more_data_leave_more():
    few, many = (rows(f"data.auxiliary={count}")["disk"] for count in (200, 400))
    assert few.unit == "bytes"
    assert (
        many.amount - few.amount == 2 * 2 * 200 * 64 * 4
    )  # of two cells, beside the truth and among the grants
    assert str(few).startswith("some ")


def test_a_run_without_room_is_refused_before_it_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(room.shutil, "disk_usage", lambda place: SimpleNamespace(free=1000))
    suite = load("digits-inversion")
    with pytest.raises(DiskFull, match="1 kB free"):
        audit(suite, out=tmp_path / "run", jobs=1)
    assert not (tmp_path / "run").exists()


def test_the_estimate_is_of_the_size_that_a_run_leaves(tmp_path):
    suite = load(
        "digits-inversion",
        ["attacks=[{name='linear_input'}]", "model.name='mlp'", "federation.clients=2", "audit.victims=2",
         "axes={}", "audit.controls=false"],
    )  # fmt: skip
    said = next(row.amount for row in count(suite) if row.part == "disk")
    left = audit(suite, out=tmp_path / "run", jobs=1).manifest["disk_mb"] * 1e6
    assert 0.5 * left < said < 2 * left
