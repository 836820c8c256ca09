"""GradInversion (GI): match the gradient with several seeds, regularised towards their mean.

Source: Yin et al. 2021, "See through Gradients: Image Batch Recovery via GradInversion", CVPR,
arXiv:2104.07586, equations 1 to 11.

The loss of a seed is the squared L2 distance of gradients + total variation + squared norm of the image
+ distance to the seeds' registered mean (group consistency) + distance to the private batch-norm
statistics where these are granted. Adam with warm-up and cosine decay, Gaussian noise on every step,
inside the image range. Labels by column-wise minima (no class twice), unless granted; a batch larger than
the number of classes, and updates by Adam (whose minima are all equal), fall back to counts.

Where we differ: the distance is divided by the received squared norm and every other term is a mean over
entries, so that the weights mean the same on every model and image size (the paper's are tied to ImageNet
and a ResNet-50); registration is by translation; the best iterate of the best seed is claimed, by this loss
without the group term, which compares seeds with each other. Without the batch-norm grant (GGL's variant)
that term is left out. Several local steps are simulated, as in IG.

Breaks when: the batch holds a class twice (labels), seeds converge to different images (their mean is none
of them), or the update is noisy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, final

from torch import Tensor

from glasshouse.attacks.base import Claim, Needs
from glasshouse.attacks.inversion.gradinversion.consensus import Group
from glasshouse.attacks.inversion.gradinversion.statistics import Statistics
from glasshouse.attacks.parts.labels import Rule
from glasshouse.attacks.parts.local_steps import ANY, ON_MLP, PICTURES, update_needs
from glasshouse.attacks.parts.matching.distance import Distance, Objective, Steps
from glasshouse.attacks.parts.matching.exact import DescentAttack
from glasshouse.attacks.parts.replica import Replica
from glasshouse.attacks.parts.search.adam import Descent, Loss, roughness
from glasshouse.attacks.parts.search.rows import Labelled
from glasshouse.limits import NotNegative
from glasshouse.registry import Card, Offer
from glasshouse.rng import Rng
from glasshouse.transcript.view import View


def sends_statistics(view: View) -> bool:
    """Whether clients send what their batch norms saw."""
    updates = (update for one in view.rounds for update in one.updates.values())
    return view.terms.training.mode == "training" and any(update.buffers for update in updates)


@final
@dataclass(frozen=True, kw_only=True)
class GradInversion(DescentAttack):
    """Squared-L2 matching with priors and group consistency.

    Args:
        search: by Adam; its restarts are the seeds of the group. The paper uses 20,000 iterations.
        tv: weight of total variation.
        l2: weight of the mean squared value.
        group: weight of the mean squared distance to the seeds' registered mean.
        batch_norm: weight of the batch-norm statistics; used where they are granted, and where clients train
            in training mode and send running statistics, from which they are read.
        adaptive: as in ``InvertingGradients``.
        local_steps: as in ``InvertingGradients``.
        bf16: as in ``InvertingGradients``.
    """

    name: ClassVar[str] = "gradinversion"
    kind: ClassVar[Distance] = "squared"
    card: ClassVar[Card] = Card(
        title="GradInversion",
        summary="squared-L2 gradient matching with group consistency of several seeds",
        source="Yin et al. 2021, arXiv:2104.07586",
        claims=("reconstruction",),
        threat="server, sees single updates",
        control=ON_MLP,
        details={"uses, if granted": "batch_norm, labels"},
        offers=(
            Offer(strength=0.4, settings={"search": {"iterations": 150, "restarts": 1}}),
            Offer(strength=0.5),
        ),
    )
    needs: ClassVar[Needs] = update_needs(ANY, "labels", "batch_norm", modalities=PICTURES, twice=True)

    search: Descent = field(default_factory=partial(Descent, schedule="warm_cosine", noise=0.2))
    tv: NotNegative = 0.01
    l2: NotNegative = 1e-4
    group: NotNegative = 0.01
    batch_norm: NotNegative = 0.1
    adaptive: bool = False
    local_steps: Steps = "simulate"
    bf16: bool = False

    def rule(self, client: Replica) -> Rule:
        return "sums" if client.images > client.classes or client.adaptive else "minima"

    def pulls(self, clients: Sequence[Replica]) -> list[Loss]:
        return [Group(self.group) for _ in clients] if self.group and self.search.restarts > 1 else []

    def run_together(self, views: Sequence[View], *, rngs: Sequence[Rng]) -> tuple[tuple[Claim, ...], ...]:
        """The claims of :meth:`run` for each view, from one search; see ``TogetherAttack``."""
        granted = len(views) > 1 and any(view.grants.batch_norm or sends_statistics(view) for view in views)
        return () if granted else super().run_together(views, rngs=rngs)

    def loss(self, view: View, client: Replica, distance: Objective) -> Labelled:
        """All terms but the group term, which compares seeds with each other."""
        granted = view.grants.batch_norm.get((client.update.round, client.update.client))
        known = granted or client.batch_statistics()
        # The client's own mode; a grant was computed with the statistics received.
        model = client.model if granted else client.trained
        statistics = Statistics(model, known, unbiased=not granted) if known else None

        def loss(
            points: Tensor, labels: Tensor, derivative: bool, victims: Sequence[int] | None = None
        ) -> Tensor:
            pixels = client.to_pixels(points)
            total = distance(pixels, labels, create_graph=derivative, victims=victims, share=True)
            total = total + self.tv * roughness(client, points) + self.l2 * points.square().flatten(1).mean(1)
            return total if statistics is None else total + self.batch_norm * statistics(pixels)

        return loss
