"""Models that clients received: accuracy, training of crafted heads, and the guard's findings."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from glasshouse.attacks.base import Appendix
from glasshouse.attacks.transfer.maui.head import JUDGED
from glasshouse.cache import once
from glasshouse.figures.base import (
    CellEvidence,
    Federation,
    GuardDecision,
    Part,
)
from glasshouse.guard.inspect import Seen, inspect
from glasshouse.metrics.statistics.shares import proportion_interval
from glasshouse.models.build import build, state
from glasshouse.registry import Card
from glasshouse.results.exhibits import boxes, line, lines, table
from glasshouse.results.records import Exhibit


@final
@dataclass(frozen=True, kw_only=True)
class CraftedModels:
    """Public models and models sent by active attacks: accuracy, training of a head, guard statistics."""

    card: ClassVar[Card] = Card(summary="what clients received: accuracy, crafted heads, what a guard finds")
    reads: ClassVar[frozenset[type | Part]] = frozenset({Appendix, "public_model", "sent", "active"})

    def draw(self, cell: CellEvidence) -> Iterator[Exhibit]:
        yield from _accuracies(cell)
        for attack in cell.attacks:
            reports = [one for one in attack.of(Appendix) if one.name == "head"]
            if reports:
                yield _head(cell, attack.label, reports[0])
        yield from _guard(cell)


def _accuracies(cell: CellEvidence) -> Iterator[Exhibit]:
    rows: list[list[object]] = []
    public = next((one.public_model for one in cell.federations if one.public_model), None)
    if public:
        rows.append(_row("public model, natural images", public.natural, public.n))
        rows.append(_row("public model, PGD-10 within 4/255", public.robust, public.n_robust))
    sent = [(one.active, one.sent) for one in cell.federations if one.sent]
    rows += [_row(f"as sent by {active}", share.value, share.n) for active, share in sent]
    if rows:
        yield table(
            cell.place,
            "Accuracy of what clients received",
            "On held-out data, 95 % intervals. A client that tests the model sees these numbers too.",
            columns=["model", "accuracy", "low", "high", "n"],
            rows=rows,
        )


def _row(name: str, share: float, n: int) -> list[object]:
    interval = proportion_interval(round(share * n), n)
    return [name, interval.value, interval.low, interval.high, n]


def _head(cell: CellEvidence, label: str, report: Appendix) -> Exhibit:
    leakage, accuracy = (report.tensors[name].tolist() for name in ("leakage", "accuracy"))
    epochs, best = len(leakage) - 1, int(report.numbers["best"])
    x = [*range(1, epochs + 1)]
    last = f"as sent: leakage {leakage[-1]:.2f}, accuracy {accuracy[-1]:.2f}"
    choice = f"kept: epoch {best + 1}; " if best >= 0 else "not trained; "
    both = (("leakage", leakage), ("accuracy", accuracy))
    trained = [line(f"{name}, epochs", x, y[:-1]) for name, y in both if x]
    points = [line(f"{name}, as sent", [epochs + 1], y[-1:]) for name, y in both]
    return lines(
        cell.place,
        f"Making of the head: {label}",
        f"On the adversary's own held-out images; {choice}{last}. Epochs are compared on batches of "
        f"{JUDGED} (or all of these images, if fewer), the head as sent is measured on as many examples as "
        "it was made for: the two leakages are not of one batch size.",
        labels=("epoch", "share"),
        series=[*trained, *points],
    )


def _guard(cell: CellEvidence) -> Iterator[Exhibit]:
    """The guard's statistics of models sent by active attacks, with a random model for comparison."""
    inspected = _inspect_models(cell)
    if not inspected:
        return
    entropies = {name: one.entropies.tolist() for name, one in inspected.items() if len(one.entropies)}
    yield boxes(
        cell.place,
        "Entropy of the weight vectors received",
        "What 'glasshouse guard' computes: below 0.5 is a finding; in the honest models of Maui's "
        "authors no entropy is below 0.88.",
        label="normalised entropy (bins of 1e-6)",
        values=entropies,
    )
    rows: list[list[object]] = []
    for name, one in inspected.items():
        values, findings = one.inspection.values, one.inspection.findings
        first = findings[0] if findings else ""
        rows.append([name, values.get("minimum"), values.get("percentile_3"), len(findings), first])
    yield table(
        cell.place,
        "What a guard finds",
        "A client that inspects the model before it trains.",
        columns=["model", "minimum", "3rd percentile", "findings", "the first"],
        rows=rows,
    )


