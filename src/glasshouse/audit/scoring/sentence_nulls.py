"""Null adversaries for sentences: baselines that guess sentences without seeing an update."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

from glasshouse.rng import Rng
from glasshouse.wire import Batch

KEPT: Final = 4
"""Number of auxiliary sets whose statistics for null adversaries a process caches."""
SMOOTHING: Final = 0.5
"""Weight of the single-token frequencies, relative to the count of a pair of tokens seen once."""


def frequent_tokens(auxiliary: Batch, count: int, rng: Rng) -> Batch:
    """The most frequent token of the auxiliary sentences at each position, ``count`` times."""
    del rng  # deterministic
    tokens = auxiliary.inputs.mode(0).values
    return _batch(tokens.expand(count, -1).contiguous())


def random_sentence(auxiliary: Batch, count: int, rng: Rng) -> Batch:
    """``count`` random auxiliary sentences."""
    return auxiliary.pick(torch.randint(len(auxiliary), (count,), generator=rng.torch()))


def language_model(auxiliary: Batch, count: int, rng: Rng) -> Batch:
    """``count`` samples of a bigram language model of the auxiliary sentences.

    Smoothed with the frequencies of single tokens; padding is modelled as a token, so that lengths are
    distributed as in the auxiliary sentences.
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
    """The tokens that occur, the sentences as indices into them, and smoothed counts of bigrams."""
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
"""Null adversaries for sentences by name; all but the first are random."""
