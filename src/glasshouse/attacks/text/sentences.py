"""Order an encoder's tokens: whole sentences at once, since every position attends to all others.

A sentence is correct iff the inputs of the second attention layer lie in the span of its gradient at every
position. If some tokens are wrong, the distance is positive everywhere, but smaller the fewer are wrong: we
replace one token at a time by the candidate that is nearest at its own position, from several starts for
every position where a sentence may end. (Evaluating all positions each time costs as many times more, and
ends more often at a mixture of two sentences.) A token's input to the first layer depends only on the token
and its position, and is computed once.

Source: Petrov et al. 2024, "DAGER", arXiv:2405.15586, section 4.3, which tries all combinations up to a
    limit; the descent is ours.

Shape letters: N sentences at once, L positions, C candidates, T candidates of all positions, V vocabulary,
D width, H heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from glasshouse.attacks.text.prefixes import Found
from glasshouse.attacks.text.span import Span
from glasshouse.models.text.base import TextModel, attend

AT_ONCE = {"cpu": 4096, "cuda": 262_144}
"""Number of tokens that go through the first block at once, by device."""
ROUNDS = 3
"""Rounds of starts; later ones prefer tokens that are in no sentence yet."""
MISS = 10
"""A sentence more than this many times farther away than the nearest one counts as a near miss."""
SWEEPS = 8
"""Maximum number of passes over the positions of every start."""


def distances(model: TextModel, after: Span, tokens: Tensor) -> Tensor:
    """Mean distance from the second layer's span over the positions of each padded sentence (N, L): (N,)."""
    vectors, real = _ahead(model, tokens)
    return (after.distances(vectors) * real).sum(1) / real.sum(1)