def _inspect_models(cell: CellEvidence) -> dict[str, Seen]:
    """The guard's inspections by model name, for the first federation of each active attack."""
    inspected: dict[str, Seen] = {}
    first = {one.active: one for one in reversed(cell.federations) if one.active and one.ran}
    for federation in (one for one in cell.federations if one is first.get(one.active)):
        transcript = federation.transcript()
        agreed = transcript.terms.architecture
        tensors = state(build(agreed))
        if not inspected:
            inspected["random weights"] = _inspect(tensors, tensors)
        broadcasts = [b for r in transcript.rounds if r.round in federation.attacked for b in r.broadcasts]
        if broadcasts:  # a model with another architecture than agreed is the crafted one
            crafted = max(broadcasts, key=lambda b: b.architecture != agreed)
            inspected[f"as sent by {federation.active}"] = _inspect(crafted.tensors, tensors)
    return inspected


def _inspect(tensors: Mapping[str, Tensor], agreed: Mapping[str, Tensor]) -> Seen:
    """The guard's inspection; cells of one seed receive the same models."""
    return once(["inspected", tensors, agreed], lambda: inspect(tensors, agreed=agreed))


@final
@dataclass(frozen=True, kw_only=True)
class ClientGuardFigure:
    """Suspicious models by round, and the outcomes of updates, as decided by the clients' guards."""

    card: ClassVar[Card] = Card(summary="what clients' guards refused, and when")
    reads: ClassVar[frozenset[Part]] = frozenset({"guard"})

    def draw(self, cell: CellEvidence) -> Iterator[Exhibit]:
        models = [row for one in cell.federations for row in _rows_of_models(one)]
        updates = [row for one in cell.federations for row in _rows_of_updates(one)]
        if models:
            yield table(
                cell.place,
                "Models that clients looked at",
                "At the guard's shipped limits, on each client's own examples. Trained before: answers that "
                "the server had from its clients before the first model was found odd.",
                columns=["server", "round", "looked", "found odd", "refused", "trained before", "a finding"],
                rows=models,
            )
        if updates:
            yield table(
                cell.place,
                "Updates that clients looked at",
                "By what became of them; the remedy that changes an update least is taken.",
                columns=["server", "outcome", "updates"],
                rows=updates,
            )


def _rows_of_models(one: Federation) -> Iterator[list[object]]:
    """One row per round with a suspicious model; one row for all other rounds."""
    decisions = [row for row in one.guard if row.about == "model"]
    suspicious = [row for row in decisions if row.findings]
    first = min((row.round for row in suspicious), default=None)
    before = sum(row.outcome != "refused" for row in decisions if first is None or row.round < first)
    server = one.active or "honest"
    for number in sorted({row.round for row in suspicious}):
        in_round = [row for row in decisions if row.round == number]
        first_finding = next(row.findings[0] for row in in_round if row.findings)
        yield [server, number, *_counts(in_round), before, first_finding]
    quiet = [row for row in decisions if row.round not in {r.round for r in suspicious}]
    if quiet:
        yield [server, "all others" if suspicious else "all", *_counts(quiet), before, ""]


def _counts(decisions: list[GuardDecision]) -> list[int]:
    return [
        len(decisions),
        sum(bool(r.findings) for r in decisions),
        sum(r.outcome == "refused" for r in decisions),
    ]


def _rows_of_updates(one: Federation) -> Iterator[list[object]]:
    outcomes = [row.outcome for row in one.guard if row.about == "update"]
    for outcome in dict.fromkeys(outcomes):
        yield [one.active or "honest", outcome, outcomes.count(outcome)]
