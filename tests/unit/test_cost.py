"""What ``check`` says an audit will cost: how evaluations are counted, and what a probe shortens."""

import json
import math
import signal
import time
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from glasshouse.api.check import row_words
from glasshouse.attacks.budget import Budget
from glasshouse.attacks.inversion.ggl.attack import GGL
from glasshouse.attacks.inversion.ggl.search import LatentSearch
from glasshouse.attacks.inversion.ggl.wgan import GeneratorTraining
from glasshouse.attacks.inversion.inverting_gradients import InvertingGradients
from glasshouse.attacks.inversion.linear_input import LinearInput
from glasshouse.attacks.parts.search.adam import Descent
from glasshouse.audit.attacking.needs import attack_of
from glasshouse.audit.cost import calls, clock, defended, timings
from glasshouse.audit.cost import estimate as costs
from glasshouse.audit.cost import probe as probes
from glasshouse.audit.cost.cached import CountedWork
from glasshouse.audit.cost.rows import units_in
from glasshouse.audit.cost.timings import CLOSED_FORM, Known, Timing, stand_in
from glasshouse.audit.scoring import rehearsal
from glasshouse.audit.simulation import deal
from glasshouse.audit.simulation import rehearsal as federations
from glasshouse.audit.simulation.rehearsal import Played
from glasshouse.executors.local import PRELOAD
from glasshouse.federation.protocols.fedgems import FedGems
from glasshouse.scenario.load import load


def cost(scenario, timer=None):
    return costs.cost(scenario, Known(timer), CountedWork())


def rows(name, *sets, probe=False):
    (scenario,) = load(name, list(sets)).scenarios
    return {row["part"]: row for row in cost(scenario, timer=probes.Stopwatch() if probe else None)}


def test_evaluations_are_calls_times_trials_times_the_length_of_a_search():
    """Seven settings of four clients: 28 calls."""
    result = rows("ggl-paper")
    assert result["GGL"]["calls"] == 28
    assert result["GGL"]["evaluations"] == 28 * 4 * 40_000
    assert result["IG, adaptive"]["evaluations"] == 28 * 4 * 8_000
    assert result["GGL"]["seconds"] is None


THREE_STEPS = {"training": asdict(GeneratorTraining(steps=3))}


def test_a_closed_form_has_no_budget_and_counts_once_per_call():
    assert LinearInput().budget is None
    assert units_in(None, CLOSED_FORM, 5) == 5


@pytest.mark.parametrize(
    ("attack", "short"),
    [
        (InvertingGradients(), {"search": asdict(Descent(iterations=3, signed=True))}),
        (InvertingGradients(search=Descent(iterations=2)), {"search": asdict(Descent(iterations=2))}),
        (GGL(), {"search": asdict(LatentSearch(evaluations=50)), **THREE_STEPS}),
        (
            GGL(search=LatentSearch(population=2, processes=4)),
            {"search": asdict(LatentSearch(population=2, evaluations=3)), **THREE_STEPS},
        ),
        (
            GGL(search=LatentSearch(evaluations=7)),
            {"search": asdict(LatentSearch(evaluations=7)), **THREE_STEPS},
        ),
    ],
)
def test_a_probe_is_shorter_in_whatever_the_attack_calls_its_budget(attack, short):
    assert attack.budget.probe == short


def test_a_search_in_a_generator_is_probed_by_one_population_and_by_three(tmp_path, monkeypatch):
    """Every call takes .03 seconds and a hundredth for each evaluation of both restarts: the line says so."""
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path))
    tasks, ran = [], calls.run_piece
    monkeypatch.setattr(calls, "run_piece", lambda piece: (tasks.append(piece[0]), ran(piece))[1])

    def evaluations():
        return [json.loads(task.arguments)["search"]["evaluations"] for task in tasks]

    monkeypatch.setattr(clock.time, "process_time", lambda: sum(0.03 + 2 * 0.01 * n for n in evaluations()))
    short = ["defenses=[]", "attacks.0.search={restarts=2, evaluations=1000, population=4}"]
    row = rows("quickstart-ggl", *short, probe=True)["ggl"]
    assert set(evaluations()) == {4, 12}
    assert row["evaluations"] == 8 * 2 * 1000
    assert row["seconds"] == pytest.approx(8 * 0.03 + 0.01 * row["evaluations"])


@pytest.mark.parametrize(
    ("sets", "evaluations"),
    [
        ([], 4 * 8 * 150),
        (["attacks.0.inversion.iterations=0"], 4 * 8 * 500),
        (["attacks.0.inversion.iterations=0", 'attacks.0.inversion.invert="generator"'], 4 * 8 * 600),
        (['attacks.0.inversion.invert="pixels+generator"'], 4 * 8 * (500 + 150)),
        (['attacks.0.inversion.invert="none"'], 1),
        (["attacks.0.inversion.images=3"], 4 * 3 * 150),
        (["federation.secure_sum=true"], 32 * 150),
        (["federation.secure_sum=true", "attacks.0.inversion.images=20"], 20 * 150),
        (['federation.sends="delta"', "data.examples=12"], 4 * 12 * 150),
        (["federation.rounds=3", "audit.rounds=[0, 2]", "audit.seeds=[0, 1]"], 2 * 2 * 4 * 8 * 150),
    ],
)
def test_inversions_count_the_steps_of_every_image_that_may_be_read(sets, evaluations):
    """Four clients with batches of eight, and one head for all of them."""
    assert rows("quickstart-transfer", *sets)["maui"]["evaluations"] == evaluations
    steps = rows("quickstart-transfer", "attacks.1.inversion.iterations=0")["nex"]["evaluations"]
    assert steps == 4 * 8 * 500


