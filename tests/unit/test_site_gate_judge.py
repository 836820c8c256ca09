"""The judge of a site's gate: what each rule refuses, what it changes, and what never changes."""

import math
import os
import secrets
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, kstest, norm

from glasshouse.errors import BadFile
from glasshouse.gate.judge import REPLACED, judge
from glasshouse.gate.ledger import Ledger
from glasshouse.gate.mechanism import Noise, capacity_bits, copies, privatize, spent_epsilon
from glasshouse.gate.message import FEW, Origin, Outgoing, Reason
from glasshouse.gate.policy import Mechanism, parse_policy, read_policy
from glasshouse.gate.rules import noise_ceiling
from glasshouse.privacy.gaussian import gaussian_delta, gaussian_epsilon

ORIGIN = Origin(run="7", node="3", reply_to="m1", app="a" * 64)


def policy(**tables):
    table = {"format": 1, "site": "ward", "dataset": "rows", "out": {"norm": 2.5}}
    for name, value in tables.items():
        table[name] = {**table.get(name, {}), **value} if isinstance(value, dict) else value
    return parse_policy(table)


def model():
    rng = np.random.default_rng(0)
    return {
        "body": rng.standard_normal((20, 30)).astype(np.float32),
        "head": rng.standard_normal((10, 50)).astype(np.float32),
        "count": np.array([3, 4]),
    }


def honest(seed=1, size=0.5):
    rng, arrays = np.random.default_rng(seed), copies(model())
    for name in ("body", "head"):
        step = rng.standard_normal(arrays[name].shape)
        step -= step.mean(0)
        arrays[name] += (size * step / np.linalg.norm(step)).astype(np.float32)
    return arrays


def message(arrays=None, **more):
    fields = more.pop("fields", {"num-examples": 64})
    arrays = honest() if arrays is None else arrays
    return Outgoing(
        kind=more.pop("kind", "train"), origin=ORIGIN, arrays=arrays, fields=fields, bytes=1000, **more
    )


def rules(decision):
    return [reason.rule for reason in decision.reasons]


def verdict(rule=None, received=None, ledger=None, *, arrays=None, **more):
    base = model() if received is None else received
    return judge(rule or policy(), message(arrays, **more), base, ledger or Ledger())


def test_an_honest_update_passes_unchanged():
    decision = verdict()
    assert (decision.action, decision.reasons) == ("passed", ())
    for name, array in honest().items():
        np.testing.assert_array_equal(decision.message.arrays[name], array)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"body": lambda a: a + 1}, "norm"),
        ({"body": lambda a: np.full_like(a, np.nan)}, "not_finite"),
        ({"body": lambda a: np.full_like(a, np.inf)}, "not_finite"),
        ({"body": lambda a: a.astype(np.float64)}, "dtype"),
        ({"body": lambda a: a.astype(">f4")}, "dtype"),
        ({"body": lambda a: a[:10].copy()}, "shape"),
        ({"count": lambda a: a + 1}, "buffer"),
        ({"row": lambda _: np.zeros(3, np.float32)}, "extra_tensor"),
        ({"body": None}, "missing_tensor"),
    ],
)
def test_tensors_that_are_not_an_update_are_refused(change, rule):
    arrays = honest()
    for name, alter in change.items():
        if alter is None:
            del arrays[name]
        else:
            arrays[name] = alter(arrays.get(name))
    decision = verdict(arrays=arrays)
    assert (decision.action, rules(decision), decision.message) == ("refused", [rule], None)


def test_a_norm_that_overflows_float32_is_refused():
    arrays = honest()
    arrays["body"] = np.full_like(arrays["body"], 3e38)
    assert rules(verdict(arrays=arrays)) == ["norm"]


def test_buffers_may_be_sent_back_as_received():
    arrays = honest()
    arrays["count"] = arrays["count"] + 9
    decision = verdict(policy(out={"buffers": "fixed"}), arrays=arrays)
    assert (decision.action, rules(decision)) == ("changed", ["buffer"])
    np.testing.assert_array_equal(decision.message.arrays["count"], model()["count"])


def test_a_change_of_few_numbers_is_refused_where_the_policy_says_so():
    arrays = copies(model())
    arrays["body"][0, 0] += 1
    assert rules(verdict(policy(out={"sparsest": 0.01}), arrays=arrays)) == ["sparse"]


