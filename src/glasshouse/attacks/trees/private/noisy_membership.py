"""Noisy membership: who holds a known row, from the noisy leaf sums of private trees.

The adaptive attack on ``dp_bagging``, whose noise it is told by the terms. A client that holds the row has
its g and h in one leaf of every tree. What all other rows add there is what as many public rows would, with
the deviation of such a sum beside that of the noise; the score is the log-likelihood ratio of the leaf sums
with and without the row, all trees together.

Source: own; a matched filter. Where the other rows are known as well, their part has no deviation, and the
score is the likelihood ratio itself, than which no test is better (Neyman & Pearson).

Breaks when: trees stand on top of others' trees.
"""

from dataclasses import dataclass
from typing import ClassVar, Final, final

import numpy as np

from glasshouse.attacks.base import Claim, Needs
from glasshouse.attacks.trees.algebra import Floats
from glasshouse.attacks.trees.known_row import half_hold_it, needs_row, score_clients
from glasshouse.attacks.trees.private.noise import Noise, noise_of
from glasshouse.examples import Batch
from glasshouse.formats.records import TreeEnsemble
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.transcript.view import View
from glasshouse.wire import Update

SUBJECT: Final = "attack 'noisy_membership'"
NOBODY: Final = -1e9
"""The score of a client that sent nothing."""


@final
@dataclass(frozen=True, kw_only=True)
class NoisyMembership:
    """Score clients by the likelihood ratio of their leaf sums. No settings, no randomness."""

    card: ClassVar[Card] = Card(
        title="Noisy membership",
        summary="who holds a known row, by the likelihood of the noisy leaf sums of private trees",
        source="our own",
        claims=("clients",),
        threat="server, sees single documents, knows a row and the noise",
        control=half_hold_it(
            "twenty trees with hardly any noise",
            "dp_bagging",
            {"trees": 20, "max_depth": 6, "noise_multiplier": 0.05},
        ),
    )
    needs: ClassVar[Needs] = needs_row(frozenset({"dp_bagging"}))
    budget: ClassVar[None] = None

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """One claim about the first round.

        Raises:
            Inapplicable: a client's document is no trees boosted from nothing.
        """
        del rng  # deterministic
        challenge, public = view.grants.challenge, view.grants.auxiliary
        assert challenge is not None  # needs.grants
        assert public is not None
        noise = noise_of(view.terms)

        def score(trees: TreeEnsemble, update: Update) -> float:
            others = expected(trees, noise, public, rows=update.examples - 1)
            return likelihood_ratio(trees, noise, challenge, others)

        return (score_clients(view, score, nobody=NOBODY, subject=SUBJECT),)


Sums2 = list[tuple[Floats, Floats]]
"""For each tree: means of G and H of every leaf, (2, L), and their variances, (2, L)."""


def expected(trees: TreeEnsemble, noise: Noise, public: Batch, *, rows: int) -> Sums2:
    """What so many rows like public ones add to every leaf."""
    inputs, labels = _arrays(public)
    found = []
    for t, (at, *parts) in enumerate(noise.shares(trees, inputs, labels)):
        size = len(trees.boxes(t)[0])
        means, squares = (
            np.stack([np.bincount(at, part**power, minlength=size) for part in parts]) / len(inputs)
            for power in (1, 2)
        )
        found.append((rows * means, rows * np.maximum(squares - means**2, 0)))
    return found


def exactly(trees: TreeEnsemble, noise: Noise, known: Batch) -> Sums2:
    """What these rows add to every leaf."""
    one = expected(trees, noise, known, rows=len(known))
    return [(means, np.zeros_like(means)) for means, _ in one]


def likelihood_ratio(trees: TreeEnsemble, noise: Noise, row: Batch, others: Sums2) -> float:
    """Log of how much likelier the leaf sums are with the row than without it."""
    total = 0.0
    spreads = np.array([noise.gradient, noise.hessian]) ** 2
    for t, (at, *parts) in enumerate(noise.shares(trees, *_arrays(row))):
        sums, (means, variances) = noise.sums(trees, t), others[t]
        for part, told, mean, variance, own in zip(
            parts, (sums.gradient, sums.hessian), means, variances, spreads, strict=True
        ):
            leaf, moved = at[0], part[0]
            total += moved * (told[leaf] - mean[leaf] - moved / 2) / (variance[leaf] + own)
    return float(total)


def _arrays(batch: Batch) -> tuple[Floats, Floats]:
    return batch.inputs.cpu().double().numpy(), batch.labels.cpu().double().numpy()
