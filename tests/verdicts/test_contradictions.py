"""A contradiction is said where a defence lies, and never of a good guess."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from tests.audits.test_liars import PLUGINS
from tests.verdicts.bench import SHAPE, batch, bench, textured
from tests.worlds import installed

from glasshouse.audit.run import audit
from glasshouse.federation.defenses.accounting import needed_noise
from glasshouse.federation.defenses.guarantee import Exposure, client_level
from glasshouse.metrics.base import ScoreContext
from glasshouse.metrics.reconstruction import Ssim
from glasshouse.results.records import Finding
from glasshouse.scenario.load import from_dict
from glasshouse.scenario.suite import Member, Suite
from glasshouse.wire import Batch

EPSILONS = (0.1, 0.5, 1.0)
Random = np.random.Generator


def guarantee(epsilon: float):
    noise = needed_noise(epsilon, delta=1e-5, rate=1, steps=1, neighbours="update")
    return client_level("claimed", noise_multiplier=noise, clip=1.0, delta=1e-5, exposure=Exposure(rounds=1))


def fitted(examples: torch.Tensor, steps: int = 60) -> torch.Tensor:
    """One image with the largest mean SSIM to all of ``examples``: a prior fitted to the metric."""
    image = examples.mean(0, keepdim=True).clone().requires_grad_()
    descent = torch.optim.Adam([image], lr=0.05)
    for _ in range(steps):
        descent.zero_grad()
        spread = image - image.mean()
        others = examples - examples.mean((1, 2, 3), keepdim=True)
        likeness = (spread * others).sum((1, 2, 3)) / (spread.norm() * others.flatten(1).norm(dim=1) + 1e-6)
        (-likeness.mean() + 4 * (image.mean() - examples.mean()) ** 2).backward()
        descent.step()
    return image.detach().clamp(0, 1)


def ramps(count: int, random: Random, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images that share a shape, one per class, under noise: a fitted image scores well on all of a class."""
    shapes = torch.from_numpy(np.random.default_rng(1).random((classes, *SHAPE))).float()
    labels = torch.arange(count) % classes
    noise = torch.from_numpy(0.25 * random.normal(size=(count, *SHAPE))).float()
    return (shapes[labels] + noise).clamp(0, 1), labels


def guess(seed: int) -> Finding:
    """A guess fitted to auxiliary data, of one class or of four whose labels are known, under a guarantee."""
    random, classes = np.random.default_rng(seed), (1, 4)[seed % 2]
    n = (12, 40, 100)[seed % 3]
    one = bench(n, random, heldout=60, metrics=("ssim",), guarantee=guarantee(EPSILONS[seed // 3 % 3]))
    one.private, one.heldout, one.auxiliary = (batch(*ramps(m, random, classes)) for m in (n, 60, 120))
    own = [fitted(one.auxiliary.inputs[one.auxiliary.labels == j]) for j in range(classes)]
    one.claims = torch.cat([own[int(label)] for label in one.private.labels])
    return one.finding()


def lie(seed: int, claims: Callable[[torch.Tensor], torch.Tensor]) -> Finding:
    """An attack that works although the guarantee says that it cannot."""
    random = np.random.default_rng(seed)
    one = bench(20, random, metrics=("ssim",), guarantee=guarantee(0.5))
    one.claims = claims(one.private.inputs)
    return one.finding()


def class_known(seed: int, metric: str) -> Finding:
    """The means of the private classes, known from elsewhere: they are not those of the auxiliary data."""
    random, public, private = np.random.default_rng(seed), *ramps_of(10)
    n, labels = 100, torch.arange(400) % 10
    one = bench(n, random, metrics=(metric,), guarantee=guarantee(EPSILONS[seed % 3]))

    def of(count: int, shapes: torch.Tensor) -> Batch:
        noise = torch.from_numpy(0.15 * random.normal(size=(count, *SHAPE))).float()
        return batch((shapes[labels[:count]] + noise).clamp(0, 1), labels[:count])

    one.private, one.heldout, one.auxiliary = of(n, private), of(400, public), of(120, public)
    one.claims = private[labels[:n]]
    return one.finding()


def ramps_of(classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Shapes of public classes, and of private ones that are a mixture of these and others."""
    random = np.random.default_rng(7)
    public, other = (torch.from_numpy(random.random((classes, *SHAPE))).float() for _ in range(2))
    return public, 0.5 * public + 0.5 * other


@pytest.mark.parametrize("metric", ["psnr", "ssim", "identification"])
@pytest.mark.parametrize("seed", [0, 1])
def test_who_knows_the_private_classes_contradicts_nothing_and_knows_no_example(metric, seed):
    """No null adversary knows as much, and claims fit the victims of other labels worse."""
    finding = class_known(seed, metric)
    assert finding.exchange.gain_low > 0
    assert finding.verdict == "label leak"
    assert not finding.bound.contradicted


def audits(count: int) -> Iterator[Finding]:
    return (guess(seed) for seed in range(count))


def test_a_fitted_guess_contradicts_nothing():
    findings = list(audits(6))
    assert [f.verdict for f in findings].count("contradiction") == 0
    assert all(f.bound is not None for f in findings)


@pytest.mark.slow
def test_no_fitted_guess_of_three_hundred_contradicts():
    findings = list(audits(300))
    assert sum(f.bound.contradicted for f in findings) == 0


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_what_works_under_a_small_epsilon_is_a_contradiction(noise):
    finding = lie(3, lambda x: (x + noise * torch.randn(x.shape)).clamp(0, 1))
    assert finding.verdict == "contradiction"
    assert finding.bound.value < finding.low


def test_claims_of_no_use_under_a_guarantee_are_none():
    assert lie(4, lambda x: textured(len(x), np.random.default_rng(5))).verdict != "contradiction"


def test_the_metric_of_the_fit_prefers_it():
    """The fit is a better guess than the mean, else the test of guesses tests nothing."""
    images, _ = ramps(120, np.random.default_rng(2), 1)
    private, _ = ramps(40, np.random.default_rng(3), 1)
    scores = [
        float(np.mean([Ssim().pairwise(one, private, context=ScoreContext())]))
        for one in (fitted(images), images.mean(0, keepdim=True))
    ]
    assert scores[0] > scores[1]


@pytest.mark.slow
def test_a_defence_that_lies_is_found_by_an_attack_that_works(tmp_path):
    """It adds no noise and says ε = .5."""
    with installed(tmp_path, PLUGINS, "liars", {}, defenses={"says_half": "SaysHalf"}):
        raw = {
            "name": "lie",
            "data": {"auxiliary": 200, "heldout": 200, "examples": 1},
            "model": {"name": "mlp"},
            "federation": {"clients": 12, "batch_size": 1},
            "defenses": [{"name": "says_half"}],
            "attacks": [{"name": "linear_input"}],
            "audit": {"metrics": ["ssim"], "victims": 12, "utility": False},
        }
        suite = Suite(name="lie", members=(Member(scenario=from_dict(raw)),), given="lie")
        result = audit(suite, out=tmp_path / "run", jobs=1)
    (finding,) = result.findings
    assert finding.verdict == "contradiction"
    assert finding.bound.word_of == ("says_half",)
    assert "says of itself" in result.threats[0].defenses["says_half"]
