"""Simulated audits through the functions that score real ones: nothing leaks, or some victims come out whole.

Each is named by what it is and a seed, so that any one can be run again on its own.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from tests.verdicts.bench import SHAPE, Bench, batch, bench, textured

from glasshouse.results.records import Finding

VICTIMS = (3, 8, 20, 50)
METRICS = ("psnr", "ssim", "mse")
SHARES = (1 / 20, 1 / 10, 1 / 5, 1 / 3)
STRENGTHS = (0.5, 1.0, 2.0)
"""Noise of weak claims, in standard deviations of the data."""
Random = np.random.Generator


def normal(count: int, random: Random, scale: float) -> torch.Tensor:
    return scale * torch.from_numpy(random.normal(size=(count, *SHAPE))).float()


def mean_of(one: Bench) -> torch.Tensor:
    return one.auxiliary.inputs.mean(0).expand(len(one.private), *SHAPE)


NULLS: Mapping[str, Callable[[Bench, int, Random], torch.Tensor]] = {
    "other examples": lambda one, n, random: textured(n, random),
    "a mean": lambda one, n, random: mean_of(one),
    "a mean, noise": lambda one, n, random: mean_of(one) + normal(n, random, 0.1),
    "heavy noise": lambda one, n, random: (
        mean_of(one)
        + torch.from_numpy(random.standard_t(1.5, size=(n, 1, 1, 1))).float() * normal(n, random, 0.05)
    ),
    "rare failures": lambda one, n, random: torch.where(
        torch.from_numpy(random.random((n, 1, 1, 1))) < 0.2, torch.ones(()), mean_of(one)
    ).float(),
    "the next victim": lambda one, n, random: one.private.inputs.roll(1, 0) + normal(n, random, 0.05),
    "grey": lambda one, n, random: torch.full((n, *SHAPE), 0.5),
    "one claim for all": lambda one, n, random: textured(1, random).expand(n, *SHAPE),
    "ties": lambda one, n, random: (4 * textured(n, random)).round() / 4,
}
"""Nine ways to claim something without looking at an update."""


def same(one: Bench, random: Random) -> None:
    """Private and held-out examples are of one distribution."""


def alike(one: Bench, random: Random) -> None:
    """Half of the victims are near-duplicates of another."""
    inputs = one.private.inputs.clone()
    half = len(inputs) // 2
    inputs[half : 2 * half] = inputs[:half] + normal(half, random, 1e-3)
    one.private = batch(inputs.clamp(0, 1))


def shrunk(one: Bench, random: Random) -> None:
    """Private examples are nearer to the mean than held-out ones."""
    one.private = batch(textured(len(one.private), random, spread=0.06))


def moved(one: Bench, random: Random) -> None:
    """Private examples are brighter than held-out ones."""
    one.private = batch(textured(len(one.private), random, around=0.7))


def nudged(one: Bench, random: Random) -> None:
    """Private examples are a little brighter than held-out ones, which a test of few often misses."""
    one.private = batch(textured(len(one.private), random, around=0.57))


def constant(one: Bench, random: Random) -> None:
    """A third of the private examples are constant."""
    inputs = one.private.inputs.clone()
    third = max(1, len(inputs) // 3)
    inputs[:third] = torch.from_numpy(random.random((third, 1, 1, 1))).float()
    one.private = batch(inputs)


def clustered(one: Bench, random: Random) -> None:
    """Private and held-out examples come in four clusters, without labels."""
    centres = textured(4, random, spread=0.25)

    def of(count: int) -> torch.Tensor:
        return (centres[torch.from_numpy(random.integers(0, 4, count))] + normal(count, random, 0.05)).clamp(
            0, 1
        )

    one.private, one.heldout, one.auxiliary = batch(of(len(one.private))), batch(of(800)), batch(of(120))


DATA = {f.__name__: f for f in (same, alike, shrunk, moved, nudged, constant, clustered)}


def _random(seed: int, *names: object) -> Random:
    return np.random.default_rng([seed, *(ord(letter) for name in names for letter in str(name))])


def null_audit(n: int, null: str, data: str, seed: int, metric: str = "psnr") -> Finding:
    """An audit in which nothing leaks."""
    random = _random(seed, n, null, data, metric)
    one = bench(n, random, metrics=(metric,))
    DATA[data](one, random)
    one.claims = NULLS[null](one, n, random).clamp(0, 1)
    return one.finding()


def whole_audit(n: int, share: float, seed: int, metric: str = "psnr") -> tuple[Finding, list[bool]]:
    """An audit in which a share of the victims comes out whole, each by its own luck; and who did."""
    random = _random(seed, n, round(share, 3), metric)
    one = bench(n, random, metrics=(metric,))
    claims = textured(n, random)
    out = torch.from_numpy(random.random(n) < share)
    claims[out] = one.private.inputs[out]
    one.claims = claims
    return one.finding(), out.tolist()


def weak_audit(n: int, noise: float, seed: int, metric: str = "psnr") -> Finding:
    """An audit in which every claim is its victim's example under strong noise."""
    random = _random(seed, n, noise, metric)
    one = bench(n, random, metrics=(metric,))
    spread = float(one.heldout.inputs.std())  # of few victims it varies, and the truth with it
    one.claims = (one.private.inputs + normal(n, random, noise * spread)).clamp(0, 1)
    return one.finding()


def row_of(finding: Finding, out: list[bool] | None = None) -> dict[str, Any]:
    """What is kept of an audit; ``out``: who came out whole."""
    whole = [False] * len(finding.victims) if out is None else out
    named = [victim.leaks for victim in finding.victims]
    other = finding.exchange
    return {
        "verdict": finding.verdict,
        "judged": bool(finding.victims),
        "named": sum(named),
        "false_names": sum(n and not o for n, o in zip(named, whole, strict=False)),
        "most": None if finding.share is None else finding.share.most,
        "value": [finding.value, finding.low, finding.high],
        "gain": [finding.gain, finding.gain_low, finding.gain_high],
        "seen": finding.gain_high_seen,
        "null": finding.baseline_value,
        "quoted": finding.baseline,
        "out": None if out is None else sum(out),
        "exchange": None if other is None else [other.gain, other.gain_low, other.gain_high],
        "rungs": {r.knows: [r.gain, r.gain_low, r.gain_high] for r in finding.ladder},
    }
