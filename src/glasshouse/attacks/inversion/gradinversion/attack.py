"""GradInversion (GI): several seeds match the gradient together, pulled towards their common image.

Source: Yin et al. 2021, "See through Gradients: Image Batch Recovery via GradInversion", CVPR,
arXiv:2104.07586, equations 1 to 11.

The loss of a seed is the squared L2 distance of gradients + total variation + squared norm of the image
+ distance to the seeds' registered mean (group consistency) + distance to the private batch-norm
statistics where these are granted. Adam with warm-up and cosine decay, Gaussian noise on every step,
inside the image range. Labels by column-wise minima (no class twice), unless granted; a batch larger than
the number of classes, and steps by Adam (whose minima are all alike), fall back to counts.

Where we differ: the distance is divided by the received squared norm and every other term is a mean over
entries, so that the weights mean the same on every model and image size (the paper's are tied to ImageNet
and a ResNet-50); registration is by translation; the best iterate of the best seed by this loss is
claimed, without the group term, which compares seeds with each other. Without the batch-norm grant (GGL's
variant) that term is left out. After several local steps they are simulated, as in IG.

Breaks when: the batch holds a class twice (labels), seeds end in different places (the mean is nobody's
image), or the update is noisy.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, final

from torch import Tensor

from glasshouse.attacks.base import Claim, Needs
from glasshouse.attacks.budget import Budget, search_budget
from glasshouse.attacks.inversion.gradinversion.consensus import Group
from glasshouse.attacks.inversion.gradinversion.statistics import Statistics
from glasshouse.attacks.parts import detect
from glasshouse.attacks.parts.labels import Rule, known_labels
from glasshouse.attacks.parts.local_steps import ANY
from glasshouse.attacks.parts.matching.distance import Steps, objective
from glasshouse.attacks.parts.matching.exact import claim_images
from glasshouse.attacks.parts.matching.transforms import Adaptation
from glasshouse.attacks.parts.replica import Replica, replica
from glasshouse.attacks.parts.search.adam import Descent, Loss, adam, random_start, roughness
from glasshouse.limits import NotNegative, check_ranges
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.settings import move_into
from glasshouse.transcript.view import View


@final
@dataclass(frozen=True, kw_only=True)
class GradInversion:
    """Squared-L2 matching with priors and group consistency.

    Args:
        search: by Adam; its restarts are the seeds of the group. The paper takes 20,000 iterations.
        tv: weight of total variation.
        l2: of the mean squared value.
        group: of the mean squared distance to the seeds' registered mean.
        batch_norm: weight of the batch-norm statistics; used where they are granted.
        adaptive: as in ``InvertingGradients``.
        local_steps: as in ``InvertingGradients``.
        bf16: as in ``InvertingGradients``.
    """

    card: ClassVar[Card] = Card(
        title="GradInversion",
        summary="squared-L2 gradient matching with group consistency of several seeds",
        source="Yin et al. 2021, arXiv:2104.07586",
        claims=("reconstruction",),
        threat="server, sees single updates",
        control={
            "setting": "a two-layer network, digits, one example, no defence",
            "scenario": {"model": {"name": "mlp"}},
        },
        details={"uses, if granted": "batch_norm, labels"},
        renamed=move_into("search", "restarts", "iterations", "learning_rate", "noise"),
    )
    needs: ClassVar[Needs] = Needs(
        sees=frozenset({"broadcast", "update"}),
        scope="update",
        optimizers=ANY,
        uses=frozenset({"labels", "batch_norm"}),
    )

    search: Descent = field(default_factory=partial(Descent, schedule="warm_cosine", noise=0.2))
    tv: NotNegative = 0.01
    l2: NotNegative = 1e-4
    group: NotNegative = 0.01
    batch_norm: NotNegative = 0.1
    adaptive: bool = False
    local_steps: Steps = "simulate"
    bf16: bool = False

    def __post_init__(self) -> None:
        check_ranges(self, "attack 'gradinversion'")

    @property
    def budget(self) -> Budget:
        """Iterations of every restart."""
        return search_budget(self.search)

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """One reconstruction of the B images behind the update.

        Raises:
            Inapplicable: the view does not hold exactly one update of parameters, or it is zero.
        """
        client = replica(view, subject="attack 'gradinversion'")
        some_twice = client.images > client.classes or client.adaptive
        rule: Rule = "sums" if some_twice else "minima"
        labels = known_labels(view, client, rng=rng.child("labels"), rule=rule)
        start = random_start(client, self.search, rng=rng)
        pull = Group(self.group) if self.group and self.search.restarts > 1 else None
        adaptive = detect.detect_adaptation(client, adaptive=self.adaptive, rng=rng.child("detect"))
        loss = self._loss(view, client, labels, adaptive)
        descent = adam(loss, start, self.search, box=client.box(), rng=rng, pull=pull)
        best = descent.best()
        low, high = client.terms.image_range
        pixels = client.to_pixels(descent.points[best]).clamp(low, high)
        return (claim_images(client, pixels, labels, loss=float(descent.losses[best])),)

    def _loss(self, view: View, client: Replica, labels: Tensor, adaptive: Adaptation | bool) -> Loss:
        distance = objective(
            client, distance="squared", steps=self.local_steps, adaptive=adaptive, bf16=self.bf16
        )
        granted = view.grants.batch_norm.get((client.update.round, client.update.client))
        statistics = Statistics(client.model, granted) if granted else None

        def loss(points: Tensor) -> Tensor:
            pixels = client.to_pixels(points)
            total = distance(pixels, labels.expand(len(points), -1)) / distance.target_square
            total = total + self.tv * roughness(points) + self.l2 * points.square().flatten(1).mean(1)
            return total if statistics is None else total + self.batch_norm * statistics(pixels)

        return loss
