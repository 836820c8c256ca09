"""What fixed combinations of few rows read of a client's own examples in the update that it is about to send.

A server chose its read-outs before it saw the batch, so they must show on other examples of the client: they
are searched on ``others``, or on one half of the examples for the other half. An example is exposed if it
dominates a read-out, and if what the read-out gives in this very update (after noise, pruning, clipping)
resembles it, also once a picture common to all is taken off.

Shape letters: B examples behind the update, R rows of a group, n columns, C read-outs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glasshouse.guard.layers.standing import BESIDE, CLEAR, RECOGNISED, Leak
from glasshouse.guard.own_columns import find_columns, find_crossed
from glasshouse.guard.pursuit.crowds import search_completed, search_crowds
from glasshouse.guard.pursuit.examples import Own
from glasshouse.guard.pursuit.found import passed_later
from glasshouse.guard.pursuit.groups import Group, ago, groups_of, is_past
from glasshouse.guard.pursuit.judge import dominance, rounding
from glasshouse.guard.pursuit.limits import FEWEST, JUDGED, REMEMBERED, SEARCHED, VISIBLE
from glasshouse.guard.pursuit.pulls import Pulls, pulls_of
from glasshouse.guard.pursuit.rows import FIRST, Rows, Side, as_rows
from glasshouse.guard.pursuit.search import ReadOuts, search

__all__ = ["Memory", "Pursued", "pursue"]

Round = tuple[nn.Module, Mapping[str, Tensor]]
"""A model, in its mode, and the update that was sent for it."""

_TINY: Final = 1e-300
_LINEAR: Final = 1e-3  # of what a mixture gives
STRANGE: Final = 1.6
"""Factor between what an example adds to a vector and the vector, beyond which others make it: those of an
example with a dominance of 0.8 are within 1.5."""
SHARED: Final = 0.5
"""Dominance from which on a read-out may expose an input: what it gives must still resemble that one."""
SAME: Final = 0.999
"""Cosine from which on a direction is an example itself."""
EXPLAINED: Final = 0.5
"""Cosine between a tensor's update and the examples' contributions, below which others made the update."""
HALVES: Final = 0.05
"""Share of examples that read-outs completed by later units must isolate (51 honest models: up to 0.031)."""
UNDISTURBED: Final = 0.95
"""The same from which on nothing was added to the update, so that what resembles an example is no chance."""
_AT_A_TIME: Final = 2**22  # numbers of vectors that are read at a time


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Memory:
    """What a client remembers when it checks an update. Nothing of it is ever sent.

    Attributes:
        others: further own examples that are not behind the update, and their classes.
        model: the model of the last round, in its mode; None: this is the first.
        sent: the update that was sent then: a server may combine rows of both where examples repeat.
        older: models and updates of the rounds before that, the newest first.
    """

    others: tuple[Tensor, Tensor] | None = None
    model: nn.Module | None = None
    sent: Mapping[str, Tensor] | None = None
    older: tuple["Round", ...] = ()

    @property
    def rounds(self) -> tuple["Round", ...]:
        """What is remembered of rounds, the newest first."""
        last = () if self.model is None or self.sent is None else ((self.model, self.sent),)
        return (*last, *self.older)

    def after(self, model: nn.Module, sent: Mapping[str, Tensor], *, most: int = REMEMBERED) -> "Memory":
        """The memory once ``sent`` was sent for ``model``: at most ``most`` rounds."""
        if most < 1:
            return Memory(others=self.others)
        return Memory(others=self.others, model=model, sent=sent, older=self.rounds[: most - 1])


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Pursued:
    """What the client's examples add to a model's update, along rows that a server may combine.

    Attributes:
        pulls: of the B examples behind the update, and then of the others.
        count: B.
        before: the same for the models of the last rounds that are remembered, the newest first.
        sent: the updates of these rounds.
        inputs: the B examples, (B, n); None: they are no numbers that a row reads.
        tables: embeddings, by name: their rows belong to words, so that only their columns read a sentence.
    """

    pulls: Pulls
    count: int
    before: tuple[Pulls, ...] = ()
    sent: tuple[Mapping[str, Tensor], ...] = ()
    inputs: Tensor | None = None
    tables: frozenset[str] = frozenset()

    def unseen(self, update: Mapping[str, Tensor]) -> tuple[str, ...]:
        """The tensors of ``update`` that could not be looked at: also where rows have inputs of their own."""
        without = [side.name for side in self.pulls.sides if side.directions is None]
        behind = [name for side in self._hidden for name in side.mixed]
        every = dict.fromkeys((*self.pulls.unseen, *without, *behind, *self._completed))
        return tuple(name for name in every if name in update)

    def hidden(self, update: Mapping[str, Tensor]) -> tuple[str, ...]:
        """The tensors of ``update`` whose rows isolate examples once later units complete their read-outs."""
        return tuple(name for name in self._completed if name in update and bool(update[name].any()))

    @cached_property
    def _completed(self) -> tuple[str, ...]:
        """Tensors whose read-outs are completed by what later units pass back, or cross rows and columns.

        Which pairs of rows a server adds up, or which columns of which rows it reads, cannot be told from so
        few examples, so that nothing is read off. Pairs are looked for only where at least ``SEARCHED``
        examples are at hand.
        """
        groups, found = list(groups_of(self.pulls.sides)), dict[str, None]()
        inner = [group for group in groups if self._reads_features(group.sides[0])]
        found |= dict.fromkeys(find_crossed(inner, self.count, list(self._turns())))
        for group in groups:
            if (passed := passed_later(groups, group)) is None:
                continue
            mine = torch.cat([group.pulls, passed], 1)[: self.count].double()
            mine = mine / mine.abs().max().clamp_min(_TINY)
            for where, judged in self._turns():
                if len(where) < SEARCHED:  # so many weights fit fewer examples by chance
                    continue
                fires = None if group.fires is None else group.fires[where]
                more = search_completed(group.pulls[where], passed[where], fires)
                if not len(more.rows):
                    continue
                alone, added = (
                    dominance(some.of(mine).square(), rounding(some, mine.square().sum(0))).amax(1) > VISIBLE
                    for some in (ReadOuts.single(group.pulls.shape[1]), more)
                )
                if float((added & ~alone)[judged].double().mean()) > HALVES:
                    found |= dict.fromkeys(group.names)
        return tuple(found)

    @cached_property
    def _translated(self) -> dict[str, tuple[Side, Tensor]]:
        """For units behind a fixed mixture the side whose rows it mixes, and the mixture, by name."""
        found = {}
        for side in self.pulls.sides:
            for base in self.pulls.sides:
                if base.name in side.mixed and base.reach is not None and side.name not in found:
                    aims = side.pulls.double() * base.reach.double()[:, None]
                    mixture = torch.linalg.lstsq(base.pulls.double(), aims, driver="gelsd").solution
                    apart = (base.pulls.double() @ mixture - aims).norm()
                    if apart <= _LINEAR * aims.norm():
                        found[side.name] = base, mixture
        return found

    @cached_property
    def _hidden(self) -> list[Side]:
        """Units behind a mixture that isolate examples, and whose rows cannot be told from the update's."""
        found = []
        for side in self.pulls.sides:
            if not side.mixed or side.name in self._translated:
                continue
            pulls = side.pulls.double() / side.pulls.double().abs().max().clamp_min(_TINY)
            mine = pulls[: self.count]
            for read_outs, judged in self._searched(pulls, side.fires):
                both = ReadOuts.single(pulls.shape[1]) + read_outs
                d = dominance(both.of(mine).square(), rounding(both, mine.square().sum(0)))
                if bool((d.amax(1)[judged] > VISIBLE).any()):
                    found.append(side)
                    break
        return found

    def _behind(self, sent: dict[str, Tensor]) -> Iterator[Side]:
        """The units behind a mixture as rows of a tensor, which is put into ``sent``."""
        for side in self.pulls.sides:
            if side.name not in self._translated:
                continue
            base, mixture = self._translated[side.name]
            if base.name in sent and base.reach is not None:
                sent[side.name] = (
                    mixture.T @ as_rows(sent[base.name].detach(), base.axes)[base.numbers].double()
                )
                yield replace(
                    side, pulls=side.pulls * base.reach[:, None].to(side.pulls), directions=base.directions
                )

    def find_in(self, update: Mapping[str, Tensor], *, missing: float = RECOGNISED) -> list[Leak]:
        """The examples that fixed read-outs expose in ``update``, one leak per example and tensor.

        The search is made anew for every update: where rows were dropped, others may take their place.
        """
        # Updates of earlier rounds are further tensors: a server may combine their rows with these.
        past = {
            f"{name}{ago(rounds)}": t
            for rounds, update in enumerate(self.sent, 1)
            for name, t in update.items()
        }
        sent = {name: t for name, t in {**update, **past}.items() if bool(t.any())}
        sides = list(self.pulls.sides)
        for rounds, before in enumerate(self.before, 1):
            sides += [replace(side, name=f"{side.name}{ago(rounds)}") for side in before.sides]
        leaks: dict[tuple[int, str, Rows], Leak] = {}
        sides = [side for side in sides if side.axes == (1,) or side.name not in self.tables]
        # What a statistic was before the round is in its change, so that no row of it is what examples add.
        sides = [side for side in sides if side.name not in self.pulls.statistics]
        sides += self._behind(sent)
        for group in groups_of(side for side in sides if side.name in sent):
            for leak in self._in_group(_without_empty_rows(group, sent), sent, missing):
                key = leak.example, leak.tensor, leak.axes
                known = leaks.get(key, leak)
                rows = tuple(sorted({*known.rows, *leak.rows}))
                leaks[key] = replace(min(known, leak, key=lambda one: one.missing), rows=rows)
        found = list(leaks.values())
        for side in self.pulls.sides:
            if side.name in sent and side.axes in (FIRST, ()) and self._reads_features(side):
                is_known = side.name not in self.pulls.statistics
                found += find_columns(side, sent[side.name], self.count, self._turns(), is_known=is_known)
        return found

    def _reads_features(self, side: Side) -> bool:
        """Whether a tensor reads something else than the examples as they are, or their words."""
        if side.directions is None or side.name in self.tables:
            return False
        return not self._are_inputs(side.directions[: self.count].double())

    def _in_group(self, group: Group, sent: Mapping[str, Tensor], missing: float) -> Iterator[Leak]:
        directions = group.sides[0].directions
        if directions is None or group.pulls.shape[1] < 2:
            return
        mine = directions[: self.count].double()
        rows = torch.cat([self._rows_of(side, sent, mine) for side in group.sides])
        pulls = group.pulls[: self.count].double()
        pulls = pulls / pulls.abs().max().clamp_min(_TINY)
        expected = pulls.T @ mine
        energy = expected.square().sum().clamp_min(_TINY)
        scale = float((rows.double() * expected).sum() / energy)  # of the update: 1 / B, a step size, ...
        alike = float(F.cosine_similarity(rows.double().flatten(), expected.flatten(), dim=0).abs())
        if alike < EXPLAINED:
            return
        # Features are alike more often than pictures, and noise resembles something by chance.
        is_raw = alike >= UNDISTURBED and self._are_inputs(mine)
        least, missing = (SHARED, missing) if is_raw else (VISIBLE, min(missing, CLEAR))
        for read_outs, judged in self._searched(group.pulls, group.fires):
            both = ReadOuts.single(group.pulls.shape[1]) + read_outs
            d = dominance(both.of(pulls).square(), rounding(both, pulls.square().sum(0)))
            top, who = d.max(0)
            chosen = ((top > least) & judged[who]).nonzero()[:, 0]
            for some in torch.split(chosen, max(1, _AT_A_TIME // rows.shape[1])):
                used = ReadOuts(rows=both.rows[some], weights=both.weights[some])
                vectors = used.of(rows.double().T).T
                lacking = _missing(vectors, mine, who[some])
                # It must be the example's own contribution that makes the vector resemble it.
                added = used.of(pulls)[who[some], torch.arange(len(some))]
                share = (vectors * mine[who[some]]).sum(1) / (scale * added)
                lacking[(share < 1 / STRANGE) | (share > STRANGE)] = torch.inf
                for place in (lacking < missing).nonzero()[:, 0].tolist():
                    if lacking[place] >= CLEAR and _resembles_others(vectors[place], mine, lacking[place]):
                        continue
                    yield from self._leaks(group, used, place, int(who[some][place]), float(lacking[place]))

    def _rows_of(self, side: Side, sent: Mapping[str, Tensor], mine: Tensor) -> Tensor:
        """The rows of a tensor that is sent, as if it read what the group's first does."""
        rows = as_rows(sent[side.name].detach(), side.axes)[side.numbers].double()
        if side.ratio is None or side.directions is None:
            return rows
        # What examples of the batch explain of it, noise included, is what the server translates.
        share = rows @ torch.linalg.pinv(side.directions[: self.count].double())
        translated: Tensor = (share * side.ratio[: self.count, 0].double()) @ mine
        return translated

    def _are_inputs(self, directions: Tensor) -> bool:
        """Whether the B examples pull along themselves, (B, n)."""
        if self.inputs is None or self.inputs.shape != directions.shape:
            return False
        own = F.normalize(self.inputs.to(directions), dim=1, eps=_TINY)
        return bool(((own * directions).sum(1).abs() >= SAME).all())

    def _searched(self, pulls: Tensor, fires: Tensor | None) -> Iterator[tuple[ReadOuts, Tensor]]:
        """Read-outs, and which of the B examples they may be judged on: none on which they were searched."""

        def found(where: Tensor, crowd: int) -> ReadOuts:
            few, many = where[:SEARCHED], where[:crowd]
            if fires is None:
                return search(pulls[few]) + search_crowds(pulls[many])
            return search(pulls[few], fires[few]) + search_crowds(pulls[many], fires[many])

        turns = list(self._turns())
        for where, judged in turns:
            yield found(where, JUDGED if len(turns) > 1 else len(where)), judged
        if not turns:
            yield ReadOuts.none(), torch.ones(self.count, dtype=torch.bool)

    def _turns(self) -> Iterator[tuple[Tensor, Tensor]]:
        """On which examples to search, and which of the B may be judged then; none: they are too few."""
        others = torch.arange(self.count, len(self.pulls.sides[0].pulls) if self.pulls.sides else 0)
        if len(others) >= FEWEST // 2:
            yield others, torch.ones(self.count, dtype=torch.bool)
        elif self.count >= FEWEST:
            for turn in range(2):
                other = torch.arange(self.count) % 2 == turn
                yield (~other).nonzero()[:, 0], other

    def _leaks(
        self, group: Group, used: ReadOuts, place: int, example: int, missing: float
    ) -> Iterator[Leak]:
        # Without the row from which the others are subtracted nothing is left of a read-out; where that one
        # was sent a round ago, the others are what can be dropped.
        rows, weights = used.rows[place], used.weights[place]
        was_sent = torch.cat([torch.full((len(s.numbers),), is_past(s.name)) for s in group.sides])
        taken = rows[weights != 0] if was_sent[rows[0]] else rows[:1]
        first = 0
        for side in group.sides:
            own = taken[(taken >= first) & (taken < first + side.pulls.shape[1])] - first
            first += side.pulls.shape[1]
            if len(own) and side.mixed:  # all rows before the mixture make it up
                base = self._translated[side.name][0]
                side, own = base, torch.arange(len(base.numbers))
            if len(own) and not is_past(side.name):  # what was sent cannot be changed
                yield Leak(
                    example=example,
                    what="input",
                    layer=side.layer,
                    by="fixed rows",
                    missing=missing,
                    rows=tuple(side.numbers[own].tolist()),
                    tensor=side.name,
                    axes=side.axes,
                )


def pursue(model: nn.Module, own: Own, memory: Memory | None = None) -> Pursued:
    """What ``own`` examples add to the update of ``model`` in its mode, and what they added a round ago.

    Raises:
        BadValue: the model does not run on the examples.
    """
    memory, everybody = memory or Memory(), own
    if memory.others is not None and len(memory.others[1]):
        pairs = zip((own.inputs, own.targets), memory.others, strict=True)
        inputs, targets = (torch.cat([mine, more[:JUDGED]]) for mine, more in pairs)
        everybody = Own(inputs=inputs, targets=targets)
    return Pursued(
        pulls=pulls_of(model, everybody, balanced=False, as_sent=True),
        count=len(own),
        before=tuple(pulls_of(past, everybody, balanced=False, as_sent=True) for past, _ in memory.rounds),
        sent=tuple(sent for _, sent in memory.rounds),
        inputs=own.inputs.flatten(1) if own.inputs.is_floating_point() else None,
        tables=frozenset(
            f"{name}.weight" for name, part in model.named_modules() if isinstance(part, nn.Embedding)
        ),
    )


def _without_empty_rows(group: Group, sent: Mapping[str, Tensor]) -> Group:
    sides = []
    for side in group.sides:
        kept = as_rows(sent[side.name].detach(), side.axes)[side.numbers].any(1)
        sides.append(
            replace(
                side, pulls=side.pulls[:, kept], sizes=side.sizes[:, kept], numbers=side.numbers[kept.cpu()]
            )
        )
    return Group(sides=tuple(sides))


def _resembles_others(vector: Tensor, inputs: Tensor, missing: Tensor) -> bool:
    """Whether a vector (n,) is about as near to a second example as to one of which this is missing."""
    everybody = torch.arange(len(inputs), device=inputs.device)
    distances = _missing(vector.expand(len(inputs), -1), inputs, everybody)
    return int((distances < BESIDE * missing).sum()) > 1


def _missing(vectors: Tensor, inputs: Tensor, who: Tensor) -> Tensor:
    """Share of the contrast of examples ``who`` (C,) that is missing from vectors (C, n) at the best scale.

    The mean of all examples is taken off first where that helps, as a server does that knows it.
    """
    aims = inputs[who]
    mean = F.normalize(inputs.mean(0), dim=0, eps=_TINY)
    flat = torch.full_like(mean, mean.numel() ** -0.5)
    missing = torch.full((len(who),), torch.inf, dtype=vectors.dtype)
    for background in (torch.zeros_like(mean), mean):
        seen = vectors - (vectors @ background)[:, None] * background
        rest = aims - (aims @ background)[:, None] * background
        # What is alike in all examples, or constant, is no contrast of one of them.
        contrast = torch.minimum(
            *(torch.linalg.vector_norm(aims - (aims @ t)[:, None] * t, dim=1) for t in (mean, flat))
        ).clamp_min(1e-6)
        length = torch.linalg.vector_norm(seen, dim=1).clamp_min(_TINY)
        along = (seen * rest).sum(1) / length
        apart = (rest.square().sum(1) - along.square()).clamp_min(0).sqrt()
        missing = torch.minimum(missing, torch.where(length > _TINY, apart / contrast, torch.inf))
    return missing
