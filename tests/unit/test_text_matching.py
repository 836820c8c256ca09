"""TAG and LAMP: what they find, what they need, and the parts they search with."""

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch

from glasshouse.attacks.base import About
from glasshouse.attacks.inversion.label_inference import LabelInference
from glasshouse.attacks.objective import collect_losses
from glasshouse.attacks.parts.search.adam import Descent
from glasshouse.attacks.sequences import Sequences
from glasshouse.attacks.text.lamp import Lamp, rearrangement, shuffle
from glasshouse.attacks.text.matching import FREE, match_gradient
from glasshouse.attacks.text.ngram import WEIGHT, count_ngrams
from glasshouse.attacks.text.tag import Tag
from glasshouse.audit.run import audit
from glasshouse.audit.scoring.judging.decoys import true_orders
from glasshouse.errors import Inapplicable
from glasshouse.federation.defenses.gaussian_noise import GaussianNoise
from glasshouse.rng import Rng
from glasshouse.scenario.load import from_dict
from glasshouse.scenario.suite import Member, Suite
from glasshouse.settings import Optimizer
from glasshouse.tasks.classification import Classification
from glasshouse.testing.toys import toy
from glasshouse.tokens.vocabulary import Vocabulary
from glasshouse.transcript.grants import Grants
from glasshouse.truth.record import Truth, Used
from glasshouse.wire import Architecture, Batch

WORDS = Vocabulary(size=80, pad=0, end=1)
AUXILIARY = Batch(
    inputs=WORDS.stack([[5, 6, 7, 8], [9, 6, 10], [11, 12, 13, 14, 15]], length=8),
    labels=torch.zeros(3).long(),
)
CLASSES = Classification(classes=10)
SEARCH = Descent(iterations=60, restarts=1, learning_rate=0.3)
TAG = Tag(search=SEARCH)
LAMP = Lamp(search=SEARCH, starts=10, every=30, moves=10, prior=0.001)


def played(**changes):
    arguments = {"width": 32, **changes.pop("arguments", {})}
    usual = {"model": "small_gpt", "vocabulary": WORDS, "task": CLASSES, "clients": 2}
    return toy(**{**usual, "arguments": arguments, **changes})


def view_of(run, client=0):
    return run.view(client=client, grants=Grants(auxiliary=AUXILIARY))


def claim_of(attack, run, seed=0):
    (claim,) = attack.run(view_of(run), rng=Rng.root(seed))
    return claim


def in_place(claim, run):
    """Share of the first sentence's words that are claimed at their place."""
    (true,), (said, *_) = WORDS.words(run.setting.private.inputs[:1]), WORDS.words(claim.tokens)
    return sum(a == b for a, b in zip(true, said, strict=False)) / len(true)


@pytest.mark.parametrize("attack", [TAG, LAMP])
@pytest.mark.parametrize("task", [CLASSES, None])
def test_most_of_a_short_sentence_is_read(attack, task):
    run = played(task=task)
    claim = claim_of(attack, run)
    assert claim.about == About(rounds=(0,), client=0)
    assert in_place(claim, run) >= 0.5  # a guess has 1 of 78
    again = claim_of(attack, run)
    assert torch.equal(claim.tokens, again.tokens)


@pytest.mark.parametrize("attack", [TAG, LAMP])
def test_a_change_of_parameters_is_read_like_its_gradient(attack):
    run = played(protocol="fedavg", learning_rate=0.3)
    assert in_place(claim_of(attack, run), run) >= 0.5


@pytest.mark.parametrize("attack", [TAG, LAMP])
def test_they_say_what_they_need(attack):
    with pytest.raises(Inapplicable, match="a model that reads sentences"):
        attack.check_model(Architecture.of("mlp", (1, 8, 8), 10))
    with pytest.raises(Inapplicable, match="secure_sum hides them"):
        attack.run(
            played(secure_sum=True).view(client=None, grants=Grants(auxiliary=AUXILIARY)), rng=Rng.root(0)
        )
    with pytest.raises(Inapplicable, match="clients that step by sgd"):
        claim_of(attack, played(protocol="fedavg", optimizer=Optimizer(name="adam")))
    view = view_of(played(task=None))
    (update,) = view.rounds[0].updates.values()
    for sent in ({"body.tokens.weight": update.tensors["body.tokens.weight"]},
                 {name: torch.zeros_like(t) for name, t in update.tensors.items()}):  # fmt: skip
        less = replace(view.rounds[0], updates={0: replace(update, tensors=sent)})
        with pytest.raises(Inapplicable, match="of more than the tokens' vectors"):
            attack.run(replace(view, rounds=(less,)), rng=Rng.root(0))


