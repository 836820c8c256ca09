"""Inverting Gradients (IG): match the direction of the gradient, and prefer smooth images.

Source: Geiping, Bauermeister, Dröge & Moeller 2020, "Inverting Gradients - How easy is it to break privacy
in federated learning?", arXiv:2003.14053, equation 4 and section 6.

Minimises ``1 - cos(g(x), g*)`` over all layers jointly plus ``tv`` times the mean absolute difference of
neighbouring pixels, by Adam on the sign of the gradient, with the learning rate divided by ten at 3/8, 5/8
and 7/8, inside the image range; several restarts in one batch, selected by this loss. For several local
steps, local training on the candidate is simulated and the change of parameters matched.

Where we differ: labels are inferred unless granted (the paper assumes them known); the best iterate is
kept, not the last; simulation of mini-batches starts from the solution for one step and searches for the
order of the images, which the paper takes as known (``parts/matching/step_order.py``); ``adaptive`` applies
clipping, pruning and Soteria to the candidate, as GGL proposes.

Breaks when: the update is noisy (a smooth image without content matches equally well), the batch is large, or
the network pools early and is trained to convergence.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, final

from torch import Tensor

from glasshouse.attacks.base import Needs
from glasshouse.attacks.parts.local_steps import ANY, ON_MLP, update_needs
from glasshouse.attacks.parts.matching.distance import Distance, Objective, Steps
from glasshouse.attacks.parts.matching.exact import DescentAttack
from glasshouse.attacks.parts.replica import Replica
from glasshouse.attacks.parts.search.adam import Descent, roughness
from glasshouse.attacks.parts.search.rows import Labelled
from glasshouse.limits import NotNegative
from glasshouse.registry import Card, Offer
from glasshouse.transcript.view import View


@final
@dataclass(frozen=True, kw_only=True)
class InvertingGradients(DescentAttack):
    """Cosine matching with a total-variation prior.

    Args:
        search: by Adam, on signs; the paper uses 4,800 iterations (and 24,000 in its best experiments).
        tv: weight of total variation (mean absolute difference of neighbours, model input units); no single
            value suits all models. Measured at 120 to 300 iterations, mean PSNR of 3 or 4 training images:
            digits on lenet5, 12.9 dB at 0.01 and 8.8 at 0.1; CIFAR-10 on a trained ConvNet of width 8, 9.4 to
            10.8 at 0.01, 13.6 at 0.1, 13.5 to 14.9 at 0.5; on the untrained one no difference from 0.001 to
            0.5.
        adaptive: apply the transformation estimated from the update to candidates.
        local_steps: how several local steps are matched: by simulation, or as one step.
        bf16: bfloat16 arithmetic; faster on wide networks.
    """

    name: ClassVar[str] = "inverting_gradients"
    kind: ClassVar[Distance] = "cosine"
    seeks_order: ClassVar[bool] = True
    card: ClassVar[Card] = Card(
        title="Inverting Gradients",
        summary="cosine gradient matching with total variation",
        source="Geiping et al. 2020, arXiv:2003.14053",
        claims=("reconstruction",),
        threat="server, sees single updates",
        control=ON_MLP,
        offers=(
            Offer(strength=0.5, settings={"search": {"iterations": 150, "restarts": 1}}),
            Offer(strength=0.55, settings={"search": {"iterations": 400, "restarts": 1}}),
            Offer(strength=0.6),
        ),
    )
    needs: ClassVar[Needs] = update_needs(ANY, "labels", twice=True)

    search: Descent = field(default_factory=partial(Descent, signed=True))
    tv: NotNegative = 0.01
    adaptive: bool = False
    local_steps: Steps = "simulate"
    bf16: bool = False

    def loss(self, view: View, client: Replica, distance: Objective) -> Labelled:
        """Cosine distance and total variation."""
        del view

        def loss(
            points: Tensor, labels: Tensor, derivative: bool, victims: Sequence[int] | None = None
        ) -> Tensor:
            pixels = client.to_pixels(points)
            match = distance(pixels, labels, create_graph=derivative, victims=victims)
            return match + self.tv * roughness(client, points)

        return loss
