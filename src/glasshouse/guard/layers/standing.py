"""Which examples are exposed in the rows of an update to one linear layer.

A row of the update is a sum of contributions, one per example, each along the example's input to the layer.
The client knows them all, so it can compute what remains of a row without one of its examples: an example is
exposed only where its own contribution makes the row resemble it. An example contributes little to most rows,
and rows to which it contributed less than :attr:`Contributions.least_share` of their length cannot expose it:
they are never compared.

Shape letters: m rows of the weight, n its columns, B examples, k pairs of a vector and an example.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, final

import torch
from torch import Tensor
from torch.nn import functional as F

from glasshouse.guard.layers.combinations import (
    AT_A_TIME,
    OWNED,
    By,
    Pairs,
    RowCombinations,
    ask,
    candidates,
    in_order_of_thresholds,
    single,
)
from glasshouse.guard.layers.contributions import OWN, Contributions, Goals, Sizes, What, largest
from glasshouse.guard.pursuit.rows import FIRST, Rows

CLEAR: Final = 0.5
"""Share of an example's contrast that may be missing; 18 dB of PSNR for an image of ordinary contrast."""
RECOGNISED: Final = 0.6
"""The same where no other example is as close: a server's reading has its own scale, offset and contrast."""
MOST: Final = 0.35
"""Own share of a vector's length from which on no test without it is needed, below ``RECOGNISED``."""
HALF: Final = 0.5
"""The same where more is missing."""
STRANGE: Final = CLEAR / (1 - OWN)
"""Share of an example's contrast that must be missing once its own contribution is removed."""
APART: Final = 1.5
"""Where contributions are only estimated, a row this many times closer to one example than to any other
exposes it: in one of several steps it may have had the row to itself that it shares before and after."""
CLOSER: Final = 0.2
"""Where this much less is missing than the limit, other examples that resemble the row do not matter."""
BESIDE: Final = 1.2
"""Where more than ``CLEAR`` is missing, every other example must be this many times farther away."""
UNEXPLAINED: Final = 0.1
"""Share of a bias that may differ from the examples' contributions."""
ALIKE: Final = 0.9
"""Cosine between two mean-centred examples from which on they count as the same picture."""
_TINY: Final = torch.finfo(torch.float).tiny


@final
@dataclass(frozen=True, kw_only=True)
class Leak:
    """One example that is exposed in the update.

    Attributes:
        example: its index among the client's examples.
        what: the input itself, or the features computed from it by earlier layers.
        layer: name of the layer.
        by: the kind of row combination that exposes it.
        missing: share of its contrast that is missing, below ``RECOGNISED``.
        rows: all rows of the weight that expose it, alone, in sums or in pairs; of each fixed combination
            the one without which nothing is left of it.
        tensor: name of the tensor; empty: the layer's weight.
        axes: of the tensor, or of a piece of it, that count its rows.
    """

    example: int
    what: What
    layer: str
    by: By
    missing: float
    rows: tuple[int, ...]
    tensor: str = ""
    axes: Rows = FIRST


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Shown:
    """k pairs of a vector and the example that it exposes.

    Attributes:
        examples: (k,).
        missing: share of contrast missing, (k,).
        rows: the two rows of each vector, or one twice, (k, 2).
        by: kind of the vectors.
    """

    examples: Tensor
    missing: Tensor
    rows: Tensor
    by: By


def find_examples(
    rows: Tensor, of: Contributions, *, bias: Tensor | None = None, recognised: float = RECOGNISED
) -> list[Leak]:
    """The examples that are exposed in ``rows``.

    Args:
        rows: of the update, (m, n).
        of: the examples' contributions to them.
        bias: of the update, (m,): reveals the scale of an input.
        recognised: share of an input's contrast that may be missing; at most ``CLEAR`` for features, and for
            rows to which something else was added.
    """
    # Scaled, as the server chooses how large the numbers of an update are.
    rows, scale = rows.detach(), largest(rows.detach())
    rows = (rows / scale).to(of.trace.inputs.dtype)
    sizes = of.sizes(rows)
    # Where more than inputs is in a row, a mere likeness proves little: the stricter limit holds.
    limits = torch.where(sizes.explained & (of.what == "input"), recognised, min(recognised, CLEAR))
    looks = [partial(_compare, rows=rows, sizes=sizes, of=of, limits=limits)]
    # A row divided by its bias entry is an input in its own scale, which contrasts alone do not tell.
    if bias is not None and of.what == "input":
        looks.append(
            partial(
                _compare_quotients,
                rows=rows,
                bias=(bias.detach().double() / scale * of.unit).to(rows),
                sizes=sizes.per_length(of.lengths),
                of=of,
                limits=limits,
            )
        )
    shown = [
        pairs
        for vectors in candidates(rows, sizes, of.trace)
        for part in vectors.parts(max(rows.shape))
        for look in looks
        if (pairs := look(part)) is not None
    ]
    if (pairs := _several_rows(rows, sizes, of, limits)) is not None:
        shown.append(pairs)
    if of.what == "input" and not of.is_exact:
        shown += _clearly_nearest(rows, of, recognised)
    return _leave_out_lookalikes(_collect(shown, of), of)


