"""Shared code of the estimators: settings, evidence, prefixes of rounds, and the form of their claims.

Shape letters: n rounds, N clients, t features, P prefixes.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

from glasshouse.attacks.base import About, Appendix, Claim, ClientScores, Needs
from glasshouse.attacks.budget import Budget
from glasshouse.attacks.data_property import AsksDataProperty, DataProperty
from glasshouse.attacks.parts.local_steps import ANY
from glasshouse.attacks.property.evidence import Evidence, Method
from glasshouse.attacks.property.gathering import gather
from glasshouse.attacks.property.properties import Property
from glasshouse.cache import digest
from glasshouse.errors import BadValue
from glasshouse.limits import Count, check_ranges
from glasshouse.registry import Card, Offer, arguments, create, load
from glasshouse.rng import Rng
from glasshouse.transcript.view import View
from glasshouse.wire import Value

Settings = Mapping[str, Value]

CONTROL: Final[Mapping[str, Any]] = {
    "setting": "digits; 12 clients, 4 of which send the opposite of their update; 40 sums of 4",
    "metric": "auc",
    # What these clients do, whatever the audit looks for; only the longest prefix of rounds is judged.
    "fits": {"looks_for": "gradient_inversion", "settings": {}},
    "scenario": {
        "data": {"examples": 8, "auxiliary": 400},
        "model": {"name": "mlp", "hidden": 16},
        "federation": {
            "protocol": "fedavg",
            "clients": 12,
            "cohort": 0.34,
            "rounds": 40,
            "batch_size": 8,
            "secure_sum": True,
            "keep": {"rounds": "all"},
            "behaviours": [{"name": "gradient_inversion", "clients": 4}],
        },
    },
}
"""The easy setting in which every estimator must succeed."""


def sums_card(
    title: str, summary: str, *, strength: float, source: str = "Kerkouche et al. 2023, arXiv:2303.03908"
) -> Card:
    """The card of an estimator, offered for what the scenario's clients do, and for membership."""
    settings = {"method": {"pairs": 60}}
    return Card(
        title=title,
        summary=summary,
        source=source,
        claims=("clients",),
        threat="honest-but-curious server under secure aggregation",
        grants=("auxiliary",),
        control=CONTROL,
        offers=(
            Offer(strength=strength, settings=settings, fills={"looks_for": "federation.behaviours"}),
            Offer(strength=strength, settings=settings),
        ),
    )


@dataclass(frozen=True, kw_only=True)
class SumReader(ABC):
    """An adversary that sees broadcasts and sums of many rounds, and scores clients at prefixes of them.

    Subclasses implement ``judge``.

    Args:
        looks_for: name of the registered property.
        settings: arguments of the property.
        method: of the shadow clients and detectors; see ``evidence.Method``.
        every: rounds between the prefixes that are judged.
    """

    card: ClassVar[Card]
    name: ClassVar[str]

    looks_for: str = "membership"
    settings: Settings = field(default_factory=dict)
    method: Method = field(default_factory=Method)
    every: Count = 10

    @abstractmethod
    def judge(self, evidence: Evidence, lengths: tuple[int, ...], *, rng: Rng) -> tuple[Tensor, Tensor]:
        """Scores (P, N), higher for clients with the property, and decisions (P, N) bool, per prefix."""

    def search(self) -> tuple[str, int] | None:
        """Unit and length of the search, for estimators that search; None: closed form."""
        return None

    def __post_init__(self) -> None:
        check_ranges(self, f"attack '{self.name}'")
        accepted = arguments(load("properties", self.looks_for))
        if unknown := sorted(self.settings.keys() - accepted.keys()):
            raise BadValue(
                f"property '{self.looks_for}'",
                needs=f"settings among {', '.join(accepted) or 'none'}",
                got=", ".join(unknown),
                fix="correct attacks.settings",
            )

    @property
    def needs(self) -> Needs:
        linear = self.method.detector == "discriminant"
        return Needs(
            sees=frozenset({"broadcast", "aggregate"}),
            scope="run",
            optimizers=frozenset({"sgd", "schedule"}) if linear else ANY - {"personal"},
            repeats=True,
            grants=frozenset({"auxiliary"}) | self._property.grants,
        )

    @property
    def data_property(self) -> DataProperty | None:
        what = self._property
        return what.data_property if isinstance(what, AsksDataProperty) else None

    @property
    def _property(self) -> Property:
        what: Property = create(load("properties", self.looks_for), self.settings)
        return what

    @property
    def budget(self) -> Budget:
        """The estimator's own search, and the shadow clients of every round, which estimators share."""
        unit, amount = self.search() or ("evaluations", 0)
        return Budget(
            unit=unit,
            amount=amount,
            training=2 * self.method.pairs,
            trained="shadow clients",
            every_round=True,
            recipe={"looks_for": self.looks_for, "settings": dict(self.settings), **vars(self.method)},
        )

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """One claim per prefix, and the detectors' performance."""
        # A random stream of its own, salted with a digest of the sums: all estimators share the evidence.
        sums = digest([r.aggregate.tensors for r in view.rounds[:3] if r.aggregate is not None])
        own = Rng.root(self.method.seed, salt=sums).child("property-evidence")
        evidence = gather(view, self.looks_for, self.settings, method=self.method, rng=own)
        lengths = prefixes(len(evidence.rounds), self.every)
        scores, decisions = self.judge(evidence, lengths, rng=rng)
        claims = [
            ClientScores(about=About(rounds=evidence.rounds[:n]), scores=s.clone(), decisions=d.clone())
            for n, s, d in zip(lengths, scores, decisions, strict=True)
        ]
        heldout = evidence.heldout.sum(3)
        tensors = {
            "accuracy": evidence.accuracy,
            "overlap": evidence.overlap.mean(1),
            "norm": evidence.norm.square().sum(1).sqrt(),
            "without": heldout[:, 0].clone(),
            "having": heldout[:, 1].clone(),
        }
        return *claims, Appendix(about=About(rounds=evidence.rounds), name="detectors", tensors=tensors)


def prefixes(rounds: int, every: int) -> tuple[int, ...]:
    """Lengths of the prefixes to judge; the last covers all rounds.

    Examples:
        >>> prefixes(25, 10)
        (10, 20, 25)
    """
    return (*range(every, rounds, every), rounds)


def normal_equations(evidence: Evidence, lengths: Sequence[int], weights: Tensor) -> tuple[Tensor, Tensor]:
    """Aᵀ V A and Aᵀ V G of every prefix: (P, t, N, N) and (P, t, N), in one pass over the rounds.

    Args:
        evidence: A and G.
        lengths: of the prefixes.
        weights: V, (n, t).
    """
    a, g = evidence.participation, evidence.features
    clients, features = a.shape[1], g.shape[1]
    left = torch.zeros(features, clients, clients, dtype=torch.float64)
    right = torch.zeros(features, clients, dtype=torch.float64)
    lefts, rights, chosen_lengths = [], [], set(lengths)
    for r in range(max(lengths)):
        left += weights[r][:, None, None] * torch.outer(a[r], a[r])
        right += (weights[r] * g[r])[:, None] * a[r]
        if r + 1 in chosen_lengths:
            lefts.append(left.clone())
            rights.append(right.clone())
    return torch.stack(lefts), torch.stack(rights)
