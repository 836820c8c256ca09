"""DLG: optimise images and soft labels together until their gradient is the received one.

Source: Zhu, Liu & Han 2019, "Deep Leakage from Gradients", arXiv:1906.08935, Algorithm 1 and section 4.

Minimises the squared L2 distance of gradients, summed over all entries, by L-BFGS with unit steps.
Candidates start from N(0, 1) in the units that the model's first real layer sees, are not bounded on the
way, and are clipped into the declared image range at the end. The restarts run in one batch; the one with
the smallest distance is the claim.

Where we differ: several restarts (the paper shows one), and an early end when one has matched the gradient
or none gets better. An update after several local steps is read as one step.

Breaks when: the activations are not smooth (with ReLU the distance jumps), the weights are small
(PyTorch's default initialisation), the batch is large, or the update was made noisy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, final

from glasshouse.attacks.base import About, Claim, Needs
from glasshouse.attacks.budget import Budget, search_budget
from glasshouse.attacks.objective import SearchedLoss
from glasshouse.attacks.parts.local_steps import LINEAR
from glasshouse.attacks.parts.matching.distance import can_share
from glasshouse.attacks.parts.matching.exact import (
    QuasiNewton,
    claim_images,
    exact_distance,
    minimize_distance,
    searched_loss,
)
from glasshouse.attacks.parts.replica import replica
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.settings import move_into
from glasshouse.transcript.view import View


@final
@dataclass(frozen=True, kw_only=True)
class DLG:
    """Images and soft labels by L-BFGS on the squared distance of gradients.

    Args:
        search: by L-BFGS; the paper takes 300 iterations.
        adaptive: apply the transformation estimated from the update (clip, prune, Soteria) to candidates.
    """

    card: ClassVar[Card] = Card(
        title="DLG",
        summary="gradient matching by L-BFGS, labels searched too",
        source="Zhu et al. 2019, arXiv:1906.08935",
        claims=("reconstruction",),
        threat="server, sees single updates",
        control={
            "setting": "a LeNet with sigmoid and DLG's initialisation, digits, one example, no defence",
        },
        renamed=move_into("search", "restarts", "iterations", "goal"),
    )
    needs: ClassVar[Needs] = Needs(
        sees=frozenset({"broadcast", "update"}), scope="update", optimizers=LINEAR, repeats=True
    )
    shares: ClassVar[bool] = True

    search: QuasiNewton = field(default_factory=QuasiNewton)
    adaptive: bool = False

    @property
    def budget(self) -> Budget:
        """Iterations of every restart."""
        return search_budget(self.search)

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """One reconstruction of the B images behind the update, with the labels that came out.

        Raises:
            Inapplicable: the view does not hold exactly one update of parameters, or it is zero.
        """
        (claims,) = self.run_together((view,), rngs=(rng,))
        return claims

    def run_together(self, views: Sequence[View], *, rngs: Sequence[Rng]) -> tuple[tuple[Claim, ...], ...]:
        """What :meth:`run` claims of each view, by one search; see ``TogetherAttack``."""
        clients = [replica(view, subject="attack 'dlg'") for view in views]
        if not can_share(clients, "one_step"):
            return ()
        distance = exact_distance(clients, adaptive=self.adaptive, rngs=rngs)
        matches = minimize_distance(clients, distance, self.search, labels=None, rngs=rngs)
        claims = []
        for client, match in zip(clients, matches, strict=True):
            assert match.scores is not None  # labels were searched
            claims.append((claim_images(client, match.inputs, match.scores.argmax(1), loss=match.loss),))
        return tuple(claims)

    def objective(self, view: View, about: About, *, rng: Rng) -> SearchedLoss:
        """The squared distance of gradients."""
        del about  # a view of one update
        client = replica(view, subject="attack 'dlg'")
        distance = exact_distance([client], adaptive=self.adaptive, rngs=[rng])
        return searched_loss(distance, goal=self.search.goal)
