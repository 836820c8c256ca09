"""Order a decoder's tokens by growing prefixes.

The input of the second block's attention at a position depends on the tokens up to there, so a prefix is
correct iff that vector lies in the span of the second layer's gradient. Prefixes grow token by token; wrong
ones are rejected at once.

Source: Petrov et al. 2024, "DAGER", arXiv:2405.15586, section 4.2. Theirs runs the first block on whole
    prefixes for every token that might follow. Here the keys and values of a prefix are cached; a token's own
    projections are computed once for all prefixes; and the span of the first block's head outputs, known from
    the gradient of the layer behind them, rejects most pairs before that layer and the MLP, which cost most,
    are computed.

Shape letters: P prefixes, C candidates, N pairs, T tokens, H heads, E features per head, D width.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from glasshouse.attacks.text.span import Span, received
from glasshouse.models.text.base import TextModel

PAIRS = {"cpu": 2048, "cuda": 65536}
"""Number of pairs of prefix and token that are computed at once, by device."""


@final
@dataclass(frozen=True, kw_only=True)
class Found:
    """One sequence.

    Attributes:
        tokens: of the sequence.
        distance: mean distance from the second layer's span; 0: certain.
        own: number of its prefixes that no more confident sequence has.
    """

    tokens: tuple[int, ...]
    distance: float
    own: int = 0


@final
@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a search.

    Attributes:
        least: the distance up to which a vector passes whatever the noise.
        beam: sequences kept per length, the nearest.
        length: maximum number of tokens of a sequence.
    """

    least: float
    beam: int
    length: int


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Prefixes:
    """P prefixes of one length: tokens (P, T), keys and values (P, H, T, E), summed distances (P,)."""

    tokens: Tensor
    keys: Tensor
    values: Tensor
    distances: Tensor

    def found(self, which: Tensor) -> list[Found]:
        """The prefixes ``which`` as sequences; none if they are empty."""
        length = self.tokens.shape[1]
        return [
            Found(tokens=tuple(row.tolist()), distance=float(total) / length)
            for row, total in zip(self.tokens[which], self.distances[which], strict=True)
            if length
        ]


def grow(
    model: TextModel,
    after: Span,
    found: Span | None,
    candidates: Callable[[int], Tensor],
    *,
    limits: Limits,
) -> list[Found]:
    """All sequences whose every prefix lies in the second layer's span, most confident first.

    Args:
        model: a decoder.
        after: the span of the second attention layer's inputs.
        found: the span of the first block's head outputs; None: not sent.
        candidates: tokens (C,) that may occur at a position.
        limits: of the search.
    """
    prefixes = _start(model)
    ended: list[Found] = []
    for position in range(limits.length):
        tokens = candidates(position)
        if not len(tokens) or not len(prefixes.tokens):
            break
        longer, continued = _extend(model, after, found, prefixes, tokens, limits=limits)
        alone = torch.ones(len(prefixes.tokens), dtype=torch.bool, device=tokens.device)
        alone[continued] = False
        ended += prefixes.found(alone)
        prefixes = longer
    ended += prefixes.found(torch.ones(len(prefixes.tokens), dtype=torch.bool))
    return in_order(ended)


def in_order(found: Iterable[Found]) -> list[Found]:
    """Sort by the number of prefixes not in earlier sequences, as wrong branches end soon.

    Sequences without any are left out. A token that is repeated at the start counts once, as the attention
    output of a rotary decoder is the same after ``a a a`` as after ``a``.

    Examples:
        >>> found = [Found(tokens=t, distance=0.0) for t in ((5, 9), (5, 6, 7), (5, 5, 5, 5))]
        >>> [(one.tokens, one.own) for one in in_order(found)]
        [((5, 6, 7), 3), ((5, 9), 1)]
    """
    covered: set[tuple[int, ...]] = set()
    ordered = []
    every = [(_once(one.tokens), one) for one in found]
    for short, one in sorted(every, key=lambda x: (-len(x[0]), x[1].distance)):
        beginnings = {short[:end] for end in range(1, len(short) + 1)}
        ordered.append(replace(one, own=len(beginnings - covered)))
        covered |= beginnings
    return sorted((one for one in ordered if one.own), key=lambda one: (-one.own, one.distance))


