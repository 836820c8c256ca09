"""What scoring does at its edges: ragged scores, other orders, halves of an update, silence."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.verdicts.bench import bench, textured

from glasshouse.attacks.base import About, Labels, Reconstruction
from glasshouse.audit.attacking.claims import Outcome, Unit
from glasshouse.audit.scoring import words
from glasshouse.audit.scoring.exchange import exchange, within_labels
from glasshouse.audit.scoring.finding import Measurement, _best_guess, _searches
from glasshouse.audit.scoring.judging.certificate import _searched
from glasshouse.audit.scoring.judging.contrast import RESAMPLES, difference
from glasshouse.audit.scoring.nulls import score_guess, split_auxiliary
from glasshouse.audit.scoring.pair import Pair, Sides, silences
from glasshouse.audit.scoring.score import ClientSample, ScoredMetric, score_pairs
from glasshouse.audit.scoring.table import Crossing, Table
from glasshouse.audit.scoring.tasks import control_key
from glasshouse.errors import BadValue
from glasshouse.metrics.base import ScoreContext
from glasshouse.metrics.clients import F1, Auc
from glasshouse.metrics.labels import LabelAccuracy
from glasshouse.metrics.reconstruction import Identification, Mse, Psnr
from glasshouse.metrics.statistics.exchange import group_alike
from glasshouse.metrics.statistics.units import means_of
from glasshouse.privacy.bound import Release, attack_ceiling
from glasshouse.privacy.marks import common_ceiling, grid_bits
from glasshouse.results.judgement import ALPHA, with_somebody_out
from glasshouse.results.records import Victim
from glasshouse.results.strength import Search
from glasshouse.rng import Rng
from glasshouse.scenario.load import from_dict
from glasshouse.scenario.table import Plugin
from glasshouse.wire import Batch


def batch(labels):
    return Batch(inputs=torch.zeros(len(labels), 1), labels=torch.tensor(labels))


@pytest.mark.parametrize("classes", [None, 9])
@pytest.mark.parametrize(("guessed", "true"), [([0, 1], [0, 6]), ([0, 6], [0, 1])])
def test_guessed_labels_count_over_the_classes_of_both_sides(classes, guessed, true):
    context = ScoreContext(classes=classes)
    assert score_guess(LabelAccuracy(), batch(guessed), batch(true), context=context).tolist() == [1, 0]


def test_victims_of_different_sizes_have_a_mean_each():
    assert means_of([np.array([1.0, 2.0]), np.array([3.0])]).tolist() == [1.5, 3.0]
    assert means_of([np.array([1.0, 2.0]), np.array([3.0, 5.0])]).tolist() == [1.5, 4.0]


def test_near_duplicates_are_as_near_as_the_limit_or_nearer():
    distances = np.array([[0.0, 0.5, 0.9], [0.5, 0.0, 0.9], [0.9, 0.9, 0.0]])
    assert len(set(group_alike(distances, near=0.5).tolist())) == 2
    assert len(set(group_alike(distances, near=0.49).tolist())) == 3


@pytest.mark.parametrize(("alike", "groups"), [([0, 1, 0, 2], 1), ([0, 1, 2, 3], 2), ([0, 0, 1, 1], 2)])
def test_updates_half_of_whose_examples_are_near_duplicates_are_one(alike, groups):
    two = np.zeros((2, 4))
    table = Table(
        names=tuple("abcd"), identities=tuple("xxyy"), places=np.array([0, 1, 0, 1]), matches=two,
        heldout=two[:, :0], claim_of=np.array([0, 0, 1, 1]), strata=np.zeros(4, dtype=np.int64),
        heldout_strata=np.zeros(0, dtype=np.int64), alike=np.array(alike), shared=(frozenset(),) * 4,
        baseline=None, shift_p=1.0,
    )  # fmt: skip
    assert len(set(table.alike_updates().tolist())) == groups


def test_some_units_of_a_score_keep_their_nulls_exchanges_and_rungs():
    scored = ScoredMetric(
        values=(np.array([1.0, 2.0, 3.0]),), nulls=(np.array([4.0, 5.0, 6.0]),), victims=("v",),
        exchanged=(np.array([[7.0, 8.0, 9.0]]),), rungs={"label": ("mean", (np.array([0.1, 0.2, 0.3]),))},
    ).pick(np.array([2, 0]))  # fmt: skip
    assert (scored.values[0].tolist(), scored.nulls[0].tolist()) == ([3.0, 1.0], [6.0, 4.0])
    assert scored.exchanged[0].tolist() == [[9.0, 7.0]]
    assert scored.rungs["label"][1][0].tolist() == [0.3, 0.1]


@pytest.mark.parametrize("answered", [True, False])
def test_clients_of_whom_nothing_is_said_are_scored_and_not_claimed(answered):
    sides = Sides(claimed=torch.tensor([0.9, 0.1]), truth=torch.tensor([True, False]))
    one = Pair(victim=("a", "b"), own=sides, clients=np.array([True, False]), answered=answered, run="r")
    ground = SimpleNamespace(context=ScoreContext())
    (scored,) = score_pairs("auc", Auc(), [one], ground, None)
    assert scored.clients[0].scores.tolist() == pytest.approx([0.9, 0.1])
    assert scored.claimed == (frozenset("ab") if answered else frozenset())


def test_a_control_is_of_the_settings_in_whatever_order():
    one, other = ({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1})
    keys = [control_key(Plugin(name="dlg", arguments=each)) for each in (one, other, {"a": 2})]
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize(("unit", "rounds"), [((1,), [(1,)]), ((), [(0,), (1,), (2,)])])
def test_who_was_asked_about_one_round_is_silent_about_that_alone(unit, rounds):
    asked = [(Unit(rounds=unit, client=4), Outcome(claims=()))]
    ground = SimpleNamespace(rounds=(0, 1, 2))
    silent = silences(asked, [Reconstruction], ground)
    assert [(about.rounds, about.client) for _, about in silent] == [(one, 4) for one in rounds]


def crossing(matches, strata):
    count = len(matches)
    return Crossing(matches=matches, alike=np.arange(count), strata=np.array(strata))


def test_claims_are_held_against_others_of_their_label_where_there_are_some():
    rng, twice = Rng.root(0), [0] * 6 + [1] * 6
    noise = np.random.default_rng(0).normal(size=(12, 12))
    assert within_labels([crossing(noise + 9 * np.eye(12), twice)], rng) is True
    same_label = np.equal.outer(twice, twice) * 9.0
    assert within_labels([crossing(noise + same_label, twice)], rng) is False
    # Nobody has another of the label, or there is no table.
    assert within_labels([crossing(noise[:2, :2], [0, 1])], rng) is None
    assert within_labels([None], rng) is None
    assert within_labels([None, crossing(noise + 9 * np.eye(12), twice)], rng) is True


def judged(p):
    return (Victim(name="v", value=1.0, rank=0, compared=99, p=p, p_adjusted=p, leaks=True),)


def test_somebody_came_out_where_that_survives_the_number_of_findings():
    enough = 0.9 * ALPHA / 2
    assert with_somebody_out([judged(0.9), judged(enough)]) == [False, True]
    assert with_somebody_out([judged(0.9), judged(enough), judged(0.8)]) == [False, False, False]
    assert with_somebody_out([judged(enough), judged(1.9 * enough)]) == [True, True]


def test_a_metric_of_one_value_has_no_bound():
    with pytest.raises(BadValue, match="low < high"):
        attack_ceiling([Release(noise_multiplier=1.0)], unit="example").mean(
            1.0, low=1.0, high=1.0, higher_leaks=True
        )


@pytest.mark.parametrize(("entries", "bits"), [(50, 3), (49, None)])
def test_a_grid_is_seen_in_as_many_entries_as_it_takes(entries, bits):
    grid = torch.tensor([1.0, 2.0, 3.0, -3.0]).repeat(16)[:entries]
    assert grid_bits({"w": grid}) == bits


def test_norms_at_their_slack_below_the_largest_share_it():
    assert common_ceiling([4.0, 3.0, 1.0], [0.125, 0.125, 0.125]) == (4.0, [0, 1])
    assert common_ceiling([4.0, 2.99, 1.0], [0.125, 0.125, 0.125]) is None


@pytest.mark.parametrize("count", [8, 9, 11])
def test_what_a_null_knows_and_its_pseudo_victims_share_no_example_and_leave_none_out(count):
    auxiliary = Batch(inputs=torch.arange(count).float()[:, None], labels=torch.zeros(count))
    context = ScoreContext(distractors=torch.full((count, 1), -1.0))
    known, victims, others = split_auxiliary(auxiliary, context, Rng.root(3))
    parts = [part.flatten().tolist() for part in (known.inputs, victims.inputs, others.distractors)]
    assert sorted(number for part in parts for number in part) == list(range(count))
    assert abs(len(known) - count / 2) < 1
    torch.manual_seed(1)  # nothing else draws it
    again, _, _ = split_auxiliary(auxiliary, context, Rng.root(3))
    assert torch.equal(known.inputs, again.inputs)


def test_searches_of_several_federations_are_numbered_from_one():
    found = [SimpleNamespace(searches=(Search(name="v", loss=1.0, truth=1.0, noise=0.0),)) for _ in range(2)]
    measured = Measurement(
        name="psnr", metric=None, scored=ScoredMetric(), claim="reconstruction", primary=True, victims=(),
        control=None,
    )  # fmt: skip
    assert [one.name for one in _searches(measured, found)] == ["run 1, v", "run 2, v"]
    assert [one.name for one in _searches(measured, found[:1])] == ["v"]
    assert _searches(replace(measured, claim="clients"), found) == ()


def test_a_rate_has_no_median_and_a_number_has():
    one = bench(6, np.random.default_rng(1), metrics=("psnr", "identification"))
    one.claims = textured(6, np.random.default_rng(2))
    found = one.findings()
    assert found["identification"].median is None
    assert found["psnr"].low <= found["psnr"].median <= found["psnr"].high
    assert found["identification"].scored == 6
    assert found["identification"].hits == round(6 * found["identification"].value)


def test_the_lead_over_clients_has_95_of_100_resamples_inside():
    truth = np.arange(20) < 5
    samples = [
        ScoredMetric(clients=(ClientSample(run="0", scores=np.array(scores, dtype=float), truth=truth),))
        for scores in ([1, 1, 0, 1, 0] + [0] * 13 + [1, 1], [1, 0, 0, 0, 1] + [1, 0, 0] * 5)
    ]
    lead = difference(*samples, F1(), rng=Rng.root(0))
    drawn = Rng.root(0).numpy().integers(0, 20, (RESAMPLES, 20))
    gaps = [f1_of(samples[0], rows) - f1_of(samples[1], rows) for rows in drawn if truth[rows].any()]
    assert (lead.low, lead.high) == pytest.approx(tuple(np.quantile(gaps, [0.025, 0.975])), abs=0.02)
    assert lead.value == pytest.approx(f1_of(samples[0], slice(None)) - f1_of(samples[1], slice(None)))


def f1_of(sample: ScoredMetric, rows) -> float:
    (one,) = sample.clients
    called, true = one.scores[rows] > 0, one.truth[rows]
    return 2 * (called & true).sum() / (called.sum() + true.sum())


@pytest.mark.parametrize(
    ("protocol", "kind", "advice"),
    [
        ("fedsgd", "gradient", "gaussian_mechanism"),
        ("fedavg", "parameters", "dp_sgd"),
        ("fedmd", "logits", "label_only"),
        ("dp_bagging", "document", "smaller epsilon"),  # a protocol's own advice comes first
    ],
)
def test_what_to_try_first_without_a_defence_fits_what_clients_send(protocol, kind, advice):
    federation = SimpleNamespace(protocol=protocol, kind=kind)
    assert advice in words._advice(SimpleNamespace(federation=federation))


@pytest.mark.parametrize(("restarts", "chosen"), [(1, "a single run"), (3, "best of 3 restarts")])
def test_a_number_says_how_it_was_chosen(restarts, chosen):
    attack = Plugin.model_validate({"name": "inverting_gradients", "search": {"restarts": restarts}})
    assert words.chosen_words(attack).startswith(chosen)
    assert words.chosen_words(Plugin(name="label_inference")) == "a single run"


def test_what_an_attack_was_given_is_what_it_uses_of_the_grants():
    raw = {"name": "s", "attacks": [{"name": "inverting_gradients"}, {"name": "label_inference"}]}
    granted, bare = from_dict({**raw, "grants": {"labels": True}}), from_dict(raw)
    by_label, others = granted.attacks
    assert words.given_words(granted, by_label) == ("labels",)
    assert words.given_words(granted, others) == ()
    assert words.given_words(bare, by_label) == ()


def test_only_what_was_searched_for_and_claimed_is_asked_about():
    about = About(rounds=(0,), client=0)
    nothing, one = (
        Reconstruction(about=about, inputs=torch.zeros(n, 1, 2, 2), labels=None, confidence=torch.ones(n))
        for n in (0, 1)
    )
    assert _searched(Outcome(claims=(one,))) == [one]
    assert _searched(Outcome(claims=(nothing,))) == []
    assert _searched(Outcome(claims=(Labels(about=about, counts=torch.ones(2)),))) == []


def test_of_one_victim_the_best_guess_is_chance():
    alone = ScoredMetric(values=(np.array([1.0]),), nulls=(np.array([0.0]),), baseline="a guess")
    assert _best_guess(Identification(), alone, 0.1, Rng.root(0), share=False) == (0.1, 0.1)
    assert _best_guess(Identification(), alone, None, Rng.root(0), share=False) is None
    assert _best_guess(Mse(), alone, 0.1, Rng.root(0), share=False) is None  # an error has no range


def test_who_came_out_in_one_federation_of_four_is_in_the_exchanges_interval_from_there():
    """A gain in one draw of weights: over victims it is sure, over draws it is not."""
    spread = np.linspace(-1, 1, 8)
    values = tuple(np.array([20 + level + one]) for level in (12.0, 0.0, 0.0, 0.0) for one in spread)
    common = {
        "values": values,
        "nulls": tuple(0 * one + 20 for one in values),
        "victims": tuple(map(str, range(32))),
    }
    exchanged = tuple(np.full((3, 1), 20.0) for _ in values)
    together = ScoredMetric(**common, exchanged=exchanged)
    drawn = tuple(np.array([f"run {place // 8}"]) for place in range(32))
    apart = ScoredMetric(**common, exchanged=exchanged, drawn=drawn)
    sure, open_ = (exchange(one, Psnr(), rng=Rng.root(0)) for one in (together, apart))
    assert sure.p < 0.025 < open_.p
    assert open_.gain.low < 0 < sure.gain.low
    assert open_.gain.high > sure.gain.high
    assert open_.gain.value == sure.gain.value == pytest.approx(3.0)