def _ahead(model: TextModel, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs of the second attention layer (N, L, D), and the mask of non-padding positions (N, L)."""
    places = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)
    real = model.vocabulary.real(tokens)
    hidden = model.through(0, model.embed(tokens, places), places, real)
    return model.anatomy.blocks[1].attended(hidden), real


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Inputs:
    """First-layer inputs of candidates, each at its position.

    Attributes:
        hidden: (T, D).
        queries, keys, values: (T, H, D / H).
        rows: index into these by position and token, (L, V).
    """

    hidden: Tensor
    queries: Tensor
    keys: Tensor
    values: Tensor
    rows: Tensor

    @classmethod
    def of(cls, model: TextModel, sets: Sequence[Tensor]) -> "_Inputs":
        """Compute them for candidates (C,) at each of L positions."""
        tokens = torch.cat(list(sets))
        places = torch.cat([torch.full_like(one, place) for place, one in enumerate(sets)])
        block = model.anatomy.blocks[0]
        hidden = model.embed(tokens[:, None], places[:, None])
        queries, keys, values = (x[:, :, 0] for x in block.project(block.attended(hidden), places[:, None]))
        rows = torch.zeros(len(sets), model.vocabulary.size, dtype=torch.int64, device=tokens.device)
        rows[places, tokens] = torch.arange(len(tokens), device=tokens.device)
        return cls(hidden=hidden[:, 0], queries=queries, keys=keys, values=values, rows=rows)

    def distances(self, model: TextModel, after: Span, tokens: Tensor, place: int) -> Tensor:
        """Distance of sentences (N, L) from the second layer's span at one position, (N,)."""
        rows = self.rows[torch.arange(tokens.shape[1], device=tokens.device), tokens]
        here = rows[:, place : place + 1]
        query, key, value = (
            t[which].transpose(1, 2)
            for t, which in ((self.queries, here), (self.keys, rows), (self.values, rows))
        )
        real = torch.ones_like(rows, dtype=torch.bool)[:, None, None]
        first, second = model.anatomy.blocks[:2]
        output = first.finish(self.hidden[here], attend(query, key, value, real))
        return after.distances(second.attended(output))[:, 0]


def assemble(
    model: TextModel,
    after: Span,
    sets: Sequence[Tensor],
    *,
    least: float,
    sentences: int,
    starts: int,
    generator: torch.Generator,
) -> list[Found]:
    """Sentences that lie in the span at every position, nearest first.

    Args:
        model: an encoder whose vocabulary marks the end of a sentence.
        after: the span of the second attention layer's inputs.
        sets: candidates (C,) at every position that has any.
        least: the distance up to which a vector passes whatever the noise.
        sentences: number of sentences behind the update.
        starts: for every length, and every round of starts until all sentences are found.
        generator: for the starts.
    """
    marks = model.vocabulary
    ends = [place for place, tokens in enumerate(sets) if place and bool((tokens == marks.end).any())]
    inner = [
        tokens[(tokens != marks.end) & (tokens != marks.pad) & (tokens != marks.start)] for tokens in sets
    ]
    first = 1 if marks.start >= 0 else 0
    solutions: dict[tuple[int, ...], Found] = {}
    for _ in range(ROUNDS):
        # A sentence may end wherever its end mark is a candidate, if every place before has one.
        for end in ends:
            if not all(len(tokens) for tokens in inner[1:end]):
                continue
            states = _start(model, inner, end, solutions, starts=starts, generator=generator)
            choices = [*(states[0, :1] for _ in range(first)), *inner[first:end], states[0, -1:]]
            states = _descend(model, after, states, choices)
            for one in _right(model, after, states, least=least):
                solutions[one.tokens] = one
        if len(solutions) >= sentences:
            break
    # Noise moves all true sentences alike: what lies much further than the nearest fits by chance.
    nearest = min((one.distance for one in solutions.values()), default=0.0)
    near = [one for one in solutions.values() if one.distance <= MISS * nearest]
    return sorted(near, key=lambda one: one.distance)


def _start(
    model: TextModel,
    inner: Sequence[Tensor],
    end: int,
    solutions: dict[tuple[int, ...], Found],
    *,
    starts: int,
    generator: torch.Generator,
) -> Tensor:
    """Sentences (N, end + 1) of candidates drawn for each position, preferably ones not in ``solutions``."""
    marks, device = model.vocabulary, inner[0].device
    states = torch.full((starts, end + 1), marks.end, device=device)
    if marks.start >= 0:
        states[:, 0] = marks.start
    for place in range(1 if marks.start >= 0 else 0, end):
        used = {one[place] for one in solutions if place < len(one)}
        choices = [t for t in inner[place].tolist() if t not in used] or inner[place].tolist()
        picks = torch.randint(len(choices), (starts,), generator=generator)
        states[:, place] = torch.tensor(choices, device=device)[picks.to(device)]
    return states


def _descend(model: TextModel, after: Span, states: Tensor, sets: Sequence[Tensor]) -> Tensor:
    """Set every position in turn to its nearest candidate, until no sentence gets nearer.

    The nearest candidate at one position may increase the mean distance: the best sentence of every start is
    kept.
    """
    inputs, best = _Inputs.of(model, sets), distances(model, after, states)
    best_states = states.clone()
    at_once = AT_ONCE.get(states.device.type, AT_ONCE["cpu"]) // len(sets) + 1
    for _ in range(SWEEPS):
        for place, tokens in enumerate(sets):
            if len(tokens) < 2:
                continue
            trials = states[:, None].repeat(1, len(tokens), 1)
            trials[:, :, place] = tokens
            parts = torch.split(trials.flatten(0, 1), at_once)
            values = torch.cat([inputs.distances(model, after, part, place) for part in parts])
            states[:, place] = tokens[values.view(len(states), -1).argmin(1)]
        now = distances(model, after, states)
        is_nearer = now < best
        best_states[is_nearer], best = states[is_nearer], torch.minimum(now, best)
        if not bool(is_nearer.any()):
            break
    return best_states


def _right(model: TextModel, after: Span, states: Tensor, *, least: float) -> list[Found]:
    """The sentences that are inside the span at every position."""
    vectors, _ = _ahead(model, states)
    away = after.distances(vectors)
    inside = (away <= after.limits(vectors, least)).all(1)
    return [
        Found(tokens=tuple(row.tolist()), distance=float(one.mean()), own=len(row))
        for row, one in zip(states[inside], away[inside], strict=True)
    ]
