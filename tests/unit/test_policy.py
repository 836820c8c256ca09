"""A policy fails closed: a limit holds only where that was shown, for every cell and attack."""

import dataclasses
from types import SimpleNamespace

import pytest
import report_specimen as specimen
from report_cards import ATTACKS, METRICS

from glasshouse.audit.scoring.judging.policy import _place, policy_limits, state_of_accuracy, state_of_gain
from glasshouse.results.records import Exchange, Refused, Result
from glasshouse.scenario.axes import cells
from glasshouse.scenario.load import load

GOOD = Exchange(value=0.2, gain=0.3, gain_low=0.2, gain_high=0.4, n=20)
WIDE = dataclasses.replace(GOOD, gain_low=-0.1, beaten=True)


@pytest.mark.parametrize(
    ("settings", "state"),
    [
        ({"gain": 0.05, "half": 0.02}, "holds"),
        ({"gain": 0.05, "half": 0.05}, "holds"),  # the upper end is the limit
        ({"gain": 0.05, "half": 0.06}, "undecided"),
        ({"gain": 0.09, "half": 0.02}, "undecided"),
        ({"gain": 0.2, "half": 0.15}, "undecided"),  # the value is above, its lower end is not
        ({"gain": 0.2, "half": 0.05}, "broken"),
        ({"gain": 0.05, "half": 0.02, "control": None}, "undecided"),
        ({"gain": 0.2, "half": 0.05, "control": None}, "broken"),  # a leak needs no control to be one
        ({"gain": 0.05, "half": 0.02, "control": specimen.WEAK}, "undecided"),
        ({"gain": 0.2, "half": 0.05, "control": specimen.WEAK}, "undecided"),
        ({"gain": 0.05, "half": 0.02, "verdict": "no power"}, "undecided"),
        ({"gain": 0.05, "half": 0.02, "victims": specimen.VICTIMS}, "undecided"),
        ({"gain": 0.2, "half": 0.05, "p_adjusted": 0.2, "by_luck": True}, "undecided"),
        ({"gain": 0.2, "half": 0.05, "p_adjusted": 0.01}, "broken"),
        ({"gain": 0.2, "half": 0.05, "exchange": GOOD}, "broken"),
        ({"gain": 0.2, "half": 0.05, "exchange": dataclasses.replace(GOOD, gain_low=-0.1)}, "undecided"),
        ({"gain": 0.2, "half": 0.05, "exchange": dataclasses.replace(GOOD, beaten=False)}, "undecided"),
        (
            {"gain": 0.2, "half": 0.05, "exchange": dataclasses.replace(GOOD, gain_low=-0.1, beaten=True)},
            "broken",
        ),
    ],
)
def test_three_states_of_a_gain_of_at_most_a_tenth(settings, state):
    result, reason = state_of_gain(specimen.finding(**settings), 0.1)
    assert result == state
    assert bool(reason) == (state == "undecided")


@pytest.mark.parametrize(
    ("limit", "null", "best", "state"),
    [
        (0.79, 0.2, 1.0, "holds"),
        (0.8, 0.2, 1.0, "undecided"),  # the null is at 0.2, so that more cannot be gained
        (99.0, 12.0, 100.0, "undecided"),
        (0.06, 0.05, 0.0, "undecided"),  # an error of 0.05 falls by no more than that
        (99.0, 12.0, None, "holds"),
    ],
)
def test_a_limit_that_nothing_could_break_never_holds(limit, null, best, state):
    finding = dataclasses.replace(specimen.finding(gain=0.01, half=0.005), baseline_value=null)
    result, reason = state_of_gain(finding, limit, best=best)
    assert result == state
    assert ("no attack could break it" in reason) == (state == "undecided")


@pytest.mark.parametrize(
    ("low", "high", "state"),
    [(0.5, 0.6, "holds"), (0.49, 0.6, "undecided"), (0.4, 0.5, "undecided"), (0.3, 0.49, "broken")],
)
def test_three_states_of_an_accuracy_of_at_least_a_half(low, high, state):
    utility = dataclasses.replace(specimen.utilities("s")[0], value=(low + high) / 2, low=low, high=high)
    result, reason = state_of_accuracy(utility, 0.5)
    assert result == state
    assert reason == ("the interval reaches below the limit" if state == "undecided" else "")


def audit(*settings):
    """The cells of a scenario with two attacks and one defence."""
    suite = load(
        "dlg",
        [
            'attacks=[{name="dlg"}, {name="idlg"}]',
            'audit.metrics=["ssim", "label_accuracy"]',
            'axes={defenses=[[], [{name="prune", share=0.9}]]}',
            "policy={max_gain={ssim=0.1}}",
            *settings,
        ],
    )
    return cells(suite.scenarios[0])


def found(cell, attack, metric="ssim", gain=0.05):
    one = specimen.finding(scenario=cell.scenario.name, attack=attack, metric=metric, gain=gain, half=0.02)
    return dataclasses.replace(one, cell=cell.hash)


def refused(cell, subject):
    one = specimen.refused(cell.scenario.name)
    return dataclasses.replace(one, cell=cell.hash, subject=subject)


