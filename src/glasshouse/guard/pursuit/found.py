"""What fixed read-outs of a group of tensors get: searched on some examples, judged on others."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, final

import torch
from torch import Tensor

from glasshouse.guard.pursuit.crowds import search_completed, search_crowds, search_halves
from glasshouse.guard.pursuit.examples import Own
from glasshouse.guard.pursuit.groups import Group, ratio
from glasshouse.guard.pursuit.judge import Responses, filled_by, focus_of, judge
from glasshouse.guard.pursuit.limits import JUDGED, OWN_COLUMNS, SEARCHED, SHARED
from glasshouse.guard.pursuit.pulls import reads_examples
from glasshouse.guard.pursuit.search import ReadOuts, search

Search = Callable[[Tensor, Tensor | None], ReadOuts]
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
        crowds: what combinations of many rows add at 30 dB; honest ones add more by them than by few rows.
        crowds_visible: the same at 18 dB.
        columns_8: of which each alone fills 8 columns or more, or what combinations of them leave, at 30 dB.
        columns_32: the same of 32 columns.
        columns_128: the same of 128 columns.
        columns_8_visible: as ``columns_8``, at 18 dB.
        columns_32_visible: as ``columns_32``, at 18 dB.
        columns_128_visible: as ``columns_128``, at 18 dB.
        cells_32: of which each alone fills 32 columns or more of some row or combination of rows, at 30 dB; 8
            are filled by chance where few units fire and few features are there.
        cells_128: the same of 128 columns.
        cells_32_visible: as ``cells_32``, at 18 dB.
        cells_128_visible: as ``cells_128``, at 18 dB.
        focus: mean over the group's rows of the largest dominance of one example: how rarely rows fire.
    """

    rows: float
    rows_visible: float
    excess: float
    excess_visible: float
    crowds: float
    crowds_visible: float
    columns_8: float
    columns_32: float
    columns_128: float
    columns_8_visible: float
    columns_32_visible: float
    columns_128_visible: float
    cells_32: float
    cells_128: float
    cells_32_visible: float
    cells_128_visible: float
    focus: float


OF_ROUNDS: Final = (search, search_halves)
"""What looks for read-outs of two rounds."""
_ENDINGS: Final = ("", "_visible")
CELLS: Final = tuple(f"cells_{n}{ending}" for ending in _ENDINGS for n in OWN_COLUMNS[1:])
"""How many columns of some row are filled by one example."""
COLUMNS: Final = (*(f"columns_{n}{ending}" for ending in _ENDINGS for n in OWN_COLUMNS), *CELLS)
"""How many columns are filled by one example, in all rows or in some."""
SINGLE: Final = ("rows", "rows_visible", *COLUMNS)
"""Measures that rise in honest models that are trained for long: single rows isolate more of them."""
MEASURES: Final = (*SINGLE, "excess", "excess_visible", "crowds", "crowds_visible")
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
    swapped = [(second, first) for first, second in pairs]
    every = []
    for group in groups:
        single = ReadOuts.single(group.pulls.shape[1])
        whole = min(BATCH, len(own))
        sized = judge(group.sizes, single, batch=whole)
        few, many = [_NOTHING], [_NOTHING]
        # Read-outs of few rows and of many have limits of their own, so they are kept apart.
        combined: list[ReadOuts] = []
        for find in searches:
            crowded = find in (search_crowds, search_halves)
            halves = swapped if crowded else pairs
            more = [_of_half(find, group.pulls, group.fires, here) for here, _ in halves]
            (many if crowded else few).append(_judged(group.pulls, single, halves, batch, more))
            combined = combined or more
        # Later layers pass back which side of a hyperplane an example lies on: half of a read-out may stand
        # there.
        if search_crowds in searches and (passed := passed_later(groups, group)) is not None:
            pulls = torch.cat([group.pulls, passed], 1)
            more = [_of_half(search_completed, group.pulls, passed, group.fires, here) for here, _ in swapped]
            many.append(_judged(pulls, single, swapped, batch, more))
        # Columns of two rounds are those of each.
        filled = _filled(group, own, combined, pairs, batch) if search_crowds in searches else {}
        given = Given(
            rows=sized.clear,
            rows_visible=sized.visible,
            excess=max(one.clear for one in few),
            excess_visible=max(one.visible for one in few),
            crowds=max(one.clear for one in many),
            crowds_visible=max(one.visible for one in many),
            **{m: filled.get(m, 0.0) for m in COLUMNS},
            focus=focus_of(group.sizes, batch=whole),
        )
        best = max([*few, *many], key=lambda one: (one.hits, one.rows))
        every.append(Found(names=group.names, given=given, hits=best.hits, rows=best.rows))
    return every


