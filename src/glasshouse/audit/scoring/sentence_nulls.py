"""Null adversaries for sentences: what somebody who saw no update would have written down."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

from glasshouse.rng import Rng
from glasshouse.wire import Batch

KEPT: Final = 4
"""Auxiliary sets of which a process keeps what null adversaries compute of them."""
SMOOTHING: Final = 0.5
"""Chance of a word that was never seen after another, against that of a pair that was seen once."""


def frequent_tokens(auxiliary: Batch, count: int, rng: Rng) -> Batch:
    """At every place the most frequent token of the auxiliary sentences there, ``count`` times."""
    del rng  # the same every time
    tokens = auxiliary.inputs.mode(0).values
    return _batch(tokens.expand(count, -1).contiguous())


def random_sentence(auxiliary: Batch, count: int, rng: Rng) -> Batch:
    """``count`` auxiliary sentences drawn at random."""
    return auxiliary.pick(torch.randint(len(auxiliary), (count,), generator=rng.torch()))


def language_model(auxiliary: Batch, count: int, rng: Rng) -> Batch:
    """``count`` samples of a language model of the auxiliary sentences: each token by the one before it.

    A model of pairs of tokens, mixed with the frequencies of single ones; padding follows as a token does, so
    that lengths are those of the auxiliary sentences.
    """
    known, rows, chances = _pairs_of_tokens(auxiliary)
    draws = rng.torch()
    now = rows[torch.randint(len(rows), (count,), generator=draws), 0]
    out = [now]
    for _ in range(rows.shape[1] - 1):
        now = torch.multinomial(chances[now], 1, generator=draws).squeeze(1)
        out.append(now)
    return _batch(known[torch.stack(out, dim=1)])


@lru_cache(maxsize=KEPT)
def _pairs_of_tokens(auxiliary: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """The tokens that occur, the sentences in their places, and what follows each of them how often."""
    known, rows = torch.unique(auxiliary.inputs, return_inverse=True)
    pairs = torch.zeros(len(known), len(known), dtype=torch.float64)
    pairs.index_put_(
        (rows[:, :-1].flatten(), rows[:, 1:].flatten()),
        torch.ones(rows[:, 1:].numel()).double(),
        accumulate=True,
    )
    single = torch.bincount(rows.flatten(), minlength=len(known)).double()
    return known, rows, pairs + SMOOTHING * single / single.sum()


def _batch(tokens: Tensor) -> Batch:
    return Batch(inputs=tokens, labels=torch.zeros(len(tokens), dtype=torch.int64))


SENTENCES: Final[Mapping[str, Callable[[Batch, int, Rng], Batch]]] = {
    "most frequent tokens by position": frequent_tokens,
    "random auxiliary sentence": random_sentence,
    "samples of a language model": language_model,
}
"""Those whose guesses are drawn at random are all but the first."""
