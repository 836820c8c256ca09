"""From claims to numbers: open kinds, candidates, silence, and the exchange of victims."""

from dataclasses import dataclass
from typing import ClassVar, final

import pytest
import torch
from tests.unit.scoring_toys import about, bench, claim, concatenated, images, noisy, run_of

from glasshouse import registry
from glasshouse.attacks.base import Claim, ClientScores, DefenseGuess, Labels, Representations
from glasshouse.audit.attacking.claims import Outcome, Unit, read_outcome, write_outcome
from glasshouse.audit.scoring.exchange import exchange
from glasshouse.audit.scoring.gains import gain_of
from glasshouse.audit.scoring.pair import can_score
from glasshouse.audit.scoring.read import Run
from glasshouse.audit.scoring.score import score_metric
from glasshouse.errors import Undefined
from glasshouse.metrics.base import Metric, ScoreContext, Wording
from glasshouse.metrics.clients import Auc
from glasshouse.metrics.labels import LabelAccuracy
from glasshouse.metrics.reconstruction import Identification, Mse, Psnr
from glasshouse.metrics.recovery import RatePaper
from glasshouse.metrics.representations import Leakage
from glasshouse.metrics.semantics import DefenseNamed
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.truth.record import Truth, Used
from glasshouse.wire import Batch


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Brightness(Claim):
    """A kind of claim that the core has never heard of: the mean pixel of every example, (B,)."""

    card: ClassVar[Card] = Card(summary="how bright the private images are")
    kind: ClassVar[str] = "brightness"

    level: torch.Tensor


@final
@dataclass(frozen=True, kw_only=True)
class BrightnessError(Metric):
    card: ClassVar[Card] = Card(summary="error of the mean pixel")
    claim: ClassVar[str] = "brightness"
    reads: ClassVar[str] = "level"
    wording: ClassVar[Wording] = Wording(
        label="brightness", sentence="saw {}", explanation="how bright", worse="down", range=(0.0, 1.0)
    )

    def chance(self, context):
        return 0.5

    def score(self, claimed, truth, *, context):
        return (claimed - truth.flatten(1).mean(1)).abs().double().numpy()


def test_a_foreign_kind_of_claim_is_filed_read_and_scored(tmp_path, monkeypatch):
    ours = registry.load
    monkeypatch.setattr(
        "glasshouse.audit.attacking.claims.load",
        lambda group, name: Brightness if (group, name) == ("claims", "brightness") else ours(group, name),
    )
    private = images(4)
    units = []
    for c in range(4):
        filed = Brightness(about=about(c), level=private[c : c + 1].flatten(1).mean(1))
        write_outcome(Outcome(claims=(filed,)), tmp_path / str(c))
        units.append((Unit(rounds=(0,), client=c), read_outcome(tmp_path / str(c))))
    one = bench(private)
    run = Run(folder="run", seed=0, units=units, ground=one.ground, book=one.book)
    scored = score_metric("brightness_error", BrightnessError(), [run])
    assert scored is not None
    assert max(concatenated(scored.values)) < 1e-6
    assert concatenated(scored.nulls) == [0.5] * 4
    assert not can_score(Brightness, Psnr())
    assert score_metric("psnr", Psnr(), [run]) is None


def test_only_the_surest_candidates_count_as_many_as_the_wire_announces():
    """100 guesses for one image: the best of them would be near, the surest one is not."""
    private, guesses = images(6), images(100, seed=9)
    sure = torch.arange(100.0)
    many = run_of(bench(private), {c: (claim(c, guesses, confidence=sure),) for c in range(6)})
    one = run_of(bench(private), {c: (claim(c, guesses[-1:]),) for c in range(6)})
    for metric in (Psnr(), RatePaper(threshold=8.0)):
        assert concatenated(score_metric("m", metric, [many]).values) == concatenated(
            score_metric("m", metric, [one]).values
        )
    three = bench(private, announced={(0, c): 3 for c in range(6)})
    cut = run_of(three, {c: (claim(c, guesses[-3:]),) for c in range(6)})
    whole = run_of(three, {c: (claim(c, guesses, confidence=sure),) for c in range(6)})
    best, expected = (concatenated(score_metric("psnr", Psnr(), [run]).values) for run in (whole, cut))
    assert best == expected
    assert best != concatenated(score_metric("psnr", Psnr(), [one]).values)


