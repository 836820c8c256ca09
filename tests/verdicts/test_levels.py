"""Levels of tests over clients and of shares, where the luck of a whole run or a fair hit rate deceives."""

import itertools

import numpy as np
import pytest
from scipy import stats
from tests.verdicts.bench import FOUND, PASSED

from glasshouse.audit.scoring.exchange import exchange
from glasshouse.audit.scoring.gains import gain_of, p_of
from glasshouse.audit.scoring.judging.verdict import Evidence, decide
from glasshouse.audit.scoring.nulls import CHANCE
from glasshouse.audit.scoring.score import ClientSample, ScoredMetric, join_parts
from glasshouse.metrics.clients import Auc
from glasshouse.metrics.reconstruction import Identification
from glasshouse.metrics.statistics import permutation
from glasshouse.report.words import condition
from glasshouse.rng import Rng

NOMINAL = 0.025
TURNED = "worse than others"


def lucky_runs(random: np.random.Generator, runs: int, luck: float, clients: int = 20) -> ScoredMetric:
    """Detectors that rank members high in one run and low in another, by luck."""
    truth = np.arange(clients) < clients // 2
    samples = [
        ClientSample(
            run=str(k), scores=random.normal(size=clients) + random.normal(0, luck) * truth, truth=truth
        )
        for k in range(runs)
    ]
    return join_parts([ScoredMetric(clients=(one,), baseline="coin") for one in samples])


def leaks_of_luck(runs: int, luck: float, count: int) -> float:
    random, root = np.random.default_rng([runs, round(10 * luck), 5]), Rng.root(0)
    found = [p_of(lucky_runs(random, runs, luck), Auc(), rng=root.child(str(i))) for i in range(count)]
    return float(np.mean(np.array(found) < NOMINAL))


@pytest.mark.parametrize("runs", [3, 6])
def test_the_luck_of_whole_runs_is_no_leak(runs, monkeypatch):
    monkeypatch.setattr(permutation, "EXCHANGES", 299)
    assert leaks_of_luck(runs, 1.0, 60) <= 0.06


@pytest.mark.slow
@pytest.mark.parametrize("luck", [0.5, 1.5])
@pytest.mark.parametrize("runs", [6, 8])
def test_auc_over_several_lucky_runs_keeps_its_level(runs, luck, monkeypatch):
    monkeypatch.setattr(permutation, "EXCHANGES", 999)
    assert leaks_of_luck(runs, luck, 1200) <= NOMINAL


@pytest.mark.parametrize("runs", range(1, 8))
def test_a_rate_over_fewer_runs_than_signs_can_judge_is_about_these_runs(runs):
    said = condition((), {}, runs, of_clients=True)
    assert ("these" in said) == (2.0**-runs >= NOMINAL)


@pytest.mark.parametrize("runs", [1, 2, 6])
def test_a_detector_that_works_in_every_run_is_a_leak(runs):
    random = np.random.default_rng(runs)
    truth = np.arange(20) < 10
    samples = [
        ClientSample(run=str(k), scores=random.normal(size=20) + 3 * truth, truth=truth) for k in range(runs)
    ]
    scored = join_parts([ScoredMetric(clients=(one,), baseline="coin") for one in samples])
    assert p_of(scored, Auc(), rng=Rng.root(1)) < NOMINAL


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5])
def test_identification_beside_a_known_chance_keeps_its_level(rate):
    """Exactly: over every number of hits among 20."""
    n = 20
    level = sum(
        stats.binom.pmf(hits, n, rate) * (p_of_hits(hits, np.full((n, 1), rate), CHANCE) < NOMINAL)
        for hits in range(n + 1)
    )
    assert level <= NOMINAL


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5])
def test_identification_beside_a_null_of_the_same_rate_keeps_its_level(rate):
    """Exactly: over every number of pairs in which both, one of both, or none hit."""
    n, level = 20, 0.0
    chances = [rate * rate, rate * (1 - rate), (1 - rate) * rate, (1 - rate) ** 2]
    for both, own, null in itertools.product(range(n + 1), repeat=3):
        rest = n - both - own - null
        weight = stats.multinomial.pmf([both, own, null, rest], n, chances) if rest >= 0 else 0.0
        if own <= null or weight < 1e-7:
            continue
        other = np.repeat([1.0, 0.0, 1.0, 0.0], [both, own, null, rest])[:, None]
        level += weight * (p_of_hits(both + own, other, "null") < NOMINAL)
    assert level <= NOMINAL


def p_of_hits(hits: int, null: np.ndarray, baseline: str) -> float:
    """The p-value of ``hits`` that are the first of all victims."""
    n = len(null)
    values = tuple((np.arange(n) < hits)[:, None] * 1.0)
    names = tuple(map(str, range(n)))
    scored = ScoredMetric(values=values, nulls=tuple(null), victims=names, baseline=baseline)
    return p_of(scored, Identification(), rng=Rng.root(0))


def lacks_of(samples: ScoredMetric) -> tuple[str, ...]:
    """What a silence about clients, by AUC, would lack."""
    metric = Auc()
    gain, other = gain_of(samples, metric, rng=Rng.root(0)), exchange(samples, metric, rng=Rng.root(0))
    evidence = Evidence(metric=metric, gain=gain, null=0.5, exchange=other.gain, control=PASSED, power=FOUND)
    return decide(evidence).lacks


@pytest.mark.parametrize("runs", [1, 6])
def test_scores_that_rank_all_members_last_are_no_silence(runs, monkeypatch):
    """An area of 0 tells as much as one of 1, and a limit on the gain held beside it."""
    monkeypatch.setattr(permutation, "EXCHANGES", 99)
    upside_down = [lacks_of(ranked(runs, -1.0, 0.6, seed)) for seed in range(3)]
    assert all(any(TURNED in reason for reason in lacks) for lacks in upside_down)
    guesses = [lacks_of(ranked(runs, 0.0, 1.0, seed)) for seed in range(20)]
    assert sum(any(TURNED in reason for reason in lacks) for lacks in guesses) <= 2


def ranked(runs: int, sign: float, noise: float, seed: int, clients: int = 20) -> ScoredMetric:
    """Scores that follow membership with a sign, under noise, in several federations."""
    random, truth = np.random.default_rng(seed), np.arange(clients) < clients // 2
    samples = (
        ClientSample(run=str(k), scores=sign * truth + noise * random.normal(size=clients), truth=truth)
        for k in range(runs)
    )
    return join_parts([ScoredMetric(clients=(one,), baseline="coin") for one in samples])
