"""Scoring in few operations gives the numbers of one call after the other."""

from functools import partial

import numpy as np
import pytest
import torch
from tests.unit import scoring_toys as toys

from glasshouse.audit.scoring import judge as judging
from glasshouse.audit.scoring import nulls
from glasshouse.audit.scoring import score as scoring
from glasshouse.audit.scoring.nulls import score, score_drawn
from glasshouse.audit.scoring.score import score_metric
from glasshouse.audit.scoring.verdicts.victims import best_of
from glasshouse.metrics.base import ComparingMetric, ScoreContext
from glasshouse.metrics.labels import LabelAccuracy
from glasshouse.metrics.reconstruction import Identification, Mse, MseR, Perceptual, Psnr, Ssim
from glasshouse.metrics.recovery import RateBlind
from glasshouse.rng import Rng
from glasshouse.wire import Batch

CONTEXT = ScoreContext(
    distractors=torch.rand((3, 2, 16, 16), generator=Rng.root(7).torch()),
    features=lambda x: x.flatten(1)[:, :9],
    perceptual=lambda x: [x, x[:, :, ::2]],
)


METRICS = [
    *(Mse(), Psnr(), Ssim(), MseR(), Perceptual(), RateBlind(threshold=7.8)),
    *(Identification(), LabelAccuracy()),
]


def batch(seed: int, count: int, side: int = 16) -> Batch:
    inputs = torch.rand((count, 2, side, side), generator=Rng.root(seed).torch())
    return Batch(inputs=inputs, labels=torch.arange(count) % 3)


@pytest.mark.parametrize("at_once", [1, 5000, 2**21])
@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("metric", METRICS)
def test_guesses_on_many_victims_score_as_one_by_one(metric, count, at_once, monkeypatch):
    monkeypatch.setattr(nulls, "AT_ONCE", at_once)
    guesses, victims = batch(1, 7 * count), batch(2, 7 * count)
    together = score_drawn(metric, guesses, victims, count=count, context=CONTEXT)
    rows = [torch.arange(i * count, (i + 1) * count) for i in range(7)]
    alone = [score(metric, guesses.pick(row), victims.pick(row), context=CONTEXT) for row in rows]
    assert len(together) == len(alone)
    for one, other in zip(together, alone, strict=True):
        assert np.allclose(one, other, rtol=1e-6, atol=1e-7)
    assert isinstance(metric, ComparingMetric) == (metric.claim == "reconstruction")


@pytest.mark.parametrize("metric", [Mse(), Psnr(), Ssim()])
def test_a_table_of_candidates_and_examples_has_the_scores_of_single_pairs(metric):
    candidates, examples = batch(1, 5).inputs, batch(2, 6).inputs
    rows = [metric.score(c.expand(6, -1, -1, -1), examples, context=CONTEXT) for c in candidates]
    best = np.max(rows, 0) if metric.higher_leaks else np.min(rows, 0)
    assert best_of(metric, candidates, examples, context=CONTEXT) == pytest.approx(best, abs=1e-9)


def test_what_nulls_get_is_computed_once_for_the_same_victims_and_knowledge(monkeypatch):
    """Two cells of one content ask once; other auxiliary images, settings or victims are other questions."""
    asked = []
    for name in ("choose_null", "average_score"):
        plain = getattr(judging, name)
        count = partial(lambda name, plain, *a, **k: (asked.append(name), plain(*a, **k))[1], name, plain)
        monkeypatch.setattr(judging, name, count)

    def ask(metric, client=0, **changes):
        asked.clear()
        one = toys.judge(toys.images(4, seed=31), **{"networks": "a digest", **changes})
        victim = one.target(0, client).batch
        scores = one.null_scores("toy", metric, victim, number=0, client=client)
        return scores, list(asked)

    first, computed = ask(Psnr())
    assert computed == ["choose_null", "average_score"]
    again, computed = ask(Psnr())
    assert computed == []
    assert np.array_equal(first, again)
    assert ask(Psnr(), client=1)[1] == ["average_score"]
    for changes in ({"auxiliary": toys.batch(60, 77)}, {"rng": Rng.root(5)}, {"networks": ""}):
        assert ask(Psnr(), **changes)[1] == ["choose_null", "average_score"]
    assert ask(Mse())[1] == ["choose_null", "average_score"]


@pytest.mark.parametrize("metric", [Mse(), Psnr(), Ssim(), Identification()])
def test_a_single_image_meets_its_victim_and_others_at_once_as_one_by_one(metric, monkeypatch):
    others = ScoreContext(classes=4, distractors=toys.images(9, seed=8))
    private = toys.images(5, seed=32)
    claims = {c: (toys.claim(c, toys.noisy(private[c : c + 1], 0.3)),) for c in range(5)}
    run = toys.run_of(toys.judge(private, context=others), claims)
    together = score_metric("toy", metric, [run])
    assert len(run.judge.compared) == 5
    run.judge.compared.clear()
    monkeypatch.setattr(scoring, "compare_together", lambda *_: None)
    alone = score_metric("toy", metric, [run])
    for one, other in ((together.values, alone.values), (together.exchanged, alone.exchanged)):
        assert np.allclose(np.stack(one), np.stack(other), rtol=1e-9)
    assert len(together.exchanged[0]) == 3
