"""Leaf algebra: how many rows of each label lie in every leaf of a client's first tree, exactly.

Source: the sums are those of Chen & Guestrin 2016, arXiv:1603.02754, equation 5; that they are whole
numbers in disguise before the first tree is our own derivation (:mod:`.algebra`). Tables that CatBoost keeps
beside its trees state further counts (:mod:`.category_tables`).

Breaks when: subsample < 1 or an L1 penalty (refused); trees on top of others' trees. Row weights and values
that are taken for missing ones may leave no trace: of a capture that does not exclude them nothing is proved.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Final, final

import numpy as np
import torch

from glasshouse.attacks.base import Claim, Labels, Needs
from glasshouse.attacks.parts.documents import ON_CLINIC, as_certain, first_trees, needs
from glasshouse.attacks.tabular import Certainty, Fact, What, facts_of, leaves_of
from glasshouse.attacks.trees.algebra import Configuration, check_total, count_rows
from glasshouse.attacks.trees.category_tables import counts_in
from glasshouse.registry import Card, Offer
from glasshouse.rng import Rng
from glasshouse.transcript.view import View

SUBJECT: Final = "attack 'leaf_algebra'"


@final
@dataclass(frozen=True, kw_only=True)
class LeafAlgebra:
    """Counts from sums. No iterations, no randomness, no prior."""

    card: ClassVar[Card] = Card(
        title="Leaf algebra",
        summary="rows per leaf and label of the first tree, exactly, from the sums in the file",
        source="our own; sums as in Chen & Guestrin 2016, arXiv:1603.02754",
        claims=("labels", "leaves", "facts"),
        threat="server, sees single documents",
        control={**ON_CLINIC, "metric": "leaves_exact"},
        offers=(Offer(strength=1.0),),
    )
    needs: ClassVar[Needs] = needs()
    budget: ClassVar[None] = None

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """Counts of labels, of rows per leaf, and as facts.

        Raises:
            Inapplicable: the sums are not those of all rows, or do not add up to the announced number.
        """
        del rng
        got, trees = first_trees(view, subject=SUBJECT)
        how = Configuration.of(view.terms.options, subject=SUBJECT, trees=trees)
        counted = count_rows(trees, how, subject=SUBJECT)
        check_total(counted, trees, announced=got.update.examples, subject=SUBJECT)
        total = counted.counts.sum(0)
        level = as_certain(view, Certainty.PROVED)
        certain = np.full_like(counted.counts, level)
        low, high = view.terms.architecture.inputs.range
        facts = [
            Fact(what=What.COUNT, value=float(total.sum())),
            Fact(what=What.COUNT, value=float(total[1]), label=1),
            *counts_in(trees.tables, view.terms.architecture.inputs, rows=int(total.sum())),
        ]
        return (
            Labels(about=got.about, counts=torch.from_numpy(total)),
            leaves_of(
                got.about, counted.sums.lower, counted.sums.upper, counted.counts, certain, within=(low, high)
            ),
            facts_of(got.about, [replace(fact, certainty=level) for fact in facts]),
        )
