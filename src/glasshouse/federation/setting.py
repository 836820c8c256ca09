"""The configuration of one federation, which every protocol receives."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, final

from torch import Tensor, nn

from glasshouse.errors import BadValue
from glasshouse.interfaces import Behaviour, ClientGuard, Defense, Recorder, Tamper, Traits
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.wire import Architecture, Batch, Terms, Trained, Update


class Build(Protocol):
    """Builds a module from an architecture."""

    def __call__(self, architecture: Architecture, *, rng: Rng | None = None) -> nn.Module:
        """A new module; ``rng`` is None where its weights are about to be overwritten."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """What one client receives in one round.

    Attributes:
        round: number of the round.
        client: id of the client.
        architecture: of the model.
        tensors: of the model.
        rng: the client's stream in this round.
    """

    round: int
    client: int
    architecture: Architecture
    tensors: Mapping[str, Tensor]
    rng: Rng


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """What one client did in one round.

    Attributes:
        trained: result of its training, kept in the ground truth only.
        behaviour: name of its behaviour.
        update: what it sends, after its defences and guard; None: nothing.
    """

    trained: Trained
    behaviour: str
    update: Update | None


class Crew(Protocol):
    """Processes in which several clients of a round train in parallel."""

    def answers(self, requests: list[Request]) -> Iterator[Answer | None]:
        """The answers in order of the requests, equal to those of one process; None: the guard refused."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Setting:
    """A federation to simulate.

    Attributes:
        terms: its public settings.
        rounds: number of rounds to run.
        dropout: probability that a selected client does not answer, in [0, 1).
        private: examples of all clients.
        shards: each client's rows of ``private``.
        start: the server's initial parameters and buffers.
        build: architecture → module; the round loop loads the weights.
        defenses: run by every client.
        behaviours: of the clients that deviate, by id.
        architectures: of clients whose model differs from the agreed one (logit protocols), by id.
        guard: of every client; None: they trust the server.
        crew: trains several clients in parallel if they have no guard; None: one after the other.
        device: where clients train; updates and records are on the CPU.
    """

    terms: Terms
    rounds: int
    private: Batch
    shards: tuple[Tensor, ...]
    start: Mapping[str, Tensor]
    build: Build
    dropout: float = 0.0
    defenses: tuple[Defense, ...] = ()
    behaviours: Mapping[int, tuple[str, Behaviour]] = field(default_factory=dict)
    architectures: Mapping[int, Architecture] = field(default_factory=dict)
    guard: ClientGuard | None = None
    crew: Crew | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        if len(self.shards) != self.terms.clients or self.rounds < 1 or not 0 <= self.dropout < 1:
            raise BadValue(
                "federation",
                needs="one shard per client, rounds >= 1, dropout in [0, 1)",
                got=f"{len(self.shards)} shards for {self.terms.clients} clients, rounds = {self.rounds}, "
                f"dropout = {self.dropout}",
                fix="correct the [federation] table",
            )

    def shard(self, client: int) -> Batch:
        """The private data of ``client``."""
        return self.private.pick(self.shards[client])


class FederationProtocol(Protocol):
    """A federated learning algorithm: runs the rounds and reports everything to the recorder.

    Attributes:
        card: its description in ``glasshouse list``.
        traits: what it sends, trains and starts from; every field has a default.
    """

    card: ClassVar[Card]
    traits: ClassVar[Traits]

    def passes(self, rounds: int) -> int | None:
        """Number of passes over a client's private data in a run of ``rounds``, for privacy accounting.

        None where it follows from the terms, as in protocols that exchange parameters.
        """

    def play(
        self, setting: Setting, *, recorder: Recorder, rng: Rng, tamper: Tamper | None = None
    ) -> dict[str, Tensor]:
        """Run all rounds.

        Returns:
            The server's final parameters and buffers.
        """
