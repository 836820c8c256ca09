"""What a figure is, and the evidence of an audit that it may draw from.

Figures stand on the scoring side of the wall: they may look at the truth. Nothing that they draw reaches an
attack.

Shape letters: N images, C channels, H and W pixels.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeVar, final, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.metrics.base import Metric, ScoreContext
from glasshouse.registry import Card
from glasshouse.results.exhibits import Place
from glasshouse.results.records import Exhibit, Finding
from glasshouse.rng import Rng
from glasshouse.store import read_tensors
from glasshouse.transcript.files import read_transcript
from glasshouse.transcript.record import Transcript
from glasshouse.transcript.view import View
from glasshouse.truth.record import Truth
from glasshouse.wire import Batch

__all__ = [
    "AttackEvidence",
    "C",
    "CellEvidence",
    "Federation",
    "Figure",
    "GroupEvidence",
    "GuardDecision",
    "Part",
    "PartyAccuracy",
    "PluginSettings",
    "PublicModel",
    "RunFigure",
    "Share",
    "has_any",
    "pixels",
]

Part = Literal["active", "curve", "entropies", "guard", "parties", "public_model", "sent"]
"""A field of :class:`Federation` that not every federation has."""
C = TypeVar("C")  # a claim type


@final
@dataclass(frozen=True, kw_only=True)
class PluginSettings:
    """A plug-in with all of its arguments, defaults included."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@final
@dataclass(frozen=True, kw_only=True)
class Share:
    """``value`` of ``n`` held-out examples."""

    value: float
    n: int


@final
@dataclass(frozen=True, kw_only=True)
class PublicModel:
    """Accuracy of the model with which a federation began, as published: on ``n`` images, and under attack.

    Attributes:
        natural: share of ``n`` images.
        robust: share of ``n_robust`` images under PGD-10 within 4/255.
    """

    natural: float
    n: int
    robust: float
    n_robust: int


@final
@dataclass(frozen=True, kw_only=True)
class PartyAccuracy:
    """Mean accuracy of one kind of party (``who``) on one data set (``on``) after ``round`` uploads."""

    round: int
    who: str
    on: str
    accuracy: float


@final
@dataclass(frozen=True, kw_only=True)
class GuardDecision:
    """What one client's guard made of a model that it received, or of an update that it was to send.

    Attributes:
        round: of the federation.
        client: who looked.
        about: ``model`` or ``update``.
        findings: sentences; empty: nothing was found.
        outcome: what became of it, in words.
    """

    round: int
    client: int
    about: str
    findings: tuple[str, ...]
    outcome: str


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Federation:
    """One simulated federation of a cell: what is known of it, and its folder.

    Attributes:
        folder: holds ``transcript/``, ``adversary/`` and ``truth/``.
        active: label of the attack that altered what the server sent; empty: none did.
        ran: False where it could not be simulated; nothing else is known then.
        rounds: that were played.
        attacked: the rounds that attacks looked at.
        curve: (round, accuracy) of the global model on held-out data.
        accuracy: of the model at the end.
        sent: accuracy of the model that an active attack sent, where its architecture is the agreed one.
        public_model: what the federation began with.
        parties: of logit protocols, accuracy of every kind of party.
        entropies: of logit protocols, entropies of the last predictions, nats, by party and data set.
        guard: what the clients' guards decided, in order.
    """

    folder: Path
    active: str = ""
    ran: bool = True
    rounds: int = 0
    attacked: frozenset[int] = frozenset()
    curve: tuple[tuple[int, float], ...] = ()
    accuracy: float | None = None
    sent: Share | None = None
    public_model: PublicModel | None = None
    parties: tuple[PartyAccuracy, ...] = ()
    entropies: Mapping[str, Sequence[float]] = field(default_factory=dict)
    guard: tuple[GuardDecision, ...] = ()

    def transcript(self) -> Transcript:
        """What was sent; read from disk at every call. The run wrote it itself, so its model is trusted."""
        return read_transcript(self.folder / "transcript", trust_factory=True)

    def memory(self) -> Mapping[str, Tensor]:
        """The tensors that an active attack kept (``Crafted.memory``); empty without one."""
        path = self.folder / "adversary" / "memory.safetensors"
        return read_tensors(path) if path.is_file() else {}


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class GroupEvidence:
    """What one attack claimed in one federation, and the truth about it.

    Attributes:
        federation: where it happened.
        claims: of all units, in order.
        truth: the private examples.
        context: what metrics need.
        rng: for a figure's own draws; take a child of it under the figure's name.
        auxiliary: data of the null adversaries.
        prior_samples: what the attack's generator or prior shows without any update, where it filed that.
        null_scores: by a metric and its name, what the quoted null scores on each victim; None where the
            metric does not apply.
        view: by rounds and client, the adversary's view of them, with what it was granted.
        decode: tokens without marks as a sentence; None: the audit is one of images.
    """

    federation: Federation
    claims: tuple[Any, ...]
    truth: Truth
    context: ScoreContext
    rng: Rng
    auxiliary: Batch | None = None
    prior_samples: Batch | None = None
    null_scores: Callable[[str, Metric], tuple[NDArray[np.float64], ...] | None] | None = None
    view: Callable[[tuple[int, ...], int | None], View] | None = None
    decode: Callable[[Sequence[int]], str] | None = None

    def of(self, kind: type[C]) -> list[C]:
        """The claims of one type."""
        return [claim for claim in self.claims if isinstance(claim, kind)]

    def longest(self, kind: type[C]) -> list[C]:
        """The claims of one type that rest on the most rounds: those that are scored."""
        claims: list[Any] = self.of(kind)
        most = max((len(claim.about.rounds) for claim in claims), default=0)
        return [claim for claim in claims if len(claim.about.rounds) == most]

    def file(self, name: str) -> Path:
        """Where a figure files pictures; ``name`` must say whose they are."""
        plain = "".join(ch if ch.isalnum() or ch == "_" else "-" for ch in name)
        return self.federation.folder / "truth" / f"{plain}.npz"


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class AttackEvidence:
    """One attack in one cell.

    Attributes:
        key: its position and name, unique in the cell.
        label: its name in this run.
        settings: the registered name and all arguments.
        attack: the attack itself.
        groups: one per federation (seed) in which it ran.
        findings: what was measured, over all groups.
    """

    key: str
    label: str
    settings: PluginSettings
    attack: object
    groups: tuple[GroupEvidence, ...] = ()
    findings: tuple[Finding, ...] = ()

    def of(self, kind: type[C]) -> list[C]:
        """The claims of one type, of all groups."""
        return [claim for group in self.groups for claim in group.of(kind)]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class CellEvidence:
    """One cell of an audit: one setting of every axis, over all seeds.

    Attributes:
        place: scenario, axes and run directory; exhibits are made for it.
        defenses: those of the cell, in order.
        metrics: those of the scenario, by name.
        auxiliary_given: the attacks had the auxiliary data.
        attacks: in the order of the scenario.
        federations: in the order in which they were simulated.
    """

    place: Place
    defenses: tuple[PluginSettings, ...] = ()
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    auxiliary_given: bool = False
    attacks: tuple[AttackEvidence, ...] = ()
    federations: tuple[Federation, ...] = ()


