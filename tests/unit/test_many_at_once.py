"""Scoring in few operations gives the numbers of one call after the other."""

import numpy as np
import pytest
import torch
from tests.unit import scoring_toys as toys

from glasshouse.audit.scoring import nulls
from glasshouse.audit.scoring.nulls import NullBook, score_drawn, score_guess
from glasshouse.audit.scoring.pair import Pair
from glasshouse.audit.scoring.score import score_metric
from glasshouse.audit.scoring.table import best_of
from glasshouse.metrics.base import Metric, ScoreContext
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
    alone = [score_guess(metric, guesses.pick(row), victims.pick(row), context=CONTEXT) for row in rows]
    assert len(together) == len(alone)
    for one, other in zip(together, alone, strict=True):
        assert np.allclose(one, other, rtol=1e-6, atol=1e-7)
    assert (type(metric).compare is not Metric.compare) == (metric.claim == "reconstruction")


@pytest.mark.parametrize("metric", [Mse(), Psnr(), Ssim()])
def test_a_table_of_candidates_and_examples_has_the_scores_of_single_pairs(metric):
    candidates, examples = batch(1, 5).inputs, batch(2, 6).inputs
    rows = [metric.score(c.expand(6, -1, -1, -1), examples, context=CONTEXT) for c in candidates]
    best = np.max(rows, 0) if metric.higher_leaks else np.min(rows, 0)
    assert best_of(metric, candidates, examples, context=CONTEXT) == pytest.approx(best, abs=1e-9)


def test_what_nulls_get_is_computed_once_for_the_same_victims_and_knowledge(monkeypatch):
    """Two cells of one content ask once; other auxiliary images, settings or victims are other questions."""
    asked = []

    def counted(name):
        plain = getattr(NullBook, name)

        def work(*given, **named):
            asked.append(name)
            return plain(*given, **named)

        monkeypatch.setattr(NullBook, name, work)

    counted("choose")
    counted("average")

    def ask(metric, client=0, **changes):
        asked.clear()
        one = toys.bench(toys.images(4, seed=31), **{"networks": "a digest", **changes})
        victim = one.ground.target(0, client).batch
        pair = Pair(victim=("v",), own=None, examples=victim, number=0, client=client, guessed=True)
        scores = one.book.quote("toy", metric, pair, 1).scores
        return scores, list(asked)

    first, computed = ask(Psnr())
    assert computed == ["choose", "average"]
    again, computed = ask(Psnr())
    assert computed == []
    assert np.array_equal(first, again)
    assert ask(Psnr(), client=1)[1] == ["average"]
    for changes in ({"auxiliary": toys.batch(60, 77)}, {"rng": Rng.root(5)}, {"networks": ""}):
        assert ask(Psnr(), **changes)[1] == ["choose", "average"]
    assert ask(Mse())[1] == ["choose", "average"]


@pytest.mark.parametrize("metric", [Mse(), Psnr(), Ssim(), Identification()])
def test_a_single_image_meets_its_victim_and_others_at_once_as_one_by_one(metric):
    others = ScoreContext(classes=4, distractors=toys.images(9, seed=8))
    private = toys.images(5, seed=32)
    claims = {c: (toys.claim(c, toys.noisy(private[c : c + 1], 0.3)),) for c in range(5)}
    run = toys.run_of(toys.bench(private, context=others), claims)
    together = score_metric("toy", metric, [run])
    alone = [metric.score(claims[c][0].inputs, private[c : c + 1], context=others) for c in range(5)]
    assert np.allclose(np.stack(together.values), np.stack(alone), rtol=1e-9)
    for c in range(5):
        turned = [private[(c + shift) % 5][None] for shift in (1, 2, 3)]
        slow = [metric.score(claims[c][0].inputs, other, context=others).mean() for other in turned]
        assert np.allclose(together.exchanged[c][:, 0], slow, rtol=1e-9)