def _compare(
    vectors: RowCombinations, *, rows: Tensor, sizes: Sizes, of: Contributions, limits: Tensor
) -> _Shown | None:
    """The pairs of a vector and an example that contributed enough to it, where it is recognised."""
    looked_at = vectors.of(rows)
    pairs = ask(vectors, sizes, of.least_share * torch.linalg.vector_norm(looked_at, dim=1))
    if pairs is None:
        return None
    used = vectors.pick(pairs.vectors)
    missing = _recognise(looked_at[pairs.vectors], pairs, of.goals(pairs.examples), used.least(limits))
    return _shown(used, pairs, missing)


def _compare_quotients(
    vectors: RowCombinations,
    *,
    rows: Tensor,
    bias: Tensor,
    sizes: Sizes,
    of: Contributions,
    limits: Tensor,
) -> _Shown | None:
    """As :func:`_compare`, for what a server reads: vectors divided by the bias, clamped to the input range.

    Scale and offset are then right, and errors from pruning one of two rows are clamped.

    Args:
        vectors: of the update.
        rows: of the update.
        bias: of the update, in the units of ``rows``.
        sizes: contribution of each example to the bias.
        of: the contributions.
        limits: share that may be missing, for each row.
    """
    total = vectors.of(bias)
    explained = (vectors.of(sizes.total) / total - 1).abs() <= UNEXPLAINED
    vectors, total = vectors.pick(explained), total[explained]
    pairs = ask(vectors, sizes, of.least_share * total.abs())
    if pairs is None:
        return None
    used, total = vectors.pick(pairs.vectors), total[pairs.vectors]
    low, high = of.trace.inputs.aminmax()
    middle = (low + high) / 2
    pictures = (used.of(rows) / total[:, None]).clamp(low, high) - middle
    goals = of.goals(pairs.examples).about(middle)
    pairs = replace(pairs, own=pairs.own / total[pairs.which] * goals.lengths[pairs.who])
    return _shown(used, pairs, _recognise(pictures, pairs, goals, used.least(limits)))


def _shown(vectors: RowCombinations, pairs: Pairs, missing: Tensor) -> _Shown:
    """The pairs in which the example is recognised (``missing`` is finite)."""
    recognised = missing.isfinite()
    numbers = torch.stack([vectors.first, vectors.second], dim=1)
    return _Shown(
        examples=pairs.examples[pairs.who[recognised]],
        missing=missing[recognised],
        rows=numbers[pairs.which[recognised]],
        by=vectors.by,
    )


def _recognise(vectors: Tensor, pairs: Pairs, goals: Goals, limits: Tensor) -> Tensor:
    """Share of an example's contrast that is missing from a vector, (k,); infinite if it is not recognised.

    Where another contributing example matches a vector far better, the vector exposes only that one.

    Args:
        vectors: of the pairs, (v, n).
        pairs: to be compared.
        goals: examples of the pairs.
        limits: share that may be missing, for each vector, (v,).
    """
    which, length = pairs.which, torch.linalg.vector_norm(vectors, dim=1)
    missing = _missing(_inner(vectors, pairs, goals), length[which].clamp_min(_TINY), pairs, goals)
    least = torch.full_like(length, torch.inf).scatter_reduce(0, which, missing, "amin")
    recognised = (missing < limits[which]) & (missing <= APART * least[which]) & (length > 0)[which]
    return torch.where(recognised, missing, torch.inf)


