"""Linear leakage: thresholds, rows, labels; against the definition, computed bin by bin."""

import pytest
import torch

from glasshouse.attacks.parts.readout.linear_leakage import (
    labels_from,
    normal_thresholds,
    read_rows,
    read_single_rows,
    smoothed_thresholds,
)
from glasshouse.errors import BadValue


def rows_of(x, delta, thresholds):
    """The definition: row r sums delta · x over all inputs whose mean is above threshold r."""
    weight = torch.zeros(len(thresholds), x.shape[1], dtype=torch.float64)
    bias = torch.zeros(len(thresholds), dtype=torch.float64)
    for r, h in enumerate(thresholds):
        for one, d in zip(x.double(), delta.double(), strict=True):
            if one.mean() > h:
                weight[r] += d * one
                bias[r] += d
    return weight, bias


def slow_inputs(x, delta, thresholds):
    """Bin by bin: the delta-weighted mean of the bin's inputs."""
    out = {}
    edges = [*thresholds.tolist(), float("inf")]
    for r in range(len(thresholds)):
        inside = (x.double().mean(1) > edges[r]) & (x.double().mean(1) <= edges[r + 1])
        if inside.any():
            d = delta[inside].double()
            out[r] = (d[:, None] * x[inside].double()).sum(0) / d.sum()
    return out


@pytest.fixture
def inputs():
    return torch.rand((12, 5), generator=torch.Generator().manual_seed(0))


MEAN = torch.full((5,), 0.2)
THRESHOLDS = torch.linspace(0.3, 0.8, 8, dtype=torch.float64)
DELTA = torch.tensor([1.0, -3.0, 2.0, 1.5, 1.0, 4.0, -2.5, 1.0, 1.0, 2.0, 0.5, 1.0])


@pytest.mark.parametrize("by_measure", [False, True])
def test_rows_give_what_the_bins_hold(inputs, by_measure):
    weight, bias = rows_of(inputs, DELTA, THRESHOLDS)
    leak = read_rows(weight, bias, THRESHOLDS, floor=1e-9, limit=99, measure=MEAN if by_measure else None)
    expected = slow_inputs(inputs, DELTA, THRESHOLDS)
    assert set(leak.rows.tolist()) == set(expected)
    for row, result in zip(leak.rows.tolist(), leak.inputs, strict=True):
        torch.testing.assert_close(result, expected[row], rtol=0.06 if by_measure else 1e-9, atol=1e-9)


def test_the_scale_survives_a_ruined_bias_where_bins_are_narrow():
    thresholds = torch.linspace(0.3, 0.8, 200, dtype=torch.float64)
    x = torch.rand((1, 50), generator=torch.Generator().manual_seed(3))
    weight, bias = rows_of(x, torch.ones(1), thresholds)
    leak = read_rows(weight, 0 * bias, thresholds, floor=1e-9, limit=9, measure=torch.full((50,), 0.02))
    torch.testing.assert_close(leak.inputs[0], x[0].double(), rtol=5e-3, atol=0)
    assert not len(read_rows(weight, 0 * bias, thresholds, floor=1e-9, limit=9).rows)


def test_below_the_lowest_threshold_nothing_leaks():
    weight, bias = rows_of(torch.full((3, 5), 0.1), torch.ones(3), THRESHOLDS)
    assert len(read_rows(weight, bias, THRESHOLDS, floor=0.0, limit=9).rows) == 0


def test_the_limit_keeps_the_strongest(inputs):
    weight, bias = rows_of(inputs, DELTA, THRESHOLDS)
    every = read_rows(weight, bias, THRESHOLDS, floor=0.0, limit=99)
    two = read_rows(weight, bias, THRESHOLDS, floor=0.0, limit=2)
    assert two.rows.tolist() == every.rows[:2].tolist()
    assert two.signal.abs().min() >= every.signal[2:].abs().max()


def test_float32_rows_are_refused(inputs):
    weight, bias = rows_of(inputs, DELTA, THRESHOLDS)
    with pytest.raises(BadValue, match="float64"):
        read_rows(weight.float(), bias, THRESHOLDS, floor=0.0, limit=9)
    with pytest.raises(BadValue, match="ascending"):
        read_rows(weight, bias, THRESHOLDS.flip(0), floor=0.0, limit=9)


def test_single_rows_need_no_difference(inputs):
    weight = torch.zeros(4, 5, dtype=torch.float64)
    bias = torch.zeros(4, dtype=torch.float64)
    weight[2], bias[2] = -0.5 * inputs[0].double(), -0.5
    leak = read_single_rows(weight, bias, THRESHOLDS[:4], faint=1e-6, limit=9)
    assert leak.rows.tolist() == [2]
    torch.testing.assert_close(leak.inputs[0], inputs[0].double())


@pytest.mark.parametrize("fit", [normal_thresholds, smoothed_thresholds])
def test_thresholds_cut_a_normal_sample_into_equal_shares(fit):
    draws = torch.randn(4000, generator=torch.Generator().manual_seed(1)) * 0.2 + 3
    thresholds = fit(draws, 11)
    shares = torch.histogram(draws.double(), bins=thresholds).hist / len(draws)
    assert bool((thresholds.diff() > 0).all())
    assert (shares - 0.1).abs().max() < 0.02


def test_smoothing_follows_two_peaks_that_the_normal_fit_misses():
    draws = torch.randn(4000, generator=torch.Generator().manual_seed(2)) * 0.15
    draws[::2] += 1
    uneven = []
    for fit in (normal_thresholds, smoothed_thresholds):
        shares = torch.histogram(draws.double(), bins=fit(draws, 21)).hist / len(draws)
        uneven.append(float(shares.std()))
    assert uneven[1] < uneven[0] / 2


def test_constant_brightness_is_refused():
    with pytest.raises(BadValue, match="differ"):
        normal_thresholds(torch.ones(10), 4)


def test_labels_by_sign_and_ratio():
    levels = torch.tensor([-5.0, 1.0, 2.0, 4.0])
    assert labels_from(torch.tensor([-0.1, 1.3, 1.5, 90.0]), levels).tolist() == [0, 1, 2, 3]
    assert labels_from(torch.zeros(0), levels).shape == (0,)
