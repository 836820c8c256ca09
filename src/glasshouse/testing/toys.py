"""Toy federations that run in a tenth of a second: random images, a small model, full recording."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
from torch import Tensor

from glasshouse.attacks.base import ActiveAttack
from glasshouse.federation.setting import FederationProtocol, Setting
from glasshouse.interfaces import Defense, Tamper
from glasshouse.modalities.array import Array
from glasshouse.modalities.base import Modality
from glasshouse.modalities.image import Image
from glasshouse.modalities.row import Row
from glasshouse.modalities.sentence import Sentence
from glasshouse.models import build as models
from glasshouse.registry import load
from glasshouse.rng import Rng
from glasshouse.tasks.base import Task
from glasshouse.tasks.classification import Classification
from glasshouse.tasks.next_token import NextToken
from glasshouse.tokens.vocabulary import Vocabulary
from glasshouse.transcript.cut import cut
from glasshouse.transcript.grants import Grants
from glasshouse.transcript.record import Keep, Log, Transcript
from glasshouse.transcript.threat import Threat
from glasshouse.transcript.view import RoundView, View
from glasshouse.wire import Architecture, Batch, Broadcast, Crafted, Terms

__all__ = ["AUXILIARY", "AttackedToy", "Recorder", "Toy", "play_attacked", "sentence_model", "toy"]

SHAPE, CLASSES, PLACES = (1, 8, 8), 10, 8


def sentence_model(
    name: str, vocabulary: Vocabulary, *, length: int = PLACES, classes: int = 0, **arguments: Any
) -> Architecture:
    """A model of sentences that predicts ``classes`` classes, or (0) every next token."""
    task = Classification(classes=classes) if classes else NextToken(vocabulary=vocabulary, length=length)
    inputs = Sentence(vocabulary=vocabulary, length=length)
    return Architecture(name=name, inputs=inputs, task=task, arguments=arguments)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Toy:
    """A finished toy federation.

    Attributes:
        setting: setting of the federation.
        transcript: all messages.
        final: the server's final model.
        own: tensors recorded by the server itself, by round.
    """

    setting: Setting
    transcript: Transcript
    final: Mapping[str, Tensor]
    own: Mapping[int, Mapping[str, Tensor]] = field(default_factory=dict)

    def view(self, *, round: int = 0, client: int | None = 0, grants: Grants | None = None) -> View:
        """A server's view of one update (``client`` None: of one round)."""
        return cut(
            self.transcript,
            threat=Threat(),
            grants=grants or Grants(),
            own={},
            memory={},
            rounds=(round,),
            client=client,
        )


def toy(
    *,
    model: str = "mlp",
    vocabulary: Vocabulary | None = None,
    array: tuple[int, ...] | None = None,
    table: Row | None = None,
    task: Task | None = None,
    arguments: Mapping[str, Any] | None = None,
    protocol: str = "fedsgd",
    clients: int = 3,
    examples: int = 1,
    rounds: int = 1,
    defenses: Sequence[Defense] = (),
    tamper: Tamper | None = None,
    seed: int = 0,
    dropout: float = 0.0,
    **terms: Any,
) -> Toy:
    """Run a toy federation. ``examples``: per client; ``terms``: fields of :class:`glasshouse.wire.Terms`.

    With a ``vocabulary`` the examples are sentences of random tokens, with the size of an ``array`` numbers
    of two classes, with a ``table`` random rows of two classes. ``task`` None: next tokens of sentences, or
    classes.

    Examples:
        >>> view = toy(clients=2, examples=4).view(client=1)
        >>> view.single(subject="example")[1].examples
        4
    """
    # One kind of example, with the task that is usual for it.
    rng = Rng.root(seed, salt="toy")
    total = clients * examples
    draws = rng.child("data").torch()
    kind: Modality
    usual: Task
    if array is not None:
        inputs = torch.rand((total, *array), generator=draws)
        kind, usual = Array(size=array), Classification(classes=2)
    elif table is not None:
        inputs, kind, usual = table.probes(total, draws), table, Classification(classes=2)
    elif vocabulary is None:
        inputs = torch.rand((total, *SHAPE), generator=draws)
        kind, usual = Image(size=SHAPE), Classification(classes=CLASSES)
    else:
        kind = Sentence(vocabulary=vocabulary, length=PLACES)
        usual = NextToken(vocabulary=vocabulary, length=PLACES, classes=CLASSES)
        lengths = torch.randint(3, PLACES - 1, (total,), generator=draws).tolist()
        inputs = random_sentences(lengths, vocabulary, draws, places=PLACES)
    classes = CLASSES if array is None and table is None else 2
    # One shard per client, and a federation as the simulation would set it up.
    private = Batch(inputs=inputs, labels=torch.randint(classes, (total,), generator=draws))
    architecture = Architecture(name=model, inputs=kind, task=task or usual, arguments=arguments or {})
    sends = "gradient" if protocol in ("fedsgd", "transfer") else "delta"
    fields: dict[str, Any] = {"sends": sends, "cohort": clients, "batch_size": examples, **terms}
    setting = Setting(
        terms=Terms(protocol=protocol, architecture=architecture, clients=clients, **fields),
        rounds=rounds,
        private=private,
        shards=tuple(torch.arange(total).split(examples)),  # type: ignore[no-untyped-call]  # torch's own
        start=models.state(models.build(architecture, rng=rng.child("model"))),
        build=models.build,
        defenses=tuple(defenses),
        dropout=dropout,
    )
    log = Log(terms=setting.terms, keep=Keep())
    recorder = Recorder(log)
    runner: FederationProtocol = load("protocols", protocol)()
    final = runner.play(setting, recorder=recorder, rng=rng.child("federation"), tamper=tamper)
    return Toy(setting=setting, transcript=log.transcript(), final=final, own=log.servers)


