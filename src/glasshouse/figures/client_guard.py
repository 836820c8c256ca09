"""What clients' guards refused, when, and how much the server had received by then."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, final

from glasshouse.figures.base import CellEvidence, Federation, GuardDecision, Part
from glasshouse.registry import Card
from glasshouse.results.exhibits import table
from glasshouse.results.records import Exhibit

HONEST = "honest"


@final
@dataclass(frozen=True, kw_only=True)
class ClientGuardFigure:
    """Models that clients found odd, by round, and what became of their updates."""

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
    """A line for each round in which something was odd; one for all others."""
    looks = [row for row in one.guard if row.about == "model"]
    odd = [row for row in looks if row.findings]
    first = min((row.round for row in odd), default=None)
    before = sum(row.outcome != "refused" for row in looks if first is None or row.round < first)
    server = one.active or HONEST
    for number in sorted({row.round for row in odd}):
        some = [row for row in looks if row.round == number]
        yield [server, number, *_counts(some), before, next(row.findings[0] for row in some if row.findings)]
    quiet = [row for row in looks if row.round not in {r.round for r in odd}]
    if quiet:
        yield [server, "all others" if odd else "all", *_counts(quiet), before, ""]


def _counts(some: list[GuardDecision]) -> list[int]:
    return [len(some), sum(bool(r.findings) for r in some), sum(r.outcome == "refused" for r in some)]


def _rows_of_updates(one: Federation) -> Iterator[list[object]]:
    outcomes = [row.outcome for row in one.guard if row.about == "update"]
    for outcome in dict.fromkeys(outcomes):
        yield [one.active or HONEST, outcome, outcomes.count(outcome)]
