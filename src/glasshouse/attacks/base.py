"""What an attack is, and what it may assert.

Shape letters: B reconstructed examples, C channels, H and W pixels, K classes, D features, N clients,
n rounds, H held-out shadow clients.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol, final, runtime_checkable

from torch import Tensor

from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.transcript.threat import Changes, Sees
from glasshouse.transcript.view import View
from glasshouse.wire import Architecture, Batch, Crafted, Terms, Value

Scope = Literal["update", "round", "run"]
PROBE = 3
"""Iterations of a search that is run only to be timed."""


@final
@dataclass(frozen=True, kw_only=True)
class Needs:
    """What an attack must be given; the harness refuses before it runs where this does not hold.

    Attributes:
        sees: kinds of messages, all of them.
        any_of: further kinds, of which one is enough: ``{"update", "aggregate"}`` for attacks that read a
            round's sum, whether the server is shown it or adds up the updates itself.
        changes: what the server must be allowed to alter.
        grants: side knowledge without which it cannot run. uses: further grants that it uses where given.
        scope: the harness calls once per update, per round, or once for the run.
        protocols: names of the protocols that it understands; by default those that exchange parameters.
    """

    sees: frozenset[Sees]
    scope: Scope
    any_of: frozenset[Sees] = frozenset()
    changes: frozenset[Changes] = frozenset()
    grants: frozenset[str] = frozenset()
    uses: frozenset[str] = frozenset()
    protocols: frozenset[str] = frozenset({"fedsgd", "fedavg", "transfer"})


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Piece:
    """A short piece of an attack's work, to be timed.

    Attributes:
        run: does it; what it returns is not used.
        times: how often the full budget is that piece.
    """

    run: Callable[[], object]
    times: float


Pieces = Callable[[Architecture, Mapping[str, Tensor], Tensor], tuple[Piece, ...]]
"""From the agreed model, its tensors and images (B, C, H, W): the pieces of what is done to these images.

Raises Inapplicable where the attack cannot run behind this model.
"""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Budget:
    """How long an attack searches, and how to time a short piece of it; ``glasshouse check`` reads it.

    Attributes:
        unit: what is counted, in the plural: ``iterations``, ``evaluations``.
        amount: how many in one search; 0: no search, only training beforehand.
        restarts: independent searches, of which the attack's own loss picks one.
        images: the amount is spent on each of at most so many images read from one update; 0: on each call.
        probe: arguments that make one call short enough to be timed; empty: calls are not timed.
        pieces: times the work on each image instead of a whole call; None: there is none.
        training: steps of training before the first call, which is done once and cached; 0: none.
        trained: what is trained by them, in words. Attacks that say the same share it.
        every_round: it is trained anew for every round's model.
    """

    unit: str
    amount: int
    restarts: int = 1
    images: int = 0
    probe: Mapping[str, Value] = field(default_factory=dict)
    pieces: Pieces | None = None
    training: int = 0
    trained: str = ""
    every_round: bool = False

    @property
    def units(self) -> int:
        """Units of work in one call, or on one image."""
        return self.amount * self.restarts


def search_budget(iterations: int, *, restarts: int = 1) -> Budget:
    """The budget of an attack whose argument ``iterations`` is the length of its search."""
    short = {"iterations": min(PROBE, iterations)}
    return Budget(unit="iterations", amount=iterations, restarts=restarts, probe=short)


@final
@dataclass(frozen=True, kw_only=True)
class About:
    """What a claim is about: rounds, and one client or (None) the cohort as a whole."""

    rounds: tuple[int, ...]
    client: int | None = None


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Reconstruction:
    """Asserts: These were private inputs. Inputs (B, C, H, W) in [0, 1]; labels (B,) or None.

    B = 0 where the attack could read nothing: that is scored, no claim at all is not.

    ``confidence``: (B,), any unit, higher is surer.

    ``source``: the client that the attack attributes each input to, (B,), -1 unknown; None: it does not say.
    """

    about: About
    inputs: Tensor
    labels: Tensor | None
    confidence: Tensor
    source: Tensor | None = None


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Representations:
    """Asserts: The private inputs had these features. Vectors (B, D); B = 0 where none could be read."""

    about: About
    vectors: Tensor


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class ClassRepresentatives:
    """Asserts: The client's examples of these classes look like this. Inputs (B, C, H, W)."""

    about: About
    inputs: Tensor
    labels: Tensor
    source: Tensor


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Labels:
    """Asserts: The private batch held so many of each class. Counts (K,) int64."""

    about: About
    counts: Tensor


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class ClientScores:
    """Asserts: These clients have the property. Scores (N,), higher is more likely; decisions (N,) bool."""

    about: About
    scores: Tensor
    decisions: Tensor


