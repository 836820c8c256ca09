"""What travels between server and clients.

Shape letters: B examples in a batch, C channels, H and W pixels, L tokens, K classes, P public examples.
Tensors are named as in the model's ``state_dict``. Everything here is frozen; the tensors inside
are shared, never written to.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, final

from torch import Tensor

from glasshouse.errors import BadValue, Inapplicable
from glasshouse.settings import PLAIN, Optimizer
from glasshouse.tokens.vocabulary import Vocabulary

__all__ = [
    "Aggregate",
    "Architecture",
    "Batch",
    "Broadcast",
    "ClientMetrics",
    "Crafted",
    "Dropout",
    "Inspection",
    "Kind",
    "Mechanism",
    "Place",
    "Refusal",
    "Stage",
    "Terms",
    "Trained",
    "Update",
    "Value",
]

Kind = Literal["gradient", "delta", "parameters", "logits"]
Place = Literal["local", "gradient", "update"]
Stage = Literal["train", "evaluate"]
Value = float | int | str | bool


@final
@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A model without its weights: enough to build it again.

    Attributes:
        name: registered model, or ``module:factory``.
        input_shape: (C, H, W) of images; (L,) of sentences, the longest that the model reads.
        classes: K, of the data; the number of logits, but of a model that predicts the next token.
        arguments: further arguments of the factory, e.g. ``{"width": 8}``.
        vocabulary: the tokens of a model that reads sentences; None: it reads images.
    """

    name: str
    input_shape: tuple[int, ...]
    classes: int
    arguments: Mapping[str, Value] = field(default_factory=dict)
    vocabulary: Vocabulary | None = None

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W); raises Inapplicable where it reads sentences."""
        if len(self.input_shape) != 3:
            raise Inapplicable(
                f"model '{self.name}'",
                needs="a model of images", got="one that reads sentences",
                fix="choose an attack on sentences: glasshouse list attacks",
            )  # fmt: skip
        channels, height, width = self.input_shape
        return channels, height, width


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """Examples.

    Attributes:
        inputs: images (B, C, H, W), float32 in [0, 1]; or sentences (B, L), int64 numbers of tokens, filled
            up at the end with the vocabulary's ``pad``.
        labels: (B,) int64 in [0, K); of sentences their class, also where the next token is predicted.
        groups: who is in each picture, or wrote each sentence, (B,) int64; None: nobody says.
    """

    inputs: Tensor
    labels: Tensor
    groups: Tensor | None = None

    def __post_init__(self) -> None:
        dimensions = 4 if self.inputs.is_floating_point() else 2
        if self.inputs.ndim != dimensions or self.labels.shape != self.inputs.shape[:1]:
            raise BadValue(
                "a batch",
                needs="images (B, C, H, W), floats, or tokens (B, L), integers; labels (B,)",
                got=f"inputs {tuple(self.inputs.shape)} and labels {tuple(self.labels.shape)}",
                fix="give one label per example",
            )

    def __len__(self) -> int:
        return len(self.labels)

    def pick(self, index: Tensor) -> "Batch":
        """The examples at ``index``, in that order."""
        groups = None if self.groups is None else self.groups[index]
        return Batch(inputs=self.inputs[index], labels=self.labels[index], groups=groups)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Terms:
    """What the protocol makes public: known to the server, the clients and any bystander.

    Attributes:
        protocol: registered protocol name: fedsgd, fedavg, transfer, fedmd, fedgems, dsfl.
        architecture: the model that the clients agreed to train.
        sends: what an update holds; ``parameters`` means the client's new weights themselves.
        clients: N in the federation.
        cohort: clients selected per round.
        batch_size: examples per local step.
        local_epochs: passes over the client's data per round (fedavg).
        learning_rate: of the clients, the highest of their schedule; of the server's step along a gradient.
        optimizer: of the clients; where they send gradients they take no steps.
        server_rate: step of the server.
        secure_sum: the server sees only the sum of updates.
        weighting: ``size`` weights a client by its number of examples, ``uniform`` all alike.
        trained: prefix of the parameter names that clients train; empty for all (transfer: ``head.``).
        image_range: smallest and largest possible pixel; declared, never measured.
        public: data that all parties hold (logit protocols), or None; a label -1: unlabelled.
        sensitive: so many of the public images, the first ones, show the private domain.
        targets: labels below this number are private classes; 0: nobody says so.
        options: further public settings of the protocol, e.g. ``{"temperature": 0.1}``.
    """

    protocol: str
    architecture: Architecture
    sends: Kind
    clients: int
    cohort: int
    batch_size: int
    local_epochs: int = 1
    learning_rate: float = 0.1
    optimizer: Optimizer = PLAIN
    server_rate: float = 1.0
    secure_sum: bool = False
    weighting: Literal["size", "uniform"] = "size"
    trained: str = ""
    image_range: tuple[float, float] = (0.0, 1.0)
    public: Batch | None = None
    sensitive: int = 0
    targets: int = 0
    options: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (1 <= self.cohort <= self.clients and self.batch_size >= 1 and self.local_epochs >= 1):
            raise BadValue(
                "terms of the federation",
                needs="1 <= cohort <= clients, batch_size >= 1, local_epochs >= 1",
                got=f"cohort = {self.cohort}, clients = {self.clients}, batch_size = {self.batch_size}, "
                f"local_epochs = {self.local_epochs}",
                fix="correct the [federation] table",
            )

    def rate(self, round: int) -> float:
        """The learning rate in a round, in its first local step."""
        return self.learning_rate * self.optimizer.share(round=round)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Broadcast:
    """Server → client: parameters and buffers (all, or those that changed), or consensus logits.

    Attributes:
        round: from 0.
        architecture: what a client is told to run; differs from the agreed one under a structural attack.
        tensors: by state_dict name; ``logits`` (P, K) for a consensus.
        client: the one addressed, or None for everybody.
    """

    round: int
    architecture: Architecture
    tensors: Mapping[str, Tensor]
    client: int | None = None


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Update:
    """Client → server, after the client's defences.

    Attributes:
        round: from 0.
        client: from 0.
        kind: what ``tensors`` are. A ``gradient`` is of the mean loss over the client's examples;
            a ``delta`` is new parameters minus received ones; ``parameters`` are the new ones.
        tensors: by parameter name; ``logits`` (P, K) for kind ``logits``.
        examples: size of the client's data behind it (public: it is the weight).
        steps: local optimizer steps behind it.
        buffers: what travels beside the parameters and is not trained (running statistics), as it is after
            training whatever ``kind`` says.
    """

    round: int
    client: int
    kind: Kind
    tensors: Mapping[str, Tensor]
    examples: int
    steps: int = 1
    buffers: Mapping[str, Tensor] = field(default_factory=dict)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Aggregate:
    """What the server keeps of a round under ``secure_sum``.

    Attributes:
        tensors: sum over the clients that answered of weight times update, float64.
        weight: sum of those weights.
        kind: of the updates behind it.
        selected: ids of the cohort, and of those who did not answer.
        dropped: ids of the cohort, and of those who did not answer.
        examples: number of private examples behind the sum.
        steps: local steps of each client.
    """

    round: int
    kind: Kind
    tensors: Mapping[str, Tensor]
    weight: float
    selected: tuple[int, ...]
    dropped: tuple[int, ...] = ()
    examples: int
    steps: int = 1


@final
@dataclass(frozen=True, kw_only=True)
class ClientMetrics:
    """Client → server, in clear beside the tensors, under secure aggregation too: counts, losses, accuracies.

    Attributes:
        round: from 0.
        client: from 0.
        stage: what the client was asked for.
        values: by name, as the client sent them; a number that is not finite is a text.
    """

    round: int
    client: int
    stage: Stage
    values: Mapping[str, Value]


@final
@dataclass(frozen=True, kw_only=True)
class Dropout:
    """A client that was asked and sent no update.

    Attributes:
        round: from 0.
        client: from 0.
        reason: the error that came back; empty: nothing came back.
    """

    round: int
    client: int
    reason: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """The description of a defence, for the report and for the grant ``defense``."""

    name: str
    place: Place
    parameters: Mapping[str, Value]
    note: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why an attack, guard or metric could not run. Fields as in ``GlasshouseError``."""

    subject: str
    needs: str
    got: str
    fix: str