def test_inversions_are_probed_image_by_image_also_those_of_a_malicious_server(tmp_path, monkeypatch):
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path))
    monkeypatch.setattr(probes, "seconds_of", lambda run: (run(), 12.0)[1])  # of three steps of 16 images
    sets = ['attacks.0.inversion.invert="pixels+generator"', "attacks.0.inversion.iterations=200"]
    result = rows("quickstart-transfer", *sets, probe=True)
    assert result["maui"]["seconds"] == pytest.approx((500 + 200) * 2.0 * 4)
    assert result["nex"]["seconds"] == pytest.approx(150 * 2.0 * 4)
    single = rows("quickstart-transfer", *sets, "model.hidden=0", probe=True)
    assert single["nex"]["seconds"] is None  # it will refuse


@pytest.mark.parametrize(
    ("sets", "models", "evaluations"),
    [
        ([], 1, 8 * 800 * 2 + 800),
        (['model.pretraining.adversarial.method="none"', "model.pretraining.head_epochs=0"], 1, 8 * 800),
        (['model.pretraining.adversarial={method="pgd", steps=10}'], 1, 8 * 800 * 11 + 800),
        (['model.pretraining.behind="head"'], 1, 8 * 800 * 2),
        (["audit.seeds=[0, 1, 2]"], 3, 3 * (8 * 800 * 2 + 800)),
        (['axes={"federation.batch_size"=[4, 8]}'], 1, 8 * 800 * 2 + 800),
        (['axes={"model.pretraining.epochs"=[0, 2, 4]}'], 2, 6 * 800 * 2 + 2 * 800),
        (["model.pretraining.epochs=0", 'model.weights="public.safetensors"'], 1, 800),
    ],
)
def test_training_before_round_0_has_a_row_of_its_own(sets, models, evaluations):
    row = rows("quickstart-transfer", *sets)["pre-training"]
    assert (row["calls"], row["evaluations"], row["seconds"]) == (models, evaluations, None)


def test_where_nothing_is_trained_before_round_0_nothing_is_listed():
    assert "pre-training" not in rows("quickstart-transfer", "model.pretraining.epochs=0")


def test_training_is_probed_by_its_own_steps(tmp_path, monkeypatch):
    """Three epochs of one batch of 32 small images, two passes each, and nothing is left in the cache."""
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path))
    monkeypatch.setattr(probes, "seconds_of", lambda run: (run(), 48.0)[1])
    row = rows("quickstart-transfer", probe=True)["pre-training"]
    assert row["seconds"] == pytest.approx(row["evaluations"] * 0.25)
    assert not list(tmp_path.rglob("*.safetensors"))


def test_a_federation_counts_the_images_that_clients_train_on():
    """Eight clients with one gradient of one image; an active attack has a federation of its own."""
    assert rows("quickstart-ggl", "defenses=[]", "axes={}")["simulation"]["evaluations"] == 8
    both = rows("quickstart-transfer", "federation.rounds=3")["simulation"]
    assert (both["calls"], both["evaluations"]) == (2, 2 * 3 * 4 * 8)


def test_axes_over_an_attacks_arguments_are_added_up():
    result = rows(
        "quickstart-ggl",
        'axes={"attacks.0.search.evaluations"=[10, 30]}',
        "defenses=[]",
        "attacks.0.search.restarts=2",
    )
    assert result["ggl"]["evaluations"] == 8 * 2 * (10 + 30)
    assert result["control: ggl"]["calls"] == 2


class Clock:
    """A timer whose units cost the number of the setting; no more than ``most`` are timed."""

    device = "cuda"

    def __init__(self, most):
        self.most, self.asked = most, []

    @property
    def exhausted(self):
        return len(self.asked) >= self.most

    @property
    def spent(self):
        return self.exhausted

    def attack(self, scenario, plugin, budget):
        self.asked.append(plugin.arguments)
        return Timing(unit=float(len(self.asked)), certificate=0.5, step=0.25)

    def pretraining(self, scenario):
        return Timing(unit=0.0)

    def gradient(self, scenario):
        return 0.001 * scenario.model.arguments.get("width", 1) ** 2 * scenario.federation.batch_size

    def simulation(self, scenario, *, cold):
        return Played(one=0.0)

    def defenses(self, scenario):
        return 0.0

    def scoring(self, scenario):
        return None


AXES = 'axes={"attacks.0.search.population"=[10, 20], "attacks.0.search.evaluations"=[100, 300]}'


