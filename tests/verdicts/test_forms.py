"""Rows, sentences and pictures that are known in part, or in another form, are no silence."""

from typing import ClassVar

import numpy as np
import pytest
import torch
from tests.verdicts.audits import normal
from tests.verdicts.bench import SHAPE, Bench, batch, bench, textured

from glasshouse.audit.scoring.judging.policy import state_of_gain
from glasshouse.audit.scoring.judging.recognition import CHANGES, CROSSED, recognised_form
from glasshouse.metrics.statistics.recognised import dependence_p
from glasshouse.metrics.tables.rows import RowsExact
from glasshouse.modalities.image import Image
from glasshouse.modalities.row import Column, Row
from glasshouse.modalities.sentence import Sentence
from glasshouse.results.judgement import ONE_SIDE
from glasshouse.rng import Rng
from glasshouse.tokens.vocabulary import Vocabulary

N = 40
NUMBERS = tuple(
    Column(name=name, kind="continuous", low=0, high=100, tolerance=1) for name in ("a", "b", "c", "d")
)
CATEGORIES = tuple(Column(name=name, kind="categorical", levels=tuple("uvwxyz")) for name in ("e", "f", "g"))
ROW = Row(columns=NUMBERS + CATEGORIES)
WORDS, LENGTH = 150, 10
SENTENCE = Sentence(vocabulary=Vocabulary(size=WORDS, pad=0), length=LENGTH)
Random = np.random.Generator


def rows(count: int, random: Random) -> torch.Tensor:
    """Values of rows: four numbers, three categories."""
    numbers = np.clip(50 + 15 * random.normal(size=(count, 4)), 0, 100)
    return torch.from_numpy(np.concatenate([numbers, random.integers(0, 6, (count, 3))], 1))


def sentences(count: int, random: Random) -> torch.Tensor:
    """Words as frequent as in a language."""
    often = 1 / np.arange(1, WORDS)
    return torch.from_numpy(random.choice(np.arange(1, WORDS), size=(count, LENGTH), p=often / often.sum()))


def of_rows(random: Random, changed) -> tuple[Bench, torch.Tensor]:
    """A federation of rows, and claims: ``changed`` of the true and of other rows."""
    private, others = rows(N, random), rows(N, random)
    parts = [batch(ROW.encode(values)) for values in (private, rows(400, random), rows(60, random))]
    return _bench(parts, ROW), ROW.encode(changed(private, others))


def of_sentences(random: Random, changed) -> tuple[Bench, torch.Tensor]:
    """As :func:`of_rows`."""
    private, others = sentences(N, random), sentences(N, random)
    parts = [batch(tokens) for tokens in (private, sentences(400, random), sentences(60, random))]
    return _bench(parts, SENTENCE), changed(private, others)


def _bench(parts, modality) -> Bench:
    private, heldout, auxiliary = parts
    return Bench(
        private=private,
        claims=None,
        heldout=heldout,
        auxiliary=auxiliary,
        metrics=modality.metrics[:1],
        modality=modality,
        margin=0.3,
    )


