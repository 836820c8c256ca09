"""All columns at once say what each column says by itself, to the last digit."""

import torch

from glasshouse.modalities import columns as module
from glasshouse.modalities.row import Column, Row

TABLE = (
    Column(name="age", kind="integer", low=17, high=90),
    Column(name="job", kind="categorical", levels=tuple("abcde"), missing=True),
    Column(name="hours", kind="continuous", low=-3, high=7.5, tolerance=0.2, missing=True),
    Column(name="member", kind="binary", levels=("no", "yes")),
    Column(name="town", kind="categorical", levels=tuple("xyz")),
    Column(name="left", kind="binary", levels=("no", "yes"), missing=True),
    Column(name="land", kind="categorical", levels=tuple("pqr")),
)


def rows(count, seed):
    draws = torch.Generator().manual_seed(seed)
    raw = torch.rand(count, *Row(columns=TABLE).shape, generator=draws) * 1.4 - 0.2
    raw[::3] = raw[::3].round()  # ties among levels, and numbers at their ends
    return raw


def test_decoding_is_that_of_each_column():
    table, inputs = Row(columns=TABLE), rows(200, 0)
    each = torch.stack([column.decode(inputs[:, place]) for column, place in table.places()], 1)
    assert each.isnan().any(0).tolist() == [column.missing for column in TABLE]
    assert torch.equal(table.decode(inputs).nan_to_num(nan=-9), each.nan_to_num(nan=-9))


def test_distances_add_up_in_the_order_of_columns(monkeypatch):
    table = Row(columns=TABLE)
    left, right = table.decode(rows(40, 1))[:, None], table.decode(rows(30, 2))[None]
    each = [column.distance(left[..., i], right[..., i]) for i, column in enumerate(TABLE)]
    total = torch.zeros(40, 30, dtype=torch.float64)
    for one in each:
        total += one
    assert torch.equal(table.between(left, right), total / len(TABLE))
    assert torch.equal(table.same_cells(left, right), torch.stack(each, -1) == 0)
    assert 0 < table.same_cells(left, right).double().mean() < 1
    monkeypatch.setattr(module, "AT_ONCE", 2 * 40 * 30)  # two columns at a time
    assert torch.equal(table.between(left, right), total / len(TABLE))