@pytest.mark.parametrize(("most", "seconds"), [(9, 1.0 * 400 + 2.0 * 400), (1, 1.0 * 800)])
def test_every_setting_of_an_axis_is_timed_while_there_is_time(most, seconds):
    """Eight victims, two restarts. How long a search is changes no unit's cost; how it searches may."""
    clock = Clock(most)
    (scenario,) = load("quickstart-ggl", [AXES, "defenses=[]", "attacks.0.search.restarts=2"]).scenarios
    found = {row["part"]: row for row in cost(scenario, timer=clock)}
    assert found["ggl"]["seconds"] == pytest.approx(8 * 2 * seconds)
    assert found["ggl"]["device"] == "cuda"
    assert found["certificates: ggl"]["seconds"] == 8 * 4 * 0.5
    assert found["training: the generator"]["seconds"] == found["training: the generator"]["evaluations"] / 4
    assert found["simulation"]["device"] == "cpu"
    assert len(clock.asked) == (6 if most == 9 else 1)  # also the controls' own settings, while there is time


def test_a_network_that_is_not_timed_costs_as_much_more_as_its_gradient():
    """Two networks are timed, 1 and 2 seconds; the third, four times as wide as the second, is not."""
    axes = 'axes={"model.width"=[4, 8, 32]}'
    (scenario,) = load("quickstart-ggl", ['model={name="convnet"}', axes, "defenses=[]"]).scenarios
    clock = Clock(2)
    found = {row["part"]: row for row in cost(scenario, timer=clock)}
    assert found["ggl"]["seconds"] == pytest.approx(found["ggl"]["evaluations"] / 3 * (1 + 2 + 2 * 16))
    assert found["certificates: ggl"]["seconds"] == pytest.approx(8 * 0.5 * (1 + 1 + 16))


def test_batches_that_are_not_timed_cost_their_images_once_where_the_budget_goes_by_images():
    """One batch size is timed, 1 second an image; four times as large a batch has four times the images."""
    images = Budget(unit="iterations", amount=10, images=8)
    few, many = (
        load(
            "quickstart-ggl", ["axes={}", "defenses=[]", f"federation.batch_size={n}", "data.examples=4"]
        ).scenarios[0]
        for n in (1, 4)
    )
    known = [(few, Timing(unit=1.0, crafting=2.0))]
    assert stand_in(many, images, known, Clock(0)).unit == pytest.approx(1.0)
    assert stand_in(many, CLOSED_FORM, known, Clock(0)).unit == pytest.approx(4.0)
    assert stand_in(many, CLOSED_FORM, known, Clock(0)).crafting == pytest.approx(2.0)
    assert stand_in(many, CLOSED_FORM, [(few, None)], Clock(0)) is None


def test_a_gradient_is_timed_once_for_a_network_and_in_the_mode_of_the_federation(monkeypatch):
    """Batch norm of features refuses a single example in training mode."""
    modes, loss = [], probes.mean_loss
    monkeypatch.setattr(probes, "mean_loss", lambda m, b: (modes.append((m.training, len(b))), loss(m, b))[1])
    (scenario,) = load("quickstart-ggl", ["axes={}", "defenses=[]", 'model={name="convnet"}']).scenarios
    watch = probes.Stopwatch()
    first = watch.gradient(scenario)
    assert first > 0
    assert set(modes) == {(False, 1)}
    calls = len(modes)
    assert watch.gradient(scenario) == first
    assert len(modes) == calls


def test_a_gradient_of_longer_sentences_is_timed_by_itself(monkeypatch):
    widths, loss = [], probes.mean_loss
    monkeypatch.setattr(probes, "mean_loss", lambda m, b: (widths.append(b.inputs.shape[1]), loss(m, b))[1])
    watch = probes.Stopwatch()
    for length in (4, 12):
        (scenario,) = load("quickstart-text", ["axes={}", f"data.length={length}"]).scenarios
        assert watch.gradient(scenario) > 0
    assert set(widths) == {4, 12}


@pytest.mark.parametrize(
    "change", [{"length": 9}, {"tokenizer": "bytes"}, {"resize": 9}, {"channels": 3}, {"source": "mnist"}]
)
def test_times_of_inputs_of_another_size_are_kept_apart(change):
    """Of an attack and a defence: one would stand for the other."""
    (one,) = load("digits-inversion", []).scenarios
    other = one.model_copy(update={"data": one.data.model_copy(update=change)})
    plugin, budget = one.attacks[0], CLOSED_FORM
    assert timings._what_matters(one, plugin, budget) != timings._what_matters(other, plugin, budget)
    assert defended._what_matters(one, plugin) != defended._what_matters(other, plugin)


@pytest.mark.parametrize("kind", ["fedmd", "fedgems", "dsfl"])
def test_a_logit_federation_with_few_images_runs(kind):
    (scenario,) = load(
        "quickstart-logits", [f'federation.protocol="{kind}"', "federation.clients=3"]
    ).scenarios
    found = federations.time_with_few_images(scenario)
    assert found.estimated
    assert found.one > 0


def test_what_workers_share_is_imported_before_any_deadline(monkeypatch):
    imported = []
    monkeypatch.setattr(probes.importlib, "import_module", imported.append)
    probes.Stopwatch()
    assert tuple(imported) == PRELOAD


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(("step", "images"), [(0.001, 16), (1.0, probes.FEW_IMAGES)])
def test_a_gradient_is_told_from_few_images_only_if_a_step_is_slow(monkeypatch, step, images, late):
    """A fast step is mostly overhead: scaled up from few images it would be several times too long."""
    timed = []
    monkeypatch.setattr(probes, "seconds_on", lambda _, run: (timed.append(len(run.args[0])), step)[1])
    monkeypatch.setattr(probes, "steady_seconds", lambda _, run: (timed.append(len(run.args[0])), step)[1])
    (scenario,) = load("digits-inversion", ["data.examples=16", "federation.batch_size=16"]).scenarios
    watch = probes.Stopwatch()
    if late:
        monkeypatch.setattr(watch, "_began", -100.0)
    assert watch.exhausted == late
    assert watch.gradient(scenario) == pytest.approx(step * 16 / images)
    assert timed[-1] == images


