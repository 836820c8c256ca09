"""Is the ε of a federation that ran real? Canary clients among its own, and what the server saw of them.

A canary client does not train. In every round it sends the model that it received, by its coin with or
without the clip norm added to one entry, through whatever the app does to an update (clipping, noise, masks).
Which were in is written down beside the capture, in ``canaries.json``, and no attack sees it.
"""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.audit.attacking.isolation import call_plugin
from glasshouse.audit.simulation.build import defense_of
from glasshouse.audit.simulation.epsilon import bound_epsilon
from glasshouse.errors import BadFile
from glasshouse.federation.defenses.guarantee import Exposure, guarantee
from glasshouse.results.strength import EmpiricalEpsilon
from glasshouse.rng import Rng
from glasshouse.scenario.axes import Cell
from glasshouse.store import read_json
from glasshouse.transcript.files import read_transcript
from glasshouse.transcript.record import RoundRecord, Transcript
from glasshouse.wire import Kind, Refusal

FILE: Final = "canaries.json"
FEWEST: Final = 20
_FIX: Final = "see docs/flower.md: a client that adds the clip norm to one entry, or nothing, by its own coin"


@final
@dataclass(frozen=True, kw_only=True)
class Canary:
    """One canary client of a federation that ran.

    Attributes:
        client: its number in the transcript.
        tensor: the parameter that it changes.
        entry: the place in it, counted along its last axis first.
        included: its coin.
    """

    client: int
    tensor: str
    entry: int
    included: bool


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
        BadFile: there is no such file, it does not say what it should, or it holds too few.
    """
    path = capture / FILE
    raw = read_json(path) if path.is_file() else []
    try:
        every = tuple(Canary(**one) for one in raw)
    except TypeError as error:
        raise _bad(path, "client, tensor, entry and included of each canary", str(error)) from error
    if len({one.client for one in every}) < max(FEWEST, len(every)):
        clients = len({one.client for one in every})
        raise _bad(path, f"{FEWEST} canary clients or more, each once", f"{len(every)} of {clients} clients")
    return every


def score_canaries(transcript: Transcript, canaries: Sequence[Canary]) -> NDArray[np.float64]:
    """What each canary's entry moved by, added up over the rounds; of a sum, in the mean of the round. (m,).

    Raises:
        BadFile: a canary's client sent nothing that was kept, or has no such entry.
    """
    scores = np.zeros(len(canaries))
    met = np.zeros(len(canaries), bool)
    for one in transcript.rounds:
        sent = next((b.tensors for b in one.broadcasts if b.client is None), {})
        for number, canary in enumerate(canaries):
            for kind, tensors, weight in _arrivals(one, canary.client):
                moved = _entry(tensors, canary) / weight
                scores[number] += moved - (_entry(sent, canary) if kind == "parameters" else 0.0)
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


def _entry(tensors: Mapping[str, Tensor], canary: Canary) -> float:
    tensor = tensors.get(canary.tensor)
    if tensor is None or not 0 <= canary.entry < tensor.numel():
        got = f"'{canary.tensor}', entry {canary.entry}, of client {canary.client}"
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
    return BadFile(f"canaries of a capture, '{path}'", needs=needs, got=got, fix=_FIX)
