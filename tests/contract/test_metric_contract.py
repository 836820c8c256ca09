"""Every registered metric keeps the contract of metrics."""

import inspect

import pytest
import torch
from metric_cases import CASES, context, draws, row_context, sentence_context

from glasshouse import registry
from glasshouse.errors import NotInstalled
from glasshouse.metrics.base import Metric, Wording
from glasshouse.metrics.lpips import Lpips
from glasshouse.metrics.reconstruction import Mse
from glasshouse.metrics.tables import people, rows
from glasshouse.registry import Card
from glasshouse.testing.metric_contract import MetricContract


def ours() -> list[str]:
    """Registered metrics of this package: others bring their own tests."""
    entries = ((name, registry.entry("metrics", name)) for name in registry.names("metrics"))
    return [name for name, entry in entries if entry.module.startswith("glasshouse.")]


OF_ROWS = ("certified_rows", "leaves", "facts", "row_labels")


def kind_of(metric) -> str:
    """The claim that it scores; of those that score pictures as well, ``rows`` for the ones on tables."""
    of_tables = metric.__module__ in (rows.__name__, people.__name__)
    return "rows" if metric.claim == "reconstruction" and of_tables else metric.claim


def case_of(metric):
    return CASES[kind_of(metric), metric.reads]


def test_there_is_a_case_for_every_metric():
    classes = [registry.load("metrics", name) for name in ours()]
    assert {(kind_of(c), c.reads) for c in classes} == set(CASES)


class TestMetric(MetricContract):
    @pytest.fixture(params=ours())
    def name(self, request):
        if request.param == "lpips":
            try:
                registry.load("metrics", "lpips")().score(*case_of(Lpips).wrong(), context=context())
            except NotInstalled as error:
                pytest.skip(f"needs the extra vision, with its weights: {error.got}")
        return request.param

    @pytest.fixture
    def context(self, metric):
        if kind_of(metric) in ("rows", *OF_ROWS):
            return row_context()
        return sentence_context() if metric.claim in ("sequences", "occurred_tokens") else context()

    @pytest.fixture
    def wrong(self, metric):
        return case_of(metric).wrong()

    @pytest.fixture
    def right(self, metric):
        return case_of(metric).right(metric)

    @pytest.fixture
    def units(self, metric, wrong):
        return case_of(metric).units or len(wrong[1])

    def guess(self, metric, seed):
        return case_of(metric).guess(metric, draws(seed))


class Bent(Metric):
    """Mean squared error with one flaw; the contract must notice each."""

    card = Card(summary="bent")
    wording = Wording(
        label="bent", sentence="{}", explanation="Bent.", worse="down", chance="0.3", range=(0.0, 1.0)
    )

    def __init__(self, flaw: str) -> None:
        self.flaw = flaw

    def chance(self, context):
        return 0.3

    def score(self, claimed, truth, *, context):
        numbers = Mse().score(claimed, truth, context=context)
        if self.flaw == "draws":
            torch.rand(1)
        if self.flaw == "edits":
            claimed.zero_()
        return {"direction": -numbers, "range": numbers + 1, "one": numbers[:1]}.get(self.flaw, numbers)


@pytest.mark.parametrize(
    ("flaw", "promise"),
    [
        ("direction", "test_a_right_claim_leaks_more_than_a_wrong_one"),
        ("range", "test_numbers_are_finite_within_range_and_one_per_unit"),
        ("one", "test_numbers_are_finite_within_range_and_one_per_unit"),
        ("draws", "test_leaves_its_input_and_global_randomness_alone"),
        ("edits", "test_leaves_its_input_and_global_randomness_alone"),
        ("chance", "test_guessing_reaches_the_declared_chance"),
    ],
)
def test_the_contract_notices(flaw, promise):
    case, metric = CASES["reconstruction", "inputs"], Bent(flaw)
    contract = TestMetric()
    contract.guess = lambda metric, seed: case.guess(metric, draws(seed))
    given = {
        "metric": metric,
        "context": context(),
        "wrong": case.wrong(),
        "right": case.right(metric),
        "units": 3,
    }
    test = getattr(contract, promise)
    with pytest.raises(AssertionError):
        test(**{name: given[name] for name in inspect.signature(test).parameters})