def limits(every, findings=(), refusals: tuple[Refused, ...] = (), utility=()):
    result = Result(
        suite="x",
        findings=tuple(findings),
        refusals=refusals,
        utility=tuple(utility),
        attacks=ATTACKS,
        metrics=METRICS,
    )
    return policy_limits(every, result)


def test_every_cell_and_attack_gets_a_row():
    every = audit()
    assert len(every) == 2
    rows = limits(every, [found(c, a) for c in every for a in ("dlg", "idlg")])
    assert [row.state for row in rows] == ["holds"] * 4
    assert rows[0].subject == "gain in SSIM of DLG, without a defence"
    assert rows[0].text == "DLG, without a defence: the gain in SSIM is 0.05 [0.03, 0.07]; tolerated: 0.1."
    assert "under prune" in rows[2].subject


def test_a_refused_attack_is_unmeasured_and_says_why():
    every = audit()
    rows = limits(
        every,
        [found(c, "dlg") for c in every],
        tuple(refused(c, "attack 'idlg'") for c in every),
    )
    assert [row.state for row in rows] == ["holds", "unmeasured"] * 2
    assert "attack 'idlg' needs an update computed from exactly 1 example" in rows[1].text


def test_a_cell_that_lacks_a_number_which_others_have_is_unmeasured():
    every = audit()
    rows = limits(every, [found(every[0], "dlg"), found(every[0], "idlg"), found(every[1], "dlg")])
    assert [row.state for row in rows] == ["holds", "holds", "holds", "unmeasured"]


def test_victims_that_another_metric_of_the_same_claims_judged_count():
    """The mean of one metric is small; by another one, two of the three came out."""
    every = audit()[:1]
    judged = dataclasses.replace(found(every[0], "dlg", metric="label_accuracy"), victims=specimen.VICTIMS)
    rows = limits(every, [found(every[0], "dlg"), judged, found(every[0], "idlg")])
    assert [row.state for row in rows] == ["undecided", "holds"]
    assert "2 of 3 came out" in rows[0].text


def test_victims_on_whom_the_attack_could_not_run_are_no_success():
    every = audit()[:1]
    partly = dataclasses.replace(found(every[0], "dlg"), claimed=12)
    whole = found(every[0], "idlg")
    crashed = refused(every[0], "attack 'dlg' on r0-c3")
    assert [row.state for row in limits(every, [partly, whole], (crashed,))] == ["undecided", "holds"]
    silent = limits(every, [partly, whole])  # it ran, and had nothing to say of eight: misses
    assert [row.state for row in silent] == ["holds", "holds"]


def test_a_metric_that_was_never_scored_is_unmeasured():
    every = audit()
    labels = [found(c, a, metric="label_accuracy") for c in every for a in ("dlg", "idlg")]
    assert [row.state for row in limits(every, labels)] == ["unmeasured"] * 4


def test_an_attack_that_claims_something_else_owes_no_number():
    every = audit()
    findings = [found(c, "dlg") for c in every] + [found(c, "idlg", metric="label_accuracy") for c in every]
    assert [row.subject for row in limits(every, findings)] == [
        "gain in SSIM of DLG, without a defence",
        "gain in SSIM of DLG, under prune share=0.9",
    ]


def test_a_metric_that_could_not_be_scored_is_unmeasured():
    every = audit()[:1]
    findings = [found(every[0], "dlg"), found(every[0], "idlg", metric="label_accuracy")]
    rows = limits(every, findings, (refused(every[0], "metric 'ssim' of attack 'idlg'"),))
    assert [row.state for row in rows] == ["holds", "unmeasured"]


def test_utility_that_was_not_measured():
    every = audit("policy={min_accuracy=0.5}", "audit.utility=true", "data.heldout=200")[:1]
    (row,) = limits(every)
    assert (row.state, row.text) == (
        "unmeasured",
        "Without a defence: held-out accuracy was not measured; required: 50 %.",
    )
    name = every[0].scenario.name
    utility = dataclasses.replace(specimen.utilities(name)[0], cell=every[0].hash)
    (row,) = limits(every, utility=[utility])
    assert row.state == "holds"


@pytest.mark.parametrize(
    ("defenses", "axes", "words"),
    [
        (("noise",), {}, "under noise"),
        (("noise", "clip"), {}, "under noise + clip"),
        (("noise",), {"defenses.0.epsilon": 1.0}, "under noise"),  # the label says that
        (
            ("noise",),
            {"defenses": "much noise", "federation.batch_size": 8},
            "under much noise (batch_size = 8)",
        ),
        ((), {"defenses": "none"}, "without a defence"),
        ((), {"federation.batch_size": 8, "seed": 1}, "without a defence (batch_size = 8, seed = 1)"),
    ],
)
def test_a_cell_is_named_by_its_defence_and_other_axes(defenses, axes, words):
    scenario = SimpleNamespace(defenses=[SimpleNamespace(label=name) for name in defenses])
    cell = SimpleNamespace(scenario=scenario, axes=axes)
    assert _place(cell) == words
    assert _place(cell, capital=True) == words[0].upper() + words[1:]
