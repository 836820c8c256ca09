"""Reading a layer's inputs from its gradients: exact where units are exclusive, blind about mixtures."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from glasshouse.attacks.parts.readout.columns import read_columns
from glasshouse.errors import BadValue
from glasshouse.metrics.base import ScoreContext
from glasshouse.metrics.representations import Leakage, LeakagePrecision


def layer(seed, *, batch=12, units=64, size=40, share=0.1, noise=0.0):
    g = torch.Generator().manual_seed(seed)
    y = torch.relu(torch.randn((batch, size), generator=g))
    dz = torch.randn((batch, units), generator=g) * (torch.rand((batch, units), generator=g) < share)
    dz[:, 0] = 0  # some unit is reached by nobody
    weight, bias = dz.T.double() @ y.double(), dz.double().sum(0)
    weight += noise * torch.randn(weight.shape, generator=g).double()
    bias += noise * torch.randn(bias.shape, generator=g).double()
    return y, dz, weight.float(), bias.float()


def scores(read, y):
    context = ScoreContext()
    return (
        Leakage().score(read.vectors, y, context=context).mean(),
        LeakagePrecision().score(read.vectors, y, context=context).mean() if len(read.vectors) else None,
    )


@given(st.integers(0, 10_000))
@example(5489)  # a mixture with a negative entry lies within the tolerance of an example read exactly
@settings(max_examples=20, deadline=None)
def test_every_exclusive_unit_gives_its_example(seed):
    y, dz, weight, bias = layer(seed)
    single = (dz != 0).sum(0) == 1
    alone = ((dz != 0) & single).any(1)
    read = read_columns(weight, bias, limit=64, readout="nonnegative")
    values = Leakage().score(read.vectors, y, context=ScoreContext())
    assert (values >= alone.numpy()).all()


def test_stricter_readings_are_more_precise():
    y, _, weight, bias = layer(1, batch=20, share=0.08)
    table = {
        how: scores(read_columns(weight, bias, limit=64, readout=how), y)
        for how in ("all", "nonnegative", "unexplained", "confirmed")
    }
    precision = [table[how][1] for how in ("all", "nonnegative", "unexplained", "confirmed")]
    assert precision == sorted(precision)
    assert precision[0] < precision[2]
    assert precision[3] == 1.0
    assert table["unexplained"][0] == table["nonnegative"][0]


def test_the_number_of_examples_bounds_the_claim():
    _, _, weight, bias = layer(2, share=0.5)
    assert len(read_columns(weight, bias, limit=5, readout="all").vectors) == 5


def test_a_noisy_gradient_is_read_by_its_loud_units():
    y, _, weight, bias = layer(3, batch=4, units=256, share=0.02, noise=0.002)
    read = read_columns(weight, bias, limit=4)
    assert read.noisy
    near = torch.cdist(read.vectors, y).min(1).values / y.norm(dim=1).mean()
    assert float(near.median()) < 0.05


@pytest.mark.parametrize("seed", range(4))
def test_units_that_are_all_reached_and_never_agree_are_no_noise(seed):
    """Eight examples of which every unit sees some, and each is alone in one at most: rank 8 tells."""
    g = torch.Generator().manual_seed(seed)
    y = torch.relu(torch.randn((8, 40), generator=g)) + 0.1  # no zeros that noise would not have
    dz = torch.randn((8, 32), generator=g)
    dz[:, :3] = 0
    for unit in range(3):
        dz[unit, unit] = 1.0
    weight, bias = (dz.T @ y), dz.sum(0)
    read = read_columns(weight, bias, limit=8, readout="nonnegative")
    assert not read.noisy
    assert Leakage().score(read.vectors, y, context=ScoreContext()).tolist()[:3] == [1.0, 1.0, 1.0]
    loud = read_columns(weight + 1e-2 * torch.randn(weight.shape, generator=g), bias, limit=8)
    assert loud.noisy


def test_of_a_noisy_gradient_too_only_what_two_units_gave_is_confirmed():
    _, _, weight, bias = layer(3, batch=4, units=256, share=0.02, noise=2e-3)
    every, sure = (read_columns(weight, bias, limit=9, readout=r) for r in ("all", "confirmed"))
    assert every.noisy
    assert sure.noisy
    assert bool((sure.units > 1).all())
    assert bool((every.units == 1).any())
    assert 0 < len(sure.vectors) == int((every.units > 1).sum()) < len(every.vectors)
    torch.testing.assert_close(sure.vectors, every.vectors[every.units > 1].clamp_min(0))


def test_nothing_is_read_from_nothing():
    assert len(read_columns(torch.zeros(8, 5), torch.zeros(8), limit=3).vectors) == 0


def test_shapes_are_checked():
    with pytest.raises(BadValue, match=r"weight \(N, D\) and bias \(N,\)"):
        read_columns(torch.zeros(8, 5), torch.zeros(7), limit=3)


def test_precision_and_leakage_pair_each_vector_once():
    y = torch.eye(3)
    claimed = torch.stack([y[0], y[0], torch.full((3,), 9.0)])
    assert Leakage().score(claimed, y, context=ScoreContext()).tolist() == [1, 0, 0]
    assert LeakagePrecision().score(claimed, y, context=ScoreContext()).tolist() == [1, 0, 0]
