"""Detect the server's own defences: noise that it adds to the mean, and whether it saw single updates.

Between two broadcasts a server moves by a multiple of the weighted mean of the updates. The residual is
noise, in every entry of the model, or another update rule (momentum, an adaptive server).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import scipy
import torch
from torch import Tensor

from glasshouse.audit.defenses.observe import GAUSSIAN, Observation, State
from glasshouse.audit.defenses.traces import Trace
from glasshouse.privacy.marks import ROUNDING
from glasshouse.transcript.record import RoundRecord, Transcript

_GAUSSIAN_RATIO: Final = math.sqrt(2 / math.pi)
_LIKE_NOISE: Final = 0.02


def observe_server(transcript: Transcript, traces: Mapping[int, Sequence[Trace]]) -> Observation:
    """Detect noise in the server's steps, pooled over rounds with recorded updates and next broadcast."""
    by_round: dict[int, list[Trace]] = {}
    for each in traces.values():
        for trace in each:
            by_round.setdefault(trace.update.round, []).append(trace)
    pairs = [
        (before, after, by_round[before.round])
        for before, after in zip(transcript.rounds, transcript.rounds[1:], strict=False)
        if after.round == before.round + 1 and before.round in by_round
    ]
    uniform = transcript.terms.weighting == "uniform"
    rests = [rest for pair in pairs if (rest := _residual(*pair, uniform=uniform)) is not None]
    if not rests:
        note = "no round whose updates and next broadcast were kept"
        return Observation(kind="server_noise", state="unclear", updates=0, note=note)
    noisy = [rest for rest, floor in rests if float(rest.square().mean()) ** 0.5 > floor]
    if not noisy:
        floor = max(floor for _, floor in rests)
        note = f"the next model is the mean of the updates; less than {floor:.2g} would not show"
        return Observation(
            kind="server_noise", state="off", value=0.0, low=0.0, high=floor, updates=len(rests), note=note
        )
    values = torch.cat(noisy)
    std = float(values.square().mean().sqrt())
    if abs(float(values.abs().mean()) / std - _GAUSSIAN_RATIO) > _LIKE_NOISE:
        note = "the server's steps are no multiple of the updates' mean, and what is left is not like noise"
        return Observation(kind="server_noise", state="unclear", updates=len(rests), note=note)
    low, high = (
        std * math.sqrt(len(values) / float(scipy.stats.chi2.ppf(q, len(values)))) for q in (0.975, 0.025)
    )
    return Observation(
        kind="server_noise", state="on", value=std, low=low, high=high, shows=len(noisy), updates=len(rests),
        family=GAUSSIAN,
    )  # fmt: skip


def _residual(
    before: RoundRecord, after: RoundRecord, traces: Sequence[Trace], *, uniform: bool
) -> tuple[Tensor, float] | None:
    """The server's step minus the best multiple of the mean, flattened, and the size of rounding errors."""
    first, second = before.received_by(None), after.received_by(None)
    if first is None or second is None:
        return None
    old, new = first.tensors, second.tensors
    names = [name for name in traces[0].tensors if name in old and name in new]
    if not names:
        return None
    weights = [1.0 if uniform else float(trace.update.examples) for trace in traces]
    mean = sum(
        w / sum(weights) * torch.cat([t.tensors[n].flatten().double() for n in names])
        for w, t in zip(weights, traces, strict=True)
    )
    assert isinstance(mean, Tensor)
    step = torch.cat([(new[n].double() - old[n].double()).flatten() for n in names])
    size = float(torch.cat([old[n].flatten().double() for n in names]).square().mean()) ** 0.5
    rest = step - mean * (mean @ step) / mean.square().sum().clamp_min(1e-30)
    return rest, ROUNDING * float(step.square().mean()) ** 0.5 + 2.0**-22 * size


def observe_sum(transcript: Transcript) -> Observation:
    """Detect whether the server saw only sums."""
    rounds = [record for record in transcript.rounds if record.updates or record.aggregate]
    summed = sum(record.aggregate is not None and not record.updates for record in rounds)
    state: State = "unclear" if not rounds else "on" if summed == len(rounds) else "off"
    note = f"single updates of {len(rounds) - summed} of {len(rounds)} rounds are in the transcript"
    return Observation(kind="sum", state=state, shows=summed, updates=len(rounds), note=note)
