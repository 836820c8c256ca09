"""Learning curves of a federation: accuracy over rounds, and the confidence gap of logit protocols."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, final

from glasshouse.figures.base import CellEvidence, Part
from glasshouse.registry import Card
from glasshouse.results.exhibits import Series, histogram, line, lines
from glasshouse.results.records import Exhibit


@final
@dataclass(frozen=True, kw_only=True)
class FederationFigure:
    """Accuracy per round, honest and under each active attack; entropies of the last predictions."""

    card: ClassVar[Card] = Card(summary="accuracy of the federation over its rounds")
    reads: ClassVar[frozenset[Part]] = frozenset({"curve", "parties", "entropies"})

    def draw(self, cell: CellEvidence) -> Iterator[Exhibit]:
        yield from _parties(cell)
        yield from _entropies(cell)
        yield from _global_model(cell)


def _parties(cell: CellEvidence) -> Iterator[Exhibit]:
    points: dict[str, tuple[list[int], list[float]]] = {}
    for row in (row for one in cell.federations[:1] for row in one.parties):
        x, y = points.setdefault(f"{row.who} on {row.on} data", ([], []))
        x.append(row.round)
        y.append(row.accuracy)
    if points:
        yield lines(
            cell.place,
            "Accuracy of the federation",
            "Upload 0 comes before the first round. Clients: mean over clients; first seed. "
            "Public images: of classes that the models know (dsfl: the private ones).",
            labels=("upload", "accuracy"),
            series=[line(name, x, y) for name, (x, y) in points.items()],
        )


def _entropies(cell: CellEvidence) -> Iterator[Exhibit]:
    values = next((one.entropies for one in cell.federations), {})
    if values:
        yield histogram(
            cell.place,
            "The confidence gap",
            "Entropy of the last predictions: clients are surer of private data than the server.",
            label="entropy of a prediction, nats",
            values=values,
        )


def _global_model(cell: CellEvidence) -> Iterator[Exhibit]:
    """Accuracy per round for the first seed; skipped for federations with a single round."""
    series: dict[str, Series] = {}
    for one in cell.federations:
        if len(one.curve) < 2 or one.accuracy is None:
            continue
        name = f"under {one.active}" if one.active else "global model"
        points = [*one.curve, (one.rounds, one.accuracy)]
        series.setdefault(name, line(name, [r for r, _ in points], [a for _, a in points]))
    if series:
        yield lines(
            cell.place,
            "Accuracy of the global model",
            "On held-out data, of what clients were sent in each round and of the model at the end; "
            "first seed. Under an attack the server sends another model in the rounds that it attacks.",
            labels=("rounds played", "accuracy"),
            series=list(series.values()),
        )
