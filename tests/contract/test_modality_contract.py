"""Our modalities fulfil the contract that plug-ins are tested with."""

import pytest
import torch

from glasshouse import registry
from glasshouse.errors import BadValue
from glasshouse.modalities.array import Array
from glasshouse.modalities.image import Image
from glasshouse.modalities.row import Column, Row, onto_simplex
from glasshouse.modalities.sentence import Sentence
from glasshouse.testing.modality_contract import ModalityContract
from glasshouse.testing.toys import random_sentences
from glasshouse.tokens.vocabulary import Vocabulary

WORDS = Vocabulary(size=30, pad=0, end=1)
ROWS = Row(
    columns=(
        Column(name="age", kind="integer", low=0, high=90),
        Column(name="weight", kind="continuous", low=2, high=200, tolerance=0.1, missing=True),
        Column(name="ward", kind="categorical", levels=("a", "b", "c"), missing=True),
        Column(name="smokes", kind="binary", levels=("no", "yes")),
    )
)
MODALITIES = {
    "image": Image(size=(3, 8, 8)),
    "sentence": Sentence(vocabulary=WORDS, length=9),
    "row": ROWS,
    "array": Array(size=(2, 3, 4, 5), range=(-1000.0, 3000.0)),
}


def draws(seed=0):
    return torch.Generator().manual_seed(seed)


def people(count=12, seed=0):
    values = torch.rand(count, 4, generator=draws(seed), dtype=torch.float64)
    values = torch.stack(
        [
            (values[:, 0] * 90).round(),
            values[:, 1] * 198 + 2,
            (values[:, 2] * 2.99).floor(),
            values[:, 3].round(),
        ],
        1,
    )
    values[1, 1] = values[2, 2] = torch.nan
    return values


def test_every_registered_modality_is_here():
    assert set(MODALITIES) == set(registry.names("modalities"))


class TestModality(ModalityContract):
    @pytest.fixture(params=sorted(MODALITIES))
    def modality(self, request):
        return MODALITIES[request.param]

    @pytest.fixture
    def examples(self, modality):
        if isinstance(modality, Sentence):
            return random_sentences([3, 4, 5, 6] * 3, WORDS, draws(), places=9)
        if isinstance(modality, Row):
            return modality.encode(people())
        low, high = modality.range
        return torch.rand(12, *modality.shape, generator=draws()) * (high - low) + low


def test_rows_come_back_with_what_is_missing():
    values = people()
    again = ROWS.decode(ROWS.encode(values))
    torch.testing.assert_close(again, values, equal_nan=True, rtol=1e-6, atol=1e-4)


def test_the_distance_of_rows_counts_columns_by_their_kind():
    one = torch.tensor([[40.0, 80.0, 1.0, 0.0]]).double()
    other = torch.tensor(
        [[40.0, 80.05, 1.0, 0.0], [85.0, 80.0, 1.0, 0.0], [40.0, torch.nan, 2.0, 1.0]]
    ).double()
    table = ROWS.distance(ROWS.encode(one), ROWS.encode(other))
    assert table[0].tolist() == pytest.approx([0.0, 0.5 / 4, 3 / 4])
    cells = ROWS.cells(ROWS.encode(one.expand(3, -1)), ROWS.encode(other))
    assert cells.int().tolist() == [[1, 1, 1, 1], [0, 1, 1, 1], [1, 0, 0, 0]]


def test_a_soft_category_is_read_by_its_largest_share_and_moved_onto_the_simplex():
    soft = ROWS.encode(people())[:1] * 0.6 + 0.1
    assert ROWS.decode(soft)[0, 2] == ROWS.decode(ROWS.project(soft))[0, 2]
    moved = ROWS.relax(torch.randn(50, *ROWS.shape, generator=draws()))
    ROWS.check(moved, subject="test")
    torch.testing.assert_close(moved[:, 3:7].sum(1), torch.ones(50))


def test_the_simplex_projection_is_the_nearest_point():
    point = torch.randn(1, 4, generator=draws(3)).double()
    nearest = onto_simplex(point)
    others = torch.distributions.Dirichlet(torch.ones(4).double()).sample((5000,))
    assert float((nearest - point).norm()) <= float((others - point).norm(dim=1).min()) + 1e-12


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ({"kind": "integer", "low": 3, "high": 3}, "low < high"),
        ({"kind": "categorical", "levels": ("a",)}, "distinct levels"),
        ({"kind": "categorical", "levels": ("a", "a")}, "distinct levels"),
        ({"kind": "binary", "levels": ("a", "b", "c")}, "binary ones with two"),
        ({"kind": "continuous", "high": float("inf")}, "low < high"),
    ],
)
def test_columns_that_mean_nothing_are_refused(column, words):
    with pytest.raises(BadValue, match=words):
        Column(name="x", **column)
