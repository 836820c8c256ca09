"""The most that any attack could get, beside what one got: right unit, and loud where they contradict."""

from dataclasses import replace

import numpy as np
import pytest
from report_cards import described
from report_specimen import finding

from glasshouse.audit.scoring.finding import Measurement, bound_of
from glasshouse.audit.scoring.score import ClientSample, ScoredMetric
from glasshouse.federation.defenses.guarantee import Guarantee
from glasshouse.metrics.clients import F1, Auc, TprAtFpr
from glasshouse.metrics.labels import LabelAccuracy
from glasshouse.metrics.reconstruction import Identification, Mse, Ssim
from glasshouse.metrics.statistics.interval import Interval
from glasshouse.metrics.tables.rows import RowsExact
from glasshouse.privacy.bound import Release, attack_ceiling
from glasshouse.privacy.gaussian import gaussian_share
from glasshouse.report.terminal import lines
from glasshouse.results.outcome import exit_code
from glasshouse.rng import Rng

RNG = Rng.root(0)
UPDATE = Guarantee(
    epsilon=1.0, delta=1e-5, neighbours="update", defense="gaussian_mechanism", noise_multiplier=4.0, steps=4
)
EXAMPLE = replace(UPDATE, neighbours="example", defense="dp_sgd")


def images(hits: int, n: int = 20, null: float = 0.0) -> ScoredMetric:
    values = tuple(np.array([float(i < hits)]) for i in range(n))
    return ScoredMetric(
        values=values,
        nulls=tuple(np.array([null]) for _ in values),
        victims=tuple(map(str, range(n))),
    )


def clients() -> ScoredMetric:
    truth = np.arange(40) < 20
    return ScoredMetric(clients=(ClientSample(run="a", scores=truth.astype(float), truth=truth),))


def bounded(metric, scored, guarantee, *, marked=(), **changes):
    given = {"claim": "reconstruction", "low": 0.0, "high": 0.1, "chance": None, **changes}
    rest = {name: given.pop(name) for name in ("claim", "chance") if name in given}
    one = replace(finding(**rest), **given)
    measured = Measurement(
        name="m", metric=metric, scored=scored, claim=one.claim, primary=True, victims=(), control=None
    )
    value = Interval(
        value=min(max(one.value, one.low), one.high), low=one.low, high=one.high, n=one.n, level=0.95
    )
    bound = bound_of(value, measured, guarantee, chance=one.chance, marked=frozenset(marked), rng=RNG)
    return replace(one, bound=bound)


def test_identification_among_100_has_the_closed_form():
    bound = bounded(Identification(), images(0), UPDATE, chance=0.01).bound
    assert bound.value == pytest.approx(gaussian_share(0.01, mu=4**0.5 / 4), abs=1e-3)
    assert (bound.chance, bound.unit, bound.steps, bound.contradicted) == (0.01, "update", 4, False)


def test_a_null_that_does_better_than_chance_raises_the_bound():
    better = bounded(Identification(), images(0, null=0.1), UPDATE, chance=0.01).bound
    assert better.chance == pytest.approx(0.1)
    assert better.value > bounded(Identification(), images(0), UPDATE, chance=0.01).bound.value


def test_none_of_n_guesses_at_whole_rows_is_no_chance_of_0():
    """Of twelve rows nobody guesses one, and yet nobody knows that it is less than one in a million."""
    rows = images(10, n=12)
    one = bounded(RowsExact(), rows, replace(UPDATE, noise_multiplier=0.04, steps=1), low=0.5, high=0.98)
    assert (one.bound.value, one.bound.contradicted) == (1.0, False)
    tight = bounded(RowsExact(), rows, UPDATE, low=0.5, high=0.98).bound
    assert tight.chance == pytest.approx(1 - 0.025 ** (1 / 12))
    assert bounded(RowsExact(), images(400, n=400), UPDATE, low=0.99, high=1.0).bound.contradicted


def test_a_mean_over_a_finite_range_is_bounded_and_others_are_not():
    ssim = bounded(Ssim(), images(0, null=0.0), UPDATE).bound  # 0 is the middle of its range
    assert ssim.value == pytest.approx(2 * gaussian_share(0.5, mu=0.5) - 1, abs=1e-3)
    assert not np.isfinite(Mse().range[1])
    assert bounded(Mse(), images(0, null=0.1), UPDATE).bound is None


def test_single_examples_protect_neither_labels_nor_properties_of_many():
    assert bounded(Identification(), images(0), EXAMPLE, chance=0.01).bound is not None
    for claim in ("labels", "reconstruction"):  # labels of a batch, also as the labels of images
        assert bounded(LabelAccuracy(), images(0), EXAMPLE, claim=claim).bound is None
    assert bounded(LabelAccuracy(), images(0), UPDATE, claim="labels").bound is not None
    asked = {"claim": "clients", "unit": "clients", "chance": 0.5}
    assert bounded(Auc(), clients(), EXAMPLE, marked=["attribute 3"], **asked).bound is None
    assert bounded(Auc(), clients(), EXAMPLE, marked=["membership"], **asked).bound is not None


def test_clients_differ_by_two_steps():
    share = attack_ceiling([Release(noise_multiplier=4.0, steps=4)], unit="update").share
    bound = bounded(TprAtFpr(fpr=0.1), clients(), UPDATE, claim="clients", unit="clients", chance=0.1).bound
    assert bound.value == pytest.approx(share(share(0.1).value).value)
    assert bound.value == pytest.approx(gaussian_share(0.1, mu=2 * 4**0.5 / 4), abs=2e-3)
    auc = bounded(Auc(), clients(), UPDATE, claim="clients", unit="clients", chance=0.5).bound
    assert auc.value == pytest.approx(0.7602, abs=2e-3)  # Φ(1 / √2), the AUC of two steps of μ = 1/2
    assert bounded(F1(), clients(), UPDATE, claim="clients", unit="clients").bound is None


def test_more_than_the_bound_is_loud_and_ends_with_1():
    one = bounded(Identification(), images(20), UPDATE, chance=0.01, low=0.83, high=1.0, value=1.0)
    assert one.bound.contradicted
    result = described(replace(one, primary=True, metric="identification", verdict="contradiction"))
    assert exit_code(result) == 1
    assert any("CONTRADICTION" in line for line in lines(result))


def test_within_the_bound_the_verdict_stays():
    one = bounded(Identification(), images(1), UPDATE, chance=0.01, verdict="leaks")
    assert (one.verdict, one.bound.contradicted) == ("leaks", False)
