"""Verdicts on single victims, the metric that judges an attack, and all findings of a run together."""

import dataclasses

import numpy as np
import pytest
import torch
from tests.unit.scoring_toys import batch, bench, claim, images, noisy, run_of
from tests.unit.test_audit import finding

from glasshouse.attacks.base import DefenseGuess, Labels, PriorSamples, Reconstruction
from glasshouse.audit.scoring.judging.family import primary_metrics, with_family
from glasshouse.audit.scoring.score import score_metric
from glasshouse.audit.scoring.table import best_of, tables
from glasshouse.audit.scoring.victims import can_judge_victims, ranked_by
from glasshouse.audit.scoring.victims import victims_of as victims_of_scored
from glasshouse.metrics.base import ScoreContext
from glasshouse.metrics.labels import LabelAccuracy
from glasshouse.metrics.reconstruction import Identification, Mse, Psnr, Ssim
from glasshouse.metrics.semantics import DefenseNamed


def victims_of(name, metric, runs):
    return victims_of_scored(name, score_metric(name, metric, runs), runs, tables(ranked_by(metric), runs))


def test_one_victim_of_eight_is_named():
    """A mean over eight would say nothing: seven claims are noise, one is a picture."""
    private, guesses = images(8), images(8, seed=11)
    claims = {c: (claim(c, noisy(private[5:6], 0.05) if c == 5 else guesses[c : c + 1]),) for c in range(8)}
    result = victims_of("psnr", Psnr(), [run_of(bench(private), claims)])
    assert [v.leaks for v in result] == [c == 5 for c in range(8)]
    assert (result[5].name, result[5].rank, result[5].compared) == ("round 0, client 5, example 1", 0, 200)
    assert result[5].p == pytest.approx(1 / 201)
    assert result[5].p_adjusted == pytest.approx(8 / 201)


def test_a_batch_is_judged_by_its_best_candidates_and_so_are_the_held_out_examples():
    private = images(6)
    shuffled = torch.cat([noisy(private[:3], 0.05).flip(0), images(1, seed=4)])
    claims = {0: (claim(0, shuffled),), 1: (claim(1, images(3, 8)),)}
    result = victims_of("mse", Mse(), [run_of(bench(private, each=3), claims)])
    assert [v.leaks for v in result] == [True] * 2 + [result[2].leaks] + [False] * 3
    assert [v.name[-9:] for v in result[:3]] == ["example 1", "example 2", "example 3"]


def test_a_metric_that_says_yes_or_no_ranks_by_the_error_and_keeps_its_own_value():
    private, context = images(3), ScoreContext(distractors=images(9, 5), classes=4)
    claims = {c: (claim(c, noisy(private[c : c + 1], 0.05) if c else images(1, 8)),) for c in range(3)}
    result = victims_of("identification", Identification(), [run_of(bench(private, context=context), claims)])
    assert [v.leaks for v in result] == [False, True, True]
    assert [v.value for v in result[1:]] == [1.0, 1.0]
    assert can_judge_victims(Identification())


def test_exchanged_claims_name_a_victim_in_at_most_five_of_a_hundred_cells():
    """The claims are exact pictures, each filed about the next client."""
    named = 0
    for seed in range(100):
        private = images(4, seed=1000 + seed)
        claims = {c: (claim(c, private[(c + 1) % 4][None]),) for c in range(4)}
        one = bench(private, heldout=0)
        ground = dataclasses.replace(one.ground, heldout=batch(200, 5000 + seed))
        one = dataclasses.replace(one, ground=ground)
        # Where the four look unlike held-out ones by luck, claims alone are too few for any verdict.
        verdicts = victims_of("psnr", Psnr(), [run_of(one, claims)])
        named += isinstance(verdicts, tuple) and any(v.leaks for v in verdicts)
    assert named <= 8  # P(more than 8 of 100) at .05 is 6 %; the seeds are fixed


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"heldout": 150}, "199 held-out"), ({"heldout": 0}, "got 0"), ({"comparable": False}, "other classes")],
)
def test_without_fair_company_there_is_no_verdict_and_it_says_why(changes, words):
    private = images(2)
    skipped = victims_of("psnr", Psnr(), [run_of(bench(private, **changes), {0: (claim(0, private[:1]),)})])
    assert isinstance(skipped, str)
    assert words in skipped