def test_an_attack_that_will_refuse_costs_nothing():
    assert "ggl" not in rows("quickstart-ggl", "grants.auxiliary=false", "defenses=[]", "axes={}")


def test_estimators_share_the_shadow_clients_of_each_round():
    """Five estimators: one training in the audit, one in the setting of their controls."""
    for sets, trainings in (([], 2), (["audit.controls=false"], 1)):
        assert rows("quickstart-rounds", *sets)["training: shadow clients"]["calls"] == trainings


@pytest.mark.parametrize(
    ("sets", "trainings"),
    [
        (['data.auxiliary_split="train"', "data.auxiliary=1348"], 1),  # all there are, whatever the seed
        (['data.auxiliary_split="train"', 'data.private_split="test"', "data.auxiliary=800"], 3),
        (["data.auxiliary=800"], 2 * 3),  # out of what the private images leave
    ],
)
def test_an_autoencoder_is_trained_once_for_each_set_of_images(sets, trainings):
    """Three seeds, two numbers of private images; held-out images come from the test split."""
    sets = ['data.heldout_split="test"', 'data.private_split="test"', "audit.seeds=[0, 1, 2]", *sets]
    if sets[-1] == "data.auxiliary=800":
        sets[1] = 'data.private_split=""'
    axes = 'axes={"data.examples"=[4, 8]}'
    found = rows("quickstart-secure-sum", "audit.controls=false", "data.heldout=50", axes, *sets)
    assert found["training: the autoencoder"]["calls"] == trainings


def test_a_generator_does_not_depend_on_the_model():
    found = rows(
        "quickstart-ggl",
        'axes={"model.name"=["lenet_sigmoid", "mlp"]}',
        "defenses=[]",
        "audit.controls=false",
    )
    assert found["training: the generator"]["calls"] == 1


def test_scenarios_of_a_suite_share_what_is_kept():
    suite = load("quickstart-ggl", ["defenses=[]", "axes={}"])
    twice = SimpleNamespace(name="twice", scenarios=(suite.scenarios[0], suite.scenarios[0]))
    found = costs.costs(twice)
    assert [row["calls"] for row in found if row["part"] == "training: the generator"] == [1]
    assert [row["calls"] for row in found if row["part"] == "control: ggl"] == [1]


def test_training_in_the_first_call_is_no_part_of_a_search(tmp_path, monkeypatch):
    """Five seconds for three steps of the generator; a call takes .03, and .01 for an evaluation."""
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path))
    tasks, ran = [], calls.run_piece
    monkeypatch.setattr(calls, "run_piece", lambda piece: (tasks.append(piece[0]), ran(piece))[1])

    def seconds():
        searched = [json.loads(task.arguments)["search"]["evaluations"] for task in tasks]
        return 5.0 * bool(tasks) + sum(0.03 + 0.01 * n for n in searched)

    monkeypatch.setattr(clock.time, "process_time", seconds)
    (scenario,) = load("quickstart-ggl", ["attacks.0.search={evaluations=1000, population=4}"]).scenarios
    (ggl,) = scenario.attacks
    timing = probes.Stopwatch().attack(scenario, ggl, attack_of(ggl.name, ggl.arguments).budget)
    assert (timing.unit, timing.call) == pytest.approx((0.01, 0.03))
    assert timing.step == pytest.approx(5.0 / 3)


@pytest.mark.parametrize(("most", "missing"), [(3, {"DLG, adaptive", "iDLG, adaptive"}), (4, set())])
def test_an_attack_without_time_is_estimated_from_one_of_its_kind_or_said_to_be_missing(most, missing):
    """GGL, then both of Adam's searches, then DLG, from which iDLG can be estimated."""
    (scenario,) = load("ggl-cifar", ["audit.controls=false"]).scenarios
    found = cost(scenario, timer=Clock(most))
    total = costs.total("ggl-cifar", found)
    assert {part for part in total["unmeasured"] if "adaptive" in part} == missing
    assert ("iDLG, adaptive" in total["estimated"]) == (not missing)
    assert "GGL without adaptation" in total["estimated"]
    assert f"{'at least' if total['unmeasured'] else 'about'} " in row_words(total)


def test_the_next_setting_to_be_timed_is_the_one_least_like_the_others():
    axes = 'axes={"federation.batch_size"=[1, 2], "model.name"=["lenet_sigmoid", "mlp"]}'
    (scenario,) = load("quickstart-ggl", [axes, "defenses=[]", "data.examples=2"]).scenarios
    asked = []

    class Ordered(Clock):
        def attack(self, scenario, plugin, budget):
            asked.append((scenario.federation.batch_size, scenario.model.name))
            return super().attack(scenario, plugin, budget)

    cost(scenario, timer=Ordered(2))
    assert asked == [(1, "lenet_sigmoid"), (2, "mlp")]