@final
@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What a guard found.

    Attributes:
        guard: its name.
        findings: one plain sentence each; empty when nothing was found.
        values: numbers behind them, by name.
    """

    guard: str
    findings: tuple[str, ...]
    values: Mapping[str, float] = field(default_factory=dict)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Crafted:
    """What a malicious server sends instead of its model.

    Attributes:
        default: broadcast to every client not in ``addressed``.
        addressed: broadcasts to single clients, by id.
        applies: the server applies the aggregate; False: it discards it and restores its model.
        memory: tensors that the read-out needs later (decoder, bins, ...); kept under ``adversary/``. Of
            attacks that sort examples into bins the report draws two of them: ``thresholds`` (R,), where the
            bins begin, and ``brightness`` (N,), what was measured on the auxiliary images; the latter is
            kept for that figure alone.
    """

    default: Broadcast
    addressed: Mapping[int, Broadcast] = field(default_factory=dict)
    applies: bool = False
    memory: Mapping[str, Tensor] = field(default_factory=dict)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """What local training produced, before the defences on the update.

    Attributes:
        tensors: as in :class:`Update`.
        kind: as in :class:`Update`.
        steps: optimizer steps taken.
        order: for each step the indices into the client's data; the truth about step order.
    """

    tensors: Mapping[str, Tensor]
    kind: Kind
    steps: int
    order: tuple[Tensor, ...]
