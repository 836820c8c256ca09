"""Put a decoder's tokens in order: which start of a sentence could stand behind which token.

What the second block's attention receives at a position depends on the tokens up to there, so a prefix is right iff that vector lies in
the span of the second layer's gradient. Prefixes grow token by token; wrong ones die at once.

Source: Petrov et al. 2024, "DAGER", arXiv:2405.15586, section 4.2. Theirs runs the first block on whole prefixes for every token that might
follow. Here the keys and values of a prefix are kept; a token's own projections are computed once for all prefixes; and two more spans of the
same gradient, of the first block's output projection and of its network, refuse most pairs before the network, which is the
costly part, is computed.

Shape letters: P prefixes, C candidates, N pairs, T tokens, H features.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from glasshouse.attacks.text.span import Span
from glasshouse.attacks.text.transformer import Past, Transformer

__all__ = ["Found", "grow"]

PAIRS = 2048
"""Pairs that are computed at once on a CPU; a larger device takes more (``pairs``)."""


@final
@dataclass(frozen=True, kw_only=True)
class Found:
    """One sequence.

    Attributes:
        tokens: of the sequence.
        distance: mean distance from the second layer's span; 0: certain.
    """

    tokens: tuple[int, ...]
    distance: float


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Prefixes:
    """P prefixes of one length: tokens (P, T), their keys and values, and the sum of their distances (P,)."""

    tokens: Tensor
    past: Past
    distances: Tensor

    def found(self, which: Tensor) -> list[Found]:
        """These as sequences; of length 0: none."""
        length = self.tokens.shape[1]
        return [
            Found(tokens=tuple(row.tolist()), distance=float(total) / length)
            for row, total in zip(self.tokens[which], self.distances[which], strict=True)
            if length
        ]


def grow(
    model: Transformer,
    spans: Mapping[str, Span],
    candidates: Callable[[int], Tensor],
    *,
    least: float,
    beam: int,
    longest: int,
    pairs: int = PAIRS,
) -> list[Found]:
    """All sequences whose every prefix lies in the second layer's span, nearest first.

    Args:
        model: a decoder.
        spans: of the places ``next``, and where they were sent ``out`` and ``up``.
        candidates: tokens (C,) that may stand at a position.
        least: the distance up to which a prefix passes whatever the noise.
        beam: prefixes kept per length, the nearest.
        longest: tokens of the longest sequence.
        pairs: of prefix and token, computed at once.
    """
    prefixes = _start(model)
    found: list[Found] = []
    for position in range(longest):
        tokens = candidates(position)
        if not len(tokens) or not len(prefixes.tokens):
            break
        longer, grown = _extend(model, spans, prefixes, tokens, least=least, beam=beam, pairs=pairs)
        ended = torch.ones(len(prefixes.tokens), dtype=torch.bool, device=tokens.device)
        ended[grown] = False
        found += prefixes.found(ended)
        prefixes = longer
    found += prefixes.found(torch.ones(len(prefixes.tokens), dtype=torch.bool))
    return sorted(found, key=lambda one: one.distance)


def _start(model: Transformer) -> _Prefixes:
    """The empty prefix."""
    weight = model.block.query.weight
    heads = model.block.heads[0]
    nothing = weight.new_zeros(1, heads, 0, weight.shape[0] // heads)
    return _Prefixes(
        tokens=torch.zeros(1, 0, dtype=torch.int64, device=weight.device),
        past=Past(keys=nothing, values=nothing),
        distances=weight.new_zeros(1),
    )


def _extend(
    model: Transformer,
    spans: Mapping[str, Span],
    prefixes: _Prefixes,
    tokens: Tensor,
    *,
    least: float,
    beam: int,
    pairs: int,
) -> tuple[_Prefixes, Tensor]:
    """The prefixes that are one token longer, and which of the shorter ones they continue."""
    position = prefixes.tokens.shape[1]
    hidden = model.embedding(tokens, position)
    projected = model.block.project(model.embedding.attended(tokens, position), position)
    kept: list[tuple[Tensor, Tensor, Tensor]] = []
    step = max(1, pairs // len(prefixes.tokens))
    for start in range(0, len(tokens), step):
        some = slice(start, start + step)
        attended = model.block.attend(tuple(x[some] for x in projected), prefixes.past)  # type: ignore[arg-type]
        parent, token = torch.meshgrid(
            torch.arange(len(prefixes.tokens), device=tokens.device),
            torch.arange(len(tokens), device=tokens.device)[some],
            indexing="ij",
        )
        kept.append(
            _check(model, spans, (parent.flatten(), token.flatten()), hidden, attended.flatten(0, 1), least)
        )
    parent, token, distance = (torch.cat(parts) for parts in zip(*kept, strict=True))
    total = prefixes.distances[parent] + distance
    best = total.argsort()[:beam]
    parent, token = parent[best], token[best]
    _, keys, values = projected
    longer = _Prefixes(
        tokens=torch.cat([prefixes.tokens[parent], tokens[token][:, None]], dim=1),
        past=prefixes.past.grow(parent, keys[token], values[token]),
        distances=total[best],
    )
    return longer, parent.unique()


def _check(
    model: Transformer,
    spans: Mapping[str, Span],
    pair: tuple[Tensor, Tensor],
    hidden: Tensor,
    attended: Tensor,
    least: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Of pairs of prefix and token (N,) with what attention found (N, H): those that pass, and their distances."""
    parent, token = pair
    if "out" in spans:
        inside = spans["out"].may_hold(attended, least)
        parent, token, attended = parent[inside], token[inside], attended[inside]
    stream, seen = model.block.middle(hidden[token], attended)
    if "up" in spans:
        inside = spans["up"].may_hold(seen, least)
        parent, token, stream, seen = parent[inside], token[inside], stream[inside], seen[inside]
    after = model.following(model.block.finish(stream, seen))
    inside = spans["next"].may_hold(after, least)
    parent, token, after = parent[inside], token[inside], after[inside]
    distance = spans["next"].distances(after)
    inside = distance <= spans["next"].limits(after, least)
    return parent[inside], token[inside], distance[inside]