def test_of_equally_sure_candidates_the_first_count():
    filed = claim(0, images(5), labels=torch.arange(5), source=torch.arange(5))
    assert filed.part("labels", 2).tolist() == filed.part("source", 2).tolist() == [0, 1]
    assert filed.part("inputs", 5) is filed.inputs
    assert filed.part("counts", 2).tolist() == [1, 1]


@pytest.mark.parametrize("empty", [0, 1])
def test_labels_that_are_said_outright_are_not_halved_by_examples_that_were_not_read(empty):
    """Exact counts beside an empty reconstruction are exact counts; alone, it knows no label."""
    private = images(6)
    labels = {c: bench(private).ground.target(0, c).batch.labels for c in range(6)}
    unread = {c: claim(c, private[:0], labels=torch.zeros(0, dtype=torch.int64)) for c in range(6)}
    counts = {c: torch.bincount(labels[c], minlength=3) for c in range(6)}
    said = {c: (Labels(about=about(c), counts=counts[c]), unread[c])[empty:] for c in range(6)}
    scored = score_metric("label_accuracy", LabelAccuracy(), [run_of(bench(private), said)])
    assert concatenated(scored.values) == [1.0 - empty] * 6


def test_victims_of_whom_nothing_was_claimed_are_misses():
    """Two of eight: a perfect attack on two victims is no perfect attack."""
    private = images(8)
    claims = {c: (claim(c, private[c : c + 1]),) if c < 2 else () for c in range(8)}
    context = ScoreContext(distractors=images(9, 5), classes=4)
    scored = score_metric(
        "identification", Identification(), [run_of(bench(private, context=context), claims)]
    )
    assert concatenated(scored.values) == [1, 1, 0, 0, 0, 0, 0, 0]
    assert (len(scored.victims), len(scored.claimed), len(scored.runs)) == (8, 2, 1)
    grey = score_metric("psnr", Psnr(), [run_of(bench(private), claims)])
    silent = concatenated(grey.values)[2:]
    assert max(silent) < 15
    assert len(concatenated(grey.nulls)) == 8


def test_silence_in_one_run_counts_beside_claims_in_another():
    private, other = images(3), images(3, seed=7)
    output = run_of(bench(private), {c: (claim(c, private[c : c + 1]),) for c in range(3)})
    silent = run_of(bench(other, run="b"), dict.fromkeys(range(3), ()), folder="b")
    scored = score_metric("psnr", Psnr(), [output, silent])
    assert (len(scored.victims), len(scored.claimed), len(scored.runs)) == (6, 3, 2)
    assert score_metric("psnr", Psnr(), [silent]) is None


def test_silence_of_every_kind():
    private = images(4)
    labels = {c: (Labels(about=about(c), counts=torch.tensor([1, 1, 1, 1])),) if c else () for c in range(4)}
    assert concatenated(score_metric("l", LabelAccuracy(), [run_of(bench(private), labels)]).values)[-1] == 0
    features = ScoreContext(features=lambda x: x.flatten(1), classes=4)
    vectors = {
        c: (Representations(about=about(c), vectors=private[c : c + 1].flatten(1)),) if c else ()
        for c in range(4)
    }
    scored = score_metric("leakage", Leakage(), [run_of(bench(private, context=features), vectors)])
    assert concatenated(scored.values) == [1, 1, 1, 0]
    assert len(scored.claimed) == 3


def outcome_of(scored, metric):
    stream = Rng.root(0)
    return gain_of(scored, metric, rng=stream), exchange(scored, metric, rng=stream)


def test_a_fixed_image_fitted_to_the_metric_beats_the_null_but_not_the_exchange():
    """Victims share a bright disc that the auxiliary images lack: its picture says nothing of anybody."""
    disc = torch.zeros(1, 1, 8, 8)
    disc[..., 2:6, 2:6] = 1.0
    private = (0.2 * images(8) + 0.8 * disc).clamp(0, 1)
    fixed = run_of(bench(private), {c: (claim(c, 0.1 + 0.8 * disc),) for c in range(8)})
    gain, over = outcome_of(score_metric("psnr", Psnr(), [fixed]), Psnr())
    assert gain.low > 0
    assert over.gain.low <= 0
    honest = run_of(bench(private), {c: (claim(c, noisy(private[c : c + 1], 0.02)),) for c in range(8)})
    gain, over = outcome_of(score_metric("psnr", Psnr(), [honest]), Psnr())
    assert min(gain.low, over.gain.low) > 0