def test_a_batch_of_victims_is_told_from_one_and_from_a_few():
    """Half a second around the batch, a tenth for each victim: of sixteen each takes .13."""
    assert calls._of_each(0.6, 0.9, 4, 16) == pytest.approx(0.5 / 16 + 0.1)
    assert calls._of_each(0.6, 2.1, 16, 16) == pytest.approx(2.1 / 16)


def test_the_last_row_adds_up_and_says_what_it_does_not_know():
    a = {"scenario": "s", "part": "a", "calls": 2, "unit": "x", "evaluations": 3, "seconds": 1.5}
    a |= {"device": "cpu"}
    b, c = {**a, "part": "b", "seconds": None}, {**a, "part": "c", "seconds": 2.0, "device": "cuda"}
    total = costs.total("suite", [a, b, c])
    assert (total["calls"], total["seconds"], total["unmeasured"]) == (6, 3.5, ["b"])
    assert total["devices"] == {"cpu": 1.5, "cuda": 2.0}
    assert row_words(total) == "6 calls, at least 2 CPU s and 2 GPU s; not timed and not in it: b"
    estimated = costs.total("suite", [{**a, "estimated": True}])
    assert row_words(estimated) == (
        "2 calls, about 2 CPU s; estimated from similar work, as the time for probes was over: a"
    )
    assert costs.total("suite", [b])["seconds"] is None


@pytest.mark.parametrize(
    ("sets", "metrics", "claims"),
    [
        ([], ["psnr", "identification"], 2 * 2),  # two victims of each
        (["federation.rounds=3"], ["psnr", "perceptual"], 2),  # the latter needs a network of its own
    ],
)
def test_scoring_is_probed_by_made_up_claims(tmp_path, monkeypatch, sets, metrics, claims):
    """Opened and drawn in a second, the null chosen in four, the rest scored in three; at first 5 more.

    With nulls at hand all of it takes four seconds; the cells are of two sizes of batches.
    """
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path))
    cold, known, new = (
        [0.0, 1.0, 12.0, 15.0, 16.0],
        [20.0, 20.5, 23.5, 26.5, 27.0],
        [40.0, 40.5, 47.5, 50.5, 51.0],
    )
    ticks = iter([*cold, *known, *new])
    monkeypatch.setattr(rehearsal, "DEAR", 100.0)
    monkeypatch.setattr(rehearsal, "DEAREST", 100.0)
    monkeypatch.setattr(rehearsal, "time", SimpleNamespace(process_time=lambda: next(ticks)))
    sets = ['axes={"federation.batch_size"=[1, 2]}', "audit.seeds=[0, 1]", "data.examples=2", *sets]
    names = json.dumps(metrics)
    (scenario,) = load("quickstart-ggl", ["defenses=[]", f"audit.metrics={names}", *sets]).scenarios
    timer = probes.Stopwatch()
    monkeypatch.setattr(timer, "attack", lambda *_: None)
    row = next(r for r in cost(scenario, timer=timer) if r["part"] == "scoring")
    timed, federations = len(metrics) - ("perceptual" in metrics), 2 * 2 * len(metrics)
    assert row["seconds"] == pytest.approx(
        5.0 + (1.0 + 4.0) / timed * federations + 3.0 / claims * row["calls"]
    )
    assert "scoring" not in costs.total("all", [row])["unmeasured"]


def test_scoring_that_takes_long_is_probed_once(tmp_path, monkeypatch):
    """Opened and drawn in a second, scored in 11 seconds and, with nulls at hand, in three."""
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path))
    ticks = iter([0.0, 1.0, 12.0, 15.0, 15.0])
    monkeypatch.setattr(rehearsal, "time", SimpleNamespace(process_time=lambda: next(ticks)))
    (scenario,) = load("quickstart-ggl", ["defenses=[]", 'audit.metrics=["psnr", "ssim"]']).scenarios
    timed = probes.Stopwatch().scoring(scenario)
    assert timed.first == 0.0
    assert timed.new == pytest.approx(((1.0 + 8.0) / 2, 3.0 / 4))
    assert timed.known == pytest.approx((1.0 / 2, 3.0 / 4))


def test_scoring_of_claims_that_cannot_be_made_up_is_not_timed(tmp_path, monkeypatch):
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path))
    (scenario,) = load("quickstart-ggl", ["defenses=[]", 'audit.metrics=["perceptual"]']).scenarios
    assert probes.Stopwatch().scoring(scenario) is None


def test_scoring_is_timed_for_sums_and_for_claims_about_classes_and_clients(tmp_path, monkeypatch):
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path))
    for name in ("quickstart-secure-sum", "quickstart-logits", "quickstart-rounds"):
        (scenario,) = load(name, []).scenarios
        timed = probes.Stopwatch().scoring(scenario)
        assert timed is not None
        assert timed.new[0] > 0
        assert timed.known[0] > 0


def played(monkeypatch, seconds):
    """``play_shortened`` takes ``seconds(rounds)``; returns what was asked for."""
    asked, real = [], federations.play_shortened

    def play(scenario, *, rounds=1, into=None):
        if into is not None:
            real(scenario, rounds=rounds, into=into)
        asked.append(rounds)
        return seconds(rounds)

    monkeypatch.setattr(federations, "_seconds_to_build", lambda _: 0.0)
    for module in (federations, calls):
        monkeypatch.setattr(module, "play_shortened", play)
    return asked


