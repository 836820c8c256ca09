"""How often each word is wrong, by simulated audits through the functions that score real ones.

``python -m tests.verdicts.test_error_rates 200`` prints the table of ``docs/result.md``; ``make slow``
asserts it.
"""

import sys
from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from tests.verdicts.bench import SHAPE, Bench, batch, bench, textured

from glasshouse.results.records import Finding

VICTIMS = (3, 8, 20, 50)
Random = np.random.Generator
ALLOWED = 0.03


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


DATA = {f.__name__: f for f in (same, alike, shrunk, moved, constant, clustered)}
SHARES = (1 / 20, 1 / 10, 1 / 5, 1 / 3)


def null_audit(n: int, null: str, data: str, seed: int) -> Finding:
    """An audit in which nothing leaks."""
    random = np.random.default_rng([seed, n, *map(ord, null + data)])
    one = bench(n, random)
    DATA[data](one, random)
    one.claims = NULLS[null](one, n, random).clamp(0, 1)
    return one.finding()


def whole_audit(n: int, share: float, seed: int) -> Finding:
    """An audit in which a share of the victims comes out whole, each by its own luck."""
    random = np.random.default_rng([seed, n, int(100 * share)])
    one = bench(n, random)
    claims = textured(n, random)
    out = torch.from_numpy(random.random(n) < share)
    claims[out] = one.private.inputs[out]
    one.claims = claims
    return one.finding()


def rate(findings: list[Finding], wrong: Callable[[Finding], bool]) -> float:
    return float(np.mean([wrong(finding) for finding in findings]))


def leaks(finding: Finding) -> bool:
    return finding.verdict in ("leaks", "label leak", "too alike")


def names(finding: Finding) -> bool:
    return any(victim.leaks for victim in finding.victims)


def silent(finding: Finding) -> bool:
    return finding.verdict == "no leak found"


@pytest.mark.slow
@pytest.mark.parametrize("n", VICTIMS)
@pytest.mark.parametrize("data", DATA)
def test_nothing_that_leaks_is_said_to_and_nobody_is_named(n, data):
    findings = [null_audit(n, null, data, seed) for null in NULLS for seed in range(40)]
    assert rate(findings, leaks) <= ALLOWED
    assert rate(findings, names) <= ALLOWED


@pytest.mark.slow
@pytest.mark.parametrize("n", VICTIMS)
@pytest.mark.parametrize("share", SHARES)
def test_what_comes_out_whole_is_hardly_ever_no_leak_found(n, share):
    findings = [whole_audit(n, share, seed) for seed in range(150)]
    wrong = share > findings[0].share.margin  # at or below the margin, "no leak found" may be said
    assert not wrong or rate(findings, silent) <= ALLOWED
    covered = rate(findings, lambda f: f.share is None or f.share.most >= share)
    assert covered >= 0.93


def main(audits: int) -> None:
    """Print the tables."""
    torch.set_num_threads(1)
    print("| data | n | false leaks | false names | verdicts on single victims |\n|---|---|---|---|---|")
    for data in DATA:
        for n in VICTIMS:
            rows = [
                null_audit(n, null, data, seed)
                for null in NULLS
                for seed in range(max(1, audits // len(NULLS)))
            ]
            judged = rate(rows, lambda f: bool(f.victims))
            print(
                f"| {data} | {n} | {rate(rows, leaks):.3f} | {rate(rows, names):.3f} | {judged:.2f} |",
                flush=True,
            )
    print(
        "| whole | n | no leak found | leaks | somebody named | upper end covers |\n|---|---|---|---|---|---|"
    )
    for share in SHARES:
        for n in VICTIMS:
            rows = [whole_audit(n, share, seed) for seed in range(audits)]
            covers = rate(rows, lambda f, share=share: f.share is None or f.share.most >= share)
            counts = " | ".join(f"{rate(rows, what):.3f}" for what in (silent, leaks, names))
            print(f"| {share:.2f} | {n} | {counts} | {covers:.3f} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
