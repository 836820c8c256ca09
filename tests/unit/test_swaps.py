"""Cells that a search over relaxed rows leaves wrong are tried one by one."""

import torch
from test_double_span import view_of

from glasshouse.attacks.base import tensors_of
from glasshouse.attacks.parts.replica import replica
from glasshouse.attacks.rows.swaps import changes, improve
from glasshouse.attacks.rows.tableak import NOISE, TabLeak, _distance
from glasshouse.data.tables.clinic import clinic
from glasshouse.rng import Rng

SOURCE = clinic("")
TABLE = SOURCE.inputs
PEOPLE = SOURCE.splits["train"].batch().pick(torch.tensor([3, 8]))
PLACES = {column.name: place for column, place in TABLE.places()}


def test_levels_that_two_rows_have_of_each_other_and_a_wrong_number_are_found():
    loss = _distance(replica(view_of(PEOPLE, hidden="64"), subject="test"), 0.1)
    wrong, region = PEOPLE.inputs.clone(), PLACES["region"]
    wrong[:, region] = wrong.flip(0)[:, region]
    wrong[0, PLACES["age"]] += 0.07
    found = improve(wrong, PEOPLE.labels, TABLE, loss, passes=3, enough=NOISE)
    assert TABLE.same_cells(TABLE.decode(found), TABLE.decode(PEOPLE.inputs)).all()


def test_all_other_levels_and_every_exchange_are_tried():
    tried = changes(PEOPLE.inputs, 0, TABLE)
    region = PLACES["region"]
    others = {int(some[0, region].argmax()) for some in tried} - {int(PEOPLE.inputs[0, region].argmax())}
    assert len(others) == region.stop - region.start - 1
    assert any(torch.equal(some[:, region], PEOPLE.inputs.flip(0)[:, region]) for some in tried)


def test_a_search_that_is_cut_short_ends_at_the_row_where_cells_are_tried():
    person, right = PEOPLE.pick(torch.tensor([0])), []
    for improved in (0, 1):
        attack = TabLeak(members=2, iterations=30, improved=improved)
        (claim,) = attack.run(view_of(person), rng=Rng.root(0))
        rows, true = TABLE.decode(tensors_of(claim)["inputs"]), TABLE.decode(person.inputs)
        right.append(int(TABLE.same_cells(rows, true).sum()))
    assert right[0] < right[1] == len(TABLE.columns)
