"""Claims that know private examples, be it under wrong names, are told from claims that know nobody."""

import numpy as np
import pytest

from glasshouse.metrics.statistics.strangers import strangers_p
from glasshouse.rng import Rng

N, M = 20, 60


def p_of(claims, private, heldout, *, strata=None, heldout_strata=None, seed=0):
    def near(others):
        return -((claims[:, None] - others[None]) ** 2).sum(-1)

    zeros = np.zeros
    return strangers_p(
        near(private),
        near(heldout),
        np.eye(len(private)) > 0,
        zeros(len(private), int) if strata is None else strata,
        zeros(len(heldout), int) if heldout_strata is None else heldout_strata,
        rng=Rng.root(seed),
    )


def examples(random, count, *, mean=0.0):
    return mean + random.normal(size=(count, 6))


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_everybody_under_the_next_name_is_noticed(noise):
    random = np.random.default_rng(1)
    private, heldout = examples(random, N), examples(random, M)
    claims = np.roll(private, 1, axis=0) + noise * random.normal(size=private.shape)
    assert p_of(claims, private, heldout) < 0.01


KNOW_NO_OTHER = {
    "strangers": lambda random, private: examples(random, N),
    "a mean": lambda random, private: np.zeros_like(private),
    "a mean, noise": lambda random, private: 0.2 * random.normal(size=private.shape),
    "one for all": lambda random, private: np.repeat(examples(random, 1), N, axis=0),
    "their own": lambda random, private: private + 0.1 * random.normal(size=private.shape),
}


@pytest.mark.parametrize("kind", KNOW_NO_OTHER)
def test_claims_that_know_no_other_are_rarely_called_mixed_up(kind):
    below = 0
    for seed in range(100):
        random = np.random.default_rng(seed)
        private, heldout = examples(random, N), examples(random, M)
        claims = KNOW_NO_OTHER[kind](random, private)
        below += p_of(claims, private, heldout, seed=seed) <= 0.025
    assert below <= 7  # 2.5 expected of 100; more than 7 has a probability of 0.004


def test_what_a_claim_knows_by_its_label_it_knows_of_nobody():
    """Rare classes are common among the private ones, and claims are means of classes."""
    below = 0
    for seed in range(100):
        random = np.random.default_rng(seed)
        labels, others = random.integers(0, 2, N), (random.random(M) < 0.15).astype(int)
        private = examples(random, N) + 8 * labels[:, None]
        heldout = examples(random, M) + 8 * others[:, None]
        claims = 8.0 * labels[:, None] + 0.2 * random.normal(size=private.shape)
        below += p_of(claims, private, heldout, strata=labels, heldout_strata=others, seed=seed) <= 0.025
    assert below <= 7


def test_ties_are_no_evidence():
    same = np.zeros((N, 6))
    random = np.random.default_rng(0)
    assert p_of(examples(random, N), same, np.zeros((M, 6))) > 0.025