def test_signs_of_zero_and_denormals_carry_nothing():
    received = {"body": np.zeros((4, 8), np.float32)}
    arrays = copies(received)
    arrays["body"][0], arrays["body"][1] = -0.0, 1e-42
    arrays["body"][2] = 0.5
    sent = verdict(received=received, arrays=arrays).message.arrays["body"]
    assert sent[:2].tobytes() == bytes(sent[:2].nbytes)
    assert (sent[2] == 0.5).all()


@given(st.integers(0, 2**32 - 1))
def test_low_bits_carry_nothing_beyond_the_grid(seed):
    rng, grid = np.random.default_rng(seed), 1e-3
    received = {"w": rng.standard_normal(200).astype(np.float32)}
    steps = rng.integers(-50, 50, 200) * grid
    sent = []
    for hidden in rng.uniform(-0.3, 0.3, (2, 200)) * grid:  # two messages in the low bits of one update
        arrays = {"w": (received["w"] + steps + hidden).astype(np.float32)}
        sent.append(
            verdict(policy(out={"grid": grid}), received, arrays=arrays).message.arrays["w"].tobytes()
        )
    assert sent[0] == sent[1]


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"num-examples": 1}, "examples"),
        ({"num-examples": 64.5}, "examples"),
        ({"num-examples": True}, "examples"),
        ({}, "examples"),
        ({"num-examples": 64, "loss": 0.3}, "unlisted"),
        ({"num-examples": 64, "listed": (0.3, 0.4)}, "unlisted"),
    ],
)
def test_fields_that_are_not_allowed_are_refused(fields, rule):
    rule_of = policy(out={"fields": ("listed",), "examples": {"least": 32}})
    assert rules(verdict(rule_of, fields=fields)) == [rule]


def test_a_count_that_grows_by_one_does_not_show():
    rule = policy(out={"examples": {"least": 32, "multiple": 32}})
    sent = [verdict(rule, fields={"num-examples": n}).message.fields for n in (64, 65, 95, 96)]
    assert sent == [{"num-examples": n} for n in (64, 64, 64, 96)]


@pytest.mark.parametrize("n", [32 * int.from_bytes(bytes(range(1, 65))), 32 * 2**57, 2.0**1000])
def test_a_count_has_an_end_as_its_digits_would_carry_a_row(n):
    rule = policy(out={"examples": {"least": 32, "multiple": 32}})
    assert rules(verdict(rule, fields={"num-examples": n})) == ["examples"]
    fixed = policy(out={"examples": {"fixed": 100}})
    assert verdict(fixed, fields={"num-examples": n}).message.fields == {"num-examples": 100}


def test_one_message_has_one_count():
    twice = {"num-examples": 64, "num_examples": 96}
    assert rules(verdict(fields=twice)) == ["examples"]
    assert rules(verdict(fields=dict.fromkeys(twice, 64))) == []


def test_a_count_is_sent_as_a_whole_number_whatever_its_type_was():
    assert isinstance(verdict(fields={"num-examples": 64.0}).message.fields["num-examples"], int)


def test_a_fixed_count_is_sent_in_the_place_of_any():
    rule = policy(out={"examples": {"fixed": 100}})
    assert verdict(rule, fields={"num-examples": 7}).message.fields == {"num-examples": 100}


@pytest.mark.parametrize(
    ("metrics", "sent"), [("strip", {}), ("round", {"loss": 0.35}), ("pass", {"loss": 0.333})]
)
def test_listed_metrics_are_removed_rounded_or_passed(metrics, sent):
    rule = policy(out={"fields": ("loss",), "metrics": metrics})
    decision = verdict(rule, fields={"num-examples": 64, "loss": 0.333})
    assert {k: round(v, 9) for k, v in decision.message.fields.items()} == {"num-examples": 64, **sent}


def test_a_rounded_metric_is_clamped():
    rule = policy(out={"fields": ("loss",), "metrics": "round"})
    assert verdict(rule, fields={"num-examples": 64, "loss": 1e300}).message.fields["loss"] == 10


def test_unlisted_numbers_and_documents_may_be_removed():
    rule = policy(out={"unlisted": "strip"})
    decision = verdict(rule, fields={"num-examples": 64, "row": (1, 2)}, documents={"a": b"row", "b": "text"})
    assert (decision.message.fields, decision.message.documents) == ({"num-examples": 64}, {})


