"""What fixed read-outs of a group of tensors get: searched on some examples, judged on others."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor

from glasshouse.guard.pursuit.crowds import search_completed, search_crowds
from glasshouse.guard.pursuit.examples import Own
from glasshouse.guard.pursuit.groups import Group
from glasshouse.guard.pursuit.judge import judge
from glasshouse.guard.pursuit.limits import JUDGED, SEARCHED, SHARED
from glasshouse.guard.pursuit.search import ReadOuts, search

BATCH: Final = 64
"""Size of the batches in which they are judged."""


@final
@dataclass(frozen=True, kw_only=True)
class Given:
    """What fixed read-outs of one group get, as shares of a batch.

    Attributes:
        rows: isolated at 30 dB by single rows.
        rows_visible: the same at 18 dB.
        excess: what combinations of few rows add at 30 dB.
        excess_visible: the same at 18 dB.
        focus: mean over the group's rows of the largest dominance of one example: how rarely rows fire.
    """

    rows: float
    rows_visible: float
    excess: float
    excess_visible: float
    focus: float


MEASURES: Final = ("rows", "rows_visible", "excess", "excess_visible")
"""Measures of which each has a limit; ``focus`` decides which limits hold."""
PARTS: Final = (*MEASURES, "focus")


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """What was found in one group.

    Attributes:
        names: of its tensors.
        given: what it gives away.
        rows: number of rows of the read-out that isolates an example in most batches.
        hits: share of the batches in which that one does.
    """

    names: tuple[str, ...]
    given: Given
    rows: int
    hits: float


def turns(own: Own) -> tuple[list[tuple[slice, slice]], int]:
    """Which examples are searched and which judged, and the size of the batches they are judged in.

    Few examples take both parts in turn: chance would otherwise decide what is found among so few.
    """
    judged = min(JUDGED, max(len(own) // 2, len(own) - SEARCHED))
    searched = min(SEARCHED, len(own) - judged)
    first, second = slice(0, searched), slice(searched, searched + judged)
    pairs = [(first, second)] if judged == JUDGED else [(first, second), (second, first)]
    return pairs, min(BATCH, judged)


Search = Callable[[Tensor], ReadOuts]


def look(
    groups: Sequence[Group], own: Own, *, searches: Sequence[Search] = (search, search_crowds)
) -> list[Found]:
    """What fixed read-outs of each group get: searched on one half of ``own``, judged on the other.

    Single rows are not searched for, so that they are judged on all examples. Read-outs of many rows are
    searched on the other half, which is the larger one: as many weights are fitted.

    Args:
        groups: of tensors.
        own: the examples behind their pulls.
        searches: what looks for read-outs.
    """
    pairs, batch = turns(own)
    every = []
    for group in groups:
        single = ReadOuts.single(group.pulls.shape[1])
        sized = judge(group.sizes, single, batch=min(BATCH, len(own)))
        best, added = (0.0, 0), [(0.0, 0.0)]
        for find in searches:
            clear, visible = 0.0, 0.0
            for first, second in pairs:
                here, there = (second, first) if find is search_crowds else (first, second)
                more = find(group.pulls[here])
                if not len(more.rows):
                    continue
                both = single + more
                joint = judge(group.pulls[there], both, batch=min(batch, len(group.pulls[there])))
                clear += (joint.clear - joint.clear_alone) / len(pairs)
                visible += (joint.visible - joint.visible_alone) / len(pairs)
                best = max(best, (joint.hits, int((both.weights[joint.best] != 0).sum())))
            added.append((clear, visible))
        if search_crowds in searches and (passed := _passed_later(groups, group)) is not None:
            clear, visible = 0.0, 0.0
            pulls = torch.cat([group.pulls, passed], 1)
            for first, second in pairs:
                more = search_completed(group.pulls[second], passed[second])
                if not len(more.rows):
                    continue
                both = single + more
                joint = judge(pulls[first], both, batch=min(batch, len(pulls[first])))
                clear += (joint.clear - joint.clear_alone) / len(pairs)
                visible += (joint.visible - joint.visible_alone) / len(pairs)
                best = max(best, (joint.hits, int((both.weights[joint.best] != 0).sum())))
            added.append((clear, visible))
        clear, visible = (max(parts) for parts in zip(*added, strict=True))
        given = Given(
            rows=sized.clear,
            rows_visible=sized.visible,
            excess=clear,
            excess_visible=visible,
            focus=sized.focus,
        )
        every.append(Found(names=group.names, given=given, hits=best[0], rows=best[1]))
    return every


def _passed_later(groups: Sequence[Group], group: Group) -> Tensor | None:
    """What examples pass back to the units of other layers, as if these read what ``group`` does, (N, K)."""
    own = group.sides[0].reach
    # A layer whose inputs are like the group's own in other coordinates may still be the one behind it.
    others = [s for one in groups for s in one.sides if one is not group or s.ratio is not None]
    columns = []
    for side in others:
        if own is not None and side.reach is not None and side.pulls.shape[1] <= SHARED:
            pulls = side.pulls if side.ratio is None else side.pulls / side.ratio
            columns.append(pulls * (own / side.reach.clamp_min(1e-30))[:, None].to(pulls))
    return torch.cat(columns, 1) if columns else None


def used(lengths: Tensor) -> float:
    """Effective share of the examples in a tensor's update, (Σ r)² / (N Σ r²); 0: nobody reaches it."""
    lengths = lengths.double()
    if not lengths.any():
        return 0.0
    lengths = lengths / lengths.max()
    return float(lengths.sum().square() / (len(lengths) * lengths.square().sum()))