@pytest.mark.parametrize(("each", "longest"), [(0.002, 40), (0.01, 32), (0.15, 2)])
def test_more_rounds_are_played_until_what_each_adds_can_be_told(monkeypatch, each, longest):
    """A federation of 40 rounds: 1.3 s the first time, else 0.3 s, and so much for every round."""
    asked = played(monkeypatch, lambda rounds: 0.3 + each * rounds + 1.0 * (not asked[1:]))
    (scenario,) = load("quickstart-rounds", []).scenarios
    timed = federations.time_simulation(scenario, cold=True)
    assert max(asked) == longest
    assert timed.first == pytest.approx(1.0)
    assert timed.of(40) == pytest.approx(0.3 + 40 * each)


def test_a_federation_with_a_long_round_is_played_once(monkeypatch):
    """Thirty seconds a round, and a second for building it: two for the first time."""
    building = iter([2.0, 1.0])
    asked = played(monkeypatch, lambda *_: 31.0)
    monkeypatch.setattr(federations, "_seconds_to_build", lambda _: next(building))
    (scenario,) = load("quickstart-rounds", []).scenarios
    timed = federations.time_simulation(scenario, cold=True)
    assert len(asked) == 1
    assert timed.first == 1.0
    assert timed.of(40) == 1.0 + 40 * 30.0


def test_a_shortened_federation_attacks_the_rounds_that_the_audit_attacks():
    sets = ["federation.rounds=8", "audit.rounds=[1, 2, -1]"]
    (scenario,) = load(
        "quickstart-ggl", ["defenses=[]", *sets, 'audit.metrics=["perceptual", "psnr"]']
    ).scenarios
    assert federations.shortened(scenario, 3).audit.rounds == (1, 2)
    assert federations.shortened(scenario).audit.rounds == (0,)
    assert [m.name for m in federations.shortened(scenario).audit.metrics] == ["psnr"]


@pytest.mark.parametrize(("cheap", "whole"), [(9.0, [(3, 800)]), (0.5, [])])
def test_what_a_malicious_server_makes_before_a_round_is_counted(monkeypatch, tmp_path, cheap, whole):
    """.2 s, a hundredth for each of 800 auxiliary images, another for each step of the autoencoder.

    Told from 100 and 300 images where all would take too long.
    """
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path))

    asked, real = [], federations.time_crafting

    def crafting(scenario, *, into=None):
        if into is not None:
            real(scenario, into=into)
        steps = scenario.attacks[0].arguments["training"]["steps"]
        asked.append((steps, scenario.data.auxiliary))
        return 0.2 + 0.01 * scenario.data.auxiliary + 0.01 * steps

    monkeypatch.setattr(calls, "time_crafting", crafting)
    monkeypatch.setattr(calls, "CRAFTED", (100, 300))
    monkeypatch.setattr(calls, "CHEAP", cheap)
    monkeypatch.setattr(probes.Stopwatch, "scoring", lambda *_: None)
    found = rows("quickstart-secure-sum", "audit.controls=false", "data.auxiliary=800", probe=True)
    assert asked == [(3, 100), (3, 100), (12, 100), (3, 300), *whole]
    rounds = found["crafting: scale_mia"]["calls"]
    assert rounds == found["scale_mia"]["calls"]
    assert found["crafting: scale_mia"]["seconds"] == pytest.approx(rounds * 8.2)
    trained = found["training: the autoencoder"]
    assert trained["seconds"] == pytest.approx(0.01 * trained["evaluations"])


def test_every_federation_is_timed_by_itself_while_there_is_time():
    """Three defences and a control: the first must do for all where there is no time."""

    asked = []

    class Rounds(Clock):
        def simulation(self, scenario, *, cold):
            asked.append(cold)
            return Played(first=0.5 if cold else 0.0, one=float(len(asked)))

        def scoring(self, scenario):
            return rehearsal.Scoring(first=1.0, new=(2.0, 1.0), known=(1.0, 0.25))

    for most, simulation, controls in ((99, 0.5 + 1.0 + 2.0 + 3.0, 4.0), (0, 0.5 + 3.0, 2.0)):
        asked.clear()
        (scenario,) = load("quickstart-photos").scenarios
        found = {row["part"]: row for row in cost(scenario, timer=Rounds(most))}
        assert found["simulation"]["seconds"] == simulation
        assert found["simulation for controls"]["seconds"] == controls
        assert asked.count(True) == 1
        assert found["scoring"]["seconds"] == 1.0 + (4 * 2.0 + 32 * 1.0) + 2 * (
            4 * 1.0 + 32 * 0.25
        )  # nulls of one cell


def test_a_search_that_ends_when_it_has_found_everything_is_probed_twice():
    budget = load("spear", []).scenarios[0].attacks[0]
    declared = attack_of(budget.name, budget.arguments).budget
    assert declared.probe["search"]["iterations"] < declared.longer["search"]["iterations"]


def busy(*_, **__):
    while True:
        sum(range(1000))


def stop_soon() -> float:
    """Let the deadline that runs pass in .3 CPU seconds, whatever was spent before; now, in CPU seconds."""
    signal.setitimer(signal.ITIMER_PROF, 0.3)
    return time.process_time()


