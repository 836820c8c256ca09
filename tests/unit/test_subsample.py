"""Subsampling: how many, which, and how they are numbered."""

import pytest
import torch
from torch import nn

from glasshouse.errors import BadValue
from glasshouse.federation.client import LocalTraining
from glasshouse.federation.defenses.subsample import Subsample
from glasshouse.rng import Rng
from glasshouse.wire import Batch

DATA = Batch(inputs=torch.arange(10.0).reshape(10, 1, 1, 1), labels=torch.zeros(10, dtype=torch.int64))


def used(share: float, seed: int) -> torch.Tensor:
    model = nn.Sequential(nn.Flatten(), nn.Linear(1, 2))
    train = Subsample(share=share).local(LocalTraining(kind="delta", batch_size=2))
    return torch.cat(train(model, DATA, rng=Rng.root(seed)).order)


@pytest.mark.parametrize(("share", "count"), [(0.3, 3), (0.31, 4), (0.01, 1), (1.0, 10)])
def test_uses_that_many_different_examples(share, count):
    rows = used(share, seed=0)
    assert len(rows) == len(rows.unique()) == count


def test_every_example_has_its_turn():
    records = torch.bincount(torch.cat([used(0.3, seed) for seed in range(200)]), minlength=10)
    assert records.sum() == 600
    assert (records - 60).abs().max() < 5 * (200 * 0.3 * 0.7) ** 0.5


def test_order_counts_rows_of_all_the_clients_data():
    """The gradient of a linear model names its input: the rows must lead to it."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(1, 2))
    train = Subsample(share=0.1).local(LocalTraining(kind="gradient", batch_size=1))
    trained = train(model, DATA, rng=Rng.root(1))
    x = trained.tensors["1.weight"][0] / trained.tensors["1.bias"][0]
    torch.testing.assert_close(x, DATA.inputs[trained.order[0]].flatten())


@pytest.mark.parametrize("share", [0.0, 1.5])
def test_refuses_a_share_out_of_range(share):
    with pytest.raises(BadValue, match="needs  share"):
        Subsample(share=share)
