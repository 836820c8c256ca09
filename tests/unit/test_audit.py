"""The harness: units, claims on disk, refusals before a run, nulls, findings, verdicts."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from glasshouse.attacks.base import About, ClientScores, DefenseGuess, Labels, Needs, Reconstruction
from glasshouse.attacks.inversion.linear_input import LinearInput
from glasshouse.audit.attacking.check import check_claims
from glasshouse.audit.attacking.claims import (
    Outcome,
    Unit,
    is_finished,
    read_outcome,
    same_claims,
    write_outcome,
)
from glasshouse.audit.attacking.needs import find_refusal
from glasshouse.audit.scoring.gains import (
    gain_of,
    middle,
    null_of,
    p_of,
    value_of,
    with_chance,
    within,
)
from glasshouse.audit.scoring.nulls import GUESS, NullBook
from glasshouse.audit.scoring.score import ScoredMetric, join_parts
from glasshouse.errors import BadValue, Undefined
from glasshouse.metrics.attribution import Attribution, LeakedLabels
from glasshouse.metrics.base import ScoreContext
from glasshouse.metrics.reconstruction import Identification, Mse, Psnr, Ssim
from glasshouse.metrics.statistics.interval import Interval
from glasshouse.modalities.image import Image
from glasshouse.results.files import read_result, write_result
from glasshouse.results.records import Control, Finding, Result
from glasshouse.rng import Rng
from glasshouse.testing.toys import toy
from glasshouse.transcript.grants import Grants
from glasshouse.transcript.threat import Threat
from glasshouse.truth.record import Truth, Used
from glasshouse.wire import Batch, Refusal

ABOUT = About(rounds=(0,), client=1)
UNIT = Unit(rounds=(0,), client=1)


def claim(inputs=None, **changes):
    inputs = torch.rand(2, 1, 8, 8) if inputs is None else inputs
    fields = {"about": ABOUT, "inputs": inputs, "labels": None, "confidence": torch.ones(len(inputs))}
    return Reconstruction(**{**fields, **changes})


def test_outcomes_come_back_from_disk(tmp_path):
    claims = (
        claim(labels=torch.tensor([1, 2]), source=torch.tensor([-1, 0])),
        Labels(about=ABOUT, counts=torch.tensor([0, 2])),
        ClientScores(
            about=About(rounds=(0, 1)), scores=torch.rand(3), decisions=torch.tensor([True, False, True])
        ),
        DefenseGuess(about=ABOUT, name="clip", parameters={"norm": 2.0}),
    )
    write_outcome(Outcome(claims=claims, seconds=1.5), tmp_path)
    again = read_outcome(tmp_path)
    assert same_claims(claims, again.claims)
    assert again.seconds == 1.5
    assert not same_claims(claims, again.claims[:-1])
    assert not same_claims(claims[:1], (claim(),))


def test_a_unit_without_its_claims_file_is_unfinished(tmp_path):
    write_outcome(Outcome(refusal=Refusal(subject="a", needs="b", got="c", fix="d")), tmp_path)
    assert is_finished(tmp_path)
    assert read_outcome(tmp_path).refusal.fix == "d"
    (tmp_path / "claims.json").unlink()
    assert not is_finished(tmp_path)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (claim(torch.full((1, 1, 8, 8), float("nan"))), "not finite"),
        (claim(torch.rand(1, 1, 7, 8)), "pictures (B, 1, 8, 8)"),
        (claim(torch.rand(1, 1, 8, 8) + 1), "inputs.project"),
        (claim(confidence=torch.ones(3)), "one label, confidence and source per input"),
        (claim(about=About(rounds=(0,), client=2)), "claims about client 1"),
        (claim(about=About(rounds=(1,), client=1)), "claims about rounds of [0]"),
        (claim(about=About(rounds=(0, 0), client=1)), "each named once"),
        (claim(about=About(rounds=(), client=1)), "got    Reconstruction about rounds []"),
        (claim(torch.rand(4097, 1, 8, 8)), "at most 4,096 images for 1 private examples"),
        (ClientScores(about=ABOUT, scores=torch.rand(2), decisions=torch.ones(2) > 0), "each of 3 clients"),
        ("a sentence", "claims: "),
    ],
)
def test_the_harness_does_not_believe_a_claim(made, words):
    with pytest.raises(BadValue) as caught:
        check_claims((made,), view=toy().view(client=1), unit=UNIT, subject="attack 'x'")
    assert words in str(caught.value)


def test_two_guesses_at_the_same_thing_are_refused():
    with pytest.raises(BadValue, match="one claim of a kind"):
        check_claims((claim(), claim()), view=toy().view(client=1), unit=UNIT, subject="attack 'x'")


def test_claims_beyond_the_memory_limit_are_refused(monkeypatch):
    monkeypatch.setattr("glasshouse.audit.attacking.check.NUMBERS", 100)
    with pytest.raises(BadValue, match="at most 4,096 claims with 100 numbers"):
        check_claims((claim(),), view=toy().view(client=1), unit=UNIT, subject="attack 'x'")


def test_a_good_claim_passes():
    check_claims((claim(),), view=toy().view(client=1), unit=UNIT, subject="attack 'x'")


class Wants:
    def __init__(self, **needs):
        self.needs = Needs(**{"sees": frozenset(), "scope": "update", **needs})


@pytest.mark.parametrize(
    ("needs", "threat", "protocol", "words"),
    [
        ({}, {}, "fedmd", "protocol fedavg or fedsgd"),
        ({"sees": frozenset({"update"})}, {"sees": frozenset({"broadcast"})}, "fedsgd", "sees update"),
        ({"changes": frozenset({"parameters"})}, {}, "fedsgd", "changes parameters"),
        ({"grants": frozenset({"auxiliary"})}, {}, "fedsgd", "side knowledge: auxiliary"),
    ],
)
def test_what_rules_an_attack_out_before_it_runs(needs, threat, protocol, words):
    terms = replace(toy().setting.terms, protocol=protocol)
    refusal = find_refusal(Wants(**needs), "x", Threat(**threat), Grants(), terms)
    assert words in refusal.needs
    assert find_refusal(LinearInput(), "linear_input", Threat(), Grants(), toy().setting.terms) is None


def control(passed: bool) -> Control:
    return Control(positive=1, positive_low=1, negative=0, negative_low=-1, passed=passed, setting="", n=6)


def scored(values, nulls):
    return ScoredMetric(values=tuple(map(np.array, values)), nulls=tuple(map(np.array, nulls)), baseline="b")


def test_a_gain_is_paired_and_signed_so_that_positive_is_leakage():
    """Errors: the attack halves what differs wildly between victims. Unpaired this would drown."""
    errors = [[1.0], [10.0], [100.0], [1000.0]]
    worse = [[e[0] + 1.0 + 0.1 * i] for i, e in enumerate(errors)]
    gain = gain_of(scored(errors, worse), Mse(), rng=Rng.root(0))
    assert gain.low > 0
    assert gain.value == pytest.approx(1.15)
    assert gain_of(scored(errors, worse), Psnr(), rng=Rng.root(0)).high < 0


def test_values_are_averaged_within_a_victim_first():
    one = scored([[1.0, 3.0], [4.0], [6.0]], [[0.0, 0.0], [0.0], [0.0]])
    assert value_of(one, Psnr(), rng=Rng.root(0)).value == 4.0
    assert value_of(one, Psnr(), rng=Rng.root(0)).n == 3
    assert middle(one) == 4.0


def test_the_same_data_met_again_is_no_further_victim():
    """Two seeds drew 'a': its numbers go together, alone they would have narrowed the interval."""
    first = ScoredMetric(values=(np.ones(1), np.zeros(1)), nulls=(np.zeros(1),) * 2, victims=("a", "b"))
    again = ScoredMetric(values=(np.zeros(1), np.ones(1)), nulls=(np.zeros(1),) * 2, victims=("a", "c"))
    both = join_parts([first, again])
    assert both.victims == ("a", "b", "c")
    assert [v.tolist() for v in both.values] == [[1.0, 0.0], [0.0], [1.0]]
    assert value_of(both, Psnr(), rng=Rng.root(0)).n == 3
    interval = value_of(both, Identification(), rng=Rng.root(0))
    assert (interval.value, interval.n) == (0.5, 3)


def test_the_same_data_in_two_rounds_of_one_claim_is_one_victim():
    once = ScoredMetric(values=(np.ones(1), np.zeros(1)), nulls=(np.zeros(1),) * 2, victims=("a", "a"))
    alone = join_parts([once])
    assert (alone.victims, [v.tolist() for v in alone.values]) == (("a",), [[1.0, 0.0]])
    assert value_of(alone, Psnr(), rng=Rng.root(0)).n == 1


def test_data_behind_an_update_are_known_again_in_any_order_round_and_run():
    images = torch.rand(5, 1, 4, 4)
    pool = Batch(inputs=images, labels=torch.arange(5))
    turned = Batch(inputs=images.flip(0), labels=torch.arange(5))

    def told(private: Batch, *steps: tuple[int, ...]) -> str:
        used = {(3, 1): Used(steps=steps, behaviour="honest")}
        return Truth(private=private, shards={1: (0, 1, 2, 3, 4)}, used=used).identity(3, 1)

    assert told(pool, (0, 1), (1, 2)) == told(pool, (2, 0, 1)) == told(turned, (2, 3, 4))
    assert len({told(pool, (0, 1)), told(pool, (0, 2)), told(pool, (0,)), told(turned, (0, 1))}) == 4


def auxiliary(count: int = 40) -> Batch:
    draws = torch.Generator().manual_seed(0)
    return Batch(inputs=torch.rand((count, 1, 8, 8), generator=draws), labels=torch.arange(count) % 4)


def book(count: int = 40) -> NullBook:
    return NullBook(
        modality=Image(size=(1, 8, 8)), auxiliary=auxiliary(count), context=ScoreContext(), rng=Rng.root(0)
    )


def test_the_null_that_is_quoted_is_the_best_on_pseudo_victims():
    """Independent noise images: their mean is the best guess in squared error."""
    result = book().choose(Mse(), 1, "domain", Rng.root(0))
    assert result in ("mean auxiliary picture", "grey picture")
    score = {
        name: book().average(Mse(), name, auxiliary(8), Rng.root(1)).mean()
        for name in ("mean auxiliary picture", "random auxiliary picture")
    }
    assert score["mean auxiliary picture"] < score["random auxiliary picture"]


def test_too_little_auxiliary_data_is_said_so():
    with pytest.raises(Undefined, match="null adversary knows"):
        book(4).choose(Mse(), 1, "domain", Rng.root(0))


def finding(**changes) -> Finding:
    fields = {
        "scenario": "s", "cell": "c", "axes": {"a": 1}, "attack": "x", "protocol": "fedsgd", "defenses": (),
        "metric": "psnr", "unit_of_value": "dB", "higher_leaks": True, "value": 1.0, "low": 0.5, "high": 1.5,
        "n": 4, "unit": "victims", "baseline": "b", "baseline_value": 0.0, "gain": 1.0, "gain_low": 0.5,
        "gain_high": 1.5, "control": control(True), "verdict": "leaks", "chosen": "", "given": ("labels",),
        "seconds": 1.0, "about": "",
    }  # fmt: skip
    return Finding(**{**fields, **changes})


def test_a_result_comes_back_from_disk(tmp_path):
    result = Result(suite="s", findings=(finding(),), manifest={"a": [1]})
    write_result(result, tmp_path / "result.json")
    assert read_result(tmp_path / "result.json") == result


def test_nan_never_reaches_a_result(tmp_path):
    with pytest.raises(BadValue, match="gain = nan"):
        write_result(Result(suite="s", findings=(finding(gain=float("nan")),)), tmp_path / "result.json")
    assert not (tmp_path / "result.json").exists()


def test_an_interval_stays_within_what_the_metric_can_be():
    wide = Interval(value=0.9, low=-0.2, high=1.4, n=4, level=0.95)
    assert (within(wide, Ssim().range).low, within(wide, Ssim().range).high) == (-0.2, 1.0)
    assert (within(wide, Mse().range).low, within(wide, Mse().range).high) == (0.0, 1.4)
    assert within(wide, (-math.inf, math.inf)) == wide


@pytest.mark.parametrize("metric", [Psnr(), Ssim(), Mse()])
def test_two_victims_keep_value_and_gain_within_the_range(metric):
    two = scored([[0.2], [0.9]], [[0.1], [0.1]])
    value, gain = value_of(two, metric, rng=Rng.root(0)), gain_of(two, metric, rng=Rng.root(0))
    low, high = metric.range
    assert low <= value.low < value.value < value.high <= high
    sign = 1 if metric.higher_leaks else -1
    ends = sorted((sign * (low - 0.1), sign * (high - 0.1)))
    assert ends[0] <= gain.low < gain.value < gain.high <= ends[1]


@pytest.mark.parametrize(("hits", "n", "chance", "p"), [(4, 4, 0.01, 1e-8), (4, 20, 0.03, 0.00266)])
def test_a_share_above_a_known_chance_is_judged_exactly(hits, n, chance, p):
    """4 of 4 images named among 100 used to be "inconclusive"."""
    values = [[1.0]] * hits + [[0.0]] * (n - hits)
    known = with_chance(scored(values, [[0.0]] * n), Identification(), chance)
    assert known.baseline == "chance"
    assert gain_of(known, Identification(), rng=Rng.root(0)).low > 0
    result = p_of(known, Identification(), rng=Rng.root(0))
    assert result == pytest.approx(stats.binom.sf(hits - 1, n, chance), rel=1e-6)
    assert result == pytest.approx(p, rel=0.05)


def test_a_quoted_null_is_never_below_chance():
    weak = scored([[1.0], [0.0]], [[0.0], [0.0]])
    metric = Identification()
    assert null_of(with_chance(weak, metric, 0.1), metric) == pytest.approx(0.1)
    strong = scored([[1.0], [0.0]], [[0.5], [0.1]])
    assert null_of(with_chance(strong, metric, 0.1), metric) == pytest.approx(0.3)
    assert null_of(with_chance(scored([[1.0]], [[9.0]]), Mse(), 2.0), Mse()) == 2.0
    assert null_of(weak, metric) == 0.0


@pytest.mark.parametrize("metric", [Attribution(), LeakedLabels()])
def test_what_is_said_of_images_is_a_share(metric):
    """All right used to have width 0, and half right an interval beyond 1."""
    scored = ScoredMetric(values=(np.ones(1),) * 5, nulls=(np.full(1, 0.1),) * 5, baseline=GUESS)
    value = value_of(scored, metric, rng=Rng.root(0))
    assert (value.value, value.high) == (1.0, 1.0)
    assert value.low == pytest.approx(0.025 ** (1 / 5))
    assert gain_of(scored, metric, rng=Rng.root(0)).low == pytest.approx(0.025 ** (1 / 5) - 0.1)
