"""Which examples stand in the rows of an update to one linear layer.

A row of the update is a sum of contributions, one of each example along what of it entered the layer. The
client
knows them all, and so it can ask what would be left of a row without one of its examples: only where an
example's own contribution makes a row resemble it does it stand there. An example contributes little to
most rows, and rows to which it contributed less than ``OWN`` of their length cannot stand for it: they are
never compared.

Shape letters: m rows of the weight, n its columns, B examples, k pairs of a vector and an example.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, final

import torch
from torch import Tensor
from torch.nn import functional as F

from glasshouse.guard.behaviour.measures import OWNED, UNEVEN, differences
from glasshouse.guard.behaviour.trace import LayerTrace
from glasshouse.guard.contributions import Contributions, What, to_scale

CLEAR: Final = 0.5
"""Share of an example's contrast that may be missing; 18 dB of PSNR for an image of ordinary contrast."""
RECOGNISED: Final = 0.6
"""The same where no other example is nearly as near: what a server reads has its own scale and offset."""
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
"""Where contributions are only estimated, a row that is so many times as near to one example as to any
other shows
it: in one of several steps it may have had a row to itself that it shares before and after."""
CLOSER: Final = 0.2
"""Where so much less is missing than may be, it does not matter who else resembles the row."""
ALIKE: Final = 0.9
"""Cosine of what two examples differ by from the mean from which on they are one picture."""
NEAR_PARALLEL: Final = 0.2
"""Cosine below which the difference of two rows shows nobody whom one of them does not show."""
_TINY: Final = torch.finfo(torch.float).tiny
_PAIRS: Final = 2**23  # numbers that are gathered at a time

