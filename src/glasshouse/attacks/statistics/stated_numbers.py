"""Stated numbers: what a site's statistics say outright, as facts about its rows.

Counts per level and bin are counts of people, a minimum or maximum is one person's value, and of one person
the sums are the row. Nothing is solved here: numbers in clear are messages, and this scores them like any.

Source: what each number is, is the definition of the statistic; the list is NVIDIA FLARE's and Flower's.

Breaks when: a filter changed the numbers (minimum and maximum are then left out), or a column has missing
values.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, final

from glasshouse.attacks.base import Claim, Needs
from glasshouse.attacks.parts.documents import ON_SITE, needs, received, table_in
from glasshouse.attacks.statistics.columns import STEP, one_row, stated
from glasshouse.attacks.statistics.differencing import positives_of_auc, two_values
from glasshouse.attacks.tabular import Certainty, CertifiedRows, Fact, What, facts_of
from glasshouse.errors import Inapplicable
from glasshouse.formats.records import Statistic, Statistics
from glasshouse.modalities.row import Column
from glasshouse.registry import Card, Offer
from glasshouse.rng import Rng
from glasshouse.transcript.view import View

SUBJECT: Final = "attack 'stated_numbers'"
SITES: Final = frozenset({"statistics"})


@final
@dataclass(frozen=True, kw_only=True)
class StatedNumbers:
    """Facts from statistics. No iterations, no randomness, no prior."""

    card: ClassVar[Card] = Card(
        title="Stated numbers",
        summary="counts, values and sums that a site's statistics state, and the row of a site of one person",
        source="definitions of the statistics",
        claims=("facts", "certified_rows"),
        threat="server, sees single documents",
        offers=(Offer(strength=1.0),),
        control={**ON_SITE, "metric": "facts"},
    )
    needs: ClassVar[Needs] = needs(protocols=SITES)
    budget: ClassVar[None] = None

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """One fact per number; with one person, the row.

        Raises:
            Inapplicable: the document holds no statistics.
        """
        del rng
        got, table = received(view, subject=SUBJECT), table_in(view, subject=SUBJECT)
        if not isinstance(got.document, Statistics):
            raise Inapplicable(
                SUBJECT, needs="statistics", got=f"a document {got.media}", fix="audit protocol statistics"
            )
        numbers = got.document.numbers
        said = stated(numbers, table)
        filtered = bool(view.terms.options.get("filters", False))
        # Whatever is stated is a fact; what follows from several numbers together comes after.
        facts = [Fact(what=What.COUNT, value=float(said.count))] if said.count is not None else []
        facts += [Fact(what=What.COUNT, value=float(n), label=k) for k, n in sorted(said.labels.items())]
        places = list(table.places())
        for column, place in places:
            own = [n for n in numbers if n.column == column.name]
            facts += _of_column(column, place.start, own, said.count, filtered=filtered)
            if column.name in said.sums and said.count is not None:
                facts.append(_sum(column, place.start, *said.sums[column.name], said.count))
        facts += _of_auc(numbers, said.count)
        claims: list[Claim] = [facts_of(got.about, facts)]
        # Sums over one person are that person.
        if (row := one_row(said, table)) is not None:
            claims.append(CertifiedRows.proved(got.about, row[0]))
        return tuple(claims)


def _of_column(
    column: Column, entry: int, numbers: list[Statistic], count: int | None, *, filtered: bool
) -> Iterator[Fact]:
    """Counts of levels and bins, and values that occur."""
    span = column.high - column.low
    last = max((n.high for n in numbers if n.name == "bin"), default=column.high)
    for n in numbers:
        if n.name == "count" and n.subset in column.levels:
            code = column.levels.index(n.subset)
            if column.kind == "categorical":
                yield Fact(what=What.COUNT, value=n.value, column=entry + code, low=0.5, high=1.0)
            elif not column.missing:
                ends = (0.5, 1.0) if code else (0.0, 0.5)
                yield Fact(what=What.COUNT, value=n.value, column=entry, low=ends[0], high=ends[1])
        elif n.name == "bin" and column.numeric and not column.missing and not n.subset:
            # A bin holds its lower end, and the last one its upper end, too; an entry in float32 a hair below
            # an end is the end itself.
            low, high = (n.low - column.low) / span, (n.high - column.low) / span
            top = high + STEP if n.high == last else high - 2.5e-7
            yield Fact(what=What.COUNT, value=n.value, column=entry, low=low - 0.5e-7, high=top)
        elif n.name in ("minimum", "maximum") and column.numeric and not filtered:
            at, error = (n.value - column.low) / span, n.slack / span + STEP
            yield Fact(what=What.OCCURS, column=entry, low=at - error, high=at + error)
    if count == 2 and column.numeric and not column.missing:
        yield from _both(column, entry, numbers)


def _both(column: Column, entry: int, numbers: list[Statistic]) -> Iterator[Fact]:
    """The two values behind a sum and a sum of squares that were not rounded."""
    exact = {n.name: n.value for n in numbers if n.name in ("sum", "sum_squares") and n.digits is None}
    if len(exact) < 2:
        return
    span = column.high - column.low
    for value in two_values(exact["sum"], exact["sum_squares"]):
        at = (value - column.low) / span
        yield Fact(what=What.OCCURS, column=entry, low=at - 1e-5, high=at + 1e-5)


def _sum(column: Column, entry: int, total: float, error: float, count: int) -> Fact:
    span = column.high - column.low
    value = (total - count * column.low) / span
    return Fact(what=What.SUM, value=value, column=entry, error=error / span + count * STEP)


def _of_auc(numbers: tuple[Statistic, ...], count: int | None) -> Iterator[Fact]:
    """The number of positives, where an AUC allows only one."""
    for n in numbers:
        if n.name == "auc" and count is not None and n.digits is None:
            possible = positives_of_auc(n.value, count)
            if len(possible) == 1:
                yield Fact(what=What.COUNT, value=float(possible[0]), label=1, certainty=Certainty.UNIQUE)
