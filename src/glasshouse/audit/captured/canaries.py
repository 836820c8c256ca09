"""Measure the ε of a federation that ran, from canary clients and what the server received from them.

A canary client does not train. In every round it sends the model that it received; depending on its coin, it
adds the clip norm to one entry first. Its update passes through all processing of the app (clipping, noise,
masks). The coins are recorded beside the capture, in ``canaries.json``, and no attack sees them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.audit.captured.canary_file import FILE, Canary, bad_canaries, read_canaries
from glasshouse.audit.simulation.build import defense_of
from glasshouse.audit.simulation.epsilon import bound_epsilon, time_answer
from glasshouse.errors import BadValue
from glasshouse.federation.defenses.guarantee import Exposure, guarantee
from glasshouse.outside.files import printable
from glasshouse.results.strength import EmpiricalEpsilon
from glasshouse.rng import Rng
from glasshouse.scenario.axes import Cell
from glasshouse.transcript.files import read_transcript
from glasshouse.transcript.record import RoundRecord, Transcript, complete_broadcasts
from glasshouse.wire import Kind, Refusal


def measure_captured_epsilon(cell: Cell) -> EmpiricalEpsilon | Refusal:
    """Lower bound on ε from the canaries of the cell's capture."""
    return time_answer(cell, _measured)


def score_canaries(transcript: Transcript, canaries: Sequence[Canary]) -> NDArray[np.float64]:
    """Total change of each canary's entry over the rounds; for a sum, of the round's mean. (m,).

    For updates that are parameters, the change is from the model that this client received, whether
    broadcast to all or to it alone.

    Raises:
        BadFile: no recorded update of a canary's client, or no such entry in it; it sent parameters, but its
            received model was not recorded; or a sum of parameters of clients that received different models.
    """
    scores = np.zeros(len(canaries))
    observed = np.zeros(len(canaries), bool)
    for one in complete_broadcasts(transcript.rounds):
        _check_common(one)
        for number, canary in enumerate(canaries):
            for kind, tensors, weight in _arrivals(one, canary.client):
                before = _received(one, canary) if kind == "parameters" else 0.0
                scores[number] += _entry(tensors, canary) / weight - before
                observed[number] = True
    if not observed.all():
        missing = [c.client for c, present in zip(canaries, observed, strict=True) if not present]
        raise bad_canaries(
            Path(FILE), "clients whose updates the capture keeps", f"none of client {missing[0]}"
        )
    return scores


def _arrivals(one: RoundRecord, client: int) -> list[tuple[Kind, Mapping[str, Tensor], float]]:
    """What the server received from a client in a round: kind, tensors, and the divisor for them."""
    if one.aggregate is not None:
        answered = client in one.aggregate.selected and client not in one.aggregate.dropped
        return [(one.aggregate.kind, one.aggregate.tensors, one.aggregate.weight)] if answered else []
    return [(u.kind, u.tensors, 1.0) for u in one.updates if u.client == client]


def _received(one: RoundRecord, canary: Canary) -> float:
    """The canary's entry in the model that its client received in a round."""
    broadcast = one.received_by(canary.client)
    if broadcast is None:
        needs = f"what client {canary.client} received in round {one.round}, as it sends parameters"
        raise bad_canaries(Path(FILE), needs, "no broadcast that was kept")
    return _entry(broadcast.tensors, canary)


def _check_common(one: RoundRecord) -> None:
    """Raise if a sum of parameters is from clients that received different models: no change is defined."""
    if one.aggregate is None or one.aggregate.kind != "parameters":
        return
    answered = set(one.aggregate.selected) - set(one.aggregate.dropped)
    if own := sorted({b.client for b in one.broadcasts if b.client in answered and b.client is not None}):
        needs = f"one model for all clients of round {one.round}, of which only the sum is seen"
        raise bad_canaries(Path(FILE), needs, f"one of its own for client {own[0]}")


def _entry(tensors: Mapping[str, Tensor], canary: Canary) -> float:
    tensor = tensors.get(canary.tensor)
    if tensor is None or not 0 <= canary.entry < tensor.numel():
        got = f"'{printable(canary.tensor)}', entry {canary.entry}, of client {canary.client}"
        raise bad_canaries(Path(FILE), "an entry of a parameter that is sent", got)
    return float(tensor.flatten()[canary.entry])


def _measured(cell: Cell) -> EmpiricalEpsilon:
    scenario = cell.scenario
    capture = Path(scenario.captured)
    canaries = read_canaries(capture)
    transcript = read_transcript(capture / "transcript", trust_factory=True)
    defenses = [defense_of(d.name, d.arguments) for d in scenario.defenses]
    proved = guarantee(defenses, Exposure(rounds=max(1, len(transcript.rounds))))
    if proved is not None and proved.neighbours == "example" and scenario.audit.epsilon.unit != "client":
        raise BadValue(
            "canaries of a capture",
            needs='a claim about clients, which its canaries are: audit.epsilon.unit = "client"',
            got=f"one about examples, which '{proved.defense}' protects",
            fix="claim what a whole client is promised, or simulate the federation without --captured",
        )
    return bound_epsilon(
        cell,
        score_canaries(transcript, canaries),
        np.array([one.included for one in canaries]),
        unit="client",
        proved=proved if proved is not None and proved.neighbours == "update" else None,
        rng=Rng.root(scenario.seed).child("canaries"),
    )
