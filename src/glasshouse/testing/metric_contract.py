"""What every metric promises. Shipped with the package, so that other people's can be held to it.

Subclass as ``TestMyMetric``, provide the fixtures ``name``, ``wrong`` and ``right``, and the promises come
along as tests. A metric that declares a level of chance also shows how to ``guess``.
"""

import dataclasses
from typing import get_args

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from glasshouse import registry
from glasshouse.metrics.base import Metric, PooledMetric, Requirement, ScoreContext, Wording

Sides = tuple[Tensor, Tensor]
"""A claim and the truth, as ``score`` gets them."""
TRIES = 200
"""Guesses whose mean is compared with the declared chance."""
NEAR = 0.02
"""How far that mean may lie from it, where four standard errors are less."""


class MetricContract:
    """Promises of a metric on a wrong claim and on a right one."""

    @pytest.fixture
    def name(self) -> str:
        """As registered."""
        raise NotImplementedError

    @pytest.fixture
    def metric(self, name: str) -> Metric:
        """The metric under test, with its defaults."""
        metric: Metric = registry.load("metrics", name)()
        return metric

    @pytest.fixture
    def context(self) -> ScoreContext:
        """What it needs beside claim and truth: whatever its ``requires`` names."""
        return ScoreContext()

    @pytest.fixture
    def wrong(self) -> Sides:
        """A claim that has little to do with the truth, and the truth."""
        raise NotImplementedError

    @pytest.fixture
    def right(self) -> Sides:
        """A claim that could not be better, and the truth."""
        raise NotImplementedError

    @pytest.fixture
    def units(self, wrong: Sides) -> int:
        """How many numbers ``score`` returns for ``wrong`` and for ``right``: one per private example."""
        return len(wrong[1])

    def guess(self, metric: Metric, seed: int) -> tuple[Tensor, Tensor, ScoreContext]:
        """A claim made without any information, its truth and its context; only where chance is declared."""
        raise NotImplementedError

    def test_is_frozen_data_registered_with_a_card(self, name: str, metric: Metric) -> None:
        """``glasshouse list`` can show it; the card says direction and chance in words."""
        assert registry.load("metrics", name) is type(metric)
        assert dataclasses.is_dataclass(type(metric))
        with pytest.raises((AttributeError, TypeError)):
            metric.unit = "other"  # type: ignore[misc]  # that it cannot be set is the point
        card = registry.card("metrics", name)
        assert card.summary
        assert card.details["chance"]
        assert card.details["direction"].startswith("up" if metric.higher_leaks else "down")

    def test_says_how_a_report_shows_it(self, metric: Metric) -> None:
        """The wording is complete, and fits the unit."""
        wording = metric.wording
        assert isinstance(wording, Wording)
        assert "{}" not in wording.sentence.format("1")
        assert wording.explanation.rstrip().endswith(".")
        assert wording.display != "rate" or metric.unit == "share"
        assert (wording.display == "level") == (metric.unit == "dB")

    def test_says_what_it_scores_and_within_which_range(self, metric: Metric) -> None:
        """A registered kind of claim, a part of it, known requirements, an ordered range."""
        assert metric.claim in registry.names("claims")
        assert metric.reads.isidentifier()
        assert metric.requires <= set(get_args(Requirement))
        low, high = metric.range
        assert low < high
        assert not metric.counts or metric.range == (0.0, 1.0)

    def test_numbers_are_finite_within_range_and_one_per_unit(
        self, metric: Metric, wrong: Sides, right: Sides, context: ScoreContext, units: int
    ) -> None:
        """A pooled metric returns a single one; a metric that counts, 0 or 1 or a share of a hit."""
        for claimed, truth in (wrong, right):
            numbers = metric.score(claimed, truth, context=context)
            assert numbers.dtype == np.float64
            assert numbers.shape == ((1,) if isinstance(metric, PooledMetric) else (units,))
            assert np.isfinite(numbers).all()
            assert ((numbers >= metric.range[0]) & (numbers <= metric.range[1])).all()

    def test_leaves_its_input_and_global_randomness_alone(
        self, metric: Metric, wrong: Sides, context: ScoreContext
    ) -> None:
        """Claim and truth are as before; scoring twice gives the same."""
        before, state = [side.clone() for side in wrong], torch.get_rng_state()
        one, two = (metric.score(*wrong, context=context) for _ in range(2))
        assert one.tolist() == two.tolist()
        assert all(torch.equal(side, old) for side, old in zip(wrong, before, strict=True))
        assert torch.equal(state, torch.get_rng_state())

    def test_a_right_claim_leaks_more_than_a_wrong_one(
        self, metric: Metric, wrong: Sides, right: Sides, context: ScoreContext
    ) -> None:
        """In the direction that ``higher_leaks`` says."""
        worse, better = (float(metric.score(*sides, context=context).mean()) for sides in (wrong, right))
        assert better > worse if metric.higher_leaks else better < worse

    def test_guessing_reaches_the_declared_chance(self, metric: Metric, context: ScoreContext) -> None:
        """The mean over guesses without any information; nothing to show where no chance is declared."""
        if metric.chance(context) is None:
            return
        gaps = []
        for seed in range(TRIES):
            claimed, truth, around = self.guess(metric, seed)
            chance = metric.chance(around)
            assert chance is not None
            gaps.append(float(_numbers(metric, claimed, truth, around).mean()) - chance)
        tolerance = max(NEAR, 4 * float(np.std(gaps)) / TRIES**0.5)
        assert abs(float(np.mean(gaps))) <= tolerance

    def test_pooling_one_run_gives_the_score_of_that_run(
        self, metric: Metric, wrong: Sides, context: ScoreContext
    ) -> None:
        """``pool`` and ``values`` agree with ``score``; only for pooled metrics."""
        if not isinstance(metric, PooledMetric):
            return
        claimed, truth = wrong[0].double().numpy(), wrong[1].numpy()
        pooled = metric.pool(claimed, truth)
        assert metric.score(*wrong, context=context).tolist() == [pooled.value]
        assert metric.values(claimed, truth[None]).tolist() == pytest.approx([pooled.value])
        assert pooled.low <= pooled.value <= pooled.high
        assert pooled.low < pooled.high


def _numbers(metric: Metric, claimed: Tensor, truth: Tensor, context: ScoreContext) -> NDArray[np.float64]:
    if isinstance(metric, PooledMetric):  # the interval of every guess would take its time
        return metric.values(claimed.double().numpy(), truth.numpy()[None])
    return metric.score(claimed, truth, context=context)
