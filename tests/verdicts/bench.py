"""An audit without a federation: private, held-out and auxiliary examples, and claims, scored as real."""

from dataclasses import dataclass, field

import numpy as np
import torch

from glasshouse.attacks.base import About, Claim, Labels, Reconstruction
from glasshouse.attacks.sequences import Sequences
from glasshouse.audit.attacking.claims import Outcome, Unit
from glasshouse.audit.scoring.cell import AttackScores, score_attack
from glasshouse.audit.scoring.nulls import NullBook
from glasshouse.audit.scoring.read import Run
from glasshouse.audit.scoring.tasks import CellTask, control_key, power_key
from glasshouse.audit.scoring.truth import GroundTruth
from glasshouse.metrics.base import ScoreContext
from glasshouse.modalities.base import Modality
from glasshouse.modalities.image import Image
from glasshouse.modalities.sentence import vocabulary_of
from glasshouse.results.records import Control, Finding, Power
from glasshouse.rng import Rng
from glasshouse.scenario.axes import Cell
from glasshouse.scenario.load import from_dict
from glasshouse.scenario.spec import Scenario
from glasshouse.tasks.classification import Classification
from glasshouse.truth.record import Truth, Used
from glasshouse.wire import Architecture, Batch, Terms

SHAPE = (1, 6, 6)
PASSED = Control(
    positive=9.0, positive_low=8.0, negative=0.0, negative_low=-1.0, passed=True, setting="", n=6
)
FOUND = Power(planted=8, found=8, how="canaries")


def labels_of(count: int, classes: int = 1) -> torch.Tensor:
    return torch.arange(count) % classes


@dataclass(kw_only=True)
class Bench:
    """One audit.

    Attributes:
        private: (n, C, H, W) in [0, 1], or with labels.
        claims: (n, C, H, W), about each client; None: nothing was claimed of it.
        called: (n, K), how many examples of each label are claimed of each client, instead of ``claims``.
        examples: of each client.
        heldout: of the same distribution, unless a test says otherwise.
        auxiliary: what null adversaries know.
        metrics: their names; the first is primary.
        power: planted leaks that were found.
        control: of the attack.
        guarantee: of the defences.
        margin: of the scenario.
        modality: of the examples; None: pictures.
        attack: whose claims they are said to be.
        grants: of the scenario.
        tokens: claims are sentences, as attacks on language models file them.
    """

    private: Batch
    claims: torch.Tensor | None
    heldout: Batch
    auxiliary: Batch
    metrics: tuple[str, ...] = ("psnr",)
    power: Power | None = FOUND
    control: Control | None = PASSED
    guarantee: object = None
    margin: float = 0.1
    distractors: int = 19
    called: torch.Tensor | None = None
    examples: int = 1
    modality: Modality | None = None
    options: dict = field(default_factory=dict)
    attack: str = "linear_input"
    grants: dict = field(default_factory=dict)
    tokens: bool = False

    def findings(self) -> dict[str, Finding]:
        """The findings by metric."""
        scores = self.scores()
        assert scores.refusals == (), scores.refusals
        return {finding.metric: finding for finding in scores.findings}

    def scores(self) -> AttackScores:
        """The findings and refusals."""
        scenario = self._scenario()
        attack = scenario.attacks[0]
        task = CellTask(
            cell=Cell(scenario=scenario, axes={}, hash="0" * 16),
            groups=(),
            run="run",
            controls={control_key(attack): self.control},
            powers={}
            if self.power is None
            else {power_key(attack, kind): self.power for kind in ("reconstruction", "labels", "sequences")},
        )
        return score_attack(task, attack, [self.run()])

    def run(self) -> Run:
        """The federation and the claims about it, as a scorer reads them."""
        size, classes = self.examples, int(self.private.labels.max()) + 1
        n = len(self.private) // size
        modality = self.modality or Image(size=tuple(self.private.inputs.shape[1:]))
        context = ScoreContext(
            classes=max(classes, 2),
            distractors=self.heldout.inputs[: self.distractors],
            image_range=(0.0, 1.0),
            inputs=modality,
            vocabulary=vocabulary_of(modality),
        )
        terms = Terms(
            protocol="fedsgd",
            architecture=Architecture(
                name="mlp", inputs=modality, task=Classification(classes=max(classes, 2))
            ),
            clients=n,
            sends="gradient",
            cohort=n,
            batch_size=size,
        )
        shards = {c: tuple(range(c * size, (c + 1) * size)) for c in range(n)}
        truth = Truth(
            private=self.private,
            shards=shards,
            used={(0, c): Used(steps=(own,), behaviour="honest") for c, own in shards.items()},
        )
        ground = GroundTruth(truth=truth, heldout=self.heldout, run="run", terms=terms, context=context)
        book = NullBook(modality=modality, auxiliary=self.auxiliary, context=context, rng=Rng.root(0))
        return Run(
            folder="run",
            seed=0,
            units=[(Unit(rounds=(0,), client=c), Outcome(claims=self._claims(c))) for c in range(n)],
            ground=ground,
            book=book,
            guarantee=self.guarantee,
        )

    def _scenario(self) -> Scenario:
        raw = {
            "name": "bench",
            "attacks": [{"name": self.attack}],
            "grants": self.grants,
            "audit": {
                "metrics": list(self.metrics),
                "margin": self.margin,
                "distractors": self.distractors,
                **self.options,
            },
        }
        return from_dict(raw)

    def finding(self, metric: str = "") -> Finding:
        """The finding by one metric, or by the first."""
        return self.findings()[metric or self.metrics[0]]

    def _claims(self, client: int) -> tuple[Claim, ...]:
        if self.called is not None:
            return (Labels(about=About(rounds=(0,), client=client), counts=self.called[client]),)
        inputs = self.private.inputs[:0] if self.claims is None else self.claims[client : client + 1]
        if self.tokens:
            read = Sequences(
                about=About(rounds=(0,), client=client), tokens=inputs, confidence=torch.ones(len(inputs))
            )
            return (read,)
        return (
            Reconstruction(
                about=About(rounds=(0,), client=client),
                inputs=inputs.to(self.private.inputs.dtype),
                labels=None,
                confidence=torch.ones(len(inputs)),
            ),
        )


def textured(
    count: int, random: np.random.Generator, *, around: float = 0.5, spread: float = 0.2
) -> torch.Tensor:
    """Smooth images with noise, in [0, 1]: a random level, two gradients and texture."""
    c, h, w = SHAPE
    level = around + spread * random.normal(size=(count, c, 1, 1))
    ramp = np.linspace(-0.5, 0.5, w)
    slopes = spread * random.normal(size=(count, c, 2))
    image = level + slopes[..., :1, None] * ramp[:, None] + slopes[..., 1:, None] * ramp[None]
    image = image + 0.6 * spread * random.normal(size=(count, c, h, w))
    return torch.from_numpy(image).clamp(0, 1).float()


def batch(inputs: torch.Tensor, labels: torch.Tensor | None = None) -> Batch:
    """Examples, all of one label unless given."""
    return Batch(inputs=inputs, labels=labels_of(len(inputs)) if labels is None else labels)


def bench(n: int, random: np.random.Generator, *, heldout: int = 0, **changes) -> Bench:
    """A bench of n clients whose data are all of one distribution; nothing is claimed yet."""
    given = {
        "private": batch(textured(n, random)),
        "claims": None,
        "heldout": batch(textured(heldout or max(200, 20 * n), random)),
        "auxiliary": batch(textured(120, random)),
    }
    return Bench(**{**given, **changes})
