"""Label accuracy."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glasshouse.errors import BadValue
from glasshouse.metrics.base import ScoreContext
from glasshouse.metrics.labels import LabelAccuracy

labels = st.lists(st.integers(0, 4), min_size=1, max_size=8)


def share(claimed: list[int], truth: list[int]) -> float:
    a, b = (torch.bincount(torch.tensor(x, dtype=torch.int64), minlength=5) for x in (claimed, truth))
    values = LabelAccuracy().score(a, b, context=ScoreContext(classes=5))
    assert values.shape == (len(truth),)
    assert ((values >= 0) & (values <= 1)).all()
    return float(values.mean())


@given(labels, labels)
@settings(max_examples=60, deadline=None)
def test_label_accuracy_is_the_overlap_of_multisets(claimed, truth):
    overlap = sum((Counter(claimed) & Counter(truth)).values())
    assert share(claimed, truth) == pytest.approx(overlap / max(len(truth), len(claimed)))


def test_claiming_every_class_gains_nothing():
    assert share([0, 1, 2, 3, 4] * 4, [0, 0, 3, 3]) == pytest.approx(4 / 20)
    assert share([], [1, 2]) == 0.0
    assert share([3, 0], [0, 3]) == 1.0


@pytest.mark.parametrize(
    ("claimed", "truth"), [([1, 2], [1, 2, 3]), ([-1, 2], [1, 0]), ([0.5, 0.5], [1, 0]), ([1, 0], [0, 0])]
)
def test_refuses_counts_that_are_none(claimed, truth):
    with pytest.raises(BadValue, match="counts per class"):
        LabelAccuracy().score(torch.tensor(claimed), torch.tensor(truth), context=ScoreContext())
