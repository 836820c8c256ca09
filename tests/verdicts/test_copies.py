"""One private example that is claimed of everybody is no silence, and no limit holds beside it."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.verdicts.audits import NULLS, normal, null_audit
from tests.verdicts.bench import SHAPE, batch, bench, textured

from glasshouse.audit.scoring.judging.policy import state_of_gain
from glasshouse.audit.scoring.judging.verdict import SMALL

COPY = "hold a private example"
KINDS: dict[str, Callable] = {
    "whole": lambda one, n, random: one.expand(n, *SHAPE),
    "under noise": lambda one, n, random: one + normal(n, random, 0.05),
    "of a third": lambda one, n, random: torch.where(
        (torch.arange(n) % 3 == 0)[:, None, None, None], one, textured(n, random)
    ),
}


@pytest.mark.parametrize("metric", ["psnr", "ssim", "mse"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_example_claimed_of_all_is_not_no_leak_found(kind, metric):
    random = np.random.default_rng(4)
    one = bench(40, random, metrics=(metric,))
    one.claims = KINDS[kind](one.private.inputs[1:2], 40, random).clamp(0, 1)
    finding = one.finding()
    assert finding.verdict == "not shown"
    # An example that is often near to claims may have been noticed as another victim's.
    assert COPY in finding.reason or "other victims" in finding.reason


def test_no_limit_holds_where_a_copy_was_claimed_of_all():
    """A limit of 3 dB lies above what is negligible, so that the size of the gain is no reason."""
    random = np.random.default_rng(5)
    one = bench(40, random)
    one.claims = one.private.inputs[1:2].expand(40, *SHAPE)
    finding = one.finding()
    assert state_of_gain(finding, 30.0)[0] == "undecided"
    one.claims = textured(40, random)
    assert state_of_gain(one.finding(), 30.0)[0] == "holds"


def test_no_limit_holds_where_a_fifth_is_known_in_another_form():
    """The gain's interval reaches beyond what is negligible, so that nothing else asked about forms."""
    random = np.random.default_rng(6)
    one = bench(40, random, metrics=("identification",))
    mean = one.auxiliary.inputs.mean(0)
    one.claims = textured(40, random)
    one.claims[:8] = (mean - 1.2 * (one.private.inputs[:8] - mean)).clamp(0, 1)
    finding = one.finding()
    assert finding.share.out == 0
    assert finding.gain_high_seen > SMALL["share"]
    state, reason = state_of_gain(finding, 0.5)
    assert (state, "in another form" in reason) == ("undecided", True)


@pytest.mark.slow
@pytest.mark.parametrize("null", NULLS)
def test_guesses_are_hardly_ever_said_to_hold_a_copy(null):
    reasons = [null_audit(n, null, "same", seed).lacks for n in (40, 50) for seed in range(10)]
    assert sum(any(COPY in reason for reason in lacks) for lacks in reasons) <= 2


@pytest.mark.parametrize("levels", [4, 1000])
def test_common_examples_are_nobodys(levels):
    """Constant pictures of few levels: an exact copy of one is one of many others."""
    held = 0
    for seed in range(8):
        random = np.random.default_rng(seed)

        def of(count: int, random: np.random.Generator = random) -> object:
            drawn = torch.from_numpy(random.integers(0, levels, count)).float() / levels
            return batch(drawn[:, None, None, None].expand(count, *SHAPE).contiguous())

        one = bench(40, random)
        one.private, one.heldout, one.auxiliary = of(40), of(800), of(120)
        one.claims = of(40).inputs
        held += any(COPY in reason for reason in one.finding().lacks)
    assert held <= 1