def test_an_error_leaves_as_fixed_words():
    decision = verdict(arrays={}, fields={}, error="row of data")
    assert (decision.action, decision.message.error) == ("changed", REPLACED)
    assert "row of data" not in str(decision)


def test_masked_vectors_leave_only_where_the_policy_says_so():
    masked = {"arrays": {}, "fields": {}, "documents": {"vectors": 1}, "masked": True}
    assert rules(verdict(**masked)) == ["secure_sum"]
    allowed = verdict(policy(secure_sum="allowed"), **masked)
    assert allowed.action == "passed"
    assert "norm" in allowed.unjudged


@pytest.mark.parametrize(
    ("tables", "more", "rule"),
    [
        ({"apps": [f"sha256:{'b' * 64}"]}, {}, "app"),
        ({"kinds": ["evaluate"]}, {}, "kind"),
        ({"budget": {"largest": 999}}, {}, "too_large"),
        ({}, {"oddities": (Reason(rule="malformed"),)}, "malformed"),
    ],
)
def test_messages_that_may_not_leave_at_all(tables, more, rule):
    assert rules(verdict(policy(**tables), **more)) == [rule]


def test_without_a_received_model_nothing_leaves():
    assert rules(judge(policy(), message(), None, Ledger())) == ["no_model_received"]


def left(**more):
    entry = {
        "event": "out",
        "action": "passed",
        "time": "2026-01-01T00:00:00Z",
        "run": "7",
        "node": "3",
        "reply_to": "m0",
        "kind": "train",
        "bytes_out": 1000,
        "tensors": 3,
        "got": "",
        "dataset": "rows",
        "mu_squared": 0.0,
    }
    return {**entry, **more}


@pytest.mark.parametrize(
    ("budget", "entries", "rule"),
    [
        ({"rounds": 2}, [left(), left()], "budget_rounds"),
        ({"bytes": 2999}, [left(), left()], "budget_bytes"),
        ({"rounds": 2}, [left(), left(action="refused"), left(run="8")], None),
        ({}, [left(reply_to="m1", action="refused")], "answered_twice"),
        ({}, [left(reply_to="m1", node="4")], None),
    ],
)
def test_budgets_are_counted_by_run(budget, entries, rule):
    decision = verdict(policy(budget=budget), ledger=Ledger.of(entries))
    assert rules(decision) == ([rule] if rule else [])


def test_tensors_that_left_before_are_refused():
    got = verdict().got
    assert rules(verdict(ledger=Ledger.of([left(got=got)]))) == ["sent_before"]
    assert rules(verdict(ledger=Ledger.of([left(got=got, action="refused")]))) == []


def test_another_count_or_order_makes_no_new_message_of_the_same_tensors():
    arrays = honest()
    again = {name: arrays[name] for name in reversed(arrays)}
    before = Ledger.of([left(got=verdict(arrays=arrays).got)])
    assert rules(verdict(ledger=before, arrays=again, fields={"num-examples": 96})) == ["sent_before"]


def test_of_hundreds_of_thousands_of_reasons_few_are_kept():
    decision = verdict(fields={f"m{n}": 1.0 for n in range(200_000)})
    assert set(rules(decision)) == {"unlisted"}
    assert (len(decision.reasons), decision.reasons[-1].detail) == (FEW + 1, f"and {200_000 - FEW} more")


THREADS = """
import time, numpy as np
from glasshouse.gate.rules import measure_change, measure_step
one, two = ({"w": np.full(2**21, v, np.float32)} for v in (0.5, 0.25))
all_threads, this_thread = time.process_time(), time.thread_time()
for _ in range(5):
    measure_change(one, two), measure_step(one, two)
all_threads, this_thread = time.process_time() - all_threads, time.thread_time() - this_thread
print((all_threads - this_thread) / this_thread)
"""