@pytest.mark.parametrize(("cold", "dealt"), [(True, 2), (False, 1)])
def test_a_probe_deals_its_data_once_and_after_the_first_time_anew(monkeypatch, cold, dealt):
    """The seconds that this saves are added to every federation that would have spent them."""
    deals, real = [], deal._deal_data

    def busy_deal(*arguments):
        deals.append(None)
        until = time.process_time() + 0.3
        while time.process_time() < until:
            pass
        return real(*arguments)

    reads, read = [], deal.load_source
    monkeypatch.setattr(deal, "load_source", lambda *a, **k: (reads.append(None), read(*a, **k))[1])
    monkeypatch.setattr(deal, "_deal_data", busy_deal)
    (scenario,) = load("quickstart-rounds", []).scenarios
    with deal.remember_data():
        timed = federations.time_simulation(scenario, cold=cold)
        again = federations.time_simulation(scenario)
    assert len(deals) == len(reads) == dealt
    assert min(timed.one, again.one) > 0.3


def test_a_probe_reads_its_data_once_and_counts_what_that_saves(monkeypatch):
    """Two federations that deal the same data set differently each count the seconds of reading it."""
    reads, real = [], deal.load_source

    def busy_read(*arguments, **settings):
        reads.append(None)
        until = time.process_time() + 0.3
        while time.process_time() < until:
            pass
        return real(*arguments, **settings)

    monkeypatch.setattr(deal, "load_source", busy_read)
    spent = []
    with deal.remember_data():
        for examples in (1, 2, 1):
            (scenario,) = load("digits-inversion", [f"data.examples={examples}"]).scenarios
            started = deal.seconds_spent()
            dealt = deal.deal_data(scenario, seed=0)
            spent.append(deal.seconds_spent() - started)
            assert len(dealt.roles.private) == examples * scenario.federation.clients
    assert len(reads) == 1
    assert min(spent) > 0.3


def test_a_federation_that_takes_too_long_is_stopped(monkeypatch, tmp_path):
    """Its gradients stand for it; attacks and scores are timed on one with few clients."""
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path))
    monkeypatch.setattr(probes, "time_simulation", busy)
    monkeypatch.setattr(probes, "FEDERATION", 0.2)
    monkeypatch.setattr(probes.Stopwatch, "gradient", lambda *_: 0.5)
    seen, play = [], calls.play_shortened

    def played(scenario, **how):
        seen.append(scenario.federation.clients)
        return play(scenario, **how)

    monkeypatch.setattr(calls, "play_shortened", played)
    (scenario,) = load("digits-inversion", ["federation.clients=40", "audit.victims=2"]).scenarios
    timer = probes.Stopwatch()
    found = timer.simulation(scenario, cold=False)
    assert found == Played(one=40 * 0.5, further=40 * 0.5, estimated=True)
    assert timer.scoring(scenario) is not None
    assert seen == [calls.FEW]


def test_a_logit_federation_that_takes_too_long_is_neither_scored_nor_attacked(monkeypatch, tmp_path):
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path))
    monkeypatch.setattr(probes, "time_simulation", busy)
    monkeypatch.setattr(probes, "FEDERATION", 0.2)
    light = Played(one=3.0, further=2.0, estimated=True)
    monkeypatch.setattr(probes, "time_with_few_images", lambda _: light)
    (scenario,) = load("quickstart-logits", []).scenarios
    timer = probes.Stopwatch()
    assert timer.simulation(scenario, cold=False) == light
    assert timer.scoring(scenario) is None
    assert timer.attack(scenario, scenario.attacks[0], CLOSED_FORM) is None
    monkeypatch.setattr(probes, "time_with_few_images", busy)
    stopped = probes.Stopwatch().simulation(scenario, cold=False)
    assert stopped.one == pytest.approx(0.2, abs=0.1)
    assert stopped.estimated


def test_a_logit_federation_is_told_from_one_client_and_a_batch_of_images(monkeypatch):
    """Its rounds are counted up: by the public images left out, and by the parties that train."""
    seen, clock = [], iter([0.0, 1.0, 1.0, 4.0])

    def play(self, setting, *, recorder, rng, tamper=None):
        seen.append((len(setting.terms.public), len(setting.shards), setting.rounds))

    (scenario,) = load("quickstart-logits", ["federation.batch_size=8", "federation.clients=3"]).scenarios
    public = len(federations.build(scenario, seed=scenario.seed).setting.terms.public)
    monkeypatch.setattr(FedGems, "play", play)
    monkeypatch.setattr(federations, "seconds_spent", lambda: next(clock))
    found = federations.time_with_few_images(scenario)
    step = math.ceil(public / 8)
    assert seen == [(math.ceil(public / step), 1, rounds) for rounds in (1, 2)]
    assert seen[0][0] <= 8
    assert found == Played(one=step * 1.0 * 2, further=step * 2.0 * 2, estimated=True)


def test_late_logit_federations_take_as_much_longer_as_they_have_parties():
    few, many = (load("quickstart-logits", [f"federation.clients={k}"]).scenarios[0] for k in (1, 3))

    class Late:
        exhausted = True

        def simulation(self, scenario, *, cold):
            return Played(one=1.0, further=0.5)

    played = costs._played([few, many], [], Late(), {})
    assert list(played.values()) == [
        Played(one=1.0, further=0.5),
        Played(one=2.0, further=1.0, estimated=True),
    ]


