"""TAG: optimise vectors until their gradient matches the received one, then take the nearest tokens.

Source: Deng et al. 2021, "TAG: Gradient Attack on Transformer-based Language Models", Findings of EMNLP,
    arXiv:2103.06819, Algorithm 1: the L2 norm of the gradient difference plus a multiple of its L1 norm, by
    Adam from N(0, 1).

Where we differ: one weight of the L1 norm for all layers (theirs falls with depth), restarts, the best
    iterate instead of the last; lengths and classes are not given (``matching``).

Breaks when: a batch has more than a few sentences, or noise hides most of the gradient's entries.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, final

from glasshouse.attacks.base import About, Claim, Needs
from glasshouse.attacks.budget import Budget, search_budget
from glasshouse.attacks.objective import SearchedLoss
from glasshouse.attacks.parts.local_steps import LINEAR, SENTENCES, update_needs
from glasshouse.attacks.parts.search.adam import Descent, adam
from glasshouse.attacks.text.matching import Candidates, Matching, anywhere, match_gradient
from glasshouse.attacks.text.reading import SentenceAttack
from glasshouse.limits import NotNegative
from glasshouse.registry import Card, Offer
from glasshouse.rng import Rng
from glasshouse.transcript.view import View

SUBJECT = "attack 'tag'"


@final
@dataclass(frozen=True, kw_only=True)
class Tag(SentenceAttack):
    """Gradient matching of sentences, without a prior.

    Args:
        search: by Adam, in standard deviations of the token embeddings.
        weight: of the L1 norm, the paper's α.
    """

    card: ClassVar[Card] = Card(
        title="TAG",
        summary="sentences by matching gradients with vectors, then the nearest tokens",
        source="Deng et al. 2021, Findings of EMNLP, arXiv:2103.06819",
        claims=("sequences",),
        threat="server, sees single updates",
        control={
            "setting": "a small GPT that tells classes, one sentence, no defence",
            "scenario": {
                "data": {"source": "sentences", "task": "classification"},
                "model": {"name": "small_gpt", "width": 192},
            },
            "metric": "token_accuracy",
        },
        offers=(
            Offer(strength=0.01, settings={"search": {"iterations": 60}}, seconds=2),
            Offer(strength=0.02, seconds=5),
        ),
    )
    name: ClassVar[str] = "tag"
    needs: ClassVar[Needs] = update_needs(LINEAR, "auxiliary", "labels", modalities=SENTENCES, twice=True)

    search: Descent = field(default_factory=partial(Descent, restarts=1, learning_rate=0.3))
    weight: NotNegative = 0.01

    @property
    def budget(self) -> Budget:
        """Iterations of every restart."""
        return search_budget(self.search)

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """The sentences with the nearest gradient.

        Raises:
            Inapplicable: not exactly one update, or nothing but the token embeddings was sent.
        """
        matching = self._matching(view, rng)
        auxiliary = view.grants.auxiliary
        start = matching.draw(
            self.search.restarts,
            auxiliary=None if auxiliary is None else auxiliary.inputs,
            generator=rng.child("starts").torch(),
        )
        searched = adam(matching.loss(start.marks), start.points, self.search, onto=anywhere, rngs=[rng])
        best = searched.best()
        tokens = matching.tokens(Candidates(points=searched.points, marks=start.marks))
        return (matching.claim(tokens[best], loss=float(searched.losses[best])),)

    def objective(self, view: View, about: About, *, rng: Rng) -> SearchedLoss:
        """The distance of gradients."""
        del about  # a view of one update
        return self._matching(view, rng).searched_loss()

    def _matching(self, view: View, rng: Rng) -> Matching:
        return match_gradient(
            view, subject=SUBJECT, distance="l2_l1", weight=self.weight, rng=rng.child("labels")
        )
