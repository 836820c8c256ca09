"""For every kind of claim: a wrong claim, a right one, and a guess, for the metrics that read it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from glasshouse.data.tables.clinic import TABLE, clinic
from glasshouse.metrics.attribution import NOT_RECOVERED
from glasshouse.metrics.base import Metric, ScoreContext
from glasshouse.metrics.gallery import Gallery
from glasshouse.tokens.vocabulary import Vocabulary

Sides = tuple[Tensor, Tensor]
CLASSES, PEOPLE, TARGETS, CLIENTS = 10, 6, 4, 5


@dataclass(frozen=True)
class Case:
    wrong: Callable[[], Sides]
    right: Callable[[Metric], Sides]
    guess: Callable[[Metric, torch.Generator], tuple[Tensor, Tensor, ScoreContext]] | None = None
    units: int | None = None


def draws(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(count: int, seed: int, *, side: int = 32) -> Tensor:
    return torch.rand(count, 3, side, side, generator=draws(seed))


@cache
def gallery() -> Gallery:
    return Gallery(
        people=images(PEOPLE, 1, side=8),
        known=torch.ones(PEOPLE, dtype=torch.bool),
        public=images(PEOPLE, 2, side=8),
        targets=TARGETS,
        rows=(0, 8),
        prior=images(1, 3, side=8),
        owners=torch.tensor([4, 0, 2, 1]),
        classes=(3, 1, 4, 5),
    )


def context(generator: torch.Generator | None = None) -> ScoreContext:
    return ScoreContext(
        distractors=torch.rand(3, 3, 32, 32, generator=generator or draws(4)),
        features=lambda x: x.flatten(1),
        perceptual=lambda x: (x,),
        classify=lambda x: x.flatten(1)[:, 0].mul(100).long(),
        classes=CLASSES,
        prior=0.1,
        called=0.1,
        gallery=gallery(),
    )


def guess_image(metric, generator):
    claimed, truth = (torch.rand(1, 3, 32, 32, generator=generator) for _ in range(2))
    return claimed, truth, context(generator)


def guess_clients(metric, generator):
    member = torch.rand(4000, generator=generator) < 0.1
    coin = torch.rand(4000, generator=generator)
    return (coin if metric.reads == "scores" else coin < 0.1), member, context()


def wrong_clients(reads):
    member = torch.arange(200) < 40
    coin = torch.rand(200, generator=draws(5))
    return (coin if reads == "scores" else coin < 0.5), member


def right_clients(metric):
    member = torch.arange(200) < 40
    return (member.float() if metric.reads == "scores" else member), member


def right_classes(metric):
    """Own private means; own public ones where a metric asks for these; owners where it reads those."""
    every = torch.arange(TARGETS)
    if metric.reads == "source":
        return gallery().owners, every
    public = type(metric).__name__ in ("TooClose", "SsimPublic")
    return (gallery().public if public else gallery().people)[:TARGETS], every


def guess_class(metric, generator):
    """The mean image of a candidate drawn at random, for a private class drawn at random."""
    many = TARGETS if type(metric).__name__ == "TargetIdentification" else PEOPLE
    labels = torch.randint(TARGETS, (20,), generator=generator)
    return gallery().people[torch.randint(many, (20,), generator=generator)], labels, context()


def guess_owner(metric, generator):
    labels = torch.randint(TARGETS, (20,), generator=generator)
    return torch.randint(CLIENTS, (20,), generator=generator), labels, context()


def guess_statement(metric, generator):
    claimed, truth = (torch.randint(CLASSES, (20,), generator=generator) for _ in range(2))
    claimed[0] = NOT_RECOVERED
    return claimed, truth, context()


def guess_names(metric, generator):
    return torch.randint(metric.choices, (20,), generator=generator), torch.zeros(20).long(), context()


def guess_vectors(metric, generator):
    claimed, truth = (torch.rand(3, 64, generator=generator) for _ in range(2))
    return claimed, truth, context()


def sentences(count: int, generator: torch.Generator, *, size: int = 40) -> Tensor:
    """Sentences of twelve tokens, closed by 1 and filled up with 0."""
    tokens = torch.randint(2, size, (count, 12), generator=generator)
    return torch.cat([tokens, torch.ones(count, 1).long(), torch.zeros(count, 2).long()], dim=1)


def sentence_context(generator: torch.Generator | None = None) -> ScoreContext:
    return ScoreContext(
        distractors=sentences(60, generator or draws(9)), vocabulary=Vocabulary(size=40, pad=0, end=1)
    )


def guess_sentences(metric, generator):
    claimed, truth = (sentences(3, generator) for _ in range(2))
    return claimed, truth, sentence_context(generator)


def table_rows(seed: int) -> Tensor:
    """Three rows of the made-up clinic."""
    batch = clinic("").splits["train"].batch()
    return batch.inputs[torch.randint(len(batch), (3,), generator=draws(seed))]


def row_context(generator: torch.Generator | None = None) -> ScoreContext:
    batch = clinic("").splits["test"].batch()
    others = torch.randint(len(batch), (9,), generator=generator or draws(10))
    return ScoreContext(inputs=TABLE, distractors=batch.inputs[others])


def guess_row(metric, generator):
    """One row for another: as near to its person as to anybody else."""
    batch = clinic("").splits["train"].batch()
    claimed, truth = (batch.inputs[torch.randint(len(batch), (1,), generator=generator)] for _ in range(2))
    return claimed, truth, row_context(generator)


def labelled(seed: int) -> Tensor:
    """Rows with their label behind them."""
    return torch.cat([table_rows(seed).double(), torch.tensor([[0.0], [1.0], [1.0]])], 1)


def boxes(rows: Tensor, labels: Tensor) -> Tensor:
    """One box around each row, with a label, a count of 1, said to be proved."""
    ends = [rows[:, :-1], rows[:, :-1] + 1e-3]
    return torch.cat([*ends, labels[:, None], torch.ones(len(rows), 1), torch.full((len(rows), 1), 2.0)], 1)


def counts_of_labels(values: list[float]) -> Tensor:
    """Facts: so many rows in all, of label 0 and of label 1."""
    whole = [[0.0, value, -1, 0, 0, label, 0, 2] for value, label in zip(values, (-1, 0, 1), strict=True)]
    return torch.tensor(whole, dtype=torch.float64)


COUNTS, NAMES = torch.tensor([1, 1, 1]), torch.tensor([1, 1, 1])
OWNERS, VECTORS = torch.tensor([0, 1, 2]), torch.eye(3, 8)
CASES = {
    ("reconstruction", "inputs"): Case(
        wrong=lambda: (images(2, 6), images(3, 7)),
        right=lambda _: (images(3, 7), images(3, 7)),
        guess=guess_image,
    ),
    ("reconstruction", "source"): Case(
        wrong=lambda: (OWNERS.flip(0), OWNERS), right=lambda _: (OWNERS, OWNERS)
    ),
    ("reconstruction", "labels"): Case(
        wrong=lambda: (OWNERS.flip(0), OWNERS),
        right=lambda _: (OWNERS, OWNERS),
        guess=guess_statement,
    ),
    ("labels", "counts"): Case(
        wrong=lambda: (torch.tensor([1, 0, 2]), COUNTS), right=lambda _: (COUNTS, COUNTS), units=3
    ),
    ("representations", "vectors"): Case(
        wrong=lambda: (VECTORS.roll(5, 1), VECTORS), right=lambda _: (VECTORS, VECTORS), guess=guess_vectors
    ),
    ("class_representatives", "inputs"): Case(
        wrong=lambda: (images(TARGETS, 8, side=8), torch.arange(TARGETS)),
        right=right_classes,
        guess=guess_class,
    ),
    ("class_representatives", "source"): Case(
        wrong=lambda: (torch.zeros(TARGETS), torch.arange(TARGETS)), right=right_classes, guess=guess_owner
    ),
    ("clients", "scores"): Case(
        wrong=lambda: wrong_clients("scores"), right=right_clients, guess=guess_clients
    ),
    ("clients", "decisions"): Case(
        wrong=lambda: wrong_clients("decisions"), right=right_clients, guess=guess_clients
    ),
    ("sequences", "tokens"): Case(
        wrong=lambda: (sentences(3, draws(6)), sentences(3, draws(7))),
        right=lambda _: (sentences(3, draws(7)), sentences(3, draws(7))),
        guess=guess_sentences,
    ),
    ("occurred_tokens", "ids"): Case(
        wrong=lambda: (torch.tensor([40, 41, 42]), sentences(3, draws(7))),
        right=lambda _: (sentences(3, draws(7)).unique()[-3:], sentences(3, draws(7))),
    ),
    ("rows", "inputs"): Case(
        wrong=lambda: (table_rows(1), table_rows(2)),
        right=lambda _: (table_rows(2), table_rows(2)),
        guess=guess_row,
    ),
    ("certified_rows", "inputs"): Case(
        wrong=lambda: (table_rows(1), table_rows(2)), right=lambda _: (table_rows(2), table_rows(2))
    ),
    ("leaves", "boxes"): Case(
        wrong=lambda: (boxes(labelled(3), 1 - labelled(3)[:, -1]), labelled(3)),
        right=lambda _: (boxes(labelled(3), labelled(3)[:, -1]), labelled(3)),
    ),
    ("facts", "facts"): Case(
        wrong=lambda: (counts_of_labels([4, 2, 2]), labelled(3)),
        right=lambda _: (counts_of_labels([3, 1, 2]), labelled(3)),
    ),
    ("row_labels", "labels"): Case(
        wrong=lambda: (torch.tensor([0, 0, 0]), labelled(3)),
        right=lambda _: (torch.tensor([0, 1, 1]), labelled(3)),
    ),
    ("authors", "authors"): Case(
        wrong=lambda: (torch.eye(3).roll(1, 0), OWNERS), right=lambda _: (torch.eye(3), OWNERS)
    ),
    ("defense", "names"): Case(
        wrong=lambda: (torch.tensor([1, -1, 2]), NAMES), right=lambda _: (NAMES, NAMES), guess=guess_names
    ),
}
"""By the kind of claim that a metric scores, and what it reads."""
