"""Paired differences between attacks: sign, pairing, clients, and what is left out."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from report_specimen import specimen

from glasshouse.audit.scoring.judging.contrast import contrasts, difference
from glasshouse.audit.scoring.score import ClientSample, ScoredMetric
from glasshouse.errors import BadScenario, Undefined
from glasshouse.registry import load
from glasshouse.report.html import render
from glasshouse.report.markdown import markdown
from glasshouse.results.files import read_result, write_result
from glasshouse.results.records import Contrast
from glasshouse.rng import Rng
from glasshouse.scenario.axes import cells
from glasshouse.scenario.load import load as load_scenario


def scored(*values: list[float], first: int = 0) -> ScoredMetric:
    arrays = tuple(np.array(v) for v in values)
    victims = tuple(str(first + client) for client in range(len(arrays)))
    return ScoredMetric(values=arrays, nulls=tuple(0 * a for a in arrays), baseline="none", victims=victims)


def metric(name: str):
    return load("metrics", name)()


LEFT = scored([20.0, 22.0], [15.0, 17.0], [30.0, 28.0])
RIGHT = scored([19.0, 21.0], [14.0, 16.0], [29.0, 27.0])


def test_a_constant_lead_is_sure_however_different_the_victims_are_but_not_with_three_of_them():
    """Three coins may fall alike; six do so once in 64 times."""
    interval = difference(LEFT, RIGHT, metric("psnr"), rng=Rng.root(0))
    assert (interval.low, interval.value, interval.high, interval.n) == (0.0, 1.0, 1.0, 3)
    left = scored(*([20.0 + 3 * i] for i in range(6)))
    right = scored(*([19.0 + 3 * i] for i in range(6)))
    interval = difference(left, right, metric("psnr"), rng=Rng.root(0))
    assert (interval.low, interval.value, interval.high, interval.n) == (1.0, 1.0, 1.0, 6)


def test_the_smaller_error_is_ahead():
    assert difference(LEFT, RIGHT, metric("mse"), rng=Rng.root(0)).value == -1.0


def test_one_victim_has_no_difference():
    with pytest.raises(Undefined):
        difference(scored([1.0]), scored([2.0]), metric("psnr"), rng=Rng.root(0))


def clients(decisions: list[int]) -> ScoredMetric:
    truth = np.array([True] * 5 + [False] * 15)
    sample = ClientSample(run="0", scores=np.array(decisions, dtype=float), truth=truth)
    return ScoredMetric(clients=(sample,), baseline="coin")


def test_clients_are_resampled_together_and_a_perfect_attack_leads_a_poor_one():
    perfect, poor = clients([1] * 5 + [0] * 15), clients([1, 0, 0, 0, 0] + [1] * 5 + [0] * 10)
    interval = difference(perfect, poor, metric("f1"), rng=Rng.root(0))
    assert interval.value == pytest.approx(1 - 2 / 11)
    assert 0 < interval.low < interval.value <= interval.high
    same = difference(poor, poor, metric("f1"), rng=Rng.root(0))
    assert (same.low, same.value, same.high) == (0.0, 0.0, 0.0)


def in_draws(levels, per_draw: int = 8) -> ScoredMetric:
    """Scores of victims of several federations, each with a level of its own."""
    values = [[level] for level in levels for _ in range(per_draw)]
    drawn = tuple(np.array([f"run {i}"]) for i in range(len(levels)) for _ in range(per_draw))
    return replace(scored(*values), drawn=drawn)


@pytest.mark.parametrize("name", ["psnr", "identification"])
def test_a_lead_in_three_of_four_draws_of_weights_is_not_sure(name):
    """Victims of one federation share its weights: 24 of 32 of them, and three draws of four."""
    ahead, behind = in_draws([1.0, 1.0, 1.0, 0.0]), in_draws([0.0] * 4)
    assert difference(ahead, behind, metric(name), rng=Rng.root(0)).low <= 0
    three = difference(in_draws([1.0, 1.0, 0.0]), in_draws([0.0] * 3), metric(name), rng=Rng.root(0))
    assert three.low > 0  # too few to see how much they differ: about these alone
    every = difference(in_draws([0.9, 1.0] * 3), in_draws([0.0] * 6), metric("psnr"), rng=Rng.root(0))
    assert every.low > 0.7


def test_the_luck_of_whole_draws_is_hardly_ever_a_lead():
    """Of audits in which neither attack is ahead, over four and six draws; 22 of 60 had a lead before."""
    random, leads = np.random.default_rng(7), 0
    for _ in range(60):
        count = int(random.choice([4, 6]))
        a, b = (in_draws(20 + 2 * random.normal(size=count), 4) for _ in range(2))
        noisy = tuple(one + 0.3 * random.normal(size=1) for one in a.values)
        interval = difference(replace(a, values=noisy), b, metric("psnr"), rng=Rng.root(0))
        leads += not interval.low <= 0 <= interval.high
    assert leads <= 7


def test_clients_of_one_federation_share_its_luck():
    """A detector that leads in four of six federations, and is as far behind in the others."""
    truth = np.arange(20) < 10

    def runs(signs) -> ScoredMetric:
        samples = tuple(
            ClientSample(run=str(i), scores=1.0 * sign * truth, truth=truth) for i, sign in enumerate(signs)
        )
        return ScoredMetric(clients=samples, baseline="coin")

    lucky, plain = runs([1, 1, 1, 1, -1, -1]), runs([0] * 6)
    assert difference(lucky, plain, metric("auc"), rng=Rng.root(0)).low <= 0
    assert difference(runs([1] * 6), runs([-1] * 6), metric("auc"), rng=Rng.root(0)).low > 0.5


NAMES = ("simulated steps", "as one step")


def test_only_attacks_scored_on_the_same_victims_are_compared():
    (cell,) = cells(load_scenario("fedavg-steps").members[0].scenario)
    others = scored([1.0, 2.0], [1.0, 2.0], [1.0, 2.0], first=1)  # as many, but of clients 1 to 3
    numbers = {
        NAMES[0]: {"psnr": LEFT, "ssim": LEFT, "mse": LEFT},
        NAMES[1]: {"psnr": RIGHT, "ssim": scored([1.0], [2.0]), "mse": others},
    }
    (result,) = contrasts(cell, numbers)
    assert (result.attack, result.other, result.metric, result.difference) == (*NAMES, "psnr", 1.0)
    assert (result.low, result.high, result.n) == (0.0, 1.0, 3)
    assert (result.unit, result.unit_of_value) == ("victims", "dB")


def test_a_metric_that_cannot_be_compared_leaves_the_others():
    """The first metric of the scenario: of one victim, or scored for one attack alone."""
    (cell,) = cells(load_scenario("fedavg-steps").members[0].scenario)
    one = scored([1.0])
    for first in ({"psnr": one}, {"psnr": scored([1.0, 2.0])}, {}):
        numbers = {NAMES[0]: {"psnr": one, "mse": LEFT}, NAMES[1]: {**first, "mse": RIGHT}}
        assert [c.metric for c in contrasts(cell, numbers)] == ["mse"]
    assert list(contrasts(cell, {NAMES[1]: {"mse": RIGHT}})) == []


def test_only_attacks_scored_on_the_same_clients_are_compared():
    scenario = load_scenario("fedavg-steps", ['audit.metrics=["f1"]']).members[0].scenario
    (cell,) = cells(scenario)
    left, right = clients([1] * 5 + [0] * 15), clients([1, 0, 0, 0, 0] + [1] * 5 + [0] * 10)
    (result,) = contrasts(cell, {NAMES[0]: {"f1": left}, NAMES[1]: {"f1": right}})
    assert (result.unit, result.n) == ("clients", 20)
    (again,) = contrasts(cell, {NAMES[0]: {"f1": left}, NAMES[1]: {"f1": right}})
    assert (again.low, again.high) == (result.low, result.high)  # the resamples are the seed's
    (sample,) = right.clients
    moved = replace(right, clients=(replace(sample, truth=np.roll(sample.truth, 1)),))
    for other in (moved, scored(*([1.0] for _ in range(20)))):
        for pair in ((left, other), (other, left)):
            numbers = {name: {"f1": side} for name, side in zip(NAMES, pair, strict=True)}
            assert list(contrasts(cell, numbers)) == []


def test_a_contrast_names_an_attack_of_the_scenario():
    with pytest.raises(BadScenario, match=r"audit\.contrast .*as one step") as caught:
        load_scenario("fedavg-steps", ['audit.contrast="as one stop"'])
    assert "as one step" in str(caught.value)


def test_contrasts_survive_the_file_and_reach_page_and_markdown(tmp_path: Path):
    contrast = Contrast(
        scenario="inversion-defences",
        cell="x",
        axes={},
        defenses=(),
        attack="gradinversion",
        other="idlg",
        metric="psnr",
        unit_of_value="dB",
        difference=1.25,
        low=0.5,
        high=2.0,
        n=20,
        unit="victims",
    )
    result = replace(specimen(tmp_path), contrasts=(contrast,))
    write_result(result, tmp_path / "result.json")
    assert read_result(tmp_path / "result.json").contrasts == (contrast,)
    page = render(result, tmp_path)
    assert "Attack against attack" in page
    assert "[0.50, 2.00]" in page
    assert "| gradinversion | idlg | 20 | 1.25 **[0.50, 2.00]** |" in markdown(result)
    assert "Attack against attack" not in render(specimen(tmp_path), tmp_path)
