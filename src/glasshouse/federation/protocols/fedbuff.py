"""FedBuff: the server steps whenever its buffer is full, with updates of older models among them.

Source: Nguyen et al. 2022, "Federated Learning with Buffered Asynchronous Aggregation", arXiv:2106.06639,
Algorithm 1; the weight ``1 / sqrt(1 + staleness)`` is its section 5. Where we differ: time is counted in
rounds. In each the cohort receives the newest model; an answer arrives after a random number of rounds up to
``late``. The transcript has an update in the round of the model that it answers, as attacks need it. Updates
that are under way when the run ends are never applied.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor

from glasshouse.federation.rounds import Clients, ParameterRounds, apply_total, gather, requests_to, select
from glasshouse.federation.secure_sum import SecureSum
from glasshouse.federation.server_rules import Mean
from glasshouse.federation.setting import Setting
from glasshouse.interfaces import Recorder, Tamper, Traits
from glasshouse.progress import track
from glasshouse.registry import Card, create
from glasshouse.rng import Rng
from glasshouse.settings import Count, Natural
from glasshouse.wire import Broadcast, Update


@final
@dataclass(frozen=True, kw_only=True)
class FedBuff(ParameterRounds):
    """Buffered asynchronous averaging.

    Args:
        buffer: updates per step of the server; the paper takes 10.
        late: largest number of rounds by which an update is late; each is drawn evenly from 0 to it.
    """

    card: ClassVar[Card] = Card(
        summary="asynchronous FedAvg: the server steps on buffers of updates, some of older models",
        source="Nguyen et al. 2022, arXiv:2106.06639",
    )
    traits: ClassVar[Traits] = Traits(
        sends="delta", allows=("delta",), like="fedavg", averages=False, singly=True
    )
    buffer: Count = 2
    late: Natural = 1

    def play(
        self, setting: Setting, *, recorder: Recorder, rng: Rng, tamper: Tamper | None = None
    ) -> dict[str, Tensor]:
        """Run all rounds; see ``FederationProtocol.play``."""
        how = create(type(self), setting.terms.options)
        state = {name: t.detach().clone() for name, t in setting.start.items()}
        clients, buffer = Clients(setting), _Buffer(size=how.buffer)
        for number in track(range(setting.rounds), "federation", total=setting.rounds):
            stream = rng.child(f"round/{number}")
            honest = Broadcast(round=number, architecture=setting.terms.architecture, tensors=dict(state))
            recorder.prepare(honest)
            crafted = tamper(number) if tamper else None
            for broadcast in (crafted.default, *crafted.addressed.values()) if crafted else (honest,):
                recorder.broadcast(broadcast)
            if crafted is not None:
                recorder.own(number, state)
            # Everybody who is asked trains on today's model; when it arrives is drawn for each.
            _, answering = select(setting, rng=stream)
            requests = requests_to(answering, setting, number, state, crafted, rng=stream)
            for request, update in gather(requests, setting, clients, recorder=recorder):
                if crafted is None or crafted.applies:
                    buffer.send(update, after=delay_of(how.late, rng=request.rng))
            for arrived in buffer.arrivals(number):
                state = buffer.receive(arrived, state, setting)
        return state


def delay_of(late: int, *, rng: Rng) -> int:
    """By how many rounds an update is late, from 0 to ``late``."""
    return int(torch.randint(late + 1, (), generator=rng.child("late").torch()))


@final
@dataclass(kw_only=True)
class _Buffer:
    """Updates under way and in the server's buffer.

    Attributes:
        size: updates per step.
    """

    size: int

    def __post_init__(self) -> None:
        self._version = 0
        self._under_way: list[tuple[int, int, Update]] = []  # (round of arrival, version it answers, update)
        self._waiting: list[tuple[int, Update]] = []

    def send(self, update: Update, *, after: int) -> None:
        """An update leaves its client."""
        self._under_way.append((update.round + after, self._version, update))

    def arrivals(self, number: int) -> list[tuple[int, Update]]:
        """Those that arrive in a round, the oldest first, with the version of the model that they answer."""
        arrived = [(version, update) for when, version, update in self._under_way if when == number]
        self._under_way = [one for one in self._under_way if one[0] != number]
        return arrived

    def receive(
        self, arrived: tuple[int, Update], state: Mapping[str, Tensor], setting: Setting
    ) -> dict[str, Tensor]:
        """The server's model after one more update: unchanged until the buffer is full."""
        self._waiting.append(arrived)
        if len(self._waiting) < self.size:
            return dict(state)
        clients = tuple(update.client for _, update in self._waiting)
        total = SecureSum(round=arrived[1].round, selected=clients)
        for version, update in self._waiting:
            weight = 1.0 / math.sqrt(1.0 + self._version - version)
            total.add(update, weight=weight, rng=Rng.root(0))
        summed = total.close()
        # The paper divides by the size of the buffer; running statistics are a weighted mean.
        share = self.size / summed.weight
        buffers = {name: t * share for name, t in summed.buffers.items()}
        self._version, self._waiting = self._version + 1, []
        return apply_total(state, replace(summed, weight=float(self.size), buffers=buffers), setting, Mean())