@pytest.mark.parametrize("task", [CLASSES, None])
def test_the_longest_sentence_ends_where_positions_stop_moving(task):
    for defenses in ((), (GaussianNoise(std=1e-5),)):
        run = played(task=task, examples=3, defenses=defenses)
        found = match_gradient(view_of(run), subject="test", distance="cosine", weight=0.0, rng=Rng.root(0))
        assert found.longest == int(WORDS.real(run.setting.private.inputs[:3]).sum(1).max())
        drawn = found.draw(20, auxiliary=AUXILIARY.inputs, generator=torch.Generator().manual_seed(0))
        assert bool(((drawn.marks != WORDS.pad).sum(2).max(1).values == found.longest).all())


def test_frozen_positions_tell_no_length():
    run = played(arguments={"frozen": "embeddings"})
    found = match_gradient(view_of(run), subject="test", distance="cosine", weight=0.0, rng=Rng.root(0))
    assert found.longest is None
    claim_of(replace(TAG, search=Descent(iterations=2, restarts=2)), run)


@pytest.mark.parametrize("attack", [TAG, LAMP])
@pytest.mark.parametrize("task", [CLASSES, None])
def test_the_truth_has_the_least_loss(attack, task):
    run = played(task=task, examples=2)
    claim = claim_of(replace(attack, search=Descent(iterations=4, restarts=1)), run)
    searched = attack.objective(view_of(run), claim.about, rng=Rng.root(0))
    private = run.setting.private.pick(torch.arange(2))
    true = private.inputs[private.labels.argsort(stable=True)]
    unknown = torch.full((1, 2), -1)
    at_truth, at_claim = (float(searched.loss(x[None], unknown)) for x in (true, claim.tokens))
    assert float(searched.loss(private.inputs[None], private.labels[None])) == pytest.approx(
        at_truth, abs=1e-4
    )
    prior = 0.0 if attack is TAG else 0.001 * float(count_ngrams(AUXILIARY.inputs, WORDS).losses(true).mean())
    assert at_truth == pytest.approx(prior, abs=1e-3)
    assert at_truth < at_claim - searched.noise


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("gpt2", {}), ("gpt2", {"rank": 4}), ("llama", {}), ("bert", {})],
)
def test_every_family_is_matched(name, arguments):
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    words = Vocabulary(size=80, pad=0, end=1, start=2)
    task = None if name == "llama" else CLASSES
    run = played(model=name, vocabulary=words, task=task, arguments={"layers": 2, "heads": 4, **arguments})
    attack = Tag(search=Descent(iterations=2, restarts=1))
    (claim,) = attack.run(view_of(run), rng=Rng.root(0))
    searched = attack.objective(view_of(run), claim.about, rng=Rng.root(0))
    true = run.setting.private.inputs[None, :1]
    assert float(searched.loss(true, torch.full((1, 1), -1))) < 1e-3 < -float(claim.confidence[0])


def test_the_truth_takes_the_places_of_likely_claims_and_then_its_own_labels():
    true = torch.tensor([[5, 6, 7, 1], [8, 9, 1, 0]])
    truth = Truth(
        private=Batch(inputs=true, labels=torch.tensor([1, 0])),
        shards={0: (0, 1)},
        used={(0, 0): Used(steps=((0, 1),), behaviour="honest")},
    )
    claim = Sequences(
        about=About(rounds=(0,), client=0),
        tokens=torch.tensor([[5, 6, 2, 1], [8, 2, 1, 0]]),
        confidence=torch.zeros(2),
    )
    orders = [(x.tolist(), y.tolist()) for x, y in true_orders(claim, truth)]
    assert orders == [(true.tolist(), [-1, -1]), (true.tolist(), [1, 0])]


