"""Attacks that score clients: F1 over rounds, feature distributions, quality of the detectors."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, final

import numpy as np
from numpy.typing import NDArray

from glasshouse.attacks.base import Appendix, ClientScores
from glasshouse.errors import Undefined
from glasshouse.figures.base import AttackEvidence, CellEvidence
from glasshouse.metrics.membership import f1
from glasshouse.registry import Card
from glasshouse.results.exhibits import Place, Series, histogram, line, lines
from glasshouse.results.records import Exhibit

SHOWN_ROUNDS: Final = 3
Scored = tuple[NDArray[np.float64], NDArray[np.bool_]]
"""Decisions about clients, and the ground truth."""


@final
@dataclass(frozen=True, kw_only=True)
class ClientScoresFigure:
    """F1 of every attack over rounds, with a random guess at the prior rate; detectors on shadow clients."""

    card: ClassVar[Card] = Card(summary="attacks on clients: F1 against rounds, and their detectors")
    reads: ClassVar[frozenset[type]] = frozenset({ClientScores})

    def draw(self, cell: CellEvidence) -> Iterator[Exhibit]:
        curves = [curve for attack in cell.attacks if (curve := _f1_line(attack))]
        if not curves:
            return
        prior = _prior(cell)
        rounds = [x for curve in curves for x in curve["x"]]
        ends = [min(rounds), max(rounds)]
        yield lines(
            cell.place,
            "F1 against rounds",
            "All clients of all seeds together; bands are 95 % intervals.",
            labels=("rounds", "F1"),
            series=[*curves, line("coin with the known prior", ends, [prior, prior], null=True)],
        )
        reports = [one for a in cell.attacks for one in a.of(Appendix) if one.name == "detectors"]
        if reports:
            yield from _detector(cell.place, reports[0])


def _f1_line(attack: AttackEvidence) -> Series | None:
    parts: dict[int, list[Scored]] = {}
    for group in attack.groups:
        for claim in group.of(ClientScores):
            truth = group.truth.with_property(len(claim.scores))
            parts.setdefault(len(claim.about.rounds), []).append((claim.decisions.double().numpy(), truth))
    x, values = [], []
    for rounds in sorted(parts):
        runs = np.repeat(np.arange(len(parts[rounds])), [len(t) for _, t in parts[rounds]])
        decisions, truth = (np.concatenate([p[i] for p in parts[rounds]]) for i in (0, 1))
        try:
            values.append(f1(decisions, truth.astype(bool), runs=runs))
        except Undefined:
            continue  # no positives, or no positive decisions: F1 is undefined
        x.append(rounds)
    if len(x) < 2:
        return None
    band = [f.low for f in values], [f.high for f in values]
    return line(attack.label, x, [f.value for f in values], band=band)


def _prior(cell: CellEvidence) -> float:
    """Mean share of clients with the property, over claims."""
    shares = [
        group.truth.with_property(len(claim.scores)).mean()
        for attack in cell.attacks
        for group in attack.groups
        for claim in group.of(ClientScores)
    ]
    return float(np.mean(shares))


def _detector(place: Place, report: Appendix) -> Iterator[Exhibit]:
    rounds = list(report.about.rounds)
    peak = float(report.tensors["norm"].max()) or 1.0
    curves = {
        "accuracy": report.tensors["accuracy"],
        "overlap": report.tensors["overlap"],
        f"norm of the weights ÷ {peak:.3g}": report.tensors["norm"] / peak,
    }
    yield lines(
        place,
        "Detectors of the adversary",
        "On shadow clients that no detector was trained on, first seed.",
        labels=("round", "share"),
        series=[line(name, rounds, values.tolist()) for name, values in curves.items()],
    )
    for at in np.unique(np.linspace(0, len(rounds) - 1, SHOWN_ROUNDS).astype(int)):
        yield histogram(
            place,
            f"Features in round {rounds[at]}",
            f"Held-out shadow clients, first seed; overlap {float(report.tensors['overlap'][at]):.2f}.",
            label="linear feature of an update",
            values={
                "without the property": report.tensors["without"][at].tolist(),
                "with the property": report.tensors["having"][at].tolist(),
            },
        )
