"""What every registered metric promises to the audit, which knows it only by name."""

import dataclasses

import numpy as np
import pytest
import torch

from glasshouse import registry
from glasshouse.metrics.base import Metric, PooledMetric, ScoreContext

IMAGES = (
    "attribute_agreement",
    "identification",
    "lpips",
    "mse",
    "mse_r",
    "perceptual",
    "psnr",
    "rate_blind",
    "rate_paper",
    "ssim",
)
OURS = frozenset(
    {*IMAGES, "auc", "defense_named", "f1", "label_accuracy", "precision", "recall", "tpr_at_fpr"}
)


def rand(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def context() -> ScoreContext:
    return ScoreContext(
        distractors=rand(4, 3, 32, 32)[1:],
        features=lambda x: x.flatten(1),
        perceptual=lambda x: (x,),
        classify=lambda x: x.flatten(1).mean(1).mul(100).long(),
        classes=10,
        prior=0.1,
    )


def sides(metric: Metric) -> tuple[torch.Tensor, torch.Tensor]:
    """A claim and a truth of the kind that the metric reads."""
    if metric.reads == "inputs":
        return rand(2, 3, 32, 32), rand(3, 3, 32, 32)
    if metric.reads == "counts":
        return torch.tensor([1, 0, 2]), torch.tensor([1, 1, 1])
    if metric.reads == "predictions":
        return torch.tensor([0, 1, 2]), torch.tensor([0, 1, 1])
    if metric.reads == "names":
        return torch.tensor([1, -1, 2]), torch.tensor([1, 1, 1])
    member = torch.arange(200) < 40
    claimed = rand(200) if metric.reads == "scores" else rand(200) < 0.5
    return claimed, member


@pytest.fixture(params=sorted(OURS - {"lpips"}))  # lpips needs an extra: tests/unit/test_lpips.py
def metric(request) -> Metric:
    return registry.load("metrics", request.param)()


def test_the_names_that_scripts_rely_on_are_registered():
    assert set(registry.names("metrics")) >= OURS


def test_it_is_frozen_data_with_a_card(metric):
    assert dataclasses.is_dataclass(metric)
    with pytest.raises((dataclasses.FrozenInstanceError, TypeError, AttributeError)):
        metric.anything = 1
    assert {"direction", "chance"} <= metric.card.details.keys()
    assert metric.claim in (*registry.names("claims"), "utility")
    assert metric.reads.isidentifier()
    assert metric.unit in ("dB", "share", "")
    assert metric.card.details["direction"].startswith("up" if metric.higher_leaks else "down")


def test_score_is_finite_one_per_unit_and_leaves_its_input_alone(metric):
    claimed, truth = sides(metric)
    before = claimed.clone(), truth.clone()
    found = metric.score(claimed, truth, context=context())
    assert found.dtype == np.float64
    assert found.shape == ((1,) if isinstance(metric, PooledMetric) else (3,))
    assert np.isfinite(found).all()
    assert torch.equal(claimed, before[0])
    assert torch.equal(truth, before[1])
    if metric.counts:
        assert ((found >= 0) & (found <= 1)).all()


def test_pooling_one_run_gives_the_score_of_that_run(metric):
    if not isinstance(metric, PooledMetric):
        return
    claimed, truth = sides(metric)
    one = metric.pool(claimed.double().numpy(), truth.numpy())
    assert metric.score(claimed, truth, context=context()).tolist() == [one.value]
    assert one.low < one.high


def test_guessing_reaches_the_declared_chance(metric):
    chance = metric.chance(context())
    if not isinstance(metric, PooledMetric):
        assert chance is None or chance in (0.25, 0.1, 0.125)  # 1/M, 1/K and 1/choices
        return
    generator = torch.Generator().manual_seed(0)
    member = torch.rand(4000, generator=generator) < 0.1
    coin = torch.rand(4000, generator=generator)
    claimed = coin if metric.reads == "scores" else coin < 0.1
    assert metric.score(claimed, member, context=context()).item() == pytest.approx(chance, abs=0.04)
