"""Is the ε of a federation that ran real? Canary clients among its own, and what the server saw of them.

A canary client does not train. In every round it sends the model that it received, by its coin with or
without the clip norm added to one entry, through whatever the app does to an update (clipping, noise, masks).
Which were in is written down beside the capture, in ``canaries.json``, and no attack sees it.
"""

import dataclasses
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, RootModel
from torch import Tensor

from glasshouse.audit.attacking.isolation import call_plugin
from glasshouse.audit.simulation.build import defense_of
from glasshouse.audit.simulation.epsilon import bound_epsilon
from glasshouse.errors import BadFile
from glasshouse.federation.defenses.guarantee import Exposure, guarantee
from glasshouse.outside import limits
from glasshouse.outside.files import plain_file, printable
from glasshouse.outside.schema import Client, Described, Text, parse_as
from glasshouse.results.strength import EmpiricalEpsilon
from glasshouse.rng import Rng
from glasshouse.scenario.axes import Cell
from glasshouse.store import read_json
from glasshouse.transcript.files import read_transcript
from glasshouse.transcript.record import RoundRecord, Transcript, complete_broadcasts
from glasshouse.wire import Kind, Refusal

FILE: Final = "canaries.json"
FEWEST: Final = 20
_FIX: Final = "see docs/flower.md: a client that adds the clip norm to one entry, or nothing, by its own coin"


@final
class Canary(Described):
    """One canary client of a federation that ran; an object in ``canaries.json``.

    Attributes:
        client: its number in the transcript.
        tensor: the parameter that it changes.
        entry: the place in it, counted along its last axis first.
        included: its coin.
    """

    client: Client
    tensor: Text
    entry: Annotated[int, Field(ge=0, lt=limits.VALUES)]
    included: bool


@final
class _Canaries(RootModel[Annotated[tuple[Canary, ...], Field(max_length=limits.CLIENTS)]]):
    """``canaries.json``."""


def measure_captured_epsilon(cell: Cell) -> tuple[str, EmpiricalEpsilon | Refusal]:
    """What the canaries of the cell's capture show of the ε that it claims; the cell's hash and the bound."""
    started = time.process_time()
    answer = call_plugin(lambda: _measured(cell), subject="canaries")
    if isinstance(answer, Refusal):
        return cell.hash, answer
    return cell.hash, dataclasses.replace(answer, seconds=time.process_time() - started)


def read_canaries(capture: Path) -> tuple[Canary, ...]:
    """What was written down of the canaries of a capture.

    Raises:
        BadFile: there is no such file, it does not say what it should, it holds too few, or two of them are
            one client or share an entry.
    """
    path = capture / FILE
    if not path.exists():
        raise _bad(path, f"{FEWEST} canary clients or more, and which of them were in", "no such file")
    raw = read_json(plain_file(capture, FILE, subject=_subject(path)), most=limits.JSON_BYTES)
    every = parse_as(_Canaries, raw, subject=_subject(path), fix=_FIX).root
    if len(every) < FEWEST:
        raise _bad(path, f"{FEWEST} canary clients or more", str(len(every)))
    clients = Counter(one.client for one in every)
    if (twice := clients.most_common(1)[0])[1] > 1:
        raise _bad(path, "every canary client once", f"client {twice[0]}, {twice[1]} times")
    hosts: dict[tuple[str, int], int] = {}
    for one in every:
        if (other := hosts.setdefault((one.tensor, one.entry), one.client)) != one.client:
            got = f"'{printable(one.tensor)}', entry {one.entry}, of clients {other} and {one.client}"
            raise _bad(path, "an entry of its own for every canary", got)
    return every


def score_canaries(transcript: Transcript, canaries: Sequence[Canary]) -> NDArray[np.float64]:
    """What each canary's entry moved by, added up over the rounds; of a sum, in the mean of the round. (m,).

    Parameters moved from the model that this client received, whether that was everybody's or its own.

    Raises:
        BadFile: a canary's client sent nothing that was kept, or has no such entry; it sent parameters, and
            what it received was not kept; or a sum of parameters is of clients that received different ones.
    """
    scores = np.zeros(len(canaries))
    met = np.zeros(len(canaries), bool)
    for one in complete_broadcasts(transcript.rounds):
        _check_common(one)
        for number, canary in enumerate(canaries):
            for kind, tensors, weight in _arrivals(one, canary.client):
                before = _received(one, canary) if kind == "parameters" else 0.0
                scores[number] += _entry(tensors, canary) / weight - before
                met[number] = True
    if not met.all():
        missing = [c.client for c, there in zip(canaries, met, strict=True) if not there]
        raise _bad(Path(FILE), "clients whose updates the capture keeps", f"none of client {missing[0]}")
    return scores


def _arrivals(one: RoundRecord, client: int) -> list[tuple[Kind, Mapping[str, Tensor], float]]:
    """What the server got of a client in a round: kind, tensors, and what they are to be divided by."""
    if one.aggregate is not None:
        there = client in one.aggregate.selected and client not in one.aggregate.dropped
        return [(one.aggregate.kind, one.aggregate.tensors, one.aggregate.weight)] if there else []
    return [(u.kind, u.tensors, 1.0) for u in one.updates if u.client == client]


def _received(one: RoundRecord, canary: Canary) -> float:
    """The canary's entry in the model that its client received in a round."""
    broadcast = one.received_by(canary.client)
    if broadcast is None:
        needs = f"what client {canary.client} received in round {one.round}, as it sends parameters"
        raise _bad(Path(FILE), needs, "no broadcast that was kept")
    return _entry(broadcast.tensors, canary)


def _check_common(one: RoundRecord) -> None:
    """Of a sum of parameters nobody can say what moved, unless all of its clients received one model."""
    if one.aggregate is None or one.aggregate.kind != "parameters":
        return
    answered = set(one.aggregate.selected) - set(one.aggregate.dropped)
    if own := sorted({b.client for b in one.broadcasts if b.client in answered and b.client is not None}):
        needs = f"one model for all clients of round {one.round}, of which only the sum is seen"
        raise _bad(Path(FILE), needs, f"one of its own for client {own[0]}")


def _entry(tensors: Mapping[str, Tensor], canary: Canary) -> float:
    tensor = tensors.get(canary.tensor)
    if tensor is None or not 0 <= canary.entry < tensor.numel():
        got = f"'{printable(canary.tensor)}', entry {canary.entry}, of client {canary.client}"
        raise _bad(Path(FILE), "an entry of a parameter that is sent", got)
    return float(tensor.flatten()[canary.entry])


def _measured(cell: Cell) -> EmpiricalEpsilon:
    scenario = cell.scenario
    capture = Path(scenario.captured)
    canaries = read_canaries(capture)
    transcript = read_transcript(capture / "transcript", trust_factory=True)
    defenses = [defense_of(d.name, d.arguments) for d in scenario.defenses]
    proved = guarantee(defenses, Exposure(rounds=max(1, len(transcript.rounds))))
    return bound_epsilon(
        cell,
        score_canaries(transcript, canaries),
        np.array([one.included for one in canaries]),
        unit="client",
        proved=proved if proved is not None and proved.neighbours == "update" else None,
        rng=Rng.root(scenario.seed).child("canaries"),
    )


def _bad(path: Path, needs: str, got: str) -> BadFile:
    return BadFile(_subject(path), needs=needs, got=got, fix=_FIX)


def _subject(path: Path) -> str:
    return f"canaries of a capture, '{path}'"