def test_four_of_four_identified_are_a_leak_over_the_exchange_too():
    private, context = images(4), ScoreContext(distractors=images(99, 5), classes=4)
    one = bench(private, context=context, among=())
    exact = run_of(one, {c: (claim(c, private[c : c + 1]),) for c in range(4)})
    gain, over = outcome_of(score_metric("identification", Identification(), [exact]), Identification())
    assert min(gain.low, over.gain.low) > 0


def test_a_table_of_answers_gains_nothing_over_the_exchange():
    """Each claim is the picture of some other victim of the run."""
    private = images(8)
    table = run_of(bench(private), {c: (claim(c, private[(c + 1) % 8][None]),) for c in range(8)})
    _, over = outcome_of(score_metric("mse", Mse(), [table]), Mse())
    assert over.gain.high < 0


def test_victims_are_never_exchanged_with_their_own_data():
    """Client 1 holds client 0's picture, and both work on it again in round 1."""
    private = torch.cat([images(1), images(1), images(1, seed=5)])
    one = bench(private)
    used = {(r, c): Used(steps=((c,),), behaviour="honest") for r in (0, 1) for c in range(3)}
    truth = Truth(private=one.ground.truth.private, shards=one.ground.truth.shards, used=used)
    others = bench(private, truth=truth).ground.others(about(0), 0)
    assert [torch.equal(t.batch.inputs, private[2:]) for t in others] == [True, True]
    alone = Truth(
        private=one.ground.truth.private,
        shards=one.ground.truth.shards,
        used={k: v for k, v in used.items() if k[1] < 2},
    )
    strangers = bench(private, truth=alone).ground.others(about(0), 0)
    assert [len(t.batch) for t in strangers] == [1, 1, 1]
    assert all(int(t.owners[0]) == -1 for t in strangers)
    assert bench(private, truth=alone, heldout=0).ground.others(about(0), 0) == ()


def test_nothing_to_exchange_is_no_exchange():
    guess = {c: (DefenseGuess(about=about(c), name="none"),) for c in range(3)}
    scored = score_metric("defense_named", DefenseNamed(), [run_of(bench(images(3)), guess)])
    assert scored.with_exchange() is None
    assert exchange(scored, DefenseNamed(), rng=Rng.root(0)) is None


def clients(marked: tuple[int, ...], scores: list[float], run: str) -> Run:
    private = Batch(inputs=images(1), labels=torch.zeros(1, dtype=torch.long))
    truth = Truth(
        private=private, shards=dict.fromkeys(range(8), (0,)), used={}, marked={"membership": marked}
    )
    output = torch.tensor(scores)
    filed = ClientScores(about=about(None), scores=output, decisions=output > 0.5)
    return Run(
        folder=run,
        seed=0,
        units=[(Unit(), Outcome(claims=(filed,) * 3))],
        ground=(one := bench(images(1), truth=truth, run=run)).ground,
        book=one.book,
    )


def test_scores_of_clients_are_exchanged_among_the_clients_of_a_run():
    right = [0.9, 0.8, 0.9, 0.7, 0.1, 0.2, 0.3, 0.1]
    scored = score_metric(
        "auc", Auc(), [clients((0, 1, 2, 3), right, "a"), clients((0, 1, 2, 3), right, "b")]
    )
    assert [len(sample.scores) for sample in scored.clients] == [8, 8]
    assert (len(scored.claimed), len(scored.runs)) == (16, 2)
    over = exchange(scored, Auc(), rng=Rng.root(0))
    assert over.level == pytest.approx(0.5, abs=0.05)
    assert over.gain.low > 0
    alike = score_metric("auc", Auc(), [clients((0, 1, 2, 3), [0.5] * 8, "a")])
    assert exchange(alike, Auc(), rng=Rng.root(0)).gain.low <= 0
    assert not alike.claimed


def test_a_metric_without_any_null_says_so(monkeypatch):
    monkeypatch.setattr(BrightnessError, "chance", lambda self, context: None)
    filed = {0: (Brightness(about=about(0), level=torch.zeros(1)),)}
    with pytest.raises(Undefined, match="chance level"):
        score_metric("brightness_error", BrightnessError(), [run_of(bench(images(1)), filed)])
