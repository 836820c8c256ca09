"""Compare the declared defences of a transcript with the observed ones."""

import math
from collections.abc import Sequence
from typing import Final

from glasshouse.audit.defenses.declared import Judged, Mark, Ruling, judge, rule
from glasshouse.audit.defenses.observe import Observation, observe
from glasshouse.audit.defenses.server import observe_server, observe_sum
from glasshouse.audit.defenses.traces import traces_of
from glasshouse.transcript.record import Transcript
from glasshouse.wire import Mechanism

SERVER_NOISE: Final = "server_noise"
"""May be declared beside the registered defences: noise of standard deviation ``std`` on the mean."""


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
    terms, traces = transcript.terms, traces_of(transcript)
    rows = [_rule_sum(observe_sum(transcript), terms.secure_sum)]
    if any(traces.values()):
        rows += _rule_server(observe_server(transcript, traces), declared)
    own = [m for m in declared if m.name != SERVER_NOISE]
    for _, each in sorted(traces.items()):
        rows += judge(own, observe(each, terms), each[0].update, terms)
    if not traces:
        hidden = Observation(kind="none", state="unclear", updates=0)
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
        return [
            _server_row(SERVER_NOISE, math.nan, observation, "not declared", "it ran, but is not declared")
        ]
    std = float(stated[0].parameters["std"])
    ruling, reason = rule(Mark(kind=SERVER_NOISE, setting="std", value=std), observation, later=())
    return [_server_row(SERVER_NOISE, std, observation, ruling, reason)]
