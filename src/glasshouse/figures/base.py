"""The figure protocols, and the evidence of an audit that figures may use.

Figures belong to the scoring side: they may access the ground truth. Nothing that they compute reaches an
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
from glasshouse.transcript.files import read_memory, read_transcript
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
"""Names of fields of :class:`Federation` that may be empty."""
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
    """Natural and robust accuracy of a federation's public initial model.

    Attributes:
        natural: accuracy on ``n`` images.
        robust: accuracy on ``n_robust`` images under PGD-10 within 4/255.
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
    """Decision of one client's guard on a received model, or on an update before it is sent.

    Attributes:
        round: round of the federation.
        client: id of the client.
        about: ``model`` or ``update``.
        findings: findings in sentences; empty: none.
        outcome: what the client did with the model or update, in words.
    """

    round: int
    client: int
    about: str
    findings: tuple[str, ...]
    outcome: str


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Federation:
    """Records of one simulated federation of a cell, and its folder.

    Attributes:
        folder: holds ``transcript/``, ``adversary/`` and ``truth/``.
        active: label of the active attack that changed what the server sent; empty: none.
        ran: False if it could not be simulated; all other fields are then empty.
        rounds: number of rounds.
        attacked: the attacked rounds.
        curve: (round, accuracy) of the global model on held-out data.
        accuracy: accuracy of the final model.
        sent: accuracy of the model sent by an active attack, if it has the agreed architecture.
        public_model: the public initial model.
        parties: for logit protocols: accuracy of every kind of party.
        entropies: for logit protocols: entropies of the last predictions in nats, by party and data set.
        guard: decisions of the clients' guards, in order.
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
        """The transcript, read from disk at every call. The run wrote it itself, so its model is trusted."""
        return read_transcript(self.folder / "transcript", trust_factory=True)

    def memory(self) -> Mapping[str, Tensor]:
        """The tensors stored by an active attack (``Crafted.memory``); empty without one."""
        return read_memory(self.folder / "adversary")


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class GroupEvidence:
    """The claims of one attack in one federation, and the ground truth.

    Attributes:
        federation: the attacked federation.
        claims: claims about all units, in order.
        truth: the private examples.
        context: scoring context of the metrics.
        rng: random stream for figures; use a child with the figure's name.
        auxiliary: data of the null adversaries.
        prior_samples: samples of the attack's generator or prior without any update, if it stored them.
        further: images of every class by further null adversaries, by name.
        null_scores: (name, metric) → scores of the quoted null on each victim; None if the metric does not
            apply.
        view: (rounds, client) → the adversary's view of them, including its grants.
        decode: tokens without special tokens → sentence; None: an audit of images.
    """

    federation: Federation
    claims: tuple[Any, ...]
    truth: Truth
    context: ScoreContext
    rng: Rng
    auxiliary: Batch | None = None
    prior_samples: Batch | None = None
    further: Mapping[str, Batch] = field(default_factory=dict)
    null_scores: Callable[[str, Metric], tuple[NDArray[np.float64], ...] | None] | None = None
    view: Callable[[tuple[int, ...], int | None], View] | None = None
    decode: Callable[[Sequence[int]], str] | None = None

    def of(self, kind: type[C]) -> list[C]:
        """The claims of one type."""
        return [claim for claim in self.claims if isinstance(claim, kind)]

    def longest(self, kind: type[C]) -> list[C]:
        """The claims of one type based on the most rounds: those that are scored."""
        claims: list[Any] = self.of(kind)
        most = max((len(claim.about.rounds) for claim in claims), default=0)
        return [claim for claim in claims if len(claim.about.rounds) == most]

    def file(self, name: str) -> Path:
        """Path for a figure's images; ``name`` must identify their owner."""
        plain = "".join(ch if ch.isalnum() or ch == "_" else "-" for ch in name)
        return self.federation.folder / "truth" / f"{plain}.npz"


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class AttackEvidence:
    """One attack in one cell.

    Attributes:
        key: position and name, unique in the cell.
        label: name of the attack in this run.
        settings: registered name and all arguments.
        attack: the attack object.
        groups: one per federation (seed) in which it ran.
        findings: findings over all groups.
    """

    key: str
    label: str
    settings: PluginSettings
    attack: object
    groups: tuple[GroupEvidence, ...] = ()
    findings: tuple[Finding, ...] = ()

    def of(self, kind: type[C]) -> list[C]:
        """The claims of one type in all groups."""
        return [claim for group in self.groups for claim in group.of(kind)]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class CellEvidence:
    """One cell of an audit: one setting of every axis, over all seeds.

    Attributes:
        place: scenario, axes and run directory, to create exhibits with.
        defenses: defences of the cell, in order.
        metrics: metrics of the scenario, by name.
        auxiliary_given: whether the attacks had the auxiliary data.
        attacks: in the order of the scenario.
        federations: in the order of simulation.
    """

    place: Place
    defenses: tuple[PluginSettings, ...] = ()
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    auxiliary_given: bool = False
    attacks: tuple[AttackEvidence, ...] = ()
    federations: tuple[Federation, ...] = ()


@runtime_checkable
class Figure(Protocol):
    """Draws exhibits for one cell; registered in the entry-point group ``glasshouse.figures``.

    Class attributes:
        card: description for ``glasshouse list figures``.
        reads: claim types, and fields of :class:`Federation`; the figure is drawn for cells that have at
            least one of them.
    """

    card: ClassVar[Card]
    reads: ClassVar[frozenset[type | Part]]

    def draw(self, cell: CellEvidence) -> Iterable[Exhibit]:
        """Exhibits of this cell, created with :mod:`glasshouse.results.exhibits`.

        An exception, here or in :class:`RunFigure`, only affects this figure and is logged.
        """


@runtime_checkable
class RunFigure(Protocol):
    """Draws exhibits that need all cells of a run. Cells are read one by one, possibly in other processes.

    For charts that only need to be joined across cells, use ``Exhibit.join`` instead.
    """

    card: ClassVar[Card]
    reads: ClassVar[frozenset[type | Part]]

    def collect(self, cell: CellEvidence) -> Iterable[Any]:
        """The data that the figure needs from one cell; plain data that can be pickled."""

    def draw_run(self, collected: Sequence[Any]) -> Iterable[Exhibit]:
        """Exhibits of the run, from the data collected from its cells."""


def has_any(cell: CellEvidence, reads: frozenset[type | Part]) -> bool:
    """Whether the cell has a claim of one of these types, or a federation with one of these parts."""
    kinds = tuple(one for one in reads if isinstance(one, type))
    parts = [one for one in reads if isinstance(one, str)]
    claims = (c for attack in cell.attacks for group in attack.groups for c in group.claims)
    return any(isinstance(c, kinds) for c in claims) or any(
        bool(getattr(federation, part)) for federation in cell.federations for part in parts
    )


def pixels(images: Tensor) -> NDArray[np.float32]:
    """Images (N, C, H, W) in the format of an exhibit, (N, H, W, C) in [0, 1]."""
    arrays: NDArray[np.float32] = images.permute(0, 2, 3, 1).clamp(0, 1).float().numpy()
    return arrays