def _inner(vectors: Tensor, pairs: Pairs, goals: Goals) -> Tensor:
    """Components of vectors (v, n) along their paired examples, (k,)."""
    which, who, inputs = pairs.which, pairs.who, goals.inputs
    if len(who) * 8 > len(vectors) * len(inputs):
        products = (vectors @ inputs.T)[which, who]
    else:
        at_a_time = max(1, AT_A_TIME // max(1, vectors.shape[1]))
        parts = zip(torch.split(which, at_a_time), torch.split(who, at_a_time), strict=True)
        products = torch.cat([torch.linalg.vecdot(vectors[a], inputs[b]) for a, b in parts])
    return products / goals.lengths[who].clamp_min(_TINY)


def _missing(inner: Tensor, length: Tensor, pairs: Pairs, goals: Goals) -> Tensor:
    """Missing share of an example's contrast, (k,); infinite if the match is due to other examples.

    The copies of an image are taken to contribute alike: they do not count as other examples.

    Args:
        inner: component of each vector along the example, (k,).
        length: of each vector, (k,).
        pairs: of vectors and examples.
        goals: examples of the pairs.
    """
    own = pairs.own * goals.copies
    across = (length.square() - inner.square()).clamp_min(0)
    per_contrast = (goals.lengths / goals.contrasts)[pairs.who]
    missing = per_contrast * across.sqrt() / length
    rest = (across + (inner - own).square()).sqrt().clamp_min(_TINY)
    strange = (own.abs() >= MOST * length) | (per_contrast * across.sqrt() / rest >= STRANGE)
    limit = torch.where(pairs.own.abs() >= OWN * length, RECOGNISED, CLEAR)  # below it: through its copies
    by_itself = (pairs.own.abs() >= HALF * length) | (strange & (missing < limit))
    return torch.where(by_itself, missing, torch.inf)


def _several_rows(rows: Tensor, sizes: Sizes, of: Contributions, limits: Tensor) -> _Shown | None:
    """Examples exposed in the sum of the rows that they dominate, in which noise averages out."""
    mine = (sizes.top >= OWNED * sizes.length.clamp_min(_TINY)).nonzero()[:, 0]  # cheap necessary condition
    mine = mine[sizes.top[mine] >= OWNED * sizes.signed[mine].abs().sum(1).clamp_min(_TINY)]
    if len(mine) < 2:
        return None
    whose = sizes.signed[mine].abs().argmax(1)
    who, place = torch.unique(whose, return_inverse=True)
    if len(who) == len(mine):  # no example has two rows
        return None
    strongest = rows.new_zeros(len(who)).scatter_reduce(0, place, rows[mine].abs().amax(1), "amax")
    scale = strongest.clamp_min(_TINY)[place]  # squares of tiny rows underflow
    weights = sizes.signed[mine, whose] / scale
    summands = weights[:, None] * (rows[mine] / scale[:, None])
    total = rows.new_zeros(len(who), rows.shape[1]).index_add_(0, place, summands)
    own = rows.new_zeros(len(who)).index_add_(0, place, weights.square())
    every = torch.arange(len(who), device=who.device)
    least = torch.full_like(own, torch.inf).scatter_reduce(0, place, limits[mine], "amin")
    pairs = Pairs(vectors=every, examples=who, which=every, who=every, own=own)
    missing = _recognise(total, pairs, of.goals(who), least)[place]
    recognised = missing.isfinite()
    numbers = torch.stack([mine, mine], dim=1)[recognised]
    return _Shown(examples=whose[recognised], missing=missing[recognised], rows=numbers, by="several rows")


def _clearly_nearest(rows: Tensor, of: Contributions, recognised: float) -> Iterator[_Shown]:
    """Rows, and differences of rows adjacent in threshold order, that are close to only one example."""
    goals = of.every_goal
    if len(goals.inputs) < 2:
        return
    centred = F.normalize(goals.inputs - goals.inputs.mean(0), dim=1)
    both = single(rows), in_order_of_thresholds(rows, of.trace)
    for vectors in (part for one in both for part in one.parts(max(*rows.shape, len(goals.inputs)))):
        missing = goals.distances(F.normalize(vectors.of(rows), dim=1, eps=_TINY))
        first, who = missing.min(1)
        near = (first < recognised).nonzero()[:, 0]
        others = centred[who[near]] @ centred.T <= ALIKE
        second = torch.where(others, missing[near], torch.inf).amin(1)
        clear = near[(second > APART * first[near]) | (first[near] < recognised - CLOSER)]
        pairs = torch.stack([vectors.first, vectors.second], dim=1)[clear]
        yield _Shown(examples=who[clear], missing=first[clear], rows=pairs, by=vectors.by)


def _collect(shown: Sequence[_Shown], of: Contributions) -> list[Leak]:
    """One leak per example, from the vector that exposes it most clearly."""
    leaks = []
    examples = torch.cat([torch.empty(0, dtype=torch.long), *(one.examples.cpu() for one in shown)])
    for example in torch.unique(examples).tolist():
        mine = [(one, one.examples == example) for one in shown]
        mine = [(one, chosen) for one, chosen in mine if chosen.any()]
        least, by = min((float(one.missing[chosen].min()), one.by) for one, chosen in mine)
        numbers = torch.unique(torch.cat([one.rows[chosen].flatten() for one, chosen in mine]))
        leaks.append(
            Leak(
                example=example,
                what=of.what,
                layer=of.trace.name,
                by=by,
                missing=least,
                rows=tuple(numbers.tolist()),
            )
        )
    return leaks


def _leave_out_lookalikes(leaks: list[Leak], of: Contributions) -> list[Leak]:
    """The leaks that are clear, or of distinct examples: all others are ``BESIDE`` times farther away."""
    unclear = [leak for leak in leaks if leak.missing >= CLEAR]
    if not unclear or of.copies > 1:
        return leaks
    who = torch.tensor([leak.example for leak in unclear], device=of.lengths.device)
    missing = of.every_goal.distances(F.normalize(of.trace.inputs[who], dim=1))
    missing[torch.arange(len(who)), who] = torch.inf
    nearest = missing.amin(1).tolist()
    similar = {
        leak.example for leak, other in zip(unclear, nearest, strict=True) if other < BESIDE * leak.missing
    }
    return [leak for leak in leaks if leak.missing < CLEAR or leak.example not in similar]