class _Added(NamedTuple):
    """What some read-outs add to single rows, and the one that isolates an example in most batches."""

    clear: float
    visible: float
    hits: float
    rows: int


_NOTHING: Final = _Added(clear=0.0, visible=0.0, hits=0.0, rows=0)


def _of_half(find: Callable[..., ReadOuts], *pulls_and_half: Any) -> ReadOuts:
    *every, half = pulls_and_half
    return find(*(None if t is None else t[half] for t in every))


def _judged(
    pulls: Tensor,
    single: ReadOuts,
    pairs: Sequence[tuple[slice, slice]],
    batch: int,
    found: Sequence[ReadOuts],
) -> _Added:
    """What the read-outs found on one part of the examples add on the other, over all pairs."""
    clear, visible, best = 0.0, 0.0, (0.0, 0)
    for (_, there), more in zip(pairs, found, strict=True):
        if not len(more.rows):
            continue
        both = single + more
        joint = judge(pulls[there], both, batch=min(batch, len(pulls[there])))
        clear += (joint.clear - joint.clear_alone) / len(pairs)
        visible += (joint.visible - joint.visible_alone) / len(pairs)
        best = max(best, (joint.hits, int((both.weights[joint.best] != 0).sum())))
    return _Added(clear, visible, *best)


def _filled(
    group: Group, own: Own, found: Sequence[ReadOuts], pairs: Sequence[tuple[slice, slice]], batch: int
) -> dict[str, float]:
    """How many columns examples fill alone, over all pairs; nothing where columns are the examples' own."""
    read = group.sides[0].directions
    if read is None or reads_examples(own, read):
        return {}
    every: list[dict[str, float]] = []
    for (here, there), combined in zip(pairs, found, strict=True):
        columns = Responses.of(read[there], search(read[here]))
        # In all rows of a tensor at once, and where rows and columns meet.
        rows = [("columns", Responses.of_all(side.sizes[there])) for side in group.sides]
        rows.append(("cells", Responses.of(group.pulls[there], combined)))
        most: dict[str, float] = {}
        for what, one in rows:
            shares = filled_by(one, columns, batch=min(batch, len(read[there])))
            for ending, share in shares.items():
                most[f"{what}_{ending}"] = max(share, most.get(f"{what}_{ending}", 0.0))
        every.append(most)
    return {m: sum(one[m] for one in every) / len(every) for m in COLUMNS}


def passed_later(groups: Sequence[Group], group: Group) -> Tensor | None:
    """What examples pass back to the units of other layers, as if these read what ``group`` does, (N, K)."""
    own = next((side.reach for side in group.sides if side.reach is not None and side.ratio is None), None)
    # A layer whose inputs are like the group's own in other coordinates may still be the one behind it.
    wide = [one for one in groups if one.pulls.shape[1] > 1]
    others = [s for one in wide for s in one.sides if one is not group or s.ratio is not None]
    columns = []
    for side in others:
        if own is not None and side.reach is not None and side.pulls.shape[1] <= SHARED:
            pulls = side.pulls if side.ratio is None else side.pulls / side.ratio
            columns.append(pulls * ratio(own, side.reach).to(pulls))
    return torch.cat(columns, 1) if columns else None


def used(lengths: Tensor) -> float:
    """Effective share of the examples in a tensor's update, (Σ r)² / (N Σ r²); 0: nobody reaches it."""
    lengths = lengths.double()
    if not lengths.any():
        return 0.0
    lengths = lengths / lengths.max()
    return float(lengths.sum().square() / (len(lengths) * lengths.square().sum()))
