"""Private rows that also occur among public ones are counted, within the tolerances of the schema."""

import torch

from glasshouse.audit.simulation import known
from glasshouse.audit.simulation.build import build
from glasshouse.audit.simulation.known import known_words
from glasshouse.data.splits import Roles
from glasshouse.examples import Batch
from glasshouse.modalities.image import Image
from glasshouse.modalities.row import Column, Row
from glasshouse.scenario.load import from_dict

TABLE = Row(
    columns=(
        Column(name="bmi", kind="continuous", low=0, high=100, tolerance=0.5),
        Column(name="sex", kind="categorical", levels=("female", "male")),
    )
)


def people(*values):
    inputs = TABLE.encode(torch.tensor(values, dtype=torch.float64))
    return Batch(inputs=inputs, labels=torch.zeros(len(inputs)).long())


PRIVATE = people([20, 0], [30, 1], [40, 0], [40, 0])
PUBLIC = people([20.4, 0], [30, 0], [40.6, 0], [90, 1])


def test_rows_within_the_tolerances_are_counted_for_every_role_but_their_own():
    roles = Roles(private=PRIVATE, auxiliary=PUBLIC, heldout=people([40, 0]), duplicates={})
    auxiliary, heldout = known_words(PRIVATE, roles, TABLE)
    assert auxiliary.startswith("1 of 4 private rows also occur among the 4 of the auxiliary data, within")
    assert auxiliary.endswith("knows them without any update, and no rate counts them.")
    assert heldout.startswith("2 of 4 private rows also occur among the 1 of the heldout data")


def test_cut_into_pieces_it_is_the_same_number(monkeypatch):
    roles = Roles(auxiliary=PUBLIC, duplicates={})
    whole = known_words(PRIVATE, roles, TABLE)
    monkeypatch.setattr(known, "AT_ONCE", 1)
    assert known_words(PRIVATE, roles, TABLE) == whole


def test_of_more_rows_than_can_be_compared_copies_are_counted(monkeypatch):
    monkeypatch.setattr(known, "PAIRS", 1)
    (told,) = known_words(PRIVATE, Roles(auxiliary=people([20.4, 0], [40, 0]), duplicates={}), TABLE)
    assert told.startswith("2 of 4 private rows also occur among the 2 of the auxiliary data, exactly")


def test_pictures_are_not_asked():
    batch = Batch(inputs=torch.zeros(2, 1, 2, 2), labels=torch.zeros(2).long())
    assert known_words(batch, Roles(auxiliary=batch, duplicates={}), Image(size=(1, 2, 2))) == ()


def test_a_simulated_federation_of_a_table_says_the_number():
    scenario = from_dict(
        {
            "name": "clinic",
            "data": {"source": "clinic", "examples": 2, "auxiliary": 20, "heldout": 10},
            "model": {"name": "mlp"},
            "federation": {"clients": 3, "batch_size": 1},
            "attacks": [{"name": "double_span"}],
            "audit": {"metrics": ["rows_exact"]},
        }
    )
    notes = build(scenario, seed=0).facts.notes
    assert [note[:28] for note in notes[:2]] == ["0 of 6 private rows also occ"] * 2
