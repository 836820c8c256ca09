"""What the gate's own noise buys: a one-run audit against its accountant, and covert channels through it.

The sender is hostile and knows the gate; whoever decodes knows everything but the noise.
"""

import math

import numpy as np
import pytest

pytest.importorskip("nvflare")

from flare_world import Site
from gate_world import TABLE, deeds, merged
from scipy.stats import binomtest, norm
from test_gate_frameworks import as_toml

from glasshouse.gate.mechanism import capacity_bits, sensitivity_squared, spent_epsilon
from glasshouse.gate.policy import Mechanism
from glasshouse.privacy.gaussian import gaussian_epsilon
from glasshouse.privacy.one_run import Guesses, gaussian_run_epsilon, one_run_epsilon

pytestmark = pytest.mark.slow
CLIP, DELTA = 0.5, 1e-5
PLAIN = {"out": {"grid": 0.0}}
MESSAGES = 600


def noised(multiplier):
    rule = {"clip": CLIP, "noise_multiplier": multiplier, "epsilon": 1e6}
    return {"out": {"grid": 0.0, "mechanism": rule}}


def through(folder, policy, changes):
    """What arrives of each change that the app hands in, as changes of ``hidden.weight``."""
    site, received = Site(folder, as_toml(merged(TABLE, policy)["out"])), deeds.start(8)
    arrived = []
    for turn, change in enumerate(changes):
        base = received["hidden.weight"].astype(np.float64)
        # the gate refuses the same tensors twice: a speck elsewhere makes each message another
        speck = (received["hidden.bias"] + 1e-6 * turn).astype(np.float32)
        arrays = {**received, "hidden.weight": (base + change).astype(np.float32), "hidden.bias": speck}
        made = deeds.Act(arrays=arrays, metrics={"num-examples": 64}, documents={}, order=list(arrays))
        sent = site.send(received, made, turn=turn)
        arrived.append(sent.data["hidden.weight"].astype(np.float64) - received["hidden.weight"])
    site.close()
    return np.array(arrived)


def loud(signs):
    """One bit a message, as loud as clipping lets it be: all of the norm in one direction."""
    direction = np.random.default_rng(5).standard_normal((8, 24))
    direction *= CLIP / np.linalg.norm(direction)
    return [sign * direction for sign in signs], direction / CLIP


def guessed(arrived, direction, signs):
    scores = np.einsum("nij,ij->n", arrived, direction)
    return int(np.sum(np.sign(scores) == signs))


@pytest.mark.parametrize("multiplier", [1.0, 2.0])
def test_a_one_run_audit_stays_below_the_accountant_and_near_it(tmp_path, multiplier, capsys):
    """600 canaries, one a message of one job; each is in the update or its opposite is."""
    signs = np.random.default_rng(7).choice([-1.0, 1.0], MESSAGES)
    changes, direction = loud(signs)
    arrived = through(tmp_path, noised(multiplier), changes)
    counts = Guesses(canaries=MESSAGES, guesses=MESSAGES, correct=guessed(arrived, direction, signs))
    stated = spent_epsilon(
        sensitivity_squared(Mechanism(clip=CLIP, noise_multiplier=multiplier, epsilon=1e6)), delta=DELTA
    )
    shown = gaussian_run_epsilon(counts, delta=DELTA).epsilon
    by_any = one_run_epsilon(counts, delta=DELTA).epsilon
    # each message has noise of its own, so its coin is a test of its own: the exact bound on mu
    lowest = (
        binomtest(counts.correct, MESSAGES, alternative="greater").proportion_ci(0.95, method="exact").low
    )
    exact = gaussian_epsilon(2 * float(norm.ppf(lowest)), delta=DELTA)
    with capsys.disabled():
        print(
            f"\nm = {multiplier:g}: {counts.correct} of {MESSAGES} right; epsilon of one message at least "
            f"{exact:.2f} (independent messages), {shown:.2f} (one run, Gaussian), {by_any:.2f} (one run, "
            f"any mechanism); the accountant says {stated:.2f}"
        )
    # the noise is the operating system's: what is asserted holds in all but one of 10,000 runs
    surely = (
        binomtest(counts.correct, MESSAGES, alternative="greater").proportion_ci(0.9999, method="exact").low
    )
    assert gaussian_epsilon(2 * float(norm.ppf(surely)), delta=DELTA) < stated < 1.5 * exact
    assert 0 < by_any < shown < stated