def joined(numbers: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
    return torch.cat([numbers[:, :4], categories[:, 4:]], 1)


def of_a_fifth(changed):
    """The same claims, but of a fifth of the victims only."""

    def part(own: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        return torch.where(torch.arange(len(own))[:, None] % 5 == 0, changed(own, others), others)

    return part


ROWS = {
    "numbers negated": lambda own, other: joined(100 - own, other),
    "numbers halved": lambda own, other: joined(own / 2, other),
    "numbers alone": joined,
    "three cells": lambda own, other: torch.cat([own[:, :3], other[:, 3:]], 1),
}
ROWS_OF_ALL = {
    "one cell": lambda own, other: torch.cat([own[:, :1], other[:, 1:]], 1),
    "other names of the categories": lambda own, other: joined(other, (own + 1) % 6),
    "one number, and on another scale": lambda own, other: torch.cat([100 - own[:, :1] / 3, other[:, 1:]], 1),
}
SENTENCES = {
    "reversed": lambda own, other: own.flip(1),
    "from the second word on": lambda own, other: own.roll(1, 1),
    "the two rarest words": lambda own, other: torch.cat(
        [own.sort(1, descending=True).values[:, :2], other[:, 2:]], 1
    ),
}
SENTENCES_OF_ALL = {
    "other names of the words": lambda own, other: own % (WORDS - 1) + 1,
    "the common words": lambda own, other: torch.where(own <= 3, own, other),
}


def form(made, changed, seed: int) -> str:
    one, one.claims = made(np.random.default_rng(seed), changed)
    return recognised_form(RowsExact(), [one.run()], level=ONE_SIDE)


@pytest.mark.parametrize("kind", ROWS)
def test_a_fifth_of_the_rows_known_in_part_or_another_form_is_noticed(kind):
    assert form(of_rows, of_a_fifth(ROWS[kind]), 1)


@pytest.mark.parametrize("kind", ROWS_OF_ALL)
def test_a_cell_of_every_row_known_in_any_way_is_noticed(kind):
    assert form(of_rows, ROWS_OF_ALL[kind], 1) == CHANGES


@pytest.mark.parametrize("kind", SENTENCES)
def test_a_fifth_of_the_sentences_known_by_their_words_is_noticed(kind):
    assert form(of_sentences, of_a_fifth(SENTENCES[kind]), 2)


@pytest.mark.parametrize("kind", SENTENCES_OF_ALL)
def test_sentences_in_a_cipher_or_by_their_common_words_are_noticed(kind):
    assert form(of_sentences, SENTENCES_OF_ALL[kind], 2) == CHANGES


def test_pictures_whose_pixels_are_in_another_order_are_noticed():
    """An order that is the same for all: no likeness of pictures finds it."""
    random = np.random.default_rng(3)
    one = bench(N, random)
    order = torch.from_numpy(random.permutation(int(np.prod(SHAPE))))
    one.claims = (one.private.inputs.flatten(1)[:, order] + normal(N, random, 0.05).flatten(1)).reshape(
        N, *SHAPE
    )
    assert recognised_form(RowsExact(), [one.run()], level=ONE_SIDE) == CHANGES


@pytest.mark.parametrize("made", [of_rows, of_sentences])
def test_guesses_about_rows_and_sentences_are_silent(made):
    """Other examples; and what is true of the next client."""
    guesses = [lambda own, other: other, lambda own, other: own.roll(1, 0)]
    found = [form(made, guess, seed) for guess in guesses for seed in range(3)]
    assert sum(map(bool, found)) <= 1


def test_what_is_known_by_the_label_alone_is_no_form():
    """Claims that are the mean of their victim's class change with the class, and not with the victim."""
    random = np.random.default_rng(4)
    one = bench(N, random)
    labels = torch.arange(N) % 4
    shapes = textured(4, random, spread=0.3)
    one.private = batch((shapes[labels] + normal(N, random, 0.05)).clamp(0, 1), labels)
    one.heldout = batch(
        (shapes[torch.arange(400) % 4] + normal(400, random, 0.05)).clamp(0, 1), torch.arange(400) % 4
    )
    one.claims = (shapes[labels] + normal(N, random, 0.05)).clamp(0, 1)
    assert recognised_form(RowsExact(), [one.run()], level=ONE_SIDE) == ""


EXCHANGED = {
    "a number for a number": lambda own, other: torch.cat([other[:, :3], own[:, :1], other[:, 4:]], 1),
    "a category for a number": lambda own, other: torch.cat([other[:, :6], (own[:, 1:2] / 18).floor()], 1),
}


@pytest.mark.parametrize("kind", EXCHANGED)
def test_a_column_under_the_name_of_another_is_noticed(kind):
    assert form(of_rows, EXCHANGED[kind], 1) == CROSSED


def labels_read(seed: int, renamed, *, n: int = 20, size: int = 4) -> Bench:
    """A federation of updates of four examples, and how many examples of each label are claimed of them."""
    random = np.random.default_rng(seed)
    own, others = (torch.from_numpy(random.integers(0, 6, n * size)) for _ in range(2))
    parts = [batch(textured(count, random)) for count in (n * size, 200, 120)]
    parts[0].labels[:] = own
    parts[2].labels[:] = torch.arange(120) % 6
    one = Bench(
        private=parts[0], claims=None, heldout=parts[1], auxiliary=parts[2],
        metrics=("label_accuracy",), examples=size,
    )  # fmt: skip
    one.called = torch.stack([torch.bincount(part, minlength=6) for part in renamed(own, others).split(size)])
    return one


def test_labels_under_other_names_are_no_silence():
    """Every label is read, and each said under the name of the next: no limit on labels may hold."""
    finding = labels_read(1, lambda own, others: (own + 1) % 6).finding()
    assert finding.verdict == "not shown"
    assert CHANGES in finding.reason
    state, why = state_of_gain(finding, 0.3, (), refused=False, best=1.0)
    assert (state, CHANGES in why) == ("undecided", True)


def test_labels_that_were_guessed_let_a_limit_hold():
    """Other labels, and those of the next client: at a level of 0.025."""
    guesses = [lambda own, others: others, lambda own, others: own.roll(4)]
    found = [labels_read(seed, guess).finding() for guess in guesses for seed in range(3)]
    assert sum(CHANGES in " ".join(one.lacks) for one in found) <= 1


def test_labels_that_leak_are_said_to_leak():
    finding = labels_read(1, lambda own, others: own).finding()
    assert finding.verdict == "leaks"
    assert CHANGES not in " ".join(finding.lacks)


class NoNumbers(Image):
    """Pictures whose forms, or distances, cannot be told."""

    name = "no_numbers"
    where: ClassVar[str] = ""

    def likenesses(self, candidates, originals):
        found = super().likenesses(candidates, originals)
        return {form: like + (torch.nan if self.where == "likenesses" else 0) for form, like in found.items()}

    def apart(self, examples):
        yield self.distance(examples, examples) + (torch.nan if self.where == "distances" else 0)


@pytest.mark.parametrize("where", ["likenesses", "distances"])
def test_a_modality_whose_numbers_are_none_lets_nothing_be_called_silent(where, monkeypatch):
    """NaN is larger than nothing: each form, and each dependence, would look absent."""
    monkeypatch.setattr(NoNumbers, "where", where)
    one = bench(N, np.random.default_rng(5), modality=NoNumbers(size=SHAPE), margin=0.3)
    one.claims = 1 - one.private.inputs
    scores = one.scores()
    assert scores.findings == ()
    assert scores.refusals[0].needs.startswith(f"finite {where}")


def test_sentences_say_why_no_single_victims_are_judged():
    one, one.claims = of_sentences(np.random.default_rng(2), lambda own, other: other)
    one.tokens, one.metrics = True, ("token_accuracy",)
    (finding,) = one.scores().findings
    assert finding.verdict == "not shown"
    assert any("its claims are not compared with held-out examples" in reason for reason in finding.lacks)


def test_the_level_of_dependence_is_that_of_its_orders():
    """Of samples without any dependence, in two federations of four parts."""
    random = np.random.default_rng(6)

    def sample() -> tuple[float, float]:
        x = random.standard_t(2, size=(2, 4, 2, 12))
        blocks = np.abs(x[..., None] - x[..., None, :])
        strata = [np.arange(12) % 2] * 2
        return dependence_p(list(blocks), strata, rng=Rng.root(int(random.integers(2**31))))

    hits = (np.array([sample() for _ in range(60)]) <= 0.1).sum(0)
    assert (hits >= 1).all()
    assert (hits <= 13).all()