def _once(tokens: tuple[int, ...]) -> tuple[int, ...]:
    """Remove repetitions of the first token at the start."""
    repeated = next((i for i, token in enumerate(tokens) if token != tokens[0]), len(tokens))
    return tokens[max(repeated - 1, 0) :]


def _start(model: TextModel) -> _Prefixes:
    """The empty prefix."""
    weight = model.anatomy.tokens.weight
    first = torch.zeros(1, 1, dtype=torch.int64, device=weight.device)
    _, key, value = model.anatomy.blocks[0].project(received(model, first[0], 0)[None], first)
    return _Prefixes(
        tokens=first[:, :0], keys=key[:, :, :0], values=value[:, :, :0], distances=weight.new_zeros(1)
    )


def _extend(
    model: TextModel,
    after: Span,
    found: Span | None,
    prefixes: _Prefixes,
    tokens: Tensor,
    *,
    limits: Limits,
) -> tuple[_Prefixes, Tensor]:
    """The prefixes extended by one token, and the indices of the prefixes that they continue."""
    block, position = model.anatomy.blocks[0], prefixes.tokens.shape[1]
    places = torch.full((len(tokens), 1), position, device=tokens.device)
    hidden = model.embed(tokens[:, None], places)
    query, key, value = (x[:, :, 0] for x in block.project(block.attended(hidden), places))
    extensions: list[tuple[Tensor, Tensor, Tensor]] = []
    # Every prefix meets every token: in pieces, as their product outgrows the memory.
    step = max(1, PAIRS.get(tokens.device.type, PAIRS["cpu"]) // len(prefixes.tokens))
    for start in range(0, len(tokens), step):
        some = slice(start, start + step)
        heads = _attend(query[some], key[some], value[some], prefixes).flatten(0, 1)
        parent, token = torch.meshgrid(
            torch.arange(len(prefixes.tokens), device=tokens.device),
            torch.arange(len(tokens), device=tokens.device)[some],
            indexing="ij",
        )
        parent, token = parent.flatten(), token.flatten()
        # A cheap look first: most extensions leave the span within one head.
        if found is not None:
            inside = found.may_hold(heads.flatten(1), limits.least)
            parent, token, heads = parent[inside], token[inside], heads[inside]
        ahead = model.anatomy.blocks[1].attended(block.finish(hidden[token], heads[:, :, None]))[:, 0]
        inside, distances = after.inside(ahead, limits.least)
        extensions.append((parent[inside], token[inside], distances))
    parent, token, distance = (torch.cat(parts) for parts in zip(*extensions, strict=True))
    # Prefixes compete by the distance of all their tokens so far.
    total = prefixes.distances[parent] + distance
    best = total.argsort()[: limits.beam]
    parent, token = parent[best], token[best]
    longer = _Prefixes(
        tokens=torch.cat([prefixes.tokens[parent], tokens[token][:, None]], dim=1),
        keys=torch.cat([prefixes.keys[parent], key[token][:, :, None]], dim=2),
        values=torch.cat([prefixes.values[parent], value[token][:, :, None]], dim=2),
        distances=total[best],
    )
    return longer, parent


def _attend(query: Tensor, key: Tensor, value: Tensor, prefixes: _Prefixes) -> Tensor:
    """Attention output of C tokens (C, H, E) over each of P prefixes and themselves: (P, C, H, E)."""
    before = torch.einsum("che,phte->pcht", query, prefixes.keys)
    own = (query * key).sum(-1).expand(len(prefixes.keys), -1, -1)
    scores = torch.cat([before, own[..., None]], dim=-1) / query.shape[-1] ** 0.5
    weights = scores.softmax(-1)
    context: Tensor = torch.einsum("pcht,phte->pche", weights[..., :-1], prefixes.values)
    own_part: Tensor = weights[..., -1:] * value
    return context + own_part