def test_losses_of_all_parts_make_one_curve():
    with collect_losses() as curve:
        claim_of(replace(LAMP, search=Descent(iterations=6, restarts=2), every=2, moves=2), played())
    assert [step for step, _ in curve] == list(range(6))


def test_ngrams_agree_with_their_definition():
    sentences = [row[: row.index(1) + 1] for row in AUXILIARY.inputs.tolist()]
    known = count_ngrams(AUXILIARY.inputs, WORDS)

    def chance(before, token):
        counts, contexts = Counter(), Counter()
        for one in sentences:
            padded = [WORDS.size] * 2 + one
            for i in range(2, len(padded)):
                context = tuple(padded[i - len(before) : i])
                counts[context, padded[i]] += 1
                contexts[context] += 1
        shorter = chance(before[1:], token) if before else 1 / WORDS.size
        return (counts[before, token] + WEIGHT * shorter) / (contexts[before] + WEIGHT)

    for one in ([5, 6, 7, 1], [9, 6, 7, 8, 1], [70, 71, 1]):
        padded = [WORDS.size] * 2 + one
        each = [-math.log(chance(tuple(padded[i - 2 : i]), padded[i])) for i in range(2, len(padded))]
        said = known.losses(torch.tensor([one + [0] * (8 - len(one))]))
        assert float(said) == pytest.approx(sum(each) / len(each))


def test_moves_reorder_what_is_free_and_nothing_else():
    draws = torch.Generator().manual_seed(0)
    marks = WORDS.stack([[FREE] * 5, [FREE] * 3, [FREE]], length=8)
    free, kinds = marks == FREE, set()
    for order in [move(free, generator=draws) for move in (rearrangement, shuffle) for _ in range(100)]:
        assert order.sort().values.equal(torch.arange(24))
        assert order[~free.flatten()].equal(torch.arange(24)[~free.flatten()])
        kinds.add(tuple(order.tolist()))
    assert len(kinds) > 100
    across = [order for order in kinds if any(order[i] // 8 != i // 8 for i in range(24))]
    assert across  # two sentences swap tokens
    alone = torch.tensor([[True, False]])
    assert rearrangement(alone, generator=draws).tolist() == [0, 1]


@pytest.mark.parametrize("examples", [1, 2, 5])
@pytest.mark.parametrize("seed", [0, 1])
def test_classes_of_sentences_are_counted_off_the_head(examples, seed):
    run = played(examples=examples, seed=seed)
    (claim,) = LabelInference().run(view_of(run), rng=Rng.root(0))
    assert claim.counts.equal(torch.bincount(run.setting.private.labels[:examples], minlength=10))


def test_a_model_of_the_next_token_has_no_classes():
    with pytest.raises(Inapplicable, match="a linear layer that computes the outputs"):
        LabelInference().run(view_of(played(task=None)), rng=Rng.root(0))
    with pytest.raises(Inapplicable, match="features that are not negative"):
        LabelInference(rule="minima").run(view_of(played()), rng=Rng.root(0))


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["tag", "lamp"])
def test_an_audit_finds_the_leak_with_its_control_and_says_whether_the_search_was_finished(tmp_path, attack):
    scenario = from_dict(
        {
            "name": "letters",
            "data": {
                "source": "sentences",
                "auxiliary": 200,
                "heldout": 80,
                "images_are_public": False,
                "task": "classification",
            },
            "model": {"name": "small_gpt", "width": 192},
            "federation": {"clients": 6, "batch_size": 1},
            "attacks": [{"name": attack, "search": {"iterations": 400, "restarts": 1, "learning_rate": 0.3}}],
            "audit": {"metrics": ["token_accuracy"], "victims": 6, "distractors": 60, "utility": False},
        }
    )
    members = (Member(scenario=scenario),)
    result = audit(Suite(name="letters", members=members, given="letters"), out=tmp_path / "run", jobs=1)
    (finding,) = result.findings
    assert finding.value > finding.baseline_value
    assert finding.control.passed
    assert len(finding.searches) == 6
