"""GGL: find the generator's image whose gradient, under the defence's transformation, matches the update.

Source: Li, Zhang, Liu & Liu 2022, "Auditing Privacy Defenses in Federated Learning via Generative Gradient
Leakage", CVPR, arXiv:2203.15696, equations 4 to 9. The label is inferred; a generator trained on public
images restricts the search; z minimises D(y, T(∇L(G(z)))) + λ R(z), where D is the squared distance (or
1 - cosine), T the transformation estimated from the update, and R keeps z close to the latent prior; by Adam,
CMA-ES or TuRBO; of several trials the one with the lowest loss is claimed.

Ours: with ``average`` the mean image of all trials is claimed. Trials agree in what the update determines
and differ in what the generator makes up: their mean is nearer to the private image than the average trial.

Where we differ: the defence is not given: a detector guesses it, which is a claim of its own; columns that
Soteria hid are solved for where the update determines them (see ``parts.restore``), and left out elsewhere;
noise is ignored, as its expectation does not move the minimum; R is the divergence of the moments over the
entries of z from N(0, 1), as in the authors' code, not entry by entry as in their paper; the distance is a
share of that of a typical draw of the generator, so that λ keeps its meaning across models, draws of their
first weights, defences and learning rates (decision 0299; theirs is divided by the number of tensors); behind
Soteria by a perturbed loss, candidates are judged without the hidden features, too.

Breaks when: the victims do not look like the generator's images; noise exceeds the difference between two of
its images; the generator is poor: its ceiling is reported beside the result.

Shape letters: R candidates, B images of one candidate, D latent entries, C channels, H and W pixels.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import ClassVar, final

import torch
from torch import Tensor

from glasshouse.attacks.base import About, Claim, DefenseGuess, Needs, PriorSamples
from glasshouse.attacks.budget import Budget
from glasshouse.attacks.inversion.ggl import generators
from glasshouse.attacks.inversion.ggl.generators import Prior
from glasshouse.attacks.inversion.ggl.mean import mean_images
from glasshouse.attacks.inversion.ggl.objective import Fit, RegularizerName
from glasshouse.attacks.inversion.ggl.optimizers import minimize
from glasshouse.attacks.inversion.ggl.refine import Refinement, refine
from glasshouse.attacks.inversion.ggl.search import Best, LatentSearch
from glasshouse.attacks.inversion.ggl.wgan import GeneratorTraining
from glasshouse.attacks.objective import SearchedLoss, SearchingTogether
from glasshouse.attacks.parts import detect
from glasshouse.attacks.parts.labels import labels_of_each
from glasshouse.attacks.parts.local_steps import ANY, PICTURES
from glasshouse.attacks.parts.matching.distance import (
    ROUNDING,
    Distance,
    Objective,
    Steps,
    can_share,
    objective,
    objectives,
)
from glasshouse.attacks.parts.matching.exact import claim_images
from glasshouse.attacks.parts.matching.transforms import Adaptation
from glasshouse.attacks.parts.replica import Replica, replicas
from glasshouse.errors import BadValue
from glasshouse.limits import Count, NotNegative, check_ranges
from glasshouse.registry import Card, Offer
from glasshouse.rng import Rng
from glasshouse.transcript.view import View
from glasshouse.wire import Batch, Terms

DRAWS = 32
"""Number of generator samples filed with the claim: samples of the prior, without the update."""


@final
@dataclass(frozen=True, kw_only=True)
class GGL(SearchingTogether):
    """Generative Gradient Leakage.

    Args:
        generator: ``wgan_gp`` (trained on auxiliary images), ``biggan``, or ``module:factory``.
        latent: size of its latent vector.
        training: of ``wgan_gp``.
        search: in its latent space.
        refinement: of the trials' images in the generator's features (GIFD; GGL's paper has none).
        average: claim the mean image of several trials, not the trial with the lowest loss (ours).
        distance: ``squared`` or ``cosine``.
        regularizer: ``kl``, ``norm`` or ``none``.
        strength: its weight λ, beside a distance of 1 for a typical draw of the generator.
        adaptive: detect the defence and apply its transformation to candidates.
        restore: solve for the features that Soteria hides where the update determines them (ours); False:
            leave their columns out, as in the paper.
        local_steps: how several local steps are matched.
        bf16: bfloat16 arithmetic in the model.
    """

    card: ClassVar[Card] = Card(
        title="GGL",
        summary="searches a generator's latent space for the image whose transformed gradient fits",
        source="Li et al. 2022, arXiv:2203.15696",
        claims=("reconstruction", "defense"),
        threat="server, sees single updates, holds auxiliary images",
        grants=("auxiliary",),
        extra="ggl",
        details={"detector": "names the defence that it sees"},
        control={
            "setting": "a sigmoid LeNet, digits, one example, no defence, generator trained on 600 others",
            # as many images as in quickstart-ggl, so that both have the same others and one generator
            "scenario": {"data": {"auxiliary": 600}, "federation": {"clients": 8}},
            # another generator knows other images, and that of digits has one stage
            "fits": {"generator": generators.WGAN, "refinement.stage": 0},
        },
        offers=(
            Offer(
                strength=0.3,
                settings={
                    "latent": 12,
                    "training": {"steps": 500, "learning_rate": 2e-3, "critic_steps": 1},
                    "search": {"evaluations": 400, "population": 20},
                },
            ),
            Offer(strength=0.4),
        ),
    )

    generator: str = generators.WGAN
    latent: Count = 128
    training: GeneratorTraining = field(default_factory=GeneratorTraining)
    search: LatentSearch = field(default_factory=LatentSearch)
    refinement: Refinement = field(default_factory=Refinement)
    average: bool = False
    distance: Distance = "squared"
    regularizer: RegularizerName = "kl"
    strength: NotNegative = 0.1
    adaptive: bool = True
    restore: bool = True
    local_steps: Steps = "simulate"
    bf16: bool = False

    def __post_init__(self) -> None:
        check_ranges(self, "attack 'ggl'")
        if self.average and self.search.restarts == 1:
            raise BadValue(
                "attack 'ggl'",
                needs="several trials whose images can be averaged",
                got="average = true and search.restarts = 1",
                fix="set search.restarts to 2 or more, or leave average out",
            )

    @property
    def needs(self) -> Needs:
        auxiliary = frozenset({"auxiliary"}) if generators.needs_data(self.generator) else frozenset[str]()
        return Needs(
            modalities=PICTURES,
            sees=frozenset({"broadcast", "update"}),
            scope="update",
            optimizers=ANY,
            repeats=True,
            grants=auxiliary,
            uses=frozenset({"labels", "auxiliary"}),
        )

    @property
    def shares(self) -> bool:
        """Victims share a batch under Adam; the other optimizers fill the batch with a population."""
        return self.search.optimizer == "adam"

    @property
    def budget(self) -> Budget:
        """Candidates of every trial, each by its gradient, and the generator's training."""
        return Budget(
            unit="evaluations",
            amount=self.search.evaluations,
            restarts=self.search.restarts,
            gradients=1.0,
            simulated=1.0 if self.local_steps == "simulate" else 0.0,
            training=self.training.steps if generators.needs_data(self.generator) else 0,
            trained="the generator",
            recipe={"latent": self.latent, **asdict(self.training)},
            behind=frozenset(),
        )

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """A reconstruction of the B images, a guess of the defence, and samples of the generator.

        Raises:
            Inapplicable: not exactly one update of parameters, it is zero, or there are no training images.
        """
        (claims,) = self.run_together((view,), rngs=(rng,))
        return claims

    def run_together(self, views: Sequence[View], *, rngs: Sequence[Rng]) -> tuple[tuple[Claim, ...], ...]:
        """The claims of :meth:`run` for each view, from one search; see ``TogetherAttack``."""
        clients = replicas(views, subject="attack 'ggl'")
        labels = labels_of_each(views, clients, rngs=rngs)
        prior = self.prior(views[0].terms, views[0].grants.auxiliary).to(clients[0].device)
        # First which defence is in the updates, then a search against exactly that.
        every = zip(clients, views, rngs, strict=True)
        detections = [self._detected(client, view, rng=rng.child("detect")) for client, view, rng in every]
        adaptations = [adaptation for _, adaptation in detections]
        clients = self._defended(clients, [finding for finding, _ in detections])
        if not can_share(clients, self.local_steps):
            return ()
        fit = self.fit(clients, prior, labels, adaptations).scaled([rng.child("typical") for rng in rngs])
        trials = minimize(fit, self.search, rngs=[rng.child("search") for rng in rngs])
        # Refinement and averages need every restart, the plain attack the one of least loss.
        if self.average or self.refinement.steps:
            judged = enumerate(self._judged(clients, adaptations))
            best = [self._chosen(fit, v, trials[v], one) for v, one in judged]
        else:
            images = fit.images(torch.stack([each[0].point for each in trials]))
            best = [(x, each[0].loss) for x, each in zip(images, trials, strict=True)]
        claims = []
        for client, y, (finding, _), (x, loss), rng in zip(
            clients, labels, detections, best, rngs, strict=True
        ):
            claim = claim_images(client, x, y, loss=loss)
            draws = _draws(prior, y, claim.about, latent=self.latent, rng=rng.child("draws"))
            claims.append((claim, finding, draws))
        return tuple(claims)

    def objectives(self, views: Sequence[View], *, rngs: Sequence[Rng]) -> tuple[SearchedLoss, ...]:
        """The distance, without the regularizer on z; for a mean image the best trial's counts."""
        clients = replicas(views, subject="attack 'ggl'")
        every = zip(clients, views, rngs, strict=True)
        detections = [self._detected(client, view, rng=rng.child("detect")) for client, view, rng in every]
        clients = self._defended(clients, [finding for finding, _ in detections])
        return self._judged(clients, [adaptation for _, adaptation in detections])

    def _defended(self, clients: Sequence[Replica], findings: Sequence[DefenseGuess]) -> list[Replica]:
        """The replicas on which candidates are judged."""
        pairs = zip(clients, findings, strict=True)
        return [detect.as_defended(*pair) if self.adaptive else pair[0] for pair in pairs]

    def _judged(self, clients: Sequence[Replica], adaptive: Sequence[Adaptation]) -> tuple[SearchedLoss, ...]:
        """What :meth:`objectives` returns, always in float32."""
        distances = objectives(clients, distance=self.distance, steps=self.local_steps, adaptive=adaptive)
        return tuple(map(self._searched, distances))

    def _searched(self, distance: Objective) -> SearchedLoss:
        square = distance.target_square if self.distance == "squared" else 1.0
        return SearchedLoss(
            loss=lambda pixels, labels: distance(pixels, labels, create_graph=False),
            noise=square * ROUNDING,
        )

    def _detected(self, client: Replica, view: View, *, rng: Rng) -> tuple[DefenseGuess, Adaptation]:
        """The detected defence, and the transformation of candidates for it."""
        auxiliary = view.grants.auxiliary
        finding = detect.detect(client, images=None if auxiliary is None else auxiliary.inputs, rng=rng)
        if not self.adaptive:
            return finding, Adaptation()
        return finding, detect.adaptation(finding, client, steps=self.local_steps, restore=self.restore)

    def prior(self, terms: Terms, auxiliary: Batch | None) -> Prior:
        """The generator, from the cache or trained now."""
        return generators.generator(
            self.generator, terms.architecture, self.training, latent=self.latent, auxiliary=auxiliary
        )

    def fit(
        self,
        clients: Sequence[Replica],
        prior: Prior,
        labels: Sequence[Tensor],
        adaptations: Sequence[Adaptation],
    ) -> Fit:
        """The loss over latent points, for every client's update."""
        distance = objective(
            *clients, distance=self.distance, steps=self.local_steps, adaptive=adaptations, bf16=self.bf16
        )
        return Fit(
            distance=distance,
            prior=prior,
            labels=torch.stack(list(labels)),
            latent=self.latent,
            regularizer=self.regularizer,
            strength=self.strength,
            image_range=clients[0].terms.architecture.inputs.range,
        )

    def _chosen(
        self, fit: Fit, victim: int, trials: Sequence[Best], judged: SearchedLoss
    ) -> tuple[Tensor, float]:
        """The mean or the best image of a victim's trials that did not diverge, and the lowest distance."""
        finite = [trial for trial in trials if math.isfinite(trial.loss)] or trials[:1]
        points, labels = torch.stack([trial.point for trial in finite]), fit.labels[victim]
        if self.refinement.steps:
            images = refine(fit, points, self.refinement, victim=victim)
        else:
            images = fit.images(points, labels.expand(len(finite), -1))
        distances = [float(judged.loss(image[None], labels[None])) for image in images]
        best = min(range(len(finite)), key=lambda trial: distances[trial])
        return mean_images(images, labels) if self.average else images[best], distances[best]


def _draws(prior: Prior, labels: Tensor, about: About, *, latent: int, rng: Rng) -> PriorSamples:
    """Samples of the generator for the inferred labels, drawn without the rest of the update."""
    repeated = labels.repeat(-(-DRAWS // len(labels)))[:DRAWS]
    points = torch.randn(len(repeated), latent, generator=rng.torch())
    with torch.no_grad():
        images = prior(points.to(labels.device), repeated)
    return PriorSamples(about=about, inputs=images.float(), labels=repeated)
