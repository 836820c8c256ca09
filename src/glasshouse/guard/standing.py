"""Which examples stand in the rows of an update to one linear layer.

A row of the update is a sum of contributions, one of each example along what of it entered the layer. The
client knows them all, and so it can ask what would be left of a row without one of its examples: only where
an example's own contribution makes a row resemble it does it stand there. An example contributes little to
most rows, and rows to which it contributed less than ``OWN`` of their length cannot stand for it: they are
never compared.

Shape letters: m rows of the weight, n its columns, B examples, k pairs of a vector and an example.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, final

import torch
from torch import Tensor
from torch.nn import functional as F

from glasshouse.guard.behaviour.measures import OWNED
from glasshouse.guard.combinations import (
    PAIRS,
    By,
    RowCombinations,
    candidates,
    in_order_of_thresholds,
    single,
)
from glasshouse.guard.contributions import Contributions, What, to_scale

CLEAR: Final = 0.5
"""Share of an example's contrast that may be missing; 18 dB of PSNR for an image of ordinary contrast."""
RECOGNISED: Final = 0.6
"""The same where no other example is as near: what a server reads has its own scale, offset and contrast."""
OWN: Final = 0.2
"""Share of a vector's length that an example must have contributed: with less, the rest resembles it as
well."""
MOST: Final = 0.35
"""Share of it from which on that need not be asked, where the example is recognised."""
HALF: Final = 0.5
"""The same where it nearly is."""
STRANGE: Final = CLEAR / (1 - OWN)
"""Share of its contrast that must be missing where its own contribution is taken out."""
APART: Final = 1.5
"""Where contributions are only estimated, a row that is so many times as near to one example as to any other
shows it: in one of several steps it may have had a row to itself that it shares before and after."""
CLOSER: Final = 0.2
"""Where so much less is missing than may be, it does not matter who else resembles the row."""
BESIDE: Final = 1.2
"""Where more than ``CLEAR`` is missing, every other example is so many times as far away."""
UNEXPLAINED: Final = 0.1
"""Share of a bias that may be other than what the examples contributed."""
ALIKE: Final = 0.9
"""Cosine of what two examples differ by from the mean from which on they are one picture."""
_TINY: Final = torch.finfo(torch.float).tiny


@final
@dataclass(frozen=True, kw_only=True)
class Leak:
    """One example that stands in the update.

    Attributes:
        example: its number among the client's.
        what: the input itself, or what the layers in front made of it.
        layer: name of the layer.
        by: where in the layer's weight.
        missing: share of its contrast that is not there, below ``RECOGNISED``.
        rows: all rows of the weight that show it, alone, together or two by two.
    """

    example: int
    what: What
    layer: str
    by: By
    missing: float
    rows: tuple[int, ...]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Shown:
    """Pairs of a vector and the example that it shows, k in number.

    Attributes:
        examples: (k,).
        missing: (k,).
        rows: two of each vector, or one twice, (k, 2).
        by: what the vectors are.
    """

    examples: Tensor
    missing: Tensor
    rows: Tensor
    by: By


def find_examples(
    rows: Tensor, of: Contributions, *, bias: Tensor | None = None, recognised: float = RECOGNISED
) -> list[Leak]:
    """The examples that stand in ``rows``.

    Args:
        rows: of the update, (m, n).
        of: what the examples contributed to them.
        bias: of the update, (m,): tells a server the scale of an input.
        recognised: share of an input's contrast that may be missing; at most ``CLEAR`` of features, and where
            something else was added to the rows.
    """
    scale = rows.detach().abs().amax().clamp_min(_TINY)
    rows = to_scale(rows.detach()).to(of.trace.inputs.dtype)
    signed = of.scaled(rows)
    wide = of.explain(rows) & (of.what == "input")
    limits = torch.where(wide, recognised, min(recognised, CLEAR))
    looks = [partial(_compare, rows=rows, signed=signed, of=of, limits=limits)]
    if bias is not None and of.what == "input":
        looks.append(
            partial(
                _compare_quotients,
                rows=rows,
                bias=(bias.detach() / scale).to(rows),
                pulls=signed / of.lengths.clamp_min(_TINY),
                of=of,
                limits=limits,
            )
        )
    shown = [
        pairs
        for vectors in candidates(rows, signed, of.trace)
        for part in vectors.parts(max(rows.shape))
        for look in looks
        if (pairs := look(part)) is not None
    ]
    if (pairs := _several_rows(rows, signed, of, limits)) is not None:
        shown.append(pairs)
    if of.what == "input" and not of.is_exact:
        shown += _clearly_nearest(rows, of, recognised)
    return _leave_out_lookalikes(_collect(shown, of), of)