@pytest.mark.parametrize("part", ["attack", "scoring", "pretraining"])
def test_a_part_that_takes_too_long_is_stopped_and_said_to_be_estimated(part, monkeypatch, tmp_path):
    """What it took until then is a lower bound."""
    took: list[float] = []

    def endless(*_, **__):
        began = stop_soon()
        try:
            busy()
        finally:
            took.append(time.process_time() - began)

    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path))
    monkeypatch.setattr(probes, "time_scoring", endless)
    monkeypatch.setattr(probes, "fit", endless)
    monkeypatch.setattr(calls._Probe, "run", endless)
    monkeypatch.setattr(probes.Stopwatch, "gradient", lambda *_: 0.5)
    (scenario,) = load("digits-inversion", []).scenarios
    timer = probes.Stopwatch()
    if part == "attack":
        (first, *_) = scenario.attacks
        budget = attack_of(first.name, first.arguments).budget
        found = timer.attack(scenario, first, budget)
        spent = found.unit * calls._changed(first, budget.probe).units
    elif part == "scoring":
        found = timer.scoring(scenario)
        spent = found.of(len(scenario.audit.metrics), 7)
    else:
        (scenario,) = load("quickstart-transfer", []).scenarios
        assert timer.pretraining(scenario) == Timing(
            unit=0.5 / scenario.federation.batch_size, estimated=True
        )
        return
    assert found.estimated
    assert took[0] > 0.2
    assert spent == pytest.approx(took[0], abs=0.1)


def test_what_was_measured_of_an_attack_is_kept_when_it_is_stopped(monkeypatch, tmp_path):
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path))
    monkeypatch.setattr(calls.Calls, "_certificate", lambda *_: busy(stop_soon()))
    (scenario,) = load("digits-inversion", []).scenarios
    (first, *_) = scenario.attacks
    budget = attack_of(first.name, first.arguments).budget
    found = probes.Stopwatch().attack(scenario, first, budget)
    assert found.estimated
    assert 0 < found.unit < 0.3


def test_few_clients_stand_for_many_that_take_long(monkeypatch, tmp_path):
    """The others' gradients are added; the attack looks at the same federation."""
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path))
    monkeypatch.setattr(probes.Stopwatch, "gradient", lambda *_: 0.5)
    (scenario,) = load("digits-inversion", ["federation.clients=40", "audit.victims=2"]).scenarios
    timer = probes.Stopwatch()
    assert timer.simulation(scenario, cold=False).one == pytest.approx(36 * 0.5, abs=2.0)
    assert timer._calls.folder_of(calls.with_few_clients(scenario)).exists()
    assert not timer._calls.folder_of(scenario).exists()


def test_an_attack_that_was_stopped_does_not_get_the_timing_of_another(monkeypatch, tmp_path):
    """Maui's pieces are stopped before one of them ended: nothing is known of it."""
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path))
    (scenario,) = load("digits-inversion", []).scenarios
    (first, *_) = scenario.attacks
    timer = probes.Stopwatch()
    assert timer.attack(scenario, first, attack_of(first.name, first.arguments).budget) is not None
    monkeypatch.setattr(probes, "_time_pieces", busy)
    monkeypatch.setattr(probes, "WHOLE", 0.0)
    (other,) = load("quickstart-transfer", []).scenarios
    maui = next(a for a in other.attacks if a.name == "maui")
    assert timer.attack(other, maui, attack_of("maui", maui.arguments).budget) is None


def test_a_federation_that_is_stopped_after_a_round_keeps_what_that_took(monkeypatch, tmp_path):
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path))
    (scenario,) = load("quickstart-rounds", []).scenarios
    real, plays = federations.play_shortened, []

    def play(*arguments, **how):
        plays.append(how)
        return real(*arguments, **how) if len(plays) == 1 else busy()

    monkeypatch.setattr(federations, "play_shortened", play)
    found = probes.Stopwatch().simulation(scenario, cold=False)
    assert found.estimated
    assert len(plays) == 2
    assert 0 < found.one < 4


def test_members_of_a_challenge_are_not_left_out(monkeypatch, tmp_path):
    """Six of twenty clients hold it: four clients cannot stand for them."""
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path))
    monkeypatch.setattr(probes.Stopwatch, "gradient", lambda *_: 0.5)
    sets = ["federation.clients=20", "data.members=6", "grants.challenge=true"]
    (scenario,) = load("digits-inversion", sets).scenarios
    assert calls.with_few_clients(scenario) is scenario
    assert probes.Stopwatch().simulation(scenario, cold=False).one < 5


def test_a_short_step_is_not_timed_as_nothing_by_a_clock_that_ticks_slowly(monkeypatch):
    """A step of one millisecond, a clock that ticks every four."""
    spent = []
    monkeypatch.setattr(clock.time, "process_time", lambda: 0.004 * (len(spent) // 4))
    assert clock.seconds_on("cpu", lambda: spent.append(None)) == 0
    assert clock.steady_seconds("cpu", lambda: spent.append(None)) == pytest.approx(0.001, rel=0.1)
