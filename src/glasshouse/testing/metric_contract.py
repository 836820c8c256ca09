"""Contract tests for metrics, shipped for authors of plug-ins.

Subclass as ``TestMyMetric`` and provide the fixtures ``name``, ``wrong`` and ``right``; the tests are
inherited. A metric that declares a chance level must also implement ``guess``.
"""

import dataclasses
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from glasshouse import registry
from glasshouse.metrics.base import Metric, Requirement, ScoreContext, Wording
from glasshouse.testing.fixtures import to_provide

Sides = tuple[Tensor, Tensor]
"""(claim, ground truth), as passed to ``score``."""
TRIES = 200
"""Number of guesses whose mean score is compared with the declared chance."""
NEAR = 0.02
"""Tolerance of that comparison, if four standard errors are less."""


class MetricContract:
    """Contract of a metric, tested on a wrong claim and a right one."""

    name = to_provide(str)
    """The registered name."""

    @pytest.fixture
    def metric(self, name: str) -> Metric:
        """The metric under test, with its defaults."""
        metric: Metric = registry.load("metrics", name)()
        return metric

    @pytest.fixture
    def context(self) -> ScoreContext:
        """The scoring context, with everything that the metric ``requires``."""
        return ScoreContext()

    wrong = to_provide(Sides)
    """A claim unrelated to the ground truth, and the ground truth."""

    right = to_provide(Sides)
    """A perfect claim, and the ground truth."""

    @pytest.fixture
    def units(self, wrong: Sides) -> int:
        """Number of values that ``score`` returns for ``wrong`` and ``right``: one per private example."""
        return len(wrong[1])

    @staticmethod
    def is_pooled(metric: Metric) -> bool:
        """Whether the metric is one over all clients together."""
        return type(metric).pool is not Metric.pool

    def guess(self, metric: Metric, seed: int) -> tuple[Tensor, Tensor, ScoreContext]:
        """A claim made without information, its ground truth and context; only if chance is declared."""
        raise NotImplementedError

    def test_is_frozen_data_registered_with_a_card(self, name: str, metric: Metric) -> None:
        """``glasshouse list`` can show it; the card states direction and chance in words."""
        assert registry.load("metrics", name) is type(metric)
        assert dataclasses.is_dataclass(type(metric))
        with pytest.raises((AttributeError, TypeError)):
            metric.unit = "other"  # type: ignore[misc]  # setting it must fail
        card = registry.card("metrics", name)
        assert card.summary
        assert card.details["chance"]
        assert card.details["direction"].startswith("up" if metric.higher_leaks else "down")

    def test_says_how_a_report_shows_it(self, metric: Metric) -> None:
        """The wording is complete and fits the unit."""
        wording = metric.wording
        assert isinstance(wording, Wording)
        assert "{}" not in wording.sentence.format("1")
        assert wording.explanation.rstrip().endswith(".")
        assert wording.display != "rate" or metric.unit == "share"
        assert (wording.display == "level") == (metric.unit == "dB"), 'display="level" goes with unit="dB"'
        assert wording.chance

    def test_says_what_it_scores_and_within_which_range(self, metric: Metric) -> None:
        """Registered kind of claim, valid field name, known requirements, ordered range."""
        assert metric.claim in registry.names("claims")
        assert metric.reads.isidentifier()
        assert metric.requires <= set(get_args(Requirement))
        low, high = metric.range
        assert low < high
        assert not metric.counts or metric.range == (0.0, 1.0)

    def test_numbers_are_finite_within_range_and_one_per_unit(
        self, metric: Metric, wrong: Sides, right: Sides, context: ScoreContext, units: int
    ) -> None:
        """One finite value per unit, within range; a pooled metric returns a single value."""
        for claimed, truth in (wrong, right):
            numbers = metric.score(claimed, truth, context=context)
            assert numbers.dtype == np.float64
            assert numbers.shape == ((1,) if self.is_pooled(metric) else (units,))
            assert np.isfinite(numbers).all()
            assert ((numbers >= metric.range[0]) & (numbers <= metric.range[1])).all()

    def test_an_examples_number_depends_on_no_other_example_of_the_call(
        self, metric: Metric, wrong: Sides, context: ScoreContext, units: int
    ) -> None:
        """Audits score pairs of several victims in one call, and claims against others' examples.

        A metric that matches within a claim says by ``pairwise`` what a candidate is worth beside an example.
        """
        claimed, truth = wrong
        paired = metric.claim == "reconstruction" and len(claimed) == len(truth) == units
        if not paired or self.is_pooled(metric) or type(metric).pairwise is not Metric.pairwise:
            return
        together = metric.score(claimed, truth, context=context)
        alone = [
            metric.score(claimed[i : i + 1], truth[i : i + 1], context=context)[0] for i in range(len(truth))
        ]
        np.testing.assert_allclose(together, alone, rtol=1e-6, atol=1e-9)

    def test_leaves_its_input_and_global_randomness_alone(
        self, metric: Metric, wrong: Sides, context: ScoreContext
    ) -> None:
        """Claim and truth are not changed; scoring twice gives the same result."""
        before, state = [side.clone() for side in wrong], torch.get_rng_state()
        one, two = (metric.score(*wrong, context=context) for _ in range(2))
        assert one.tolist() == two.tolist()
        assert all(torch.equal(side, old) for side, old in zip(wrong, before, strict=True))
        assert torch.equal(state, torch.get_rng_state())

    def test_a_right_claim_leaks_more_than_a_wrong_one(
        self, metric: Metric, wrong: Sides, right: Sides, context: ScoreContext
    ) -> None:
        """In the direction of ``higher_leaks``."""
        worse, better = (float(metric.score(*sides, context=context).mean()) for sides in (wrong, right))
        assert better > worse if metric.higher_leaks else better < worse

    def test_guessing_reaches_the_declared_chance(self, metric: Metric, context: ScoreContext) -> None:
        """The mean score of guesses matches the declared chance; skipped if none is declared."""
        if metric.chance(context) is None:
            return
        gaps = []
        for seed in range(TRIES):
            claimed, truth, around = self.guess(metric, seed)
            chance = metric.chance(around)
            assert chance is not None
            if self.is_pooled(metric):  # computing the interval of every guess would be slow
                scores = metric.values(claimed.double().numpy(), truth.numpy()[None])
                assert scores is not None
            else:
                scores = metric.score(claimed, truth, context=around)
            gaps.append(float(scores.mean()) - chance)
        tolerance = max(NEAR, 4 * float(np.std(gaps)) / TRIES**0.5)
        assert abs(float(np.mean(gaps))) <= tolerance

    def test_pooling_one_run_gives_the_score_of_that_run(
        self, metric: Metric, wrong: Sides, context: ScoreContext
    ) -> None:
        """``pool`` and ``values`` agree with ``score``; only for pooled metrics."""
        if not self.is_pooled(metric):
            return
        claimed, truth = wrong[0].double().numpy(), wrong[1].numpy()
        pooled, values = metric.pool(claimed, truth), metric.values(claimed, truth[None])
        assert pooled is not None
        assert values is not None
        assert metric.score(*wrong, context=context).tolist() == [pooled.value]
        assert values.tolist() == pytest.approx([pooled.value])
        assert pooled.low <= pooled.value <= pooled.high
        assert pooled.low < pooled.high