By = Literal["a row", "several rows", "a difference of two rows", "all rows"]


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


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Sizes:
    """What examples contributed to rows.

    Attributes:
        signed: length of each contribution, with its sign, (m, B).
        top: the largest in each row, (m,).
        length: of each row of ``signed``, (m,).
        cosines: between these rows, of either sign, (m, m).
    """

    signed: Tensor
    top: Tensor
    length: Tensor
    cosines: Tensor

    @classmethod
    def of(cls, signed: Tensor) -> "_Sizes":
        """Those of :meth:`~glasshouse.guard.contributions.Contributions.scaled`."""
        products = signed @ signed.T
        length = products.diagonal().sqrt()
        known = length.clamp_min(_TINY)
        cosines = (products / known / known[:, None]).abs().fill_diagonal_(0)
        return cls(signed=signed, top=signed.abs().amax(1), length=length, cosines=cosines)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Vectors:
    """Rows, or differences of two: the first less a multiple of the second, which is 0 for rows.

    Attributes:
        first, second: numbers of rows, (v,).
        multiples: (v,).
        by: what they are.
    """

    first: Tensor
    second: Tensor
    multiples: Tensor
    by: By

    def of(self, t: Tensor) -> Tensor:
        """The same combination of the rows of ``t``."""
        if self.by == "a row":
            return t[self.first]
        return t[self.first] - self.multiples[:, None] * t[self.second]

    def pick(self, some: Tensor) -> "_Vectors":
        """Those with these numbers."""
        first, second, multiples = self.first[some], self.second[some], self.multiples[some]
        return _Vectors(first=first, second=second, multiples=multiples, by=self.by)

    def parts(self, width: int) -> Iterator["_Vectors"]:
        """So many at a time that vectors of ``width`` numbers are no burden."""
        at_a_time = max(1, _PAIRS // max(1, width))
        split = (torch.split(t, at_a_time) for t in (self.first, self.second, self.multiples))
        for first, second, multiples in zip(*split, strict=True) if len(self.first) else ():
            yield _Vectors(first=first, second=second, multiples=multiples, by=self.by)


def find_examples(rows: Tensor, of: Contributions, *, recognised: float = RECOGNISED) -> list[Leak]:
    """The examples that stand in ``rows``.

    Args:
        rows: of the update, (m, n).
        of: what the examples contributed to them.
        recognised: share of an example's contrast that may be missing.
    """
    rows = to_scale(rows.detach()).to(of.trace.inputs.dtype)
    signed = of.scaled(rows)
    sizes = _Sizes.of(signed)
    shown = [
        pairs
        for vectors in _candidates(rows, sizes, of.trace)
        for part in vectors.parts(max(rows.shape))
        if (pairs := _compare(part, rows, sizes, of, recognised)) is not None
    ]
    if (pairs := _several_rows(rows, sizes, of, recognised)) is not None:
        shown.append(pairs)
    if of.what == "input" and not of.is_exact:
        shown += _clearly_nearest(rows, of, recognised)
    return _leave_out_lookalikes(_collect(shown, of), of)


def _candidates(rows: Tensor, sizes: _Sizes, trace: LayerTrace) -> Iterator[_Vectors]:
    """What a server may look at: rows, differences that isolate, and those of neighbouring thresholds."""
    yield _single(rows)
    top, cosines = sizes.top / sizes.length.clamp_min(_TINY), sizes.cosines
    uneven = (top + cosines * top[:, None]).square() >= UNEVEN * (1 - cosines.square())
    possible = uneven & (cosines >= NEAR_PARALLEL)
    near = possible.any(1).nonzero()[:, 0]
    pairs = differences(sizes.signed[near].T, like=NEAR_PARALLEL, opposite=True)
    yield _Vectors(
        first=near[pairs.rows],
        second=near[pairs.others],
        multiples=pairs.multiples.to(rows.dtype),
        by="a difference of two rows",
    )
    yield _in_order_of_thresholds(rows, trace)


def _single(rows: Tensor) -> _Vectors:
    every = torch.arange(len(rows), device=rows.device)
    return _Vectors(first=every, second=every, multiples=torch.zeros_like(rows[:, 0]), by="a row")


def _in_order_of_thresholds(rows: Tensor, trace: LayerTrace) -> _Vectors:
    """Differences of rows whose units begin to fire one after the other along their own direction."""
    weight, bias = trace.layer.weight.detach(), trace.layer.bias
    offset = torch.zeros(len(weight), device=weight.device) if bias is None else bias.detach()
    order = (-offset / weight.norm(dim=1).clamp_min(_TINY)).to(rows.device).argsort()
    order = order[rows[order].any(1)]
    return _Vectors(
        first=order[1:],
        second=order[:-1],
        multiples=torch.ones(max(0, len(order) - 1), dtype=rows.dtype, device=rows.device),
        by="a difference of two rows",
    )


def _compare(
    vectors: _Vectors, rows: Tensor, sizes: _Sizes, of: Contributions, recognised: float
) -> _Shown | None:
    """The pairs of a vector and an example that contributed enough to it, where it is recognised."""
    looked_at = vectors.of(rows)
    length = looked_at.norm(dim=1)
    at_most = sizes.top[vectors.first] + vectors.multiples.abs() * sizes.top[vectors.second]
    some = ((at_most >= OWN * length) & (length > 0)).nonzero()[:, 0]
    if not len(some):
        return None
    vectors, looked_at, length = vectors.pick(some), looked_at[some], length[some]
    own = vectors.of(sizes.signed)
    which, who = (own.abs() >= OWN * length[:, None]).nonzero(as_tuple=True)
    if not len(who):
        return None
    inner = _inner(looked_at, of.trace.inputs, which, who) / of.lengths[who].clamp_min(_TINY)
    missing = _missing(inner, length[which], own[which, who], of, who)
    least = torch.full_like(length, torch.inf).scatter_reduce(0, which, missing, "amin")
    kept = (missing < recognised) & (missing <= APART * least[which])  # others are shown by other vectors
    pairs = torch.stack([vectors.first, vectors.second], dim=1)[which[kept]]
    return _Shown(examples=who[kept], missing=missing[kept], rows=pairs, by=vectors.by)


def _inner(vectors: Tensor, goals: Tensor, which: Tensor, who: Tensor) -> Tensor:
    """(k,), products of vectors (v, n) with the examples that go with them."""
    if len(who) * 8 > len(vectors) * len(goals):
        every: Tensor = (vectors @ goals.T)[which, who]
        return every
    at_a_time = max(1, _PAIRS // max(1, vectors.shape[1]))
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
    per_contrast = of.lengths[who] / of.contrasts(who)
    missing = per_contrast * across.sqrt() / length
    rest = (across + (inner - own).square()).sqrt().clamp_min(_TINY)
    strange = (own.abs() >= MOST * length) | (per_contrast * across.sqrt() / rest >= STRANGE)
    by_itself = (own.abs() >= HALF * length) | ((strange | of.with_copies) & (missing < RECOGNISED))
    return torch.where(by_itself, missing, torch.inf)


def _several_rows(rows: Tensor, sizes: _Sizes, of: Contributions, recognised: float) -> _Shown | None:
    """Examples in the sum of the rows that are their own, so that noise averages out."""
    mine = (sizes.top >= OWNED * sizes.length.clamp_min(_TINY)).nonzero()[:, 0]  # the sum is no less
    own = sizes.signed[mine]
    mine = mine[sizes.top[mine] >= OWNED * own.abs().sum(1).clamp_min(_TINY)]
    whose = sizes.signed[mine].abs().argmax(1)
    who, place = torch.unique(whose, return_inverse=True)
    if len(who) == len(mine):  # nobody has two
        return None
    weights = sizes.signed[mine, whose]
    total = rows.new_zeros(len(who), rows.shape[1]).index_add_(0, place, weights[:, None] * rows[mine])
    own = rows.new_zeros(len(who)).index_add_(0, place, weights.square())
    inner = torch.linalg.vecdot(total, of.trace.inputs[who]) / of.lengths[who].clamp_min(_TINY)
    missing = _missing(inner, total.norm(dim=1).clamp_min(_TINY), own, of, who)
    kept = (missing < recognised)[place]
    pairs = torch.stack([mine, mine], dim=1)[kept]
    return _Shown(examples=whose[kept], missing=missing[place][kept], rows=pairs, by="several rows")


def _clearly_nearest(rows: Tensor, of: Contributions, recognised: float) -> Iterator[_Shown]:
    """Rows, and differences in the order of thresholds, that come near to a single example."""
    goals = of.trace.inputs
    if len(goals) < 2:
        return
    centred = F.normalize(goals - goals.mean(0), dim=1)
    both = _single(rows), _in_order_of_thresholds(rows, of.trace)
    for vectors in (part for one in both for part in one.parts(max(*rows.shape, len(goals)))):
        looked_at = vectors.of(rows)
        energy = (F.normalize(looked_at, dim=1, eps=_TINY) @ goals.T).square()
        missing = (of.lengths.square() - energy).clamp_min(0).sqrt() / of.contrasts()
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
    """Those that are clear, or of examples from which every other one is ``APART`` times as far away."""
    unclear = [leak for leak in leaks if leak.missing >= CLEAR]
    if not unclear or of.with_copies:
        return leaks
    who = torch.tensor([leak.example for leak in unclear], device=of.lengths.device)
    goals = of.trace.inputs
    energy = (F.normalize(goals[who], dim=1) @ goals.T).square()
    missing = (of.lengths.square() - energy).clamp_min(0).sqrt() / of.contrasts()
    missing[torch.arange(len(who)), who] = torch.inf
    nearest = missing.amin(1).tolist()
    similar = {
        leak.example for leak, other in zip(unclear, nearest, strict=True) if other < APART * leak.missing
    }
    return [leak for leak in leaks if leak.missing < CLEAR or leak.example not in similar]
