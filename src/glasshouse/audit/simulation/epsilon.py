"""Test a claimed ε with a separate federation that contains canaries.

Canary clients take part like the others; canary examples are added to the clients' own. An observer of the
uploads sums the entry of each canary over the rounds, and guesses from that which canaries were included.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.audit.attacking.isolation import call_plugin
from glasshouse.audit.simulation.build import build, guarantee_of
from glasshouse.errors import BadValue
from glasshouse.federation.client import LocalTraining
from glasshouse.federation.defenses.canaries import ClientCanary, ExampleCanaries
from glasshouse.federation.defenses.guarantee import Guarantee
from glasshouse.federation.setting import FederationProtocol, Setting
from glasshouse.privacy.one_run import Guesses, count_guesses, gaussian_run_epsilon, one_run_epsilon
from glasshouse.privacy.sure_guesses import numbers_of_sure_guesses, weighted_run_epsilon
from glasshouse.registry import load
from glasshouse.results.strength import EmpiricalEpsilon
from glasshouse.rng import Rng
from glasshouse.scenario.axes import Cell
from glasshouse.wire import Aggregate, Broadcast, Kind, Refusal, Trained, Update

LEVEL: Final = 0.975
"""Confidence level of each of two bounds, from two numbers of guesses; 95 % together."""
WEIGHTED: Final = (50, 2000)
"""Range of the number of canaries with weighted guesses; the linear program takes seconds with 2,000."""


@final
@dataclass(kw_only=True, eq=False)
class CanaryRecorder:
    """Sums the entries of all canaries over the uploads.

    Attributes:
        places: index of each canary's entry, (m,).
        clients: client whose update contains each canary, (m,).
        scores: sums so far, (m,).
    """

    places: Tensor
    clients: Tensor
    scores: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.scores = torch.zeros(len(self.places), dtype=torch.float64)

    def update(self, update: Update) -> None:
        """Add one client's upload."""
        self._add((self.clients == update.client).nonzero().flatten(), update.tensors, update.kind)

    def aggregate(self, aggregate: Aggregate) -> None:
        """Add a round of which only the sum is visible."""
        self._add(torch.arange(len(self.places)), aggregate.tensors, aggregate.kind)

    def _add(self, rows: Tensor, tensors: Mapping[str, Tensor], kind: Kind) -> None:
        if len(rows):
            flat = torch.cat([t.flatten() for t in tensors.values()])
            self.scores[rows] += (1.0 if kind == "gradient" else -1.0) * flat[self.places[rows]].double()

    def prepare(self, broadcast: Broadcast) -> None: ...

    def broadcast(self, broadcast: Broadcast) -> None: ...

    def own(self, round: int, tensors: Mapping[str, Tensor]) -> None: ...

    def private(
        self, round: int, client: int, *, index: Tensor, trained: Trained, behaviour: str
    ) -> None: ...


def measure_epsilon(cell: Cell) -> EmpiricalEpsilon | Refusal:
    """Run a federation with the canaries of the cell's scenario; return the bound."""
    return time_answer(cell, _measured)


def time_answer(cell: Cell, measure: Callable[[Cell], EmpiricalEpsilon]) -> EmpiricalEpsilon | Refusal:
    """The timed result of ``measure``, or its refusal."""
    started = time.process_time()
    answer = call_plugin(lambda: measure(cell), subject="canaries")
    if isinstance(answer, Refusal):
        return answer
    return dataclasses.replace(answer, seconds=time.process_time() - started)


def _measured(cell: Cell) -> EmpiricalEpsilon:
    scenario, request = cell.scenario, cell.scenario.audit.epsilon
    federation = build(scenario, seed=scenario.seed)
    proved = guarantee_of(federation.setting)
    protects = "client" if proved is None or proved.neighbours == "update" else "example"
    unit = request.unit or protects
    rng = federation.rng.child("canaries")
    included = torch.rand(request.canaries, generator=rng.child("coins").torch()) < 0.5
    setting, recorder = with_canaries(
        federation.setting, included, unit=unit, size=proved.clip if proved else 1.0, rng=rng.child("places")
    )
    protocol: FederationProtocol = load("protocols", setting.terms.protocol)()
    protocol.play(setting, recorder=recorder, rng=rng.child("federation"))
    return bound_epsilon(cell, recorder.scores.numpy(), included.numpy(), unit=unit, proved=proved, rng=rng)


