"""Cuts are values: every threshold of a histogram tree occurs in the client's column, exactly.

XGBoost's ``hist`` cuts a column at values that occur: a threshold is the smallest value of the rows that go
right. LightGBM, scikit-learn and XGBoost's ``exact`` cut between values, so that their thresholds are bounds
and nothing is claimed.

Source: our own observation; the sketch is described in Chen & Guestrin 2016, arXiv:1603.02754, section 3.3.

Breaks when: an app tells the library to take a value for missing, and no split of the document shows it: of a
capture that does not exclude it nothing is proved.
"""

from dataclasses import dataclass
from typing import ClassVar, Final, final

import numpy as np

from glasshouse.attacks.base import Claim, Needs
from glasshouse.attacks.parts.documents import ON_CLINIC, as_certain, in_entries, needs, received
from glasshouse.attacks.tabular import Certainty, Fact, What, facts_of
from glasshouse.errors import Inapplicable
from glasshouse.formats.records import LEAF, TreeEnsemble
from glasshouse.modalities.base import Modality
from glasshouse.modalities.row import Row
from glasshouse.registry import Card, Offer
from glasshouse.rng import Rng
from glasshouse.transcript.view import View

SUBJECT: Final = "attack 'cut_values'"
ERROR: Final = 1e-6
"""Distance of an entry from a threshold at which they are the same number in float32."""


@final
@dataclass(frozen=True, kw_only=True)
class CutValues:
    """Values from thresholds. No iterations, no randomness, no prior."""

    card: ClassVar[Card] = Card(
        title="Cuts are values",
        summary="values that occur in the client's columns: the thresholds of its trees",
        source="our own; cuts as in Chen & Guestrin 2016, arXiv:1603.02754, section 3.3",
        claims=("facts",),
        threat="server, sees single documents",
        control={**ON_CLINIC, "metric": "facts"},
        offers=(Offer(strength=0.9),),
    )
    needs: ClassVar[Needs] = needs()
    budget: ClassVar[None] = None

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """One fact per column and threshold.

        Raises:
            Inapplicable: no trees, trees whose cuts are no values, or a document that holds others' trees.
        """
        del rng
        got = received(view, subject=SUBJECT)
        trees = got.document
        alone = got.first or view.terms.protocol == "xgb_bagging"
        if not isinstance(trees, TreeEnsemble) or not trees.exact_cuts or not alone:
            raise Inapplicable(
                SUBJECT,
                needs="one client's own trees, cut at values (XGBoost, hist)",
                got=f"a document {got.media}" + ("" if alone else " that holds other clients' trees"),
                fix="audit XGBoost's hist, in cyclic training in round 0",
            )
        trees = in_entries(trees, view, subject=SUBJECT)
        numbers = _numbers(view.terms.architecture.inputs)
        cuts = {
            (int(tree.feature[node]), float(tree.threshold[node]))
            for tree in trees.trees
            for node in np.flatnonzero(tree.feature != LEAF).tolist()
            if int(tree.feature[node]) in numbers
        }
        level = as_certain(view, Certainty.PROVED)
        facts = [
            Fact(what=What.OCCURS, column=column, low=cut - ERROR, high=cut + ERROR, certainty=level)
            for column, cut in sorted(cuts)
        ]
        return (facts_of(got.about, facts),)


def _numbers(inputs: Modality) -> frozenset[int]:
    """Entries that are numbers: that somebody has, or has not, a category is no news."""
    if not isinstance(inputs, Row):
        return frozenset()
    return frozenset(place.start for column, place in inputs.places() if column.numeric)
