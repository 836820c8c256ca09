"""Differencing: of two rounds that differ by one person, every sum's difference is that person.

Sums, counts per level and counts per label of two consecutive rounds are taken from each other
(:mod:`.differencing`). Where people only join, one more person is whoever joined, and the row is proved;
where people leave as well, one more may be two who came and one who went, and the row is a guess.

Source: Denning & Schlörer 1979, "The tracker", ACM TODS 4(1).

Breaks when: nobody joined, two or more did (only their sums are then known), or sums are rounded so far that
a value is not determined.
"""

from dataclasses import dataclass
from typing import ClassVar, Final, final

import torch

from glasshouse.attacks.base import About, Claim, Needs, Reconstruction
from glasshouse.attacks.parts.documents import ON_SITES, needs, table_in
from glasshouse.attacks.statistics.columns import STEP, Stated, one_row, stated, value_of
from glasshouse.attacks.statistics.stated_numbers import SITES
from glasshouse.attacks.tabular import Certainty, CertifiedRows, Fact, What, facts_of
from glasshouse.errors import BadFile, Inapplicable
from glasshouse.formats.base import read_document
from glasshouse.formats.carried import NAME, bytes_of
from glasshouse.formats.records import Statistics
from glasshouse.modalities.row import Row
from glasshouse.registry import Card, Offer
from glasshouse.rng import Rng
from glasshouse.transcript.view import View

SUBJECT: Final = "attack 'differencing'"


@final
@dataclass(frozen=True, kw_only=True)
class Differencing:
    """The person who joined. No iterations, no randomness, no prior."""

    card: ClassVar[Card] = Card(
        title="Differencing",
        summary="the row of a person who joined between two rounds of statistics",
        source="Denning & Schlörer 1979, ACM TODS 4(1)",
        claims=("certified_rows", "reconstruction", "facts"),
        threat="server, sees documents of several rounds",
        offers=(Offer(strength=1.0),),
        control={**ON_SITES, "metric": "people_read"},
    )
    needs: ClassVar[Needs] = needs(protocols=SITES, scope="run")
    budget: ClassVar[None] = None

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """The rows of those who joined alone, and facts where only some columns follow.

        Raises:
            Inapplicable: fewer than two rounds.
        """
        del rng
        table = table_in(view, subject=SUBJECT)
        if len(view.rounds) < 2:
            raise Inapplicable(
                SUBJECT,
                needs="two rounds",
                got=f"{len(view.rounds)}",
                fix="set federation.rounds = 2 and audit.rounds = [0, 1]",
            )
        grows = int(view.terms.options.get("leaves", 0)) == 0
        claims: list[Claim] = []
        for before, after in zip(view.rounds, view.rounds[1:], strict=False):
            for client in sorted(before.updates.keys() & after.updates.keys()):
                pair = [_stated(one.updates[client].tensors[NAME], table) for one in (before, after)]
                if None in (pair[0].count, pair[1].count):
                    continue
                about = About(rounds=(after.round,), client=client)
                claims += _of_one(pair[1].less(pair[0]), table, about, proved=grows)
        return tuple(claims)


def _stated(document: torch.Tensor, table: Row) -> Stated:
    try:
        record = read_document(bytes_of(document))[1]
    except BadFile:  # what one site sent wrongly says nothing; others are read
        return stated((), table)
    return stated(record.numbers if isinstance(record, Statistics) else (), table)


def _of_one(change: Stated, table: Row, about: About, *, proved: bool) -> list[Claim]:
    """What is known of the one person who joined; empty: nobody did, or several."""
    if change.count != 1:
        return []
    level = Certainty.PROVED if proved else Certainty.GUESSED
    facts = []
    for column, place in table.places():
        value = value_of(change, column)
        if value is None:
            continue
        entry, at = place.start, value
        # How exactly a value is known depends on its kind: a level is one, a number has the slack of its sum.
        if column.kind == "categorical":
            entry, at, error = place.start + int(value), 1.0, 0.5
        elif column.kind == "binary":
            error = 0.25
        else:
            span = column.high - column.low
            slack = 0.0 if column.kind == "integer" else change.sums[column.name][1]
            at, error = (value - column.low) / span, slack / span + STEP
        facts.append(Fact(what=What.OCCURS, column=entry, low=at - error, high=at + error, certainty=level))
    claims: list[Claim] = [facts_of(about, facts)]
    row = one_row(change, table)
    if row is not None:
        claims += _claimed(about, *row, proved=proved)
    return claims


def _claimed(about: About, row: torch.Tensor, label: int, *, proved: bool) -> list[Claim]:
    guess = Reconstruction(about=about, inputs=row, labels=torch.tensor([label]), confidence=torch.ones(1))
    return [guess, CertifiedRows.proved(about, row)] if proved else [guess]