def test_where_nobody_could_be_named_there_is_no_verdict():
    """Dark victims among brighter held-out examples: ranks mean nothing, and three claims are too few."""
    private = images(3) * 0.2
    claims = {c: (claim(c, private[c : c + 1]),) for c in range(3)}
    few = victims_of("psnr", Psnr(), [run_of(bench(private), claims)])
    assert isinstance(few, str)
    assert "different distributions" in few


def test_who_is_named_is_corrected_for_how_many_are_asked_about():
    """Eleven perfect copies need fewer held-out examples than one among eleven (Benjamini and Hochberg)."""
    private, guesses = images(11), images(11, seed=11)
    every = {c: (claim(c, private[c : c + 1]),) for c in range(11)}
    assert all(v.leaks for v in victims_of("psnr", Psnr(), [run_of(bench(private, heldout=199), every)]))
    single = {c: (claim(c, (guesses if c else private)[c : c + 1]),) for c in range(11)}
    for heldout, named in ((199, False), (220, True)):
        result = victims_of("psnr", Psnr(), [run_of(bench(private, heldout=heldout), single)])
        assert (result[0].leaks, result[0].out) == (named, True)


def test_the_same_data_again_are_no_further_victims():
    private = images(2)
    claims = {c: (claim(c, private[c : c + 1]),) for c in range(2)}
    both = [run_of(bench(private), claims), run_of(bench(private, run="b"), claims, folder="b")]
    result = victims_of("psnr", Psnr(), both)
    assert [v.name for v in result] == [f"run 1, round 0, client {c}, example 1" for c in range(2)]
    assert {v.draw for v in result} == {both[0].ground.run}


def test_a_table_and_one_by_one_say_the_same():
    """The metric's own score, pair by pair, is the slow twin of its table."""
    candidates, examples, context = images(3), images(5, seed=2), ScoreContext()
    for metric in (Psnr(), Mse()):
        slow = np.array(
            [[metric.score(c[None], e[None], context=context)[0] for e in examples] for c in candidates]
        )
        expected = slow.max(0) if metric.higher_leaks else slow.min(0)
        assert best_of(metric, candidates, examples, context=context) == pytest.approx(expected)
    slow = [max(Ssim().score(c[None], e[None], context=context)[0] for c in candidates) for e in examples]
    assert best_of(Ssim(), candidates, examples, context=context) == pytest.approx(slow)
    assert not can_judge_victims(LabelAccuracy())


METRICS = {
    "label_accuracy": LabelAccuracy(),
    "defense_named": DefenseNamed(),
    "psnr": Psnr(),
    "mse": Mse(),
}


def test_one_metric_judges_an_attack_and_a_guess_at_the_defence_never_does_beside_data():
    every = [Reconstruction, Labels, DefenseGuess]
    assert primary_metrics(METRICS, every) == {"reconstruction": "psnr", "labels": "label_accuracy"}
    assert primary_metrics(METRICS, [Reconstruction, DefenseGuess]) == {"reconstruction": "psnr"}
    assert primary_metrics(METRICS, [DefenseGuess]) == {"defense": "defense_named"}
    only_labels = {"label_accuracy": LabelAccuracy()}
    assert primary_metrics(only_labels, [Reconstruction]) == {"reconstruction": "label_accuracy"}
    assert primary_metrics(METRICS, [PriorSamples]) == {}


def test_the_family_is_the_primary_findings_of_the_run():
    findings = with_family(
        [finding(primary=True, p=0.01), finding(primary=True, p=0.03), finding(primary=False, p=0.001)]
    )
    assert [f.p_adjusted for f in findings] == [0.02, 0.03, None]
    sure = with_family([finding(primary=True, p=0.0), finding(primary=True, p=0.02)])
    assert [f.p_adjusted for f in sure] == [0.0, 0.02]


def test_a_cell_knows_what_the_attack_got_undefended():
    axes = {"federation.clients": 4}
    bare = finding(axes={**axes, "defenses": "none"}, value=30.0)
    fewer = finding(axes={**axes, "federation.clients": 2}, value=20.0)
    noise = finding(axes={**axes, "defenses.0.std": 0.1}, defenses=("noise",), value=5.0)
    other = finding(axes={**axes, "defenses": "noise"}, defenses=("noise",), attack="y")
    findings = with_family([bare, fewer, noise, other])
    assert [None if f.undefended is None else f.undefended.value for f in findings] == [
        None,
        None,
        30.0,
        None,
    ]
    assert findings[2].undefended.verdict == bare.verdict
