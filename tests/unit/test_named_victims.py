"""Single victims: named where a claim knows them, and not for what they have in common."""

import numpy as np
import pytest

from glasshouse.errors import BadValue, Undefined
from glasshouse.metrics.statistics.multiplicity import benjamini_hochberg, holm
from glasshouse.metrics.statistics.victims import exchangeable, heldout_needed, name_victims
from glasshouse.rng import Rng

N, M, D = 20, 800, 32


def match(claims, examples):
    """(n, N): minus the mean squared error."""
    return -((claims[:, None] - examples[None]) ** 2).mean(2)


def distances(examples):
    return np.sqrt(-match(examples, examples))


@pytest.fixture
def random():
    return np.random.default_rng(11)


def judge(claims, private, heldout, **options):
    both = np.concatenate([private, heldout])
    shift = exchangeable(distances(both), np.arange(len(both)) < len(private), rng=Rng.root(1), draws=199)
    return name_victims(match(claims, private), match(claims, heldout), shift_p=shift, **options)


def test_names_those_that_are_known(random):
    private, heldout = random.normal(size=(N, D)), random.normal(size=(M, D))
    claims = random.normal(size=(N, D)) * 0.3
    claims[:3] = private[:3] + 0.1 * random.normal(size=(3, D))
    assert judge(claims, private, heldout).named.tolist() == [True] * 3 + [False] * 17


def test_a_mean_names_nobody_of_another_distribution(random):
    """Private examples nearer to the mean than held-out ones: the plain rank named 20 of 20."""
    private, heldout = 0.3 * random.normal(size=(N, D)), random.normal(size=(M, D))
    claims = np.zeros((N, D))
    plain = 1 / (1 + M)
    assert all(
        (1 + (match(claims, heldout)[j] >= match(claims, private)[j, j]).sum()) / (1 + M) == plain
        for j in range(N)
    )
    verdict = judge(claims, private, heldout)
    assert verdict.by_claims
    assert not verdict.named.any()
    # Also where nobody notices that the distributions differ.
    assert not name_victims(match(claims, private), match(claims, heldout)).named.any()


def test_constant_examples_are_not_named(random):
    private, heldout = random.normal(size=(8, D)), random.normal(size=(400, D))
    private[:3] = 0.1 * random.normal(size=(3, 1))
    claims = 0.3 * random.normal(size=(8, D))
    assert not name_victims(match(claims, private), match(claims, heldout)).named.any()


def test_a_rare_class_is_not_named_by_its_label(random):
    """One victim is of a class that held-out examples hardly have; its claim is the mean of that class."""
    private, heldout = random.normal(size=(8, D)), random.normal(size=(400, D))
    private[0] += 3
    heldout[:5] += 3
    claims = np.zeros((8, D))
    claims[0] = 3
    labels, others = np.array([1] + [0] * 7), np.array([1] * 5 + [0] * 395)
    own, all_others = match(claims, private), match(claims, heldout)
    assert name_victims(own, all_others[:, 5:]).named[0]  # what the stratum is for
    verdict = name_victims(own, all_others, labels, others)
    assert not verdict.named.any()
    assert not verdict.judged[0]
    baseline = (np.diagonal(own), all_others)
    assert not name_victims(own, all_others, labels, others, baseline=baseline).named.any()


def test_a_thin_stratum_is_judged_by_the_lead_over_a_guess_that_knows_it(random):
    private, heldout = random.normal(size=(8, D)), random.normal(size=(400, D))
    private[0] += 3
    heldout[:5] += 3
    claims, guess = np.zeros((8, D)), np.zeros((8, D))
    claims[0], guess[0] = private[0] + 0.1, 3
    labels, others = np.array([1] + [0] * 7), np.array([1] * 5 + [0] * 395)
    baseline = (np.diagonal(match(guess, private)), match(guess, heldout))
    verdict = name_victims(match(claims, private), match(claims, heldout), labels, others, baseline=baseline)
    assert verdict.named.tolist() == [True] + [False] * 7


def test_another_claim_that_matches_as_well_takes_the_name(random):
    private, heldout = random.normal(size=(8, D)), random.normal(size=(400, D))
    claims = private.copy()
    claims[1] = private[0]
    assert not name_victims(match(claims, private), match(claims, heldout)).named[0]