def _compare(
    vectors: RowCombinations, *, rows: Tensor, signed: Tensor, of: Contributions, limits: Tensor
) -> _Shown | None:
    """The pairs of a vector and an example that contributed enough to it, where it is recognised."""
    looked_at, own = vectors.of(rows), vectors.of(signed)
    length = looked_at.norm(dim=1, keepdim=True)
    which, who = ((own.abs() >= OWN * length) & (length > 0)).nonzero(as_tuple=True)
    if not len(who):
        return None
    missing = _recognise(looked_at, own[which, who], (which, who), of, vectors.least(limits))
    return _shown(vectors, (which, who), missing)


def _compare_quotients(
    vectors: RowCombinations,
    *,
    rows: Tensor,
    bias: Tensor,
    pulls: Tensor,
    of: Contributions,
    limits: Tensor,
) -> _Shown | None:
    """The same of what a server makes of vectors: divided by the bias, and cut to the range of inputs.

    Scale and offset are right then, and what pruning took from one of two rows is cut off.

    Args:
        vectors: of the update.
        rows: of the update.
        bias: of the update, in the units of ``rows``.
        pulls: what the bias would be of each example, (m, B).
        of: the contributions.
        limits: of each row, what may be missing.
    """
    total = vectors.of(bias[:, None])
    shares = vectors.of(pulls) / total
    explained = (shares.sum(1, keepdim=True) - 1).abs() <= UNEXPLAINED
    which, who = ((shares.abs() >= OWN) & explained & (total != 0)).nonzero(as_tuple=True)
    if not len(who):
        return None
    used, place = torch.unique(which, return_inverse=True)
    low, high = of.trace.inputs.aminmax()
    middle = (low + high) / 2
    pictures = (vectors.of(rows)[used] / total[used]).clamp(low, high) - middle
    about = of.about(middle)
    missing = _recognise(
        pictures, shares[which, who] * about.lengths[who], (place, who), about, vectors.least(limits)[used]
    )
    return _shown(vectors, (which, who), missing)


def _shown(vectors: RowCombinations, pairs: tuple[Tensor, Tensor], missing: Tensor) -> _Shown:
    """Those of the pairs of which not all is missing."""
    kept = missing.isfinite()
    numbers = torch.stack([vectors.first, vectors.second], dim=1)
    return _Shown(examples=pairs[1][kept], missing=missing[kept], rows=numbers[pairs[0][kept]], by=vectors.by)


def _recognise(
    vectors: Tensor, own: Tensor, pairs: tuple[Tensor, Tensor], of: Contributions, limits: Tensor
) -> Tensor:
    """(k,), the share of an example's contrast that a vector lacks; infinite where it is not recognised.

    Where others that contributed resemble it far better, it shows them.

    Args:
        vectors: (v, n).
        own: the example's part of its component of the vector, (k,).
        pairs: numbers of vectors and examples, (k,) each.
        of: the contributions.
        limits: share that may be missing of each vector, (v,).
    """
    which, who = pairs
    goals, length = of.trace.inputs, vectors.norm(dim=1)
    inner = _inner(vectors, goals, which, who) / of.lengths[who].clamp_min(_TINY)
    missing = _missing(inner, length[which].clamp_min(_TINY), own, of, who)
    least = torch.full_like(length, torch.inf).scatter_reduce(0, which, missing, "amin")
    kept = (missing < limits[which]) & (missing <= APART * least[which]) & (length > 0)[which]
    return torch.where(kept, missing, torch.inf)