@final
@dataclass(frozen=True, kw_only=True)
class DefenseGuess:
    """Asserts: The client runs this defence. ``none`` and ``unknown`` are names too."""

    about: About
    name: str
    parameters: Mapping[str, Value] = field(default_factory=dict)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Draws:
    """Asserts nothing: What the attack's prior says of the labels alone. Inputs (n, C, H, W), labels (n,).

    Never scored as a claim: the judge uses them as a further null adversary.
    """

    about: About
    inputs: Tensor
    labels: Tensor


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class DetectorReport:
    """How an attack's own detectors did on its own shadow data, round by round: shown, never scored.

    ``accuracy``, ``overlap`` (of the two kinds' features, in [0, 1]) and ``norm`` (of the weights): (n,),
    one per
    round of ``about``; ``without`` and ``having``: features of held-out shadows of either kind, (n, H).
    """

    about: About
    accuracy: Tensor
    overlap: Tensor
    norm: Tensor
    without: Tensor
    having: Tensor


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class HeadReport:
    """How a crafted head came about, on the adversary's own held-out data: shown, never scored.

    ``leakage``, ``accuracy``: (E + 1,), shares in [0, 1] after each of E epochs of training; the last entry
    is the head as sent. ``best``: epoch that was kept, from 0; -1 where none was trained.
    """

    about: About
    leakage: Tensor
    accuracy: Tensor
    best: int


Claim = (
    Reconstruction
    | Representations
    | ClassRepresentatives
    | Labels
    | ClientScores
    | DefenseGuess
    | Draws
    | DetectorReport
    | HeadReport
)


class Attack(Protocol):
    """A published attack: a frozen dataclass whose fields are its settings."""

    card: ClassVar[Card]

    @property
    def needs(self) -> Needs: ...

    @property
    def budget(self) -> Budget | None:
        """How long it searches; None: a closed form, whose cost is one evaluation per call."""
        ...

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """Claims from the view alone.

        Raises:
            Inapplicable: the setting rules the attack out; becomes a refusal in the report.
        """
        ...


@runtime_checkable
class GenerativeAttack(Protocol):
    """Claims images of a generator: the judge can ask how well that generator could do at best."""

    @property
    def latent(self) -> int:
        """D, the size of a latent vector."""
        ...

    def prior(self, terms: Terms, auxiliary: Batch | None) -> Callable[[Tensor, Tensor], Tensor]:
        """The generator: latent vectors (N, D), N(0, 1) a priori, and labels (N,) → pixels (N, C, H, W)."""
        ...


@runtime_checkable
class ModelBound(Protocol):
    """An attack that cannot run on every model, and can tell from the architecture alone."""

    def check_model(self, architecture: Architecture) -> None:
        """Refuse before anything is simulated.

        Raises:
            Inapplicable: the attack cannot run on models of this architecture.
        """
        ...


@runtime_checkable
class ActiveAttack(Protocol):
    """An attack that also alters what the server sends."""

    def craft(self, view: View, *, rng: Rng) -> Crafted | None:
        """What to send in the coming round, given what the server saw so far; None: the honest model.

        The view's last round holds the broadcast that the server would send, and no update yet.
        """
        ...
