"""Compare the declared defences of a transcript with the observed ones, those of the server included.

The server's own: noise that it adds to the mean, and whether it saw single updates. Between two broadcasts it
moves by a multiple of the weighted mean of the updates. The residual is noise, in every entry of the model,
or another update rule (momentum, an adaptive server).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import scipy
import torch
from torch import Tensor

from glasshouse.audit.defenses.declared import Judged, Ruling, judge, rule
from glasshouse.audit.defenses.documents import observe_masks
from glasshouse.audit.defenses.observe import Observation, State, absent, observe, unclear
from glasshouse.audit.defenses.traces import Trace, traces_of
from glasshouse.federation.defenses.marks import GAUSSIAN, Mark
from glasshouse.privacy.marks import ROUNDING
from glasshouse.transcript.record import RoundRecord, Transcript
from glasshouse.wire import Mechanism

SERVER_NOISE: Final = "server_noise"
"""May be declared beside the registered defences: noise of standard deviation ``std`` on the mean."""
_GAUSSIAN_RATIO: Final = math.sqrt(2 / math.pi)
_LIKE_NOISE: Final = 0.02


def observe_server(transcript: Transcript, traces: Mapping[int, Sequence[Trace]]) -> Observation:
    """Detect noise in the server's steps, pooled over rounds with recorded updates and next broadcast."""
    by_round: dict[int, list[Trace]] = {}
    for each in traces.values():
        for trace in each:
            by_round.setdefault(trace.update.round, []).append(trace)
    # Noise shows where a round's updates and the model after them are both known.
    pairs = [
        (before, after, by_round[before.round])
        for before, after in zip(transcript.rounds, transcript.rounds[1:], strict=False)
        if after.round == before.round + 1 and before.round in by_round
    ]
    uniform = transcript.terms.weighting == "uniform"
    rests = [rest for pair in pairs if (rest := _residual(*pair, uniform=uniform)) is not None]
    if not rests:
        return unclear(SERVER_NOISE, 0, "no round whose updates and next broadcast were kept")
    noisy = [rest for rest, floor in rests if float(rest.square().mean()) ** 0.5 > floor]
    if not noisy:
        floor = max(floor for _, floor in rests)
        note = f"the next model is the mean of the updates; less than {floor:.2g} would not show"
        return absent(SERVER_NOISE, len(rests), floor, note)
    values = torch.cat(noisy)
    std = float(values.square().mean().sqrt())
    # What is left may be another rule of the server's, and no noise.
    if abs(float(values.abs().mean()) / std - _GAUSSIAN_RATIO) > _LIKE_NOISE:
        note = "the server's steps are no multiple of the updates' mean, and what is left is not like noise"
        return unclear(SERVER_NOISE, len(rests), note)
    low, high = (
        std * math.sqrt(len(values) / float(scipy.stats.chi2.ppf(q, len(values)))) for q in (0.975, 0.025)
    )
    return Observation(
        kind=SERVER_NOISE, state="on", value=std, low=low, high=high, shows=len(noisy), updates=len(rests),
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


def check_defenses(transcript: Transcript, declared: Sequence[Mechanism]) -> tuple[Judged, ...]:
    """Compare the defences observed in ``transcript`` with the declared ones.

    Args:
        transcript: simulated or captured.
        declared: the defences of every client, in order; ``server_noise`` with ``std`` for the server.

    Returns:
        The server's rows first (client None), then each client's.

    Raises:
        Inapplicable: clients send logits, or parameters whose broadcasts were not recorded.
    """
    if transcript.terms.sends == "document":
        return observe_masks(transcript)
    terms, traces = transcript.terms, traces_of(transcript)
    rows = [_rule_sum(observe_sum(transcript), terms.secure_sum)]
    if any(traces.values()):
        rows += _rule_server(observe_server(transcript, traces), declared)
    own = [m for m in declared if m.name != SERVER_NOISE]
    for _, each in sorted(traces.items()):
        rows += judge(own, observe(each, terms), each[0].update, terms)
    if not traces:
        hidden = unclear("none", 0, "")
        reason = "the server saw sums alone"
        rows += [_server_row(m.name, math.nan, hidden, "cannot be told", reason) for m in own]
    return tuple(row for row in rows if row is not None)


def _server_row(name: str, declared: float, observation: Observation, ruling: Ruling, reason: str) -> Judged:
    return Judged(
        defense=name,
        setting="std" if name == SERVER_NOISE else "",
        declared=declared,
        client=None,
        observation=observation,
        ruling=ruling,
        reason=reason,
    )


def _rule_sum(observation: Observation, declared: bool) -> Judged | None:
    if observation.state != "on" and not declared:
        return None
    if not declared:
        return _server_row("secure_sum", math.nan, observation, "not declared", "the server saw sums alone")
    rulings: dict[str, Ruling] = {"on": "as declared", "off": "off", "unclear": "cannot be told"}
    return _server_row("secure_sum", math.nan, observation, rulings[observation.state], observation.note)


def _rule_server(observation: Observation, declared: Sequence[Mechanism]) -> list[Judged]:
    stated = [m for m in declared if m.name == SERVER_NOISE]
    if not stated:
        if observation.state != "on":
            return []
        reason = "it ran, but is not declared"
        return [_server_row(SERVER_NOISE, math.nan, observation, "not declared", reason)]
    std = float(stated[0].parameters["std"])
    ruling, reason = rule(Mark(kind=SERVER_NOISE, setting="std", value=std), observation, later=())
    return [_server_row(SERVER_NOISE, std, observation, ruling, reason)]
