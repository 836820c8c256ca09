"""The interface of attacks, and the claims that they make.

Shape letters: B reconstructed examples, C channels, H and W pixels, K classes, D features, N clients.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import ClassVar, Literal, Protocol, final, runtime_checkable

import torch
from torch import Tensor

from glasshouse.attacks.budget import Budget
from glasshouse.errors import BadValue
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.transcript.threat import Changes, Sees
from glasshouse.transcript.view import View
from glasshouse.wire import Architecture, Batch, Crafted, Terms, Value

__all__ = [
    "About",
    "ActiveAttack",
    "Appendix",
    "Attack",
    "Claim",
    "ClassRepresentatives",
    "ClientScores",
    "DefenseGuess",
    "GenerativeAttack",
    "Labels",
    "ModelBound",
    "Needs",
    "Paired",
    "PriorSamples",
    "Reconstruction",
    "Representations",
    "Scope",
    "label_counts",
    "tensors_of",
]

Scope = Literal["update", "round", "run"]
Paired = Literal["examples", "classes", "clients", "defense", "authors"]


@final
@dataclass(frozen=True, kw_only=True)
class Needs:
    """What an attack requires; the harness refuses to run it where a requirement is not met.

    Attributes:
        sees: kinds of messages; all of them are required.
        any_of: further kinds, at least one required: ``{"update", "aggregate"}`` to read the sum of a round.
        changes: what the server must be allowed to alter.
        grants: side knowledge without which it cannot run.
        uses: optional grants, used where given.
        scope: whether the harness calls it once per update, per round, or per run.
        protocols: names of the supported protocols; by default those that exchange parameters.
        optimizers: traits (``settings.Optimizer``) that it undoes or repeats; with others it is refused.
        modalities: names of the kinds of examples that it can claim or search; empty: any.
        continuous: it moves or reads the numbers of examples, and sentences have none.
        alone: it reads updates of one example, and refuses others.
        one_label: every example has one of K classes (``Task.one_label``).
        repeats: it repeats the clients' training, and has no power where a capture shows other terms.
        twice: it differentiates the gradient of the network again.
        targets: the federation says which classes are private (``data.domains.targets``).
    """

    sees: frozenset[Sees]
    scope: Scope
    any_of: frozenset[Sees] = frozenset()
    changes: frozenset[Changes] = frozenset()
    grants: frozenset[str] = frozenset()
    uses: frozenset[str] = frozenset()
    protocols: frozenset[str] = frozenset({"fedsgd", "fedavg", "transfer"})
    optimizers: frozenset[str] = frozenset({"sgd"})
    modalities: frozenset[str] = frozenset()
    continuous: bool = False
    alone: bool = False
    one_label: bool = False
    repeats: bool = False
    twice: bool = False
    targets: bool = False


@final
@dataclass(frozen=True, kw_only=True)
class About:
    """The subject of a claim: rounds, and one client or (None) the whole cohort."""

    rounds: tuple[int, ...]
    client: int | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Claim:
    """Base class of claims: frozen dataclasses of tensors, mappings of tensors, and JSON values.

    Class attributes:
        card: one line on what this kind asserts.
        kind: its registered name; metrics name the kind that they score.
        grows: a claim over more rounds replaces one over fewer; the one over the longest prefix is judged.
        may_be_empty: tensors of length 0 mean "nothing could be read", and are scored.
        paired: with what a claim is compared: the ``examples`` of each round that it is about, the private
            ``classes``, all ``clients`` of the run, the ``defense`` that was on, or ``authors``
            of messages.
        also: further kinds that it can be read as: a reconstruction with labels claims their counts, too.
        ranked: with more candidates than examples announced, only the most confident count.
        guessed: a null adversary that guesses examples makes such a claim by :meth:`guess`.
        scored: False for claims that are only shown, or used by the judge.
        metrics: names of the metrics that a scenario without ``audit.metrics`` gets for it; empty: those of
            the data's modality.
        proofs: name of the metric that holds what such a claim proves against the truth, 1 per assertion that
            is true: computed wherever the claim is made, and below 1 the audit ends with 1; empty: it proves
            nothing.

    Attributes:
        about: the rounds, and one client or the whole cohort.
    """

    card: ClassVar[Card]
    kind: ClassVar[str]
    grows: ClassVar[bool] = False
    may_be_empty: ClassVar[bool] = False
    paired: ClassVar[Paired] = "examples"
    also: ClassVar[frozenset[str]] = frozenset()
    ranked: ClassVar[bool] = False
    guessed: ClassVar[bool] = False
    scored: ClassVar[bool] = True
    metrics: ClassVar[tuple[str, ...]] = ()
    proofs: ClassVar[str] = ""

    about: About

    @property
    def says_nothing(self) -> bool:
        """Nothing was read: the victim counts as one without a claim."""
        tensors = tensors_of(self)
        return bool(tensors) and not any(tensor.numel() for tensor in tensors.values())

    def part(self, reads: str, count: int) -> Tensor | None:
        """The part that a metric reads, of the ``count`` candidates that count; None: not claimed.

        Raises:
            BadValue: this kind has no such part.
        """
        tensors = tensors_of(self)
        if reads not in tensors:
            absent = reads in {f.name for f in fields(self)}
            if absent:
                return None
            raise BadValue(
                f"claims '{self.kind}'",
                needs=f"a tensor '{reads}' in the claim, which the metric reads",
                got=", ".join(sorted(tensors)) or "none",
                fix="correct what the metric reads, or add the field to the claim",
            )
        items = tensors[reads]
        if not self.ranked or len(items) <= count:
            return items
        order = torch.argsort(tensors["confidence"], descending=True, stable=True)[:count]
        return items[order.sort().values]

    @classmethod
    def guess(cls, examples: Batch, reads: str) -> Tensor:
        """What a null adversary that guesses these examples claims in the part that a metric reads."""
        return label_counts(examples.labels) if reads == "counts" else examples.inputs

    @classmethod
    def silence(cls, about: About, terms: Terms) -> "Claim | None":
        """The claim scored for a victim about whom the attack claimed nothing; None: chance level."""
        del about, terms
        return None


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Reconstruction(Claim):
    """Asserts: These were private inputs. B = 0: it could read nothing, which is scored as a miss.

    Attributes:
        inputs: (B, C, H, W) in [0, 1].
        labels: (B,); None: no claim.
        confidence: (B,), any unit, higher is more confident. If there are more inputs than examples
            announced on the wire, only the most confident are scored.
        source: the client that the attack attributes each input to, (B,), -1 unknown; None: no claim.
    """

    card: ClassVar[Card] = Card(summary="these were private inputs")
    kind: ClassVar[str] = "reconstruction"
    also: ClassVar[frozenset[str]] = frozenset({"labels"})
    ranked: ClassVar[bool] = True
    guessed: ClassVar[bool] = True
    may_be_empty: ClassVar[bool] = True

    inputs: Tensor
    labels: Tensor | None
    confidence: Tensor
    source: Tensor | None = None

    def part(self, reads: str, count: int) -> Tensor | None:
        """As of any claim; ``counts`` are those of the labels, None where images come without labels."""
        if reads != "counts":
            return super().part(reads, count)
        if self.labels is None:
            return None if len(self.inputs) else torch.zeros(1, dtype=torch.int64)
        labels = super().part("labels", count)
        return None if labels is None else label_counts(labels)

    @classmethod
    def silence(cls, about: About, terms: Terms) -> "Reconstruction":
        nothing = torch.zeros(0, *terms.architecture.input_shape)
        return cls(about=about, inputs=nothing, labels=None, confidence=torch.zeros(0))


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Representations(Claim):
    """Asserts: The private inputs had these features.

    Attributes:
        vectors: (B, D); B = 0 where none could be read.
    """

    card: ClassVar[Card] = Card(summary="the private inputs had these features")
    kind: ClassVar[str] = "representations"
    metrics: ClassVar[tuple[str, ...]] = ("leakage", "leakage_precision")
    may_be_empty: ClassVar[bool] = True

    vectors: Tensor


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class ClassRepresentatives(Claim):
    """Asserts: The client's examples of these classes look like this.

    Attributes:
        inputs: (B, C, H, W) in [0, 1].
        labels: (B,), the classes.
        source: (B,), the clients that hold examples of them.
    """

    card: ClassVar[Card] = Card(summary="a client's examples of these classes look like this")
    kind: ClassVar[str] = "class_representatives"
    metrics: ClassVar[tuple[str, ...]] = ("class_identification",)
    grows: ClassVar[bool] = True
    paired: ClassVar[Paired] = "classes"

    inputs: Tensor
    labels: Tensor
    source: Tensor


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Labels(Claim):
    """Asserts: The private batch held this many examples of each class.

    Attributes:
        counts: (K,) int64.
    """

    card: ClassVar[Card] = Card(summary="the private batch held so many of each class")
    kind: ClassVar[str] = "labels"
    metrics: ClassVar[tuple[str, ...]] = ("label_accuracy",)
    guessed: ClassVar[bool] = True

    counts: Tensor

    @property
    def says_nothing(self) -> bool:
        """No label is claimed."""
        return not bool(self.counts.any())

    @classmethod
    def silence(cls, about: About, terms: Terms) -> "Labels":
        return cls(about=about, counts=torch.zeros(terms.architecture.classes, dtype=torch.int64))


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class ClientScores(Claim):
    """Asserts: These clients have the property.

    Attributes:
        scores: (N,), higher is more likely.
        decisions: (N,) bool.
    """

    card: ClassVar[Card] = Card(summary="these clients have the property")
    kind: ClassVar[str] = "clients"
    metrics: ClassVar[tuple[str, ...]] = ("auc", "tpr_at_fpr")
    grows: ClassVar[bool] = True
    paired: ClassVar[Paired] = "clients"

    scores: Tensor
    decisions: Tensor

    @property
    def says_nothing(self) -> bool:
        """All clients get the same score and the same decision."""
        return max(len(torch.unique(self.scores)), len(torch.unique(self.decisions))) <= 1

    @classmethod
    def silence(cls, about: About, terms: Terms) -> "ClientScores":
        nothing = torch.zeros(terms.clients)
        return cls(about=about, scores=nothing, decisions=nothing.bool())


@final
@dataclass(frozen=True, kw_only=True)
class DefenseGuess(Claim):
    """Asserts: The client runs this defence.

    Attributes:
        name: of the defence; ``none`` and ``unknown`` are names too.
        parameters: of the defence.
    """

    card: ClassVar[Card] = Card(summary="the client runs this defence")
    kind: ClassVar[str] = "defense"
    metrics: ClassVar[tuple[str, ...]] = ("defense_named",)
    paired: ClassVar[Paired] = "defense"

    name: str
    parameters: Mapping[str, Value] = field(default_factory=dict)

    @property
    def says_nothing(self) -> bool:
        """The defence is said to be unknown."""
        return self.name == "unknown"

    @classmethod
    def silence(cls, about: About, terms: Terms) -> "DefenseGuess":
        del terms
        return cls(about=about, name="unknown")


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class PriorSamples(Claim):
    """Samples of the attack's prior, drawn without the update; they serve as a further null adversary.

    Attributes:
        inputs: (n, C, H, W) in [0, 1].
        labels: (n,).
    """

    card: ClassVar[Card] = Card(summary="samples of the attack's prior, a further null adversary")
    kind: ClassVar[str] = "prior_samples"
    scored: ClassVar[bool] = False

    inputs: Tensor
    labels: Tensor


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Appendix(Claim):
    """What an attack measured on its own data. Shown in the report; never scored.

    Attributes:
        name: of the content; figures select by it.
        tensors: by name.
        numbers: by name.
    """

    card: ClassVar[Card] = Card(summary="what an attack measured on its own data, only shown")
    kind: ClassVar[str] = "appendix"
    scored: ClassVar[bool] = False

    name: str
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)


def label_counts(labels: Tensor) -> Tensor:
    """Number of labels of each class up to the largest, (K,) int64.

    Examples:
        >>> label_counts(torch.tensor([0, 2, 2])).tolist()
        [1, 0, 2]
    """
    return torch.bincount(labels.long(), minlength=1)


def tensors_of(claim: Claim) -> dict[str, Tensor]:
    """Every tensor of a claim by field name; tensors in a mapping as ``field.key``."""
    tensors: dict[str, Tensor] = {}
    for f in fields(claim):
        value = getattr(claim, f.name)
        if isinstance(value, Tensor):
            tensors[f.name] = value
        elif isinstance(value, Mapping):
            tensors |= {f"{f.name}.{key}": item for key, item in value.items() if isinstance(item, Tensor)}
    return tensors


class Attack(Protocol):
    """A published attack: a frozen dataclass whose fields are its settings."""

    card: ClassVar[Card]

    @property
    def needs(self) -> Needs: ...

    @property
    def budget(self) -> Budget | None:
        """The length of the search; None: the attack is in closed form, one evaluation per call."""

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """Compute claims from the view alone.

        Raises:
            Inapplicable: the setting rules the attack out; becomes a refusal in the report.
        """


@runtime_checkable
class GenerativeAttack(Protocol):
    """An attack whose images come from a generator; the judge also measures the generator's best images."""

    @property
    def latent(self) -> int:
        """D, the size of a latent vector."""

    def prior(self, terms: Terms, auxiliary: Batch | None) -> Callable[[Tensor, Tensor], Tensor]:
        """The generator: latent vectors (N, D), N(0, 1) a priori, and labels (N,) → pixels (N, C, H, W)."""


@runtime_checkable
class ModelBound(Protocol):
    """An attack that supports only some models, and can check this from the architecture."""

    def check_model(self, architecture: Architecture) -> None:
        """Refuse unsupported models before anything is simulated.

        Raises:
            Inapplicable: the attack cannot run on models of this architecture.
        """


@runtime_checkable
class ActiveAttack(Protocol):
    """An attack that also alters the model that the server sends."""

    def craft(self, view: View, *, rng: Rng) -> Crafted | None:
        """The model to send in the coming round, given the server's view so far; None: the honest model.

        The view's last round holds the broadcast that the server would send, and no update yet.
        """
