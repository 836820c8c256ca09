"""Reorder the tokens of sentences: LAMP's discrete moves.

Shape letters: B sentences, L tokens.
"""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

Draw = Callable[[int], int]
"""Draw a random integer below the given one."""


def _swap(places: list[int], draw: Draw) -> list[int]:
    """Swap two tokens."""
    a, b = draw(len(places)), draw(len(places))
    places[a], places[b] = places[b], places[a]
    return places


def _move(places: list[int], draw: Draw, *, run: int = 1) -> list[int]:
    """Move one token, or a run of them, elsewhere."""
    start = draw(len(places) - run + 1)
    taken, rest = places[start : start + run], places[:start] + places[start + run :]
    target = draw(len(rest) + 1)
    return rest[:target] + taken + rest[target:]


def _move_run(places: list[int], draw: Draw) -> list[int]:
    return _move(places, draw, run=1 + draw(len(places) - 1))


def _prefix_to_end(places: list[int], draw: Draw) -> list[int]:
    cut = 1 + draw(len(places) - 1)
    return places[cut:] + places[:cut]


MOVES: Final = (_swap, _move, _move_run, _prefix_to_end)
"""Each returns a new order of two or more positions of one sentence."""


def rearrangement(free: Tensor, *, generator: torch.Generator) -> Tensor:
    """A random move of tokens at ``free`` positions (B, L) bool, as the source of each position, (B * L,).

    One of ``MOVES`` in one of the sentences or, with several sentences, a swap between any two positions, all
    equally likely.

    Examples:
        >>> free = torch.tensor([[True, True, False]])
        >>> rearrangement(free, generator=torch.Generator().manual_seed(0)).tolist()[2]
        2
    """

    def draw(below: int) -> int:
        return int(torch.randint(below, (1,), generator=generator))

    order = torch.arange(free.numel())
    sentences = [row.nonzero()[:, 0] + i * free.shape[1] for i, row in enumerate(free.cpu())]
    rows = [row for row in sentences if len(row) > 1]
    kind = draw(len(MOVES) + (len(sentences) > 1))
    if kind == len(MOVES):
        rows, kind = [torch.cat(sentences)], 0
    if rows:
        chosen = rows[draw(len(rows))]
        order[chosen] = torch.tensor(MOVES[kind](chosen.tolist(), draw))
    return order


def shuffle(free: Tensor, *, generator: torch.Generator) -> Tensor:
    """A random permutation of each sentence's tokens, in the form of :func:`rearrangement`."""
    order = torch.arange(free.numel())
    for i, row in enumerate(free.cpu()):
        places = row.nonzero()[:, 0] + i * free.shape[1]
        order[places] = places[torch.randperm(len(places), generator=generator)]
    return order