def _inner(vectors: Tensor, goals: Tensor, which: Tensor, who: Tensor) -> Tensor:
    """(k,), products of vectors (v, n) with the examples that go with them."""
    if len(who) * 8 > len(vectors) * len(goals):
        every: Tensor = (vectors @ goals.T)[which, who]
        return every
    at_a_time = max(1, PAIRS // max(1, vectors.shape[1]))
    parts = zip(torch.split(which, at_a_time), torch.split(who, at_a_time), strict=True)
    return torch.cat([torch.linalg.vecdot(vectors[a], goals[b]) for a, b in parts])


def _missing(inner: Tensor, length: Tensor, own: Tensor, of: Contributions, who: Tensor) -> Tensor:
    """(k,), the share of an example's contrast that a vector lacks; infinite if it has it from others.

    Args:
        inner: component of each vector along the example, (k,).
        length: of each vector, (k,).
        own: the example's part of that component, (k,).
        of: the contributions.
        who: the examples, (k,).
    """
    across = (length.square() - inner.square()).clamp_min(0)
    per_contrast = of.lengths[who] / of.contrasts[who]
    missing = per_contrast * across.sqrt() / length
    rest = (across + (inner - own).square()).sqrt().clamp_min(_TINY)
    strange = (own.abs() >= MOST * length) | (per_contrast * across.sqrt() / rest >= STRANGE)
    by_itself = (own.abs() >= HALF * length) | (strange & (missing < RECOGNISED))
    return torch.where(by_itself, missing, torch.inf)


def _several_rows(rows: Tensor, signed: Tensor, of: Contributions, limits: Tensor) -> _Shown | None:
    """Examples in the sum of the rows that are their own, so that noise averages out."""
    sizes = signed.abs()
    top, whose = sizes.max(1)
    mine = (top >= OWNED * sizes.sum(1).clamp_min(_TINY)).nonzero()[:, 0]
    who, place = torch.unique(whose[mine], return_inverse=True)
    if len(who) == len(mine):  # nobody has two
        return None
    largest = rows.new_zeros(len(who)).scatter_reduce(0, place, rows[mine].abs().amax(1), "amax")
    scale = largest.clamp_min(_TINY)[place]  # squares of faint rows vanish
    weights = signed[mine, whose[mine]] / scale
    summands = weights[:, None] * (rows[mine] / scale[:, None])
    total = rows.new_zeros(len(who), rows.shape[1]).index_add_(0, place, summands)
    own = rows.new_zeros(len(who)).index_add_(0, place, weights.square())
    every = torch.arange(len(who), device=who.device)
    least = torch.full_like(own, torch.inf).scatter_reduce(0, place, limits[mine], "amin")
    missing = _recognise(total, own, (every, who), of, least)[place]
    kept = missing.isfinite()
    pairs = torch.stack([mine, mine], dim=1)[kept]
    return _Shown(examples=whose[mine][kept], missing=missing[kept], rows=pairs, by="several rows")


def _clearly_nearest(rows: Tensor, of: Contributions, recognised: float) -> Iterator[_Shown]:
    """Rows, and differences in the order of thresholds, that come near to a single example."""
    goals = of.trace.inputs
    if len(goals) < 2:
        return
    centred = F.normalize(goals - goals.mean(0), dim=1)
    both = single(rows), in_order_of_thresholds(rows, of.trace)
    for vectors in (part for one in both for part in one.parts(max(*rows.shape, len(goals)))):
        looked_at = vectors.of(rows)
        energy = (F.normalize(looked_at, dim=1, eps=_TINY) @ goals.T).square()
        missing = (of.lengths.square() - energy).clamp_min(0).sqrt() / of.contrasts
        first, who = missing.min(1)
        near = (first < recognised).nonzero()[:, 0]
        others = centred[who[near]] @ centred.T <= ALIKE
        second = torch.where(others, missing[near], torch.inf).amin(1)
        clear = near[(second > APART * first[near]) | (first[near] < recognised - CLOSER)]
        pairs = torch.stack([vectors.first, vectors.second], dim=1)[clear]
        yield _Shown(examples=who[clear], missing=first[clear], rows=pairs, by=vectors.by)


def _collect(shown: Sequence[_Shown], of: Contributions) -> list[Leak]:
    """One leak for each example, by the vector that shows it most clearly."""
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
    """Those that are clear, or of examples from which every other one is ``BESIDE`` times as far away."""
    unclear = [leak for leak in leaks if leak.missing >= CLEAR]
    if not unclear:
        return leaks
    who = torch.tensor([leak.example for leak in unclear], device=of.lengths.device)
    goals = of.trace.inputs
    energy = (F.normalize(goals[who], dim=1) @ goals.T).square()
    missing = (of.lengths.square() - energy).clamp_min(0).sqrt() / of.contrasts
    missing[torch.arange(len(who)), who] = torch.inf
    nearest = missing.amin(1).tolist()
    similar = {
        leak.example for leak, other in zip(unclear, nearest, strict=True) if other < BESIDE * leak.missing
    }
    return [leak for leak in leaks if leak.missing < CLEAR or leak.example not in similar]
