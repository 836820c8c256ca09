"""Edges of verdicts at which a change of one line would turn a word (``tests/mutants``)."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import report_specimen as specimen
import torch
from scipy.stats import binom
from tests.verdicts.bench import bench, textured

from glasshouse.attacks.base import About, Labels
from glasshouse.audit.attacking.check import _check_about
from glasshouse.audit.attacking.claims import Outcome, Unit
from glasshouse.audit.scoring import finding as parts
from glasshouse.audit.scoring.judging.policy import state_of_gain
from glasshouse.audit.scoring.judging.verdict import BEYOND_SMALL, NOT_PLANTED, UNBOUNDED
from glasshouse.audit.scoring.pair import silences
from glasshouse.federation.defenses.guarantee import Guarantee
from glasshouse.metrics.statistics.interval import Interval
from glasshouse.results.judgement import anybody_p_value
from glasshouse.results.records import Rung, Share, Victim
from glasshouse.results.strength import Certificate


def test_the_p_value_is_the_larger_one_of_null_and_exchange(monkeypatch):
    """Claims that are as good about others have no small p-value, however far above the null."""
    one = bench(8, np.random.default_rng(3))
    one.claims = one.private.inputs
    leaking = one.finding()
    assert leaking.p < 0.001
    gain = Interval(value=0.0, low=-1.0, high=1.0, n=8, level=0.95)
    nothing = SimpleNamespace(gain=gain, p=0.6, record=lambda *_: None)
    monkeypatch.setattr(parts, "exchange", lambda *_, **__: nothing)
    assert one.finding().p == 0.6


def test_of_several_seeds_the_weakest_guarantee_bounds():
    def run(epsilon):
        common = {"delta": 1e-5, "neighbours": "update", "defense": "d", "noise_multiplier": 1.0, "steps": 1}
        proven = Guarantee(epsilon=epsilon, **common)
        return SimpleNamespace(guarantee=proven)

    assert parts._weakest([run(1.0), run(8.0), run(2.0)]).epsilon == 8.0
    assert parts._weakest([run(1.0), SimpleNamespace(guarantee=None)]) is None


def test_one_unfinished_search_of_forty_certifies_nothing():
    finished = Certificate(searches=40, unfinished=1, told_p=0.01, drawn=40, falling=0)
    assert finished.missing == "1 of 40 searches stopped above the loss of the truth"
    quiet = specimen.finding(gain=0.05, half=0.02, unfinished=1)
    assert state_of_gain(quiet, 0.1) == ("undecided", "the search was not finished for 1 victims")


def _ground(clients):
    used = {(0, client): None for client in clients}
    return SimpleNamespace(truth=SimpleNamespace(used=used), announced=dict.fromkeys(used, 1), rounds=(0,))


def labels_about(client):
    return Labels(about=About(rounds=(0,), client=client), counts=torch.tensor([1.0]))


def test_clients_whom_a_rounds_claims_leave_out_are_misses():
    """The attack is called for a round and names clients: who is left out was not found."""
    unit = Unit(rounds=(0,), client=None)
    outcome = Outcome(claims=(labels_about(0), labels_about(2)))
    silent = silences([(unit, outcome)], [Labels], _ground(range(4)))
    assert [about.client for _, about in silent] == [1, 3]


def test_a_claim_about_the_whole_round_leaves_nobody_out():
    unit = Unit(rounds=(0,), client=None)
    assert not list(silences([(unit, Outcome(claims=(labels_about(None),)))], [Labels], _ground(range(4))))


def test_a_claim_about_the_round_is_none_about_the_one_client_asked_about():
    update = SimpleNamespace(examples=1)
    view = SimpleNamespace(
        rounds=(SimpleNamespace(round=0, updates={0: update, 1: update}),), terms=SimpleNamespace(clients=2)
    )
    asked = Unit(rounds=(0,), client=1)

    def violations(client):
        return [got for _, got in _check_about(labels_about(client), view, asked)]

    assert violations(1) == []
    assert violations(None) == ["Labels about client None"]
    assert violations(0) == ["Labels about client 0"]


def test_somebody_out_pays_for_how_many_were_asked():
    rest = {"value": 9.0, "rank": 0, "compared": 99, "p_adjusted": 0.1, "leaks": True}
    rows = [Victim(name=str(i), p=0.01 if i == 0 else 0.9, **rest) for i in range(4)]
    assert anybody_p_value(rows) == pytest.approx(4 * (1 - 0.99**4), rel=1e-6)


def test_somebody_is_out_of_thousands():
    """Whole numbers of ways are beyond a float from some 1,030 victims on."""
    rest = {"value": 9.0, "rank": 0, "compared": 99, "p_adjusted": 0.1, "leaks": True}
    rows = [Victim(name=str(i), p=0.01 if i < 60 else 1.0, **rest) for i in range(3200)]
    assert anybody_p_value(rows) == pytest.approx(3200 * binom.sf(59, 3200, 0.01), rel=1e-6)
    assert anybody_p_value(rows[60:]) == 1


QUIET = {"gain": 0.05, "half": 0.02}
BOUND = Share(out=0, n=40, most=0.088, margin=0.1, needed=36)
RUNG = Rung(knows="label", name="x", value=0, gain=0, gain_low=-1, gain_high=1, p=0.5, beaten=False)


@pytest.mark.parametrize(
    ("lacks", "ladder", "verdict", "state"),
    [
        ((), (RUNG,), "no leak found", "holds"),
        ((BEYOND_SMALL,), (RUNG,), "not shown", "holds"),  # a limit has a size of its own
        ((BEYOND_SMALL, NOT_PLANTED), (RUNG,), "not shown", "undecided"),
        ((NOT_PLANTED,), (), "not shown", "undecided"),  # labels and clients, too
        ((NOT_PLANTED,), (), "leaks", "holds"),  # a leak within the limit shows that it works
        ((f"{UNBOUNDED} (x)",), (), "not shown", "holds"),  # a limit on a mean of no examples
        ((f"{UNBOUNDED} (x)",), (RUNG,), "not shown", "undecided"),
    ],
)
def test_a_limit_holds_only_if_nothing_that_it_needs_is_missing(lacks, ladder, verdict, state):
    finding = specimen.finding(**QUIET, lacks=lacks, ladder=ladder, verdict=verdict, share=BOUND)
    assert state_of_gain(finding, 0.1)[0] == state


def test_without_a_bound_on_the_share_a_limit_reckons_with_the_unseen():
    finding = specimen.finding(**QUIET, share=BOUND)
    wide = replace(finding, gain_high=0.5, gain_high_seen=finding.gain_high)
    assert state_of_gain(wide, 0.1)[0] == "holds"
    assert state_of_gain(replace(wide, share=None), 0.1)[0] == "undecided"


def test_two_clients_whose_images_are_one_count_once():
    one = bench(40, np.random.default_rng(9))
    one.claims = textured(40, np.random.default_rng(8))
    share = one.finding().share
    assert (share.units, share.n) == (40, 40)
