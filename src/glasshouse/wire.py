"""The messages between server and clients, and the data types in them.

Shape letters: K classes, P public examples.
Tensors are named as in the model's ``state_dict``. All classes here are frozen; their tensors are
shared and never modified.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, final

import torch
from torch import Tensor

from glasshouse.errors import BadValue
from glasshouse.examples import Batch
from glasshouse.modalities.base import Modality
from glasshouse.modalities.image import Image
from glasshouse.settings import ORDINARY, PLAIN, Optimizer, Training
from glasshouse.tasks.base import Task
from glasshouse.tasks.classification import Classification

__all__ = [
    "CONTROL",
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

Kind = Literal["gradient", "delta", "parameters", "logits", "document"]
Place = Literal["local", "gradient", "update"]
Stage = Literal["train", "evaluate", "query"]
Value = float | int | str | bool
CONTROL: Final = "control."
"""How names of control variates begin, among tensors of a broadcast and untrained state of an update."""


@final
@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A model without its weights: enough to build it again.

    Attributes:
        name: registered model, or ``module:factory``.
        inputs: what examples look like.
        task: the loss and the targets.
        arguments: further arguments of the factory, e.g. ``{"width": 8}``.
    """

    name: str
    inputs: Modality
    task: Task
    arguments: Mapping[str, Value] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        name: str,
        inputs: Modality | tuple[int, int, int],
        task: Task | int,
        arguments: Mapping[str, Value] | None = None,
    ) -> "Architecture":
        """As the class; ``inputs`` may be the (C, H, W) of pictures in [0, 1], ``task`` a number of classes.

        Examples:
            >>> Architecture.of("mlp", (1, 8, 8), 10).input_shape
            (1, 8, 8)
        """
        return cls(
            name=name,
            inputs=inputs if isinstance(inputs, Modality) else Image(size=inputs),
            task=task if isinstance(task, Task) else Classification(classes=task),
            arguments=arguments or {},
        )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one example as it enters the model."""
        return self.inputs.shape

    @property
    def classes(self) -> int:
        """K, the number of classes of a label; 0: the targets are not classes."""
        return int(getattr(self.task, "classes", 0))

    @property
    def asks(self) -> str:
        """The examples and targets that it trains on, in words."""
        targets = f"at most {self.classes} classes" if self.classes else f"targets of task '{self.task.name}'"
        return f"{self.inputs.nouns} {self.input_shape} of {targets}"

    def fits(self, shape: tuple[int, ...], classes: int) -> bool:
        """Whether it can be trained on examples of this shape, with labels of so many classes.

        Args:
            shape: of one example.
            classes: fewer than the outputs of a network are as good; 0: the targets are not classes.

        Examples:
            >>> wide = Architecture.of("mlp", (1, 8, 8), 1000)
            >>> wide.fits((1, 8, 8), 10), wide.fits((1, 8, 8), 1001), wide.fits((3, 8, 8), 10)
            (True, False, False)
        """
        if shape != self.input_shape:
            return False
        return self.task.violation(torch.arange(classes)) is None if classes else not self.classes


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Terms:
    """The public settings of the protocol: known to the server, the clients and any bystander.

    Attributes:
        protocol: registered protocol name, such as fedsgd, fedavg, fedprox, fedadam, transfer or fedmd.
        architecture: the model that the clients agreed to train.
        sends: what an update contains; ``parameters`` means the client's new weights themselves.
        clients: N in the federation.
        cohort: clients selected per round.
        batch_size: examples per local step.
        local_epochs: passes over the client's data per round (fedavg).
        learning_rate: of the clients, the highest in their schedule; of the server's step along a gradient.
        optimizer: of the clients; unused where they send gradients, since they take no steps.
        training: what else clients do in a local step: mode, precision, clipping, ...
        server_rate: step size of the server.
        secure_sum: the server sees only the sum of updates.
        weighting: ``size`` weights a client by its number of examples, ``uniform`` all equally.
        trained: prefix of the parameter names that clients train; empty for all (transfer: ``head.``).
        public: data that all parties have (logit protocols), or None; a label of -1: unlabelled.
        sensitive: number of public examples, the first ones, that are from the private domain.
        targets: labels below this number are private classes; 0: not declared.
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
    training: Training = ORDINARY
    server_rate: float = 1.0
    secure_sum: bool = False
    weighting: Literal["size", "uniform"] = "size"
    trained: str = ""
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

    def of_client(self, client: int) -> "Terms":
        """The terms with this client's own passes and batch size.

        Examples:
            >>> from glasshouse.settings import Training
            >>> agreed = Architecture.of("mlp", (1, 8, 8), 10)
            >>> how = Training(epochs_by_client=(1, 5))
            >>> terms = Terms(
            ...     protocol="fedavg", architecture=agreed, sends="delta", clients=4, cohort=4, batch_size=2,
            ...     training=how,
            ... )
            >>> [terms.of_client(client).local_epochs for client in range(4)]
            [1, 5, 1, 5]
        """
        how = self.training
        epochs, sizes = how.epochs_by_client, how.batch_sizes_by_client
        if not epochs and not sizes:
            return self
        return replace(
            self,
            local_epochs=epochs[client % len(epochs)] if epochs else self.local_epochs,
            batch_size=sizes[client % len(sizes)] if sizes else self.batch_size,
            training=how.model_copy(update={"epochs_by_client": (), "batch_sizes_by_client": ()}),
        )

    def steps(self, examples: int) -> int:
        """Local steps per round of a client with so many examples; 1 where it sends a gradient."""
        how = self.training
        if self.sends == "gradient" or how.local_steps is not None:
            return how.local_steps or 1
        batches = -(-how.used(examples, self.batch_size) // self.batch_size)
        return self.local_epochs * -(-batches // how.accumulate)

    def rate(self, round: int) -> float:
        """The learning rate in the first local step of a round."""
        return self.learning_rate * self.optimizer.share(round=round)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Broadcast:
    """Server → client: parameters and buffers (all, or those that changed), or consensus logits.

    Attributes:
        round: from 0.
        architecture: what clients are asked to run; differs from the agreed one under a structural attack.
        tensors: by state_dict name; ``logits`` (P, K) for a consensus.
        client: the recipient; None: all clients.
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
            a ``delta`` is new parameters minus received ones; ``parameters`` are the new ones; a
            ``document`` is one tensor of bytes (uint8), zeros behind its end, which ``formats`` read.
        tensors: by parameter name; ``logits`` (P, K) for kind ``logits``.
        examples: number of the client's examples used for it (public: it is the weight).
        steps: local optimizer steps taken for it.
        buffers: untrained state sent with the parameters (running statistics); the values after training,
            whatever ``kind`` is.
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
    """What the server receives in a round under ``secure_sum``.

    Attributes:
        tensors: sum of weight times update over the clients that answered, float64.
        weight: sum of those weights.
        kind: of the updates in the sum.
        selected: ids of the cohort.
        dropped: ids of the clients in the cohort that did not answer.
        examples: number of private examples in the sum.
        steps: local steps of each client.
        buffers: sum of weight times the untrained state of each client (running statistics), float64.
    """

    round: int
    kind: Kind
    tensors: Mapping[str, Tensor]
    weight: float
    selected: tuple[int, ...]
    dropped: tuple[int, ...] = ()
    examples: int
    steps: int = 1
    buffers: Mapping[str, Tensor] = field(default_factory=dict)


@final
@dataclass(frozen=True, kw_only=True)
class ClientMetrics:
    """Client → server: counts, losses, accuracies, sent in clear even under secure aggregation.

    Attributes:
        round: from 0.
        client: from 0.
        stage: what the client was asked to do.
        values: by name, as sent by the client; a number that is not finite is a string.
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
        reason: the error that the client returned; empty: no answer.
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
    """The findings of a guard.

    Attributes:
        guard: its name.
        findings: one plain sentence each; empty if there are none.
        values: the numbers that the findings rest on, by name.
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
        memory: tensors that the read-out needs later (decoder, bins, ...), stored under ``adversary/``. For
            attacks that sort examples into bins the report plots two of them: ``thresholds`` (R,), the lower
            ends of the bins, and ``brightness`` (N,), measured on the auxiliary images; the latter is
            stored for that figure only.
    """

    default: Broadcast
    addressed: Mapping[int, Broadcast] = field(default_factory=dict)
    applies: bool = False
    memory: Mapping[str, Tensor] = field(default_factory=dict)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """The output of local training, before the defences on the update.

    Attributes:
        tensors: as in :class:`Update`.
        kind: as in :class:`Update`.
        steps: optimizer steps taken.
        order: for each step the indices into the client's data; ground truth for the order of steps.
        buffers: as in :class:`Update`.
    """

    tensors: Mapping[str, Tensor]
    kind: Kind
    steps: int
    order: tuple[Tensor, ...]
    buffers: Mapping[str, Tensor] = field(default_factory=dict)