def bound_epsilon(
    cell: Cell,
    scores: NDArray[np.float64],
    included: NDArray[np.bool_],
    *,
    unit: str,
    proved: Guarantee | None,
    rng: Rng,
) -> EmpiricalEpsilon:
    """Lower bound on a cell's claimed ε from the scores of canaries: the larger of two of each kind.

    Gaussian mechanisms use weighted guesses for the first of their two bounds.

    Args:
        cell: its scenario has ``[audit.epsilon]``.
        scores: higher for a canary that is more likely in, (m,).
        included: the coins, (m,).
        unit: what a canary is, ``client`` or ``example``.
        proved: guarantee of the cell's defences.
        rng: breaks ties.
    """
    seen = 1.0 if proved is None else 1 - (1 - proved.rate) ** proved.steps
    protects = "client" if proved is None or proved.neighbours == "update" else "example"

    def count(guesses: int, out: int) -> Guesses:
        ties = rng.child(f"ties/{guesses}").numpy()
        return count_guesses(scores, included, guesses=guesses, out=out, rng=ties)

    # A guarantee for clients says nothing of a single example's canary, nor the other way round.
    request, proved = cell.scenario.audit.epsilon, proved if protects == unit else None
    gaussian = proved is not None and proved.rate == 1
    counts = [count(r, out) for r, out in numbers_of_guesses(len(scores), seen=seen)]
    bounds = [one_run_epsilon(c, delta=request.delta, level=LEVEL) for c in counts]
    # This holds for every mechanism; what follows may be larger, and holds for Gaussian noise alone.
    anyhow = max(bound.epsilon for bound in bounds)
    if gaussian:
        bounds = [gaussian_run_epsilon(c, delta=request.delta, level=LEVEL) for c in counts]
        if WEIGHTED[0] <= counts[0].canaries <= WEIGHTED[1]:
            every, sure = (count(r, r // 2) for r in numbers_of_sure_guesses(len(scores)))
            bounds[0] = weighted_run_epsilon(every, sure, delta=request.delta, level=LEVEL)
    shown = max(bounds, key=lambda bound: bound.epsilon)
    return EmpiricalEpsilon(
        scenario=cell.scenario.name,
        cell=cell.hash,
        axes=dict(cell.axes),
        unit="client" if unit == "client" else "example",
        claimed=request.claimed,
        proved=None if proved is None else proved.epsilon,
        low=anyhow,
        gaussian=shown.epsilon if gaussian else None,
        delta=request.delta,
        canaries=shown.counts.canaries,
        guesses=shown.counts.guesses,
        correct=shown.counts.correct,
        seconds=0.0,
    )


def numbers_of_guesses(canaries: int, *, seen: float = 1.0) -> tuple[tuple[int, int], tuple[int, int]]:
    """Two numbers of guesses: a tenth of the canaries, best with noise; as many as possible, best without.

    Of m coins almost always at least m / 2 - 3 √m / 2 are "in", and as many "out". If steps are sampled, a
    canary that is in but was never sampled looks like one that is out: the second number is then "in" only.

    Args:
        canaries: m.
        seen: probability that an included canary is in at least one release, in (0, 1].

    Returns:
        Two pairs: the number of guesses, and how many of them are "out".

    Examples:
        >>> numbers_of_guesses(1000), numbers_of_guesses(1000, seen=0.9)
        (((100, 50), (904, 452)), ((100, 50), (402, 0)))
    """
    half = math.floor(canaries * seen / 2 - 1.5 * math.sqrt(canaries))
    tenth = max(1, canaries // 20)
    sure = (2 * max(1, half), max(1, half)) if seen == 1 else (max(2, half), 0)
    return (2 * tenth, tenth), sure


def with_canaries(
    setting: Setting, included: Tensor, *, unit: str, size: float, rng: Rng
) -> tuple[Setting, CanaryRecorder]:
    """Add canaries to the federation; return it with the recorder that scores them.

    Args:
        setting: the federation without canaries.
        included: the coins, (m,).
        unit: ``client``: m additional clients; ``example``: spread over the clients' data.
        size: magnitude of a client's canary.
        rng: for choosing the entries.

    Raises:
        BadValue: the update has fewer entries than there are canaries.
    """
    model = setting.build(setting.terms.architecture)
    entries = sum(p.numel() for p in LocalTraining.of(setting.terms, round=0).parameters(model).values())
    if entries < len(included):
        raise BadValue(
            "canaries",
            needs=f"at most {entries:,}: each has an entry of the update to itself",
            got=f"{len(included):,}",
            fix="lower audit.epsilon.canaries",
        )
    places = torch.randperm(entries, generator=rng.torch())[: len(included)]
    own, count = setting.terms.clients, len(included)
    if unit == "example":
        hosts = torch.arange(count) % own
        among = {c: ("canaries", ExampleCanaries(places=places[included & (hosts == c)])) for c in range(own)}
        return dataclasses.replace(setting, behaviours=among), CanaryRecorder(places=places, clients=hosts)
    clients = torch.arange(own, own + count)
    sign = 1.0 if setting.terms.sends == "gradient" else -1.0  # a delta is opposite to the gradient
    amounts = torch.where(included, sign * size, 0.0)
    canaries = {
        int(c): ("canary", ClientCanary(place=int(place), size=float(value)))
        for c, place, value in zip(clients, places, amounts, strict=True)
    }
    terms = setting.terms
    cohort = terms.cohort + round(count * terms.cohort / own)
    return (
        dataclasses.replace(
            setting,
            terms=dataclasses.replace(terms, clients=own + count, cohort=cohort),
            shards=(*setting.shards, *[setting.shards[0][:1]] * count),
            behaviours={**setting.behaviours, **canaries},
        ),
        CanaryRecorder(places=places, clients=clients),
    )