def test_the_audit_finds_a_gate_that_adds_a_quarter_of_its_noise(tmp_path, capsys):
    """The same audit must contradict an accountant that claims four times the noise."""
    signs = np.random.default_rng(8).choice([-1.0, 1.0], MESSAGES)
    changes, direction = loud(signs)
    arrived = through(tmp_path, noised(0.5), changes)
    counts = Guesses(canaries=MESSAGES, guesses=MESSAGES, correct=guessed(arrived, direction, signs))
    claimed = spent_epsilon((2 / 2.0) ** 2, delta=DELTA)
    shown = gaussian_run_epsilon(counts, delta=DELTA).epsilon
    with capsys.disabled():
        print(
            f"\na quarter of the noise: {counts.correct} right, at least {shown:.2f}, claimed {claimed:.2f}"
        )
    assert shown > claimed


def share(right, n):
    """The share in words with its 95 % interval, and the interval that is asserted."""
    shown = binomtest(right, n).proportion_ci(0.95, method="exact")
    said = f"{right / n:.3f} [{shown.low:.3f}, {shown.high:.3f}]"
    return said, binomtest(right, n).proportion_ci(0.9999, method="exact")


def low_bits(bits):
    """8 x 24 bits a message, in the lowest bit of each number of an honest change."""
    base = deeds.start(8)["hidden.weight"]
    rng = np.random.default_rng(3)
    for some in bits:
        step = (0.2 * rng.standard_normal(base.shape) / math.sqrt(base.size)).astype(np.float32)
        words = (base + step).view(np.uint32)
        hidden = ((words & ~np.uint32(1)) | some.astype(np.uint32)).view(np.float32)
        yield hidden.astype(np.float64) - base


@pytest.mark.parametrize("multiplier", [None, 2.0], ids=["before", "after"])
def test_low_bits_are_read_before_and_not_after(tmp_path, multiplier, capsys):
    bits = np.random.default_rng(2).integers(0, 2, (60, 8, 24))
    arrived = through(tmp_path, PLAIN if multiplier is None else noised(multiplier), list(low_bits(bits)))
    base = deeds.start(8)["hidden.weight"]
    read = (base + arrived).astype(np.float32).view(np.uint32) & 1
    said, interval = share(int((read == bits).sum()), bits.size)
    with capsys.disabled():
        print(f"\nlow bits, {'no noise' if multiplier is None else 'm = 2'}: {said} of {bits.size:,} right")
    if multiplier is None:
        assert interval.high == 1.0
    else:
        assert interval.low < 0.5 < interval.high


@pytest.mark.parametrize("multiplier", [None, 2.0, 4.0], ids=["before", "m2", "m4"])
def test_norms_are_read_before_and_as_far_as_the_noise_allows_after(tmp_path, multiplier, capsys):
    """A bit a message, as a norm of a fifth of the limit or all of it."""
    bits = np.random.default_rng(4).integers(0, 2, MESSAGES)
    changes, direction = loud(np.where(bits == 1, 1.0, 0.2))
    arrived = through(tmp_path, PLAIN if multiplier is None else noised(multiplier), changes)
    norms = np.linalg.norm(arrived, axis=(1, 2))
    # 0.2 and 1 of the limit; under noise all norms are larger, and their median parts them best
    middle = 0.6 * CLIP if multiplier is None else np.median(norms)
    by_norm, interval = share(int(((norms > middle) == bits).sum()), MESSAGES)
    projected = np.einsum("nij,ij->n", arrived, direction)
    by_direction, known = share(int(((projected > 0.6 * CLIP) == bits).sum()), MESSAGES)
    with capsys.disabled():
        print(f"\nnorms, m = {multiplier}: {by_norm} right by the norm, {by_direction} along the direction")
    if multiplier is None:
        assert known.high == interval.high == 1.0
        return
    # 0.8 of the clip apart, in noise of multiplier x clip: the best that anyone can do
    best = float(norm.cdf(0.4 / multiplier))
    assert known.low < best < known.high
    assert interval.low < best
    rule = Mechanism(clip=CLIP, noise_multiplier=multiplier, epsilon=1e6)
    assert capacity_bits(192, rule=rule) < 0.2
