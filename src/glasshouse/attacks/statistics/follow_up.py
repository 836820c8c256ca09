"""Follow-up: patients from survival data: read where they are stated, counted where a curve allows them.

Raw times and tables are read: so many patients died, or were lost, at each time. A curve is solved by
:mod:`.kaplan_meier`: what every data set that fits has in common is claimed as unique, and every fall is a
death for certain.

Source: Kaplan & Meier 1958; see :mod:`.kaplan_meier`.

Breaks when: a curve is rounded so far that data sets differ everywhere; only times of death remain. From some
millions of states on ranges are those of a coarser count: they hold the patients, and may be too wide.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, final

from glasshouse.attacks.base import Claim, Needs
from glasshouse.attacks.parts.documents import ON_COHORT, needs, received, table_in
from glasshouse.attacks.statistics.kaplan_meier import count_chains
from glasshouse.attacks.tabular import Certainty, Fact, What, facts_of
from glasshouse.errors import Inapplicable
from glasshouse.formats.records import Survival
from glasshouse.registry import Card, Offer
from glasshouse.rng import Rng
from glasshouse.transcript.view import View

SUBJECT: Final = "attack 'follow_up'"
DIED: Final = 1
"""The label of an event; 0 is somebody lost from sight."""


@final
@dataclass(frozen=True, kw_only=True)
class FollowUp:
    """Patients by time and event. No iterations, no randomness, no prior."""

    card: ClassVar[Card] = Card(
        title="Follow-up",
        summary="deaths and losses at each time, from raw times, a table or a curve of known n",
        source="Kaplan & Meier 1958; Guyot et al. 2012, BMC Med. Res. Methodol. 12:9",
        claims=("facts",),
        threat="server, or whoever reads the curve",
        offers=(Offer(strength=1.0),),
        control={**ON_COHORT, "metric": "facts"},
    )
    needs: ClassVar[Needs] = needs(protocols=frozenset({"survival"}))
    budget: ClassVar[None] = None

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """One fact per time and outcome.

        Raises:
            Inapplicable: no survival data, no column of times, or times between its numbers.
        """
        del rng
        got, table = received(view, subject=SUBJECT), table_in(view, subject=SUBJECT)
        name = str(view.terms.options.get("column", "time"))
        found = [(c, place) for c, place in table.places() if c.name == name and c.kind == "integer"]
        if not isinstance(got.document, Survival) or not found:
            raise Inapplicable(
                SUBJECT,
                needs="survival data, and a column of whole numbers that holds the times",
                got=f"a document {got.media}, column '{name}'",
                fix="audit protocol survival, and name the column in federation.options",
            )
        column, place = found[0]
        axis = Axis(
            entry=place.start, low=column.low, span=column.high - column.low,
            unit=float(view.terms.options.get("unit", 1)),
        )  # fmt: skip
        stated = got.document
        if (stated.times % axis.unit).any():
            raise Inapplicable(
                SUBJECT,
                needs=f"times that are multiples of {axis.unit:g}, so that each has an interval of its own",
                got="times between them",
                fix="state the column in a smaller unit",
            )
        facts = list(_of_curve(stated, axis) if stated.curve is not None else _of_table(stated, axis))
        whole = Fact(what=What.COUNT, value=float(stated.patients))
        return (facts_of(got.about, [whole, *facts]),)


@final
@dataclass(frozen=True, kw_only=True)
class Axis:
    """The column of times, and how times were rounded up."""

    entry: int
    low: float
    span: float
    unit: float

    def fact(self, what: What, time: float, **rest: object) -> Fact:
        """About the rows whose time was rounded up to ``time``."""
        ends = [(t + 0.5 - self.low) / self.span for t in (time - self.unit, time)]
        return Fact(what=what, column=self.entry, low=ends[0], high=ends[1], **rest)  # type: ignore[arg-type]  # by name


def _of_table(table: Survival, axis: Axis) -> Iterator[Fact]:
    assert table.events is not None
    assert table.censored is not None
    for time, died, lost in zip(table.times.tolist(), table.events, table.censored, strict=True):
        for label, count in ((DIED, died), (0, lost)):
            if count:
                yield axis.fact(What.COUNT, time, value=float(count), label=label)


def _of_curve(curve: Survival, axis: Axis) -> Iterator[Fact]:
    """Deaths that all data sets agree on, numbers at risk likewise, and the times of deaths."""
    chains = count_chains(curve)
    for time, deaths, at_risk in zip(chains.times, chains.deaths, chains.at_risk, strict=True):
        yield axis.fact(What.OCCURS, time, label=DIED)
        if deaths[0] == deaths[1]:
            yield axis.fact(What.COUNT, time, value=float(deaths[0]), label=DIED, certainty=Certainty.UNIQUE)
        if at_risk[0] == at_risk[1]:
            start = (time - axis.unit + 0.5 - axis.low) / axis.span
            yield Fact(
                what=What.COUNT, value=float(at_risk[0]), column=axis.entry, low=start, high=2.0,
                certainty=Certainty.UNIQUE,
            )  # fmt: skip