@pytest.mark.parametrize(
    ("own", "others"),
    [(9.0, 5.0), (8.0, 0.0)],  # ties with the claim's score; with its lead of 8 over the others
)
def test_a_tie_counts_against_the_attack_in_each_rank(own, others):
    """One of 120 held-out examples is matched exactly as well, by one of the ranks: that one counts."""
    matches, heldout = 1 + 8 * np.eye(3), np.zeros((3, 120))
    heldout[:, 5] = others
    heldout[0, 5] = own
    assert name_victims(matches, heldout).rank.tolist() == [1, 0, 0]


def test_under_shift_claims_alone_can_name(random):
    private, heldout = 0.3 * random.normal(size=(8, D)), random.normal(size=(400, D))
    verdict = judge(private, private, heldout)
    assert verdict.by_claims
    assert verdict.named.all()
    assert set(verdict.compared) == {56}
    assert judge(private[:3], private[:3], heldout).named.sum() == 0  # six wrong pairs are too few


def test_examples_of_one_update_share_a_claim(random):
    """Two victims per claim; the claim's score on a victim is that of its best candidate."""
    private, heldout = random.normal(size=(16, D)), random.normal(size=(700, D))
    both = np.stack([match(private, private), match(private, heldout)[:, :16]])[0]
    owners = np.repeat(np.arange(8), 2)
    own = np.maximum(both[::2], both[1::2])  # (8, 16)
    others = np.maximum(*(match(private[i::2], heldout) for i in (0, 1)))
    assert name_victims(own, others, claim_of=owners).named.all()
    assert not name_victims(own[::-1], others[::-1], claim_of=owners).named.any()


def test_victims_too_alike_do_not_take_each_other_s_names(random):
    private, heldout = random.normal(size=(4, D)).repeat(2, axis=0), random.normal(size=(400, D))
    own, others = match(private, private), match(private, heldout)
    assert not name_victims(own, others).named.any()
    assert name_victims(own, others, alike=np.repeat(np.arange(4), 2)).named.all()


def test_which_names_more_than_anyone(random):
    private, heldout = random.normal(size=(N, D)), random.normal(size=(100, D))
    own, others = match(private, private), match(private, heldout)
    assert name_victims(own, others, question="which").named.all()
    assert not name_victims(own, others, question="anyone").named.any()


def test_held_out_examples_that_are_too_few_judge_nobody(random):
    own, others = 9 * np.eye(3), random.normal(size=(3, heldout_needed(1) - 1))
    assert not name_victims(own, others).judged.any()
    others = random.normal(size=(3, heldout_needed(1)))
    assert name_victims(own, others).judged.all()


def test_exchangeable_samples_pass_and_others_do_not(random):
    mask = np.arange(108) < 8
    p_values = [
        exchangeable(distances(random.normal(size=(108, 4))), mask, rng=Rng.root(i), draws=99)
        for i in range(60)
    ]
    assert np.mean(np.array(p_values) < 0.1) < 0.2
    moved, shrunk = random.normal(size=(2, 108, 4))
    moved[mask] += 2
    shrunk[mask] *= 0.1
    for shifted in (moved, shrunk):
        assert exchangeable(distances(shifted), mask, rng=Rng.root(0), draws=199) <= 0.01


def test_labels_that_differ_in_number_are_no_shift_within_strata(random):
    x, labels = random.normal(size=(120, 4)), np.array([0] * 18 + [1] * 2 + [0] * 20 + [1] * 80)
    x[labels == 1] += 4
    mask = np.arange(120) < 20
    assert exchangeable(distances(x), mask, rng=Rng.root(0), draws=199) < 0.05
    assert exchangeable(distances(x), mask, labels, rng=Rng.root(0), draws=199) > 0.05


def test_corrections_answer_their_question():
    p = [0.001, 0.012, 0.014, 0.6]
    assert benjamini_hochberg(p).tolist() == pytest.approx([0.004, 0.056 / 3, 0.056 / 3, 0.6])
    assert (holm(p) >= benjamini_hochberg(p)).all()
    assert benjamini_hochberg([]).tolist() == []
    with pytest.raises(BadValue, match="each in"):
        benjamini_hochberg([1.5])


def test_refuses_shapes_that_do_not_fit():
    with pytest.raises(BadValue, match="finite scores"):
        name_victims(np.zeros((2, 3)), np.zeros((2, 50)))  # the third victim has no claim
    with pytest.raises(BadValue, match="finite scores"):
        name_victims(np.zeros((2, 2)), np.zeros((2, 50)), [0, 0, 0])
    with pytest.raises(BadValue, match="a finite distance"):
        exchangeable(np.zeros((2, 2)), [True], rng=Rng.root(0))
    with pytest.raises(Undefined, match="at least one of both"):
        exchangeable(np.zeros((2, 2)), [True, True], rng=Rng.root(0))
