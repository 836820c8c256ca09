"""Label accuracy, held-out accuracy, and the ε that an attack refutes."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glasshouse.errors import BadValue, Undefined
from glasshouse.metrics.base import ScoreContext
from glasshouse.metrics.epsilon import epsilon_lower_bound
from glasshouse.metrics.labels import LabelAccuracy, label_counts
from glasshouse.metrics.shares import proportion_bounds, proportion_interval
from glasshouse.metrics.utility import Accuracy, accuracy, accuracy_interval

labels = st.lists(st.integers(0, 4), min_size=1, max_size=8)


def share(claimed: list[int], truth: list[int]) -> float:
    a, b = (label_counts(torch.tensor(x, dtype=torch.int64), 5) for x in (claimed, truth))
    found = LabelAccuracy().score(a, b, context=ScoreContext(classes=5))
    assert found.shape == (len(truth),)
    assert ((found >= 0) & (found <= 1)).all()
    return float(found.mean())


@given(labels, labels)
@settings(max_examples=60, deadline=None)
def test_label_accuracy_is_the_overlap_of_multisets(claimed, truth):
    overlap = sum((Counter(claimed) & Counter(truth)).values())
    assert share(claimed, truth) == pytest.approx(overlap / max(len(truth), len(claimed)))


def test_claiming_every_class_gains_nothing():
    assert share([0, 1, 2, 3, 4] * 4, [0, 0, 3, 3]) == pytest.approx(4 / 20)
    assert share([], [1, 2]) == 0.0
    assert share([3, 0], [0, 3]) == 1.0


@pytest.mark.parametrize("bad", [[0, 5], [-1], [0.0]])
def test_refuses_labels_out_of_range(bad):
    with pytest.raises(BadValue, match="integers"):
        label_counts(torch.tensor(bad), 5)


@pytest.mark.parametrize(
    ("claimed", "truth"), [([1, 2], [1, 2, 3]), ([-1, 2], [1, 0]), ([0.5, 0.5], [1, 0]), ([1, 0], [0, 0])]
)
def test_refuses_counts_that_are_none(claimed, truth):
    with pytest.raises(BadValue, match="counts per class"):
        LabelAccuracy().score(torch.tensor(claimed), torch.tensor(truth), context=ScoreContext())


def test_accuracy_is_a_share_with_its_exact_interval():
    predictions, truth = torch.tensor([0, 1, 2, 2, 1]), torch.tensor([0, 1, 2, 0, 0])
    assert accuracy(predictions, truth) == proportion_interval(3, 5) == accuracy_interval(3, 5)
    assert Accuracy().score(predictions, truth, context=ScoreContext()).tolist() == [1, 1, 1, 0, 0]
    assert Accuracy().chance(ScoreContext(classes=4)) == 0.25
    assert Accuracy().chance(ScoreContext()) is None


def test_accuracy_refuses_logits():
    with pytest.raises(BadValue, match="arg max"):
        accuracy(torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(Undefined, match="at least 1 outcome"):
        accuracy(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))


counts = st.integers(1, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(counts, counts, st.sampled_from([0.0, 1e-5, 0.1]))
@settings(max_examples=60, deadline=None)
def test_a_mechanism_below_the_bound_cannot_reach_the_attacks_success(caught, alarms, delta):
    """By search: the smallest ε on a grid that leaves room for any rates within their bounds."""
    found = epsilon_lower_bound(
        caught=caught[0], members=caught[1], alarms=alarms[0], others=alarms[1], delta=delta
    ).value
    least, _ = proportion_bounds(*caught, level=0.975)
    _, most = proportion_bounds(*alarms, level=0.975)

    def possible(epsilon: float) -> bool:
        e = math.exp(epsilon)
        return least <= e * most + delta + 1e-12 and 1 - most <= e * (1 - least) + delta + 1e-12

    assert possible(found + 1e-9)
    assert found == 0 or not possible(found - 1e-6)


def test_swapping_the_roles_gives_the_other_half_of_the_region():
    a = epsilon_lower_bound(caught=95, members=100, alarms=40, others=100).value
    b = epsilon_lower_bound(caught=60, members=100, alarms=5, others=100).value
    assert a == pytest.approx(b)
    assert a > 0


def test_a_coin_and_a_short_trial_prove_nothing():
    assert epsilon_lower_bound(caught=50, members=100, alarms=50, others=100).value == 0.0
    assert epsilon_lower_bound(caught=3, members=3, alarms=0, others=3).value < 0.1
    many = epsilon_lower_bound(caught=1000, members=1000, alarms=0, others=1000).value
    assert many > epsilon_lower_bound(caught=100, members=100, alarms=0, others=100).value > 0


def test_epsilon_refuses_what_is_no_probability():
    with pytest.raises(BadValue, match="delta in"):
        epsilon_lower_bound(caught=1, members=2, alarms=1, others=2, delta=1.0)
    with pytest.raises(Undefined, match="at least 1 outcome"):
        epsilon_lower_bound(caught=0, members=0, alarms=1, others=2)
