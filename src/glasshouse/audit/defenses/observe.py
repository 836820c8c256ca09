"""Detect the defences applied to the updates of one client, with confidence intervals for their strength.

Each observation counts the updates that show it. If they cannot decide, it is ``unclear``, with a reason.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, final

import scipy
import torch
from torch import Tensor

from glasshouse.audit.defenses.traces import Trace, differ
from glasshouse.federation.defenses.marks import GAUSSIAN, LAPLACE
from glasshouse.privacy.marks import common_ceiling, grid_bits, scattered_zeros
from glasshouse.wire import Terms

State = Literal["on", "off", "unclear"]

UNKNOWN: Final = (math.nan, math.nan)
FEWEST: Final = 10
"""Smallest number of sums that are zero without noise from which noise is estimated."""
_MEAN_TO_STD: Final = {GAUSSIAN: math.sqrt(2 / math.pi), LAPLACE: math.sqrt(0.5)}
_SCATTERED: Final = 0.01
_ON_LINE: Final = 0.3
_SHARP: Final = 0.1
_BLUNT: Final = 0.01
"""From this relative error of an update's size, float32 rounding hides bounds and grids."""


@final
@dataclass(frozen=True, kw_only=True)
class Observation:
    """The observation of one kind of transformation.

    Attributes:
        kind: norm, tensor_norm, largest, noise, zeros, total_zeros, bits, sum or server_noise.
        state: whether it ran.
        value: its strength: a norm, a standard deviation, a fraction, bits; NaN if unknown.
        low: lower end of the 95 % interval of the strength.
        high: upper end; if off or unclear, the largest strength that would go undetected.
        shows: number of updates that show it.
        updates: number of updates examined.
        family: distribution of a noise: gaussian, laplace, or empty if undecided.
        extremes: smallest and largest size among the updates, where the strength bounds a size.
        note: why it is unclear, or what limits it.
    """

    kind: str
    state: State
    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    shows: int = 0
    updates: int
    family: str = ""
    extremes: tuple[float, float] = UNKNOWN
    note: str = ""


def unclear(kind: str, updates: int, note: str, extremes: tuple[float, float] = UNKNOWN) -> Observation:
    """An observation that these updates cannot decide, and why."""
    return Observation(kind=kind, state="unclear", updates=updates, extremes=extremes, note=note)


def absent(kind: str, updates: int, high: float, note: str) -> Observation:
    """An observation of nothing; a strength above ``high`` would have shown."""
    return Observation(kind=kind, state="off", value=0.0, low=0.0, high=high, updates=updates, note=note)


def observe(traces: Sequence[Trace], terms: Terms) -> dict[str, Observation]:
    """All observations of one client, by kind.

    Args:
        traces: its updates; at least one.
        terms: of the federation.
    """
    adaptive = terms.sends != "gradient" and terms.optimizer.name != "sgd"
    largest = _ceiling("largest", traces, [trace.largest for trace in traces])
    norms = _ceiling("norm", traces, [trace.norm for trace in traces])
    tensor_norms, bits = _tensor_ceiling(traces), _grid(traces)
    # Adam's steps have sizes of their own, which look like a clip or a grid.
    if adaptive:
        largest, tensor_norms = _undecided(largest), _undecided(tensor_norms)
        if any(trace.update.steps == 1 for trace in traces):
            norms, bits = _undecided(norms), _undecided(bits)
    # A sign and a clip that all entries reach are the same picture.
    if bits.value == 1 and largest.state == "on":
        bits = unclear("bits", len(traces), "all entries are at the bound of the largest ones")
    zeros, total = _zeros(traces, on_grid=bits.state == "on")
    noise = _noise(traces, adaptive=adaptive, reshaped=bits.state == "on" or zeros.state != "off")
    observers = (bits, zeros, total, noise, norms, largest, tensor_norms)
    observations = {one.kind: one for one in observers}
    # Noise is added last, and blurs what stood before it.
    if noise.state == "on":
        for kind in ("largest", "tensor_norm"):
            observations[kind] = unclear(kind, len(traces), "noise hides it")
        observations["norm"] = _norm_below_noise(traces, noise)
    return observations


def _undecided(observation: Observation) -> Observation:
    """Change "on" to "unclear": Adam normalises its steps, which may look like a bound."""
    if observation.state != "on":
        return observation
    note = "Adam gives its steps a size of their own"
    return unclear(observation.kind, observation.updates, note, observation.extremes)


def _ceiling(kind: str, traces: Sequence[Trace], values: Sequence[float]) -> Observation:
    """Detect a bound on a size of the updates, from several updates that reach it."""
    count, extremes = len(traces), (min(values), max(values))
    sized = [(value, trace) for value, trace in zip(values, traces, strict=True) if trace.slack < _BLUNT]
    if not sized:
        return unclear(kind, count, "the change is so small that rounding hides its size", extremes)
    shared = common_ceiling([value for value, _ in sized], [trace.slack for _, trace in sized])
    if shared is not None and differ([sized[i][1] for i in shared[1]]):
        top, which = shared
        error = top * max(sized[i][1].slack for i in which)
        return Observation(
            kind=kind, state="on", value=top, low=top - error, high=top + error, shows=len(which),
            updates=count, extremes=extremes,
        )  # fmt: skip
    if count == 1:
        return unclear(kind, 1, "a single update: a bound shows where two reach it", extremes)
    note = "no two updates reach one bound"
    return Observation(kind=kind, state="off", updates=count, extremes=extremes, note=note)


