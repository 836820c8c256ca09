"""A client's updates as changes of the model, with the statistics for detecting defences.

Shape letters: K classes, F input features of the last linear layer.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from glasshouse.errors import Inapplicable
from glasshouse.privacy.marks import ROUNDING, zero_sums
from glasshouse.tensors import norm
from glasshouse.transcript.record import RoundRecord, Transcript
from glasshouse.wire import Terms, Update

_ULP = 2.0**-23


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """One update as a gradient or as a change of parameters.

    Attributes:
        update: as received; its tensors may be parameters.
        tensors: the change, floating point, by name.
        received: the same tensors before training; empty for a gradient whose broadcast was not recorded.
        last: name of the last linear layer's weight (K, F), or empty.
    """

    update: Update
    tensors: Mapping[str, Tensor]
    received: Mapping[str, Tensor]
    last: str

    @cached_property
    def norm(self) -> float:
        """L2 norm over all tensors."""
        return norm(self.tensors)

    @cached_property
    def entries(self) -> int:
        """Number of entries in all tensors."""
        return sum(t.numel() for t in self.tensors.values())

    @cached_property
    def largest(self) -> float:
        """The largest magnitude of an entry."""
        return max(float(t.abs().max()) for t in self.tensors.values())

    @cached_property
    def rounding(self) -> float:
        """Standard deviation of the rounding error of an entry, from its parameters; 0 for a gradient."""
        if self.update.kind == "gradient" or not self.received:
            return 0.0
        size: float = norm(self.received) / math.sqrt(self.entries)
        return _ULP * size * math.sqrt(self.update.steps + 1)

    @cached_property
    def slack(self) -> float:
        """Relative error of the norm; for parameters it includes the rounding of their difference."""
        if self.update.kind != "parameters" or self.norm == 0:
            return 1e-6
        share = self.rounding / self.norm
        return 1e-6 + 3 * share + share**2 * self.entries / 2

    @cached_property
    def rounded_away(self) -> bool:
        """Whether zeros in the last layer are changes smaller than the rounding step of its parameters.

        If rounding leaves some entries unchanged, it leaves others one or two steps away; a filter that
        zeroes the smallest entries leaves almost none of those.
        """
        if self.update.kind != "parameters":
            return False
        change = self.tensors[self.last].abs()
        step = torch.ldexp(torch.ones_like(change), torch.frexp(self.received[self.last]).exponent - 24)
        near = (change > 0) & (change <= 2.5 * step)
        return 10 * int(near.sum()) >= int((change == 0).sum())

    @cached_property
    def residuals(self) -> Tensor:
        """Column sums of the last layer that are zero without noise, divided by √K.

        Only unmodified columns: without zeros, and without an entry of the update's largest magnitude. Weight
        decay shifts them along the column sums of the received weights: that direction is projected out.
        """
        weight = self.tensors[self.last]
        whole = ((weight != 0) & (weight.abs() < self.largest * (1 - 1e-6))).all(0)
        sums: Tensor = zero_sums(weight)[whole]
        if self.last in self.received and len(sums) > 1:
            pull = zero_sums(self.received[self.last])[whole]
            sums = sums - pull * (pull @ sums) / pull.square().sum().clamp_min(1e-30)
        return sums

    @cached_property
    def floor(self) -> float:
        """Smallest standard deviation of noise that can be distinguished from rounding."""
        weight = self.tensors[self.last]
        size: float = norm({self.last: weight}) / math.sqrt(weight.numel())
        return max(ROUNDING * size, 2 * self.rounding)

    def rows(self) -> list[Tensor]:
        """Rows of matrices and kernels with at least 16 entries."""
        flat = [t.flatten(1) for t in self.tensors.values() if t.ndim > 1]
        return [row for t in flat if t.shape[1] >= 16 for row in t]


def traces_of(transcript: Transcript) -> dict[int, list[Trace]]:
    """Every single update of ``transcript``, by client, in order of rounds, without duplicates.

    Raises:
        Inapplicable: the clients send logits.
    """
    terms = transcript.terms
    if terms.sends == "logits":
        raise Inapplicable(
            "defence check",
            needs="updates of a model's parameters",
            got="logits",
            fix="check a federation whose clients send gradients, changes or parameters",
        )
    traces: dict[int, list[Trace]] = {}
    for record in transcript.rounds:
        for update in record.updates:
            earlier = traces.setdefault(update.client, [])
            trace = _trace(update, record, terms)
            if not any(_same(trace, other) for other in earlier):
                earlier.append(trace)
    return traces


def _trace(update: Update, record: RoundRecord, terms: Terms) -> Trace:
    floats = {name: t.float() for name, t in update.tensors.items() if t.is_floating_point()}
    broadcast = record.received_by(update.client)
    before = {} if broadcast is None else broadcast.tensors
    received = {name: before[name].float() for name in floats if name in before}
    if update.kind == "parameters":
        if received.keys() != floats.keys():
            raise Inapplicable(
                f"defence check of round {update.round}",
                needs="the broadcast, as clients send parameters",
                got="a transcript without it",
                fix="keep broadcasts of all rounds",
            )
        floats = {name: t - received[name] for name, t in floats.items()}
    matrices = [n for n, t in floats.items() if t.ndim == 2 and len(t) == terms.architecture.classes]
    return Trace(update=update, tensors=floats, received=received, last=matrices[-1] if matrices else "")


def _same(one: Trace, other: Trace) -> bool:
    return one.norm == other.norm and all(torch.equal(t, other.tensors[n]) for n, t in one.tensors.items())


def differ(traces: Sequence[Trace]) -> bool:
    """Whether these updates point in different directions; near copies share a norm without any bound."""
    first = traces[0]
    for other in traces[1:]:
        dot = sum(float((t.double() * other.tensors[n].double()).sum()) for n, t in first.tensors.items())
        if dot < 0.999 * first.norm * other.norm:
            return True
    return False
