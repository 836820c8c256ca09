"""Every registered metric keeps the contract of metrics."""

import pytest
from metric_cases import CASES, context, draws

from glasshouse import registry
from glasshouse.errors import NotInstalled
from glasshouse.metrics.lpips import Lpips
from glasshouse.testing.metric_contract import MetricContract


def ours() -> list[str]:
    """Registered metrics of this package: others bring their own tests."""
    entries = ((name, registry.entry("metrics", name)) for name in registry.names("metrics"))
    return [name for name, entry in entries if entry.module.startswith("glasshouse.")]


def case_of(metric):
    return CASES[metric.claim, metric.reads]


def test_there_is_a_case_for_every_metric():
    classes = [registry.load("metrics", name) for name in ours()]
    assert {(c.claim, c.reads) for c in classes} == set(CASES)


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
    def context(self):
        return context()

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
