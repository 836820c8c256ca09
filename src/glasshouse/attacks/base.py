"""The interface of attacks, and the claims that they make.

Shape letters: B reconstructed examples, C channels, H and W pixels, K classes, D features, N clients.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import ClassVar, Literal, Protocol, final, runtime_checkable

import torch
from torch import Tensor

from glasshouse.attacks.budget import Budget
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
    "PriorSamples",
    "Reconstruction",
    "Representations",
    "Scope",
    "tensors_of",
]

Scope = Literal["update", "round", "run"]


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
        one_label: every example has one of K classes (``Task.one_label``).
        repeats: it repeats the clients' training, and has no power where a capture shows other terms.
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
    one_label: bool = False
    repeats: bool = False


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
        guessed_from_images: null adversaries guess it from auxiliary images.
        scored: False for claims that are only shown, or used by the judge.

    Attributes:
        about: the rounds, and one client or the whole cohort.
    """

    card: ClassVar[Card]
    kind: ClassVar[str]
    grows: ClassVar[bool] = False
    may_be_empty: ClassVar[bool] = False
    guessed_from_images: ClassVar[bool] = False
    scored: ClassVar[bool] = True

    about: About

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
    guessed_from_images: ClassVar[bool] = True
    may_be_empty: ClassVar[bool] = True

    inputs: Tensor
    labels: Tensor | None
    confidence: Tensor
    source: Tensor | None = None

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
    grows: ClassVar[bool] = True

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
    guessed_from_images: ClassVar[bool] = True

    counts: Tensor

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
    grows: ClassVar[bool] = True

    scores: Tensor
    decisions: Tensor

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

    name: str
    parameters: Mapping[str, Value] = field(default_factory=dict)

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
