"""iDLG: read the label off the gradient first, then match by images alone.

Source: Zhao, Mopuri & Bilen 2020, "iDLG: Improved Deep Leakage from Gradients", arXiv:2001.02610.

As ``dlg``, with labels from the last layer's gradient (the sign rule for one image, counts for a batch;
the paper covers one image). Granted labels are used instead where there are any.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, final

from glasshouse.attacks.base import About, Claim, Needs
from glasshouse.attacks.budget import Budget, search_budget
from glasshouse.attacks.objective import SearchedLoss
from glasshouse.attacks.parts.labels import labels_of_each
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
class IDLG:
    """Images by L-BFGS on the squared distance of gradients; labels inferred.

    Args:
        search: as in ``DLG``.
        adaptive: as in ``DLG``.
    """

    card: ClassVar[Card] = Card(
        title="iDLG",
        summary="gradient matching by L-BFGS, labels inferred first",
        source="Zhao et al. 2020, arXiv:2001.02610",
        claims=("reconstruction",),
        threat="server, sees single updates",
        control={
            "setting": "a LeNet with sigmoid and DLG's initialisation, digits, one example, no defence",
        },
        renamed=move_into("search", "restarts", "iterations", "goal"),
    )
    needs: ClassVar[Needs] = Needs(
        sees=frozenset({"broadcast", "update"}),
        scope="update",
        optimizers=LINEAR,
        repeats=True,
        uses=frozenset({"labels"}),
    )
    shares: ClassVar[bool] = True

    search: QuasiNewton = field(default_factory=QuasiNewton)
    adaptive: bool = False

    @property
    def budget(self) -> Budget:
        """Iterations of every restart."""
        return search_budget(self.search)

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """One reconstruction of the B images behind the update, with the inferred labels.

        Raises:
            Inapplicable: the view does not hold exactly one update of parameters, or it is zero.
        """
        (claims,) = self.run_together((view,), rngs=(rng,))
        return claims

    def run_together(self, views: Sequence[View], *, rngs: Sequence[Rng]) -> tuple[tuple[Claim, ...], ...]:
        """What :meth:`run` claims of each view, by one search; see ``TogetherAttack``."""
        clients = [replica(view, subject="attack 'idlg'") for view in views]
        if not can_share(clients, "one_step"):
            return ()
        labels = labels_of_each(views, clients, rngs=rngs)
        distance = exact_distance(clients, adaptive=self.adaptive, rngs=rngs)
        matches = minimize_distance(clients, distance, self.search, labels=labels, rngs=rngs)
        results = zip(clients, matches, labels, strict=True)
        return tuple((claim_images(client, m.inputs, y, loss=m.loss),) for client, m, y in results)

    def objective(self, view: View, about: About, *, rng: Rng) -> SearchedLoss:
        """The squared distance of gradients."""
        del about  # a view of one update
        client = replica(view, subject="attack 'idlg'")
        distance = exact_distance([client], adaptive=self.adaptive, rngs=[rng])
        return searched_loss(distance, goal=self.search.goal)