def _tensor_ceiling(traces: Sequence[Trace]) -> Observation:
    """Detect a bound on the norm of each tensor, from tensors that reach it while none exceeds it."""
    count = len(traces)
    norms = torch.tensor([[float(t.double().norm()) for t in trace.tensors.values()] for trace in traces])
    top = float(norms.max())
    slack = torch.tensor([[trace.slack] for trace in traces])
    reach = (norms >= top * (1 - 2 * slack - 1e-5)) & (slack < _BLUNT)
    per_update = reach.sum(1)
    shows = int((per_update >= 2).sum())
    extremes = (float(norms.max(1).values.min()), top)
    if top > 0 and shows >= 1 and (count == 1 or int((per_update >= 1).sum()) >= 2):
        error = top * (1e-6 + max(trace.slack for trace in traces))
        return Observation(
            kind="tensor_norm", state="on", value=top, low=top - error, high=top + error,
            shows=int((per_update >= 1).sum()), updates=count, extremes=extremes,
        )  # fmt: skip
    note = "no two tensors reach one bound"
    return Observation(kind="tensor_norm", state="off", updates=count, extremes=extremes, note=note)


def _grid(traces: Sequence[Trace]) -> Observation:
    """Detect quantisation: entries of each tensor on a grid of few equal steps."""
    sized = [trace for trace in traces if trace.slack < _BLUNT]
    bits = [grid_bits(trace.tensors, rounding=_sent_rounding(trace)) for trace in sized]
    coarse = [b for b in bits if b is not None]
    if not coarse:
        return Observation(kind="bits", state="off", updates=len(traces), note="entries lie on no grid")
    value = float(max(coarse))
    return Observation(
        kind="bits", state="on", value=value, low=float(min(coarse)), high=value, shows=len(coarse),
        updates=len(traces),
    )  # fmt: skip


def _sent_rounding(trace: Trace) -> float:
    return trace.rounding if trace.update.kind == "parameters" else 0.0


def _zeros(traces: Sequence[Trace], *, on_grid: bool) -> list[Observation]:
    """Fractions of zeros that the model does not explain: per tensor, and over all entries together."""
    count = len(traces)
    # Where no zeros were put in, as few as could go unnoticed bound the share.
    most = min((int((t == 0).sum()) + 1) / t.numel() for trace in traces for t in _large(trace, 10))
    total_most = min((_zero_count(trace) + 2) / trace.entries for trace in traces)
    note = "no zeros but those of whole rows and columns; a share of {:.2g} would not show"
    highs = {"zeros": most, "total_zeros": total_most}
    off = [absent(kind, count, high, note.format(high)) for kind, high in highs.items()]
    # The last layer has no dead units: zeros scattered in it come from a defence.
    last = [trace for trace in traces if trace.last]
    sparse = [t for t in last if scattered_zeros(t.tensors[t.last]) > _SCATTERED and not t.rounded_away]
    if on_grid or len(last) < count:
        note = "rounding to a grid makes zeros" if on_grid else "no last linear layer to go by"
        return [replace(o, state="unclear", note=note) for o in off]
    if not sparse:
        return off
    # Either each tensor has the same share of zeros, or all entries together do; never both.
    per_tensor = _tensor_share(sparse)
    total = None if per_tensor else _total_share(sparse)
    ways = []
    for one, interval in zip(off, (per_tensor, total), strict=True):
        if interval is None:
            state: State = "unclear" if per_tensor is None and total is None else "off"
            note = "entries are zeroed, but not by this rule"
            ways.append(replace(one, state=state, shows=len(sparse), note=note))
        else:
            low, high = interval
            one = replace(one, state="on", value=(low + high) / 2, low=low, high=high, note="")
            ways.append(replace(one, shows=len(sparse)))
    return ways


def _large(trace: Trace, entries: int) -> list[Tensor]:
    """Tensors with at least ``entries`` entries; if there are none, the largest tensor."""
    tensors = sorted(trace.tensors.values(), key=Tensor.numel)
    return [t for t in tensors if t.numel() >= entries] or tensors[-1:]


def _zero_count(trace: Trace) -> int:
    return sum(int((t == 0).sum()) for t in trace.tensors.values())


