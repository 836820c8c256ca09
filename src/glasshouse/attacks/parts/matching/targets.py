"""Received gradients of several victims, and candidates' gradients held against them.

Shape letters: R restarts, V victims, each with a target of its own, P parameter tensors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor

from glasshouse.attacks.parts.matching import ghost_layers
from glasshouse.attacks.parts.matching.ghost_layers import Triple
from glasshouse.tensors import widen

SMALL: Final = 2**14
"""Gradients of up to this many entries are compared in one piece, as the call overhead dominates."""

Chosen = slice | list[int] | None
"""The victims whose targets are needed, each for equally many candidates; None: all, in order."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Moments:
    """Inner products and norms of R candidate gradients, per parameter tensor, as matching needs them.

    Attributes:
        dot: <g_p(x_r), g*_p>, (P, R); like the others, float64 (float32 on MPS).
        square: |g_p(x_r)|², (P, R), after the target's masks.
        gap: |g_p(x_r) - g*_p|², (P, R), or None: exact only where gradients were formed, as
            ``square - 2 dot + |g*|²`` suffers from cancellation near convergence.
    """

    dot: Tensor
    square: Tensor
    gap: Tensor | None = None


@final
class Targets:
    """The targets of all victims, for the same parameters.

    Args:
        targets: g* of every victim, by parameter name.
        masks: for every victim the entries that count, by parameter name, of the target's shape or (1, ...)
            for whole columns; missing names: all entries.
        apart: return separate moments for small tensors, too; else they are joined into one.
    """

    def __init__(
        self, targets: Sequence[Mapping[str, Tensor]], masks: Sequence[Mapping[str, Tensor]], *, apart: bool
    ) -> None:
        self._apart = apart
        self._target: dict[str, Tensor] = {}
        for name in targets[0]:
            self._target[name] = torch.stack([target[name] for target in targets])  # (V, ...)
        masked = sorted({name for mask in masks for name in mask})
        self._masks = {name: self._stacked(name, masks) for name in masked}
        self.victims, self.precision = len(targets), next(iter(self._target.values())).dtype
        self._joined: dict[tuple[str, ...], tuple[Tensor, Tensor | None]] = {}
        self._halves: dict[str, Tensor] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._target

    def _stacked(self, name: str, masks: Sequence[Mapping[str, Tensor]]) -> Tensor:
        """(V, 1, ...) where all victims' masks are of whole columns, else (V, ...)."""
        shape = self._target[name].shape[1:]
        columns = all(name not in m or m[name].shape[0] == 1 for m in masks)
        shape = torch.Size((1, *shape[1:])) if columns else shape
        every = torch.ones(shape, dtype=torch.bool, device=self._target[name].device)
        return torch.stack([m[name].expand(shape) if name in m else every for m in masks])

    def of(self, name: str, chosen: Chosen) -> tuple[Tensor, Tensor | None]:
        """Target and mask of a parameter."""
        target, mask = self._target[name], self._masks.get(name)
        return (target, mask) if chosen is None else (target[chosen], None if mask is None else mask[chosen])

    def half(self, name: str, chosen: Chosen) -> Tensor:
        """The target of a parameter in bfloat16, cast once."""
        if name not in self._halves:
            self._halves[name] = self._target[name].to(torch.bfloat16)
        return self._halves[name] if chosen is None else self._halves[name][chosen]

    def compare(
        self, formed: Mapping[str, Tensor], known: Mapping[str, Triple], chosen: Chosen, *, exact: bool
    ) -> Moments:
        """Moments of all parameters.

        Args:
            formed: gradients (R, ...), by parameter name.
            known: moments of all other parameters, whose gradients were not formed.
            chosen: victims.
            exact: fill the gap, if all gradients were formed.
        """
        small = [] if self._apart else [name for name, g in formed.items() if g[0].numel() <= SMALL]
        triples = dict(known) | {
            name: ghost_layers.explicit(gradient, *self.of(name, chosen), exact=exact)
            for name, gradient in formed.items()
            if name not in small
        }
        if small:
            joined = torch.cat([formed[name].flatten(1).to(self.precision) for name in small], 1)
            target, mask = self._join(tuple(small))
            if chosen is not None:
                target, mask = target[chosen], None if mask is None else mask[chosen]
            triples[", ".join(small)] = ghost_layers.explicit(joined, target, mask, exact=exact)
        return moments([triples[name] for name in (self._target if self._apart else triples)])

    def _join(self, names: tuple[str, ...]) -> tuple[Tensor, Tensor | None]:
        """Targets and masks of several parameters as one, (V, entries)."""
        if names not in self._joined:
            masks = None
            if any(name in self._masks for name in names):
                like = {n: torch.ones_like(self._target[n], dtype=torch.bool) for n in names}
                wide = [self._masks.get(n, every).expand_as(every) for n, every in like.items()]
                masks = torch.cat([m.flatten(1) for m in wide], 1)
            targets = torch.cat([self._target[name].flatten(1) for name in names], 1)
            self._joined[names] = (targets, masks)
        return self._joined[names]


def moments(triples: list[Triple]) -> Moments:
    """Stack the moments of all parameter tensors; the gap only if all of them have one."""
    dots, squares, gaps = zip(*triples, strict=True)
    gaps_present = [widen(gap) for gap in gaps if gap is not None]
    return Moments(
        dot=torch.stack([widen(d) for d in dots]),
        square=torch.stack([widen(s) for s in squares]),
        gap=torch.stack(gaps_present) if len(gaps_present) == len(gaps) else None,
    )


def chosen_victims(victims: Sequence[int] | None, *, every: int) -> Chosen:
    """The victims whose targets are needed, from the victim of every candidate, in ascending order.

    Examples:
        >>> (chosen_victims((0, 0, 1, 1), every=2), chosen_victims((1, 1), every=2),
        ...  chosen_victims((0, 1, 1), every=2))
        (None, slice(1, 2, None), [0, 1, 1])
    """
    if victims is None:
        return None
    distinct = sorted(set(victims))
    each, rest = divmod(len(victims), len(distinct))
    even = not rest and list(victims) == [victim for victim in distinct for _ in range(each)]
    blocks = distinct if even else list(victims)
    if blocks == list(range(every)):
        return None
    contiguous = blocks == list(range(blocks[0], blocks[0] + len(blocks)))
    return slice(blocks[0], blocks[0] + len(blocks)) if contiguous else blocks