def random_sentences(
    lengths: Sequence[int], vocabulary: Vocabulary, draws: torch.Generator, *, places: int
) -> Tensor:
    """Random sentences of these lengths in tokens, without special tokens: (N, ``places``)."""
    words = torch.tensor([t for t in range(vocabulary.size) if t not in vocabulary.marks])
    rows = [words[torch.randint(len(words), (n,), generator=draws)].tolist() for n in lengths]
    return vocabulary.stack(rows, length=places)


@final
class Recorder:
    """Passes messages on to a log and discards the ground truth."""

    def __init__(self, log: Log) -> None:
        self.prepare = log.prepare
        self.broadcast = log.broadcast
        self.update = log.update
        self.aggregate = log.aggregate
        self.own = log.own

    def private(self, round: int, client: int, **_: object) -> None:
        """Discard the private examples."""


AUXILIARY = Batch(
    inputs=torch.rand((600, *SHAPE), generator=torch.Generator().manual_seed(5)),
    labels=torch.randint(CLASSES, (600,), generator=torch.Generator().manual_seed(6)),
)
"""Random auxiliary images for the adversary."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class AttackedToy:
    """A toy federation under a malicious server.

    Attributes:
        crafted: the server's message in round 0.
        view: the server's view of round 0, with the attack's memory and auxiliary images.
        toy: the federation.
    """

    crafted: Crafted
    view: View
    toy: Toy


def _auxiliary_of(table: Row | None) -> Batch:
    """Random rows of a table with two classes; random images without one."""
    if table is None:
        return AUXILIARY
    rows = table.probes(len(AUXILIARY), torch.Generator().manual_seed(5))
    return Batch(inputs=rows, labels=AUXILIARY.labels % 2)


def play_attacked(attack: ActiveAttack, **settings: Any) -> AttackedToy:
    """Let ``attack`` craft the model of round 0 and run; with a secure sum unless ``settings`` disable it.

    Examples:
        >>> from glasshouse.attacks.linear.robbing_the_fed import RobbingTheFed
        >>> played = play_attacked(RobbingTheFed(bins=16))
        >>> played.crafted.default.architecture.name, played.view.rounds[0].aggregate.examples
        ('imprint', 3)
    """
    settings = {"secure_sum": True, "weighting": "size", **settings}
    honest = toy(**settings)
    terms = honest.setting.terms
    grants = Grants(auxiliary=_auxiliary_of(settings.get("table")))
    pending = Broadcast(round=0, architecture=terms.architecture, tensors=honest.setting.start)
    before = View(
        terms=terms, threat=Threat(), rounds=(RoundView(round=0, broadcast=pending),), grants=grants
    )
    crafted = attack.craft(before, rng=Rng.root(1))
    assert crafted is not None, "the attack had nothing to send in round 0"
    played = toy(**settings, tamper=lambda number: crafted if number == 0 else None)
    view = replace(played.view(client=None), memory=crafted.memory, grants=grants)
    return AttackedToy(crafted=crafted, view=view, toy=played)
