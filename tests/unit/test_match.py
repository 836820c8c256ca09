"""Pairing: against all permutations, and with too few or too many candidates."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from glasshouse.errors import BadValue
from glasshouse.metrics.match import UNMATCHED, assign, best, mse_table, take

sizes = st.tuples(st.integers(1, 4), st.integers(0, 5))
tables = sizes.flatmap(lambda s: arrays(np.float64, s, elements=st.integers(0, 9).map(float)))


def cheapest(cost: np.ndarray) -> float:
    """Smallest total over every way to pair as many as possible, each once."""
    rows, columns = cost.shape
    if columns >= rows:
        ways = (
            zip(range(rows), chosen, strict=True) for chosen in itertools.permutations(range(columns), rows)
        )
    else:
        ways = (
            zip(chosen, range(columns), strict=True)
            for chosen in itertools.permutations(range(rows), columns)
        )
    return min(sum(cost[i, j] for i, j in way) for way in ways)


@given(tables)
@settings(max_examples=60, deadline=None)
def test_assignment_is_the_cheapest_and_uses_each_once(cost):
    values = assign(cost)
    pairs = [(i, j) for i, j in enumerate(values) if j != UNMATCHED]
    assert len(pairs) == min(cost.shape)
    assert len({j for _, j in pairs}) == len(pairs)
    assert sum(cost[i, j] for i, j in pairs) == cheapest(cost)


@given(tables)
@settings(max_examples=60, deadline=None)
def test_best_candidate_is_each_rows_minimum(cost):
    values = best(cost)
    if cost.shape[1] == 0:
        assert (values == UNMATCHED).all()
    else:
        assert [cost[i, j] for i, j in enumerate(values)] == [min(row) for row in cost]


def test_table_is_the_mean_squared_error_of_every_pair():
    draw = torch.Generator().manual_seed(0)
    a, b = (torch.rand(n, 2, 4, 4, generator=draw) for n in (3, 5))
    items = [[float((x.double() - y.double()).square().mean()) for y in b] for x in a]
    np.testing.assert_allclose(mse_table(a, b), items, atol=1e-12)
    many = torch.rand(60, 3, 32, 32, generator=draw)
    assert (mse_table(many, many) >= 0).all()  # rounding must not make an error negative


def test_an_original_without_a_candidate_is_met_by_grey():
    candidates = torch.arange(2.0).reshape(2, 1, 1, 1)
    tensor = take(candidates, np.array([1, UNMATCHED, 0]), grey=0.25)
    assert tensor.flatten().tolist() == [1.0, 0.25, 0.0]
    assert take(candidates[:0], np.array([UNMATCHED]), grey=0.5).flatten().tolist() == [0.5]


@pytest.mark.parametrize("function", [assign, best])
def test_refuses_a_table_with_a_nan(function):
    with pytest.raises(BadValue, match="finite costs") as caught:
        function(np.array([[0.0, np.nan]]))
    assert caught.value.got == "shape (1, 2), 1 entries not finite"
