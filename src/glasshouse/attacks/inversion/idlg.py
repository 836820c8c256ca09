"""iDLG: read the label off the gradient first, then match by images alone.

Source: Zhao, Mopuri & Bilen 2020, "iDLG: Improved Deep Leakage from Gradients", arXiv:2001.02610.

As ``dlg``, with labels from the last layer's gradient (the sign rule for one image, counts for a batch;
the paper covers one image). Granted labels are used instead where there are any.
"""

from dataclasses import dataclass, field
from typing import ClassVar, final

from glasshouse.attacks.base import Claim, Needs
from glasshouse.attacks.budget import Budget, search_budget
from glasshouse.attacks.parts import detect
from glasshouse.attacks.parts.labels import known_labels
from glasshouse.attacks.parts.local_steps import LINEAR
from glasshouse.attacks.parts.matching.distance import objective
from glasshouse.attacks.parts.matching.exact import QuasiNewton, claim_images, minimize_distance
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
        sees=frozenset({"broadcast", "update"}), scope="update", optimizers=LINEAR, uses=frozenset({"labels"})
    )

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
        client = replica(view, subject="attack 'idlg'")
        labels = known_labels(view, client, rng=rng.child("labels"))
        adaptive = detect.detect_adaptation(client, adaptive=self.adaptive, rng=rng.child("detect"))
        distance = objective(client, distance="squared", steps="one_step", adaptive=adaptive, form="explicit")
        match = minimize_distance(client, distance, self.search, labels=labels, rng=rng)
        return (claim_images(client, match.inputs, labels, loss=match.loss),)