def _tensor_share(traces: Sequence[Trace]) -> tuple[float, float] | None:
    """The range of fractions s that agree with zeroing ⌊s · n⌋ entries of every tensor; None: no such range.

    Tensors in which the model itself leaves more zeros are above that line; none is below.
    """
    pairs = [(int((t == 0).sum()), t.numel()) for trace in traces for t in _large(trace, 50)]
    high = min((zeros + 1) / n for zeros, n in pairs)
    on_line = [(zeros, n) for zeros, n in pairs if zeros / n < high]
    if len({n for _, n in on_line}) < 2 or len(on_line) < _ON_LINE * len(pairs):
        return None
    return max(zeros / n for zeros, n in on_line), high


def _total_share(traces: Sequence[Trace]) -> tuple[float, float] | None:
    """The range of the fraction zeroed over all entries, if every update has the same count; else None."""
    counts = [_zero_count(trace) for trace in traces]
    entries = traces[0].entries
    if len(traces) < 2 or max(counts) - min(counts) > 2:
        return None
    return (min(counts) - 1) / entries, (max(counts) + 1) / entries


def _noise(traces: Sequence[Trace], *, adaptive: bool, reshaped: bool) -> Observation:
    """Detect noise on every entry, from the sums of the last layer that are zero without noise."""
    count = len(traces)
    if (adaptive or not reshaped) and all(
        any(not bool(row.any()) for row in trace.rows()) for trace in traces
    ):
        note = "whole rows are exactly zero, as the model makes them: nothing was added to every entry"
        return absent("noise", count, 0.0, note)
    if adaptive:
        return unclear("noise", count, "Adam keeps no sum of gradients that must be zero")
    last = [trace for trace in traces if trace.last and len(trace.residuals) > 1]
    if sum(len(trace.residuals) for trace in last) < FEWEST:
        return unclear("noise", count, "too few entries that are zero without noise")
    noisy = [t for t in last if float(t.residuals.square().mean()) ** 0.5 > t.floor]
    if not noisy:
        floor = max(trace.floor for trace in last)
        return absent("noise", count, floor, f"less than {floor:.2g} would not show")
    if reshaped:
        return unclear("noise", count, "entries were zeroed or rounded, which hides it")
    return _sized_noise(noisy, count)


def _sized_noise(noisy: Sequence[Trace], count: int) -> Observation:
    residuals = torch.cat([trace.residuals for trace in noisy])
    free = len(residuals) - len(noisy)
    total = float(residuals.square().sum())
    std = math.sqrt(total / free)
    for trace in noisy:
        for row in trace.rows():
            if float(row.double().square().mean()) ** 0.5 < std * (1 - 8 / math.sqrt(2 * len(row))):
                note = "the last layer's sums are not zero, but entries elsewhere lie far below that level"
                return unclear("noise", count, note)
    low, high = (math.sqrt(total / float(scipy.stats.chi2.ppf(q, free))) for q in (0.975, 0.025))
    return Observation(
        kind="noise", state="on", value=std, low=low, high=high, shows=len(noisy), updates=count,
        family=_family(noisy, std),
    )  # fmt: skip


def _family(noisy: Sequence[Trace], std: float) -> str:
    """Gaussian or Laplace, by the ratio of mean magnitude to root mean square in rows of pure noise."""
    every = [row for trace in noisy for row in trace.rows()]
    rows = [row for row in every if float(row.double().square().mean()) <= std**2]
    entries = torch.cat(rows).double() if rows else torch.zeros(0)
    if len(entries) < 500:
        return ""
    ratio = float(entries.abs().mean() / entries.square().mean().sqrt())
    middle, error = sum(_MEAN_TO_STD.values()) / 2, 1.0 / math.sqrt(len(entries))
    if abs(ratio - middle) < error:
        return ""
    return GAUSSIAN if ratio > middle else LAPLACE


def _norm_below_noise(traces: Sequence[Trace], noise: Observation) -> Observation:
    """The norm of the update without noise of known size; constant if it was clipped."""
    variance, entries = noise.value**2, traces[0].entries
    squares = torch.tensor([trace.norm**2 - entries * variance for trace in traces], dtype=torch.float64)
    common = 2 * entries * noise.value * (noise.high - noise.low) / 4  # one standard error, shared by all
    mean = float(squares.mean())
    own = math.sqrt(2 * entries * variance**2 + 4 * max(mean, 0.0) * variance)
    error = math.hypot(common, own / math.sqrt(len(traces)))
    count = len(traces)
    low, high = (math.sqrt(max(mean + sign * 1.96 * error, 0.0)) for sign in (-1, 1))
    if mean <= 0 or high - low > _SHARP * math.sqrt(mean):
        return Observation(
            kind="norm", state="unclear", low=low, high=high, updates=count, note="noise hides the norm"
        )
    spread = float(squares.std()) if count > 1 else math.inf
    constant = count >= 3 and spread < 2 * own and own < _SHARP * mean
    return Observation(
        kind="norm", state="on" if constant else "off", value=math.sqrt(mean), low=low, high=high,
        shows=count if constant else 0, updates=count,
        extremes=(math.sqrt(max(float(squares.min()), 0.0)), math.sqrt(float(squares.max()))),
        note="norm of what lies under the noise",
    )  # fmt: skip
