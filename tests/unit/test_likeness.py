"""Forms in which an example is recognised though every number of it is wrong."""

import math

import pytest
import torch

from glasshouse.metrics.statistics.recognised import recognised_p
from glasshouse.modalities.likeness import correlation, moved, part
from glasshouse.modalities.row import Column, Row
from glasshouse.modalities.sentence import Sentence
from glasshouse.tokens.vocabulary import Vocabulary

DRAWS = torch.Generator().manual_seed(1)
PICTURES = torch.rand(6, 3, 8, 9, generator=DRAWS)


@pytest.mark.parametrize(
    ("likeness", "change"),
    [
        (correlation, lambda x: 1 - x),
        (correlation, lambda x: 0.3 + 0.1 * x),
        (moved, lambda x: x.roll((3, -2), (2, 3))),
        (moved, lambda x: x.flip(-1).roll(1, 2)),
        (moved, lambda x: 1 - x.flip(-1)),
        (part, lambda x: torch.cat([x[..., :4], torch.rand(x[..., 4:].shape, generator=DRAWS)], -1)),
    ],
)
def test_each_picture_is_found_in_its_form_among_all(likeness, change):
    table = likeness(change(PICTURES), PICTURES)
    assert table.shape == (6, 6)
    assert table.argmax(1).tolist() == list(range(6))
    unlike = table[~torch.eye(6, dtype=torch.bool)]
    assert float(table.diagonal().min()) > float(unlike.max()) + 0.1


def test_a_constant_picture_is_like_none():
    flat = torch.full((1, 3, 8, 9), 0.4)
    assert float(correlation(flat, PICTURES).max()) == 0
    assert float(moved(PICTURES, flat).max()) == 0


def test_sentences_of_the_same_words_are_alike_in_any_order():
    sentences = Sentence(vocabulary=Vocabulary(size=20, pad=0), length=4)
    tokens = torch.tensor([[1, 2, 3, 0], [4, 5, 6, 7], [1, 5, 9, 0]])
    found = sentences.likenesses(torch.tensor([[3, 1, 2, 0], [9, 9, 9, 9]]), tokens)
    table = found["the same words in another order"]
    assert table[0].argmax() == 0
    assert table[0, 0] == pytest.approx(1)
    assert table[0, 1] == 0
    # Word 9 stands in one sentence, word 1 in two of three.
    rare = found["the same rare words"]
    assert rare[0].argmax() == 0
    assert rare[1].tolist() == pytest.approx([0, 0, math.log(4 / 2)])


def test_a_rare_cell_is_worth_more_than_common_ones():
    sex = Column(name="sex", kind="binary", levels=("f", "m"))
    town = Column(name="town", kind="categorical", levels=tuple("abcd"))
    table = Row(columns=(sex, town))
    people = table.encode(torch.tensor([[0, 0], [0, 0], [0, 0], [1, 3]]).double())
    (worth,) = table.likenesses(table.encode(torch.tensor([[0, 3]]).double()), people).values()
    assert worth[0].argmax() == 3
    assert worth[0].tolist() == pytest.approx([math.log(5 / 4)] * 3 + [math.log(5 / 2)])


def test_the_number_of_first_places_is_a_sum_of_trials():
    assert recognised_p([True], [0.05]) == pytest.approx(0.05)
    assert recognised_p([True] + [False] * 3, [0.5, 0.25, 0.5, 0.5]) == pytest.approx(1 - 0.5**3 * 0.75)
    assert recognised_p([], []) == 1.0
    assert recognised_p([False, False], [0.3, 0.3]) == pytest.approx(1.0)
