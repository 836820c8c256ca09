"""What is scored or tested in one operation is what one claim, or one order, at a time gives."""

import numpy as np
import pytest
import torch
from tests.verdicts.test_forms import ROW, of_rows, rows

from glasshouse.audit.scoring.nulls import score_drawn, score_guess
from glasshouse.examples import Batch
from glasshouse.metrics.base import ScoreContext
from glasshouse.metrics.statistics import recognised
from glasshouse.metrics.tables.people import Reidentified
from glasshouse.metrics.tables.rows import Cells, RowsExact


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("metric", [RowsExact(), Cells(), Reidentified()], ids=lambda one: type(one).__name__)
def test_guesses_about_rows_are_scored_as_one_claim_is(metric, count, monkeypatch):
    """Also how they are paired: numbers weigh as much as categories, which squares of entries do not say."""
    random = np.random.default_rng(0)
    values = rows(12, random)
    # Some cells of each are right, in another order within the groups.
    said = torch.where(torch.from_numpy(random.random(values.shape)) < 0.6, values, rows(12, random))
    said[0] = values[0]
    said = said.reshape(-1, count, values.shape[1]).flip(1).flatten(0, 1)
    guessed, victims = (Batch(inputs=ROW.encode(one), labels=torch.zeros(12)) for one in (said, values))
    context = ScoreContext(inputs=ROW, distractors=ROW.encode(rows(5, random)))
    single = [
        score_guess(
            metric, *(b.pick(torch.arange(start, start + count)) for b in (guessed, victims)), context=context
        )
        for start in range(0, 12, count)
    ]
    monkeypatch.setattr(type(metric), "score", None)  # nothing is scored one by one
    together = score_drawn(metric, guessed, victims, count=count, context=context)
    assert np.array_equal(single, together)
    assert 0 < np.mean(single) < 1


def test_who_is_in_the_public_data_is_asked_once_for_each_example(monkeypatch):
    one, one.claims = of_rows(np.random.default_rng(0), lambda own, others: others)
    one.metrics = ("rows_exact", "row_cells")
    asked = []
    monkeypatch.setattr(
        "glasshouse.audit.scoring.nulls.which_known",
        lambda examples, *_: asked.append(len(examples)) or torch.zeros(len(examples), dtype=torch.bool),
    )
    one.scores()
    assert sum(asked) == len(one.private)


def test_covariances_of_all_parts_are_the_sums_over_every_pair():
    """Also of what is apart from itself, as sets of several examples are."""
    random = np.random.default_rng(0)
    apart = random.normal(size=(2, 2, 5, 5))
    apart = apart + apart.swapaxes(2, 3)
    orders = np.array([range(5), random.permutation(5), random.permutation(5)])
    parts = [(claims, truths) for claims, truths in apart]
    np.testing.assert_allclose(
        recognised._covariances(parts, orders),
        [slow_covariances(parts, order) for order in orders],
        rtol=1e-12,
    )


def slow_covariances(parts, order):
    """Of one order, the sum over all pairs of victims, part by part."""
    left, right = ([recognised._centred(pair[side]) for pair in parts] for side in (0, 1))
    return [[(one * other[np.ix_(order, order)]).sum() for other in right] for one in left]