@runtime_checkable
class Figure(Protocol):
    """Draws what one cell shows; registered in the entry-point group ``glasshouse.figures``.

    Class attributes:
        card: what ``glasshouse list figures`` says of it.
        reads: claim types, and parts of the record of a federation; the figure is asked to draw where a cell
            has at least one of them.
    """

    card: ClassVar[Card]
    reads: ClassVar[frozenset[type | Part]]

    def draw(self, cell: CellEvidence) -> Iterable[Exhibit]:
        """Exhibits of this cell, made with :mod:`glasshouse.results.exhibits`.

        What is raised, here or in :class:`RunFigure`, costs this figure alone: it becomes a line of the log.
        """
        ...


@runtime_checkable
class RunFigure(Protocol):
    """Draws what only all cells together show. Cells are read one by one, possibly by other processes.

    A figure whose charts merely continue from cell to cell needs no such thing: see ``Exhibit.join``.
    """

    card: ClassVar[Card]
    reads: ClassVar[frozenset[type | Part]]

    def collect(self, cell: CellEvidence) -> Iterable[Any]:
        """What the figure needs of one cell; plain data, which can be pickled."""
        ...

    def draw_run(self, collected: Sequence[Any]) -> Iterable[Exhibit]:
        """Exhibits of the run, from what was collected of its cells."""
        ...


def has_any(cell: CellEvidence, reads: Iterable[type | Part]) -> bool:
    """Whether the cell has a claim of one of these types, or a federation with one of these parts."""
    readings = list(reads)
    kinds = tuple(one for one in readings if isinstance(one, type))
    parts = [one for one in readings if isinstance(one, str)]
    claims = (c for attack in cell.attacks for group in attack.groups for c in group.claims)
    return any(isinstance(c, kinds) for c in claims) or any(
        bool(getattr(federation, part)) for federation in cell.federations for part in parts
    )


def pixels(images: Tensor) -> NDArray[np.float32]:
    """Images (N, C, H, W) as pictures of an exhibit, (N, H, W, C) in [0, 1]."""
    arrays: NDArray[np.float32] = images.permute(0, 2, 3, 1).clamp(0, 1).float().numpy()
    return arrays