def test_the_rules_keep_no_other_thread_busy():
    """BLAS would: its threads wait in a loop for the next block."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "2"}
    run = subprocess.run(
        [sys.executable, "-c", THREADS], env=environment, capture_output=True, text=True, check=True
    )
    assert float(run.stdout) < 0.2


# The gate's own noise.

MECHANISM = {"norm": 0.0, "mechanism": {"clip": 1.0, "noise_multiplier": 2.0, "epsilon": 8.0, "delta": 1e-5}}


def test_the_noise_has_the_stated_deviation_and_clips_first():
    received = {"w": np.zeros(200_000, np.float32)}
    arrays = {"w": np.full(200_000, 5.0, np.float32)}
    decision = verdict(policy(out=MECHANISM), received, arrays=arrays)
    sent = decision.message.arrays["w"] / 2.0
    assert decision.mu_squared == 1.0  # any two updates in the ball are at most 2·clip apart
    assert kstest(sent - 1 / 200_000**0.5 / 2, "norm").pvalue > 1e-4
    assert rules(decision) == ["noised"]


def test_no_message_reaches_the_end_of_the_noise(monkeypatch):
    """Where its count of blocks began at random, one message in hundreds of a gigabyte failed."""
    monkeypatch.setattr(secrets, "token_bytes", lambda size: b"\xff" * size)
    assert np.isfinite(Noise().draw(1000)).all()


def test_noise_repeats_in_no_two_messages():
    draws = [Noise().draw(100) for _ in range(2)]
    assert not np.array_equal(*draws)


def test_epsilon_is_that_of_the_closed_form_and_ends_the_budget():
    rule, ledger = policy(out=MECHANISM), Ledger()
    spent = []
    for turn in range(10):
        decision = verdict(rule, ledger=ledger, arrays=honest(turn))
        if decision.action == "refused":
            break
        ledger.add(left(mu_squared=decision.mu_squared, got=decision.got, reply_to=str(turn)))
        spent.append(spent_epsilon(ledger.mu_squared["rows"], delta=1e-5))
    assert rules(decision) == ["budget_epsilon"]
    expected = [gaussian_epsilon((turn + 1) ** 0.5, delta=1e-5) for turn in range(len(spent))]
    assert spent == pytest.approx(expected, rel=1e-6)
    assert spent[-1] <= 8.0 < gaussian_epsilon((len(spent) + 1) ** 0.5, delta=1e-5)


@pytest.mark.parametrize("delta", [1e-12, 1e-5, 1e-2, 0.5])
def test_epsilon_is_that_of_another_accountant_and_never_below_it(delta):
    """dp-accounting, which the gate does without: it would stand in every process that opens a message."""
    accounting = pytest.importorskip("dp_accounting")
    for mu in (1e-3, 0.03, 0.3, 1.0, 3.0, 30.0, 1000.0):
        told = spent_epsilon(mu**2, delta=delta)
        assert told == pytest.approx(accounting.get_epsilon_gaussian(1 / mu, delta), rel=1e-6, abs=1e-6)
        assert told == 0 or gaussian_delta(told, mu=mu) <= delta
    assert spent_epsilon(1e10, delta=delta) == math.inf


def test_a_refused_message_spends_nothing():
    decision = verdict(policy(out=MECHANISM), fields={"num-examples": 64, "row": 1.0})
    assert (decision.action, decision.mu_squared) == ("refused", 0.0)


def test_a_covert_channel_in_low_bits_and_signs_ends_in_the_noise():
    """Bits in the signs of 10,000 numbers, as loud as the clip allows: decoded without noise, not with it."""
    bits = np.random.default_rng(5).integers(0, 2, 10_000)
    received = {"w": np.zeros(10_000, np.float32)}
    arrays = {"w": ((2 * bits - 1) * 0.01).astype(np.float32)}  # norm 1
    clear = verdict(policy(out={"norm": 1.5}), received, arrays=copies(arrays)).message.arrays["w"]
    noised = verdict(policy(out=MECHANISM), received, arrays=copies(arrays)).message.arrays["w"]
    assert ((clear > 0) == bits).all()
    share = ((noised > 0) == bits).mean()
    assert abs(share - 0.502) < 0.02  # Φ(0.01 / 2) = 0.502
    rule = Mechanism(clip=1.0, noise_multiplier=2.0, epsilon=8.0)
    assert capacity_bits(10_000, rule=rule) < 0.2


def test_privatize_leaves_what_was_received_alone():
    received = {"w": np.ones(10, np.float32)}
    privatize({"w": np.ones(10, np.float32)}, received, rule=Mechanism(**MECHANISM["mechanism"]), norm=0.0)
    assert (received["w"] == 1).all()


# Noise that the app must have added.


def last_layer(seed, std):
    rng = np.random.default_rng(seed)
    change = rng.standard_normal((10, 512)) * 1e-2
    return change - change.mean(0) + std * rng.standard_normal(change.shape)


def test_required_noise_is_told_from_none_and_from_half():
    ceilings = {std: [noise_ceiling(last_layer(s, std)) for s in range(300)] for std in (0, 5e-4, 1e-3)}
    assert sum(c < 1e-3 for c in ceilings[0][:100]) == 100
    assert sum(c < 1e-3 for c in ceilings[5e-4][:100]) >= 95
    assert sum(c < 1e-3 for c in ceilings[1e-3]) <= 1


@pytest.mark.parametrize(
    ("layer", "unclear", "expected"),
    [
        ("head", "refuse", ["noise"]),
        ("elsewhere", "refuse", ["noise_unclear"]),
        ("elsewhere", "pass", []),
    ],
)
def test_an_update_without_the_required_noise_is_refused(layer, unclear, expected):
    rule = policy(out={"noise": {"layer": layer, "std": 1e-3, "unclear": unclear}})
    assert rules(verdict(rule)) == expected


def test_preflight_sees_what_would_be_sent_and_may_refuse():
    seen = []

    def check(arrays, received):
        seen.append((set(arrays), set(received)))
        return [Reason(rule="preflight")]

    decision = judge(policy(), message(), model(), Ledger(), preflight=check)
    assert rules(decision) == ["preflight"]
    assert seen == [({"body", "head", "count"}, {"body", "head", "count"})]


# The policy file.


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"out": {"norm": -1.0}}, "out.norm"),
        ({"out": {}}, "norm should be above 0"),
        ({"out": {"norm": 1.0, "surprise": 1}}, "surprise"),
        ({"out": {"norm": 1.0}, "apps": ["sha256:12"]}, "apps"),
        ({"out": {"norm": 1.0, "examples": {"least": 2, "multiple": 3}}}, "multiple"),
        ({"out": {"norm": True}}, "out.norm"),
        ({"out": {"norm": 1.0}, "digest": "x"}, "digest"),
        ({"out": {"norm": 1.0, "examples": {"least": 9, "most": 8}}}, "least should be at most most"),
    ],
)
def test_a_policy_with_a_mistake_is_refused_by_its_name(table, words):
    with pytest.raises(BadFile, match=words):
        parse_policy({"format": 1, "site": "w", "dataset": "d", **table})


def test_a_policy_file_is_hashed_and_knows_its_folder(tmp_path):
    path = tmp_path / "site.toml"
    path.write_text('format = 1\nsite = "w"\ndataset = "d"\n[out]\nnorm = 2.5\n[in]\nnorm_step = 3.0\n')
    rule = read_policy(path)
    assert (rule.folder, len(rule.digest), rule.incoming.norm_step) == (tmp_path, 64, 3.0)
    path.write_text("format = ")
    with pytest.raises(BadFile, match="TOML"):
        read_policy(path)


def test_what_epsilon_does_not_cover_is_said():
    parts = policy(out={"fields": ("loss",), "metrics": "round"}).outside_epsilon
    assert any("loss" in part for part in parts)
    assert any("number of examples" in part for part in parts)
    fixed = policy(out={"examples": {"fixed": 8}}).outside_epsilon
    assert len(fixed) == 1


@pytest.mark.parametrize("multiplier", [0.5, 1.0, 2.0])
def test_the_best_guess_of_one_bit_is_as_good_as_the_accountant_says(multiplier):
    """Two updates as far apart as the clip allows: the likelihood ratio is right with chance Φ(μ / 2)."""
    rng = np.random.default_rng(7)
    received = {"w": np.zeros(32, np.float32)}
    direction = rng.standard_normal(32)
    direction /= np.linalg.norm(direction)
    mechanism = {"clip": 1.0, "noise_multiplier": multiplier, "epsilon": 1e6}
    rule, right, tried = policy(out={"norm": 0.0, "mechanism": mechanism}), 0, 2000
    for bit in rng.integers(0, 2, tried):
        arrays = {"w": (9 * (2 * bit - 1) * direction).astype(np.float32)}
        decision = verdict(rule, received, arrays=arrays)
        right += int((decision.message.arrays["w"] @ direction > 0) == bit)
    expected = norm.cdf(decision.mu_squared**0.5 / 2)
    assert binomtest(right, tried, expected).pvalue > 1e-4
