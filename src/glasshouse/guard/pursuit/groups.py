"""Tensors that read the same input: a server may combine rows of all of them, over rounds too."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, final

import torch
from torch import Tensor
from torch.nn import functional as F

from glasshouse.guard.pursuit.limits import OWN_COLUMNS
from glasshouse.guard.pursuit.pulls import Pulls
from glasshouse.guard.pursuit.rows import Side

_SAME: Final = 1e-3
_NARROW: Final = 4  # columns below which directions say nothing
_PICTURE: Final = 16  # columns of which Gram matrices say something
_TURNED: Final = 0.98
_TINY: Final = torch.finfo(torch.float).tiny


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Group:
    """Tensors that read the same input: their rows side by side.

    Attributes:
        sides: of its tensors, in the order of the rows, with the signs of the first.
    """

    sides: tuple[Side, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the tensors, once each."""
        return tuple(dict.fromkeys(side.name for side in self.sides))

    @cached_property
    def pulls(self) -> Tensor:
        """(N, R)."""
        return torch.cat([side.pulls for side in self.sides], dim=1)

    @cached_property
    def fires(self) -> Tensor | None:
        """For which examples each row fires, (N, R), where pulls do not tell it, as none vanishes."""
        if all(side.fires is None for side in self.sides):
            return None
        return torch.cat(
            [side.pulls != 0 if side.fires is None else side.fires for side in self.sides], dim=1
        )

    @cached_property
    def sizes(self) -> Tensor:
        """(N, R)."""
        return torch.cat([side.sizes for side in self.sides], dim=1)


def groups_of(sides: Iterable[Side]) -> list[Group]:
    """The groups of tensors that read the same input, by the directions of what examples add to them."""
    parts: list[list[Side]] = []
    for side in sides:
        for group in parts:
            if (signs := _same_input(group[0], side)) is not None:
                reach = None if side.reach is None else side.reach * signs
                group.append(replace(side, pulls=side.pulls * signs[:, None], reach=reach))
                group[0] = _with_directions_of(group[0], side)
                break
        else:
            parts.append([side])
    for place in range(len(parts) - 1, 0, -1):
        for group in parts[:place]:
            if (times := _same_picture(group[0], parts[place][0])) is not None:
                group += [replace(s, pulls=s.pulls * times, ratio=times) for s in parts.pop(place)]
                break
    groups = [Group(sides=tuple(sides)) for sides in parts]
    return [
        group for group in groups if group.pulls.shape[1] > 1 or group.sides[0].columns >= min(OWN_COLUMNS)
    ]


def ago(rounds: int) -> str:
    """What is added to the name of a tensor that was sent ``rounds`` rounds before."""
    return " a round ago" if rounds == 1 else f" {rounds} rounds ago"


def is_past(name: str) -> bool:
    """Whether a name is that of an earlier round's tensor."""
    return name.endswith((" round ago", " rounds ago"))


def stacked(before: Pulls, now: Pulls, *, rounds: int = 1) -> list[Group]:
    """Groups of two rounds on the same examples that read the same input in both: mostly the model's own."""
    earlier = [replace(side, name=f"{side.name}{ago(rounds)}") for side in before.sides]
    groups = groups_of([*now.sides, *earlier])
    marked = {side.name for side in earlier}
    return [g for g in groups if marked & set(g.names) and set(g.names) - marked]


def _same_input(first: Side, other: Side) -> Tensor | None:
    """Signs (N,) by which ``other``'s directions equal ``first``'s; None: they read something else."""
    if first.sketch is None or other.sketch is None or first.columns != other.columns:
        return None
    if first.columns < _NARROW:
        return None
    signs = (first.sketch * other.sketch).sum(1).sign()
    signs = torch.where(signs == 0, 1.0, signs)  # where only one of them is reached
    both = first.sketch.any(1) & other.sketch.any(1)
    if not both.any():
        return None
    scale = float(first.sketch[both].abs().max())
    same = bool(((first.sketch - signs[:, None] * other.sketch)[both].abs() <= _SAME * scale).all())
    return signs if same else None


def _with_directions_of(first: Side, other: Side) -> Side:
    """The first side of a group, with ``other``'s directions for examples that do not reach its rows."""
    assert first.directions is not None
    assert other.directions is not None
    lacks = ~first.directions.any(1) & other.directions.any(1)
    if not lacks.any():
        return first
    return replace(first, directions=torch.where(lacks[:, None], other.directions, first.directions))


def _same_picture(first: Side, other: Side) -> Tensor | None:
    """Ratios (N, 1) of what ``first`` reads to what ``other`` does, if one is the other turned or shifted.

    Rows of both are combined after the server has undone that, which it can for each that it knows.
    """
    if first.reach is None or other.reach is None or min(first.columns, other.columns) < _PICTURE:
        return None
    grams = []
    for side in (first, other):
        assert side.directions is not None
        assert side.reach is not None
        read = side.directions.double() * side.reach.double()[:, None]
        read = read - read.mean(0)
        grams.append(read @ read.T)
    if float(F.cosine_similarity(grams[0].flatten(), grams[1].flatten(), dim=0)) < _TURNED:
        return None
    return ratio(first.reach, other.reach)


def ratio(reach: Tensor, other: Tensor) -> Tensor:
    """One over the other, (N, 1); 0 where nobody reads anything."""
    return torch.where(other.abs() < _TINY, 0.0, reach / other)[:, None]
