"""Sentences as data, claimed sentences as numbers, and those who guess them."""

import itertools
import json

import datasets
import numpy as np
import pytest
import torch

from glasshouse.data.sources import load
from glasshouse.errors import BadFile, BadValue, NothingClaimed, Undefined
from glasshouse.metrics.base import ScoreContext
from glasshouse.metrics.text.sentences import (
    ExactClaims,
    ExactSentences,
    SentenceIdentification,
    TokenAccuracy,
    TokensNamed,
    TokensNamedRight,
)
from glasshouse.modalities.base import Wanted
from glasshouse.modalities.sentence import Sentence
from glasshouse.rng import Rng
from glasshouse.tokens import corpus
from glasshouse.tokens.tokenizers import read_tokenizer
from glasshouse.tokens.vocabulary import Vocabulary
from glasshouse.wire import Batch

WORDS = Vocabulary(size=50, pad=0, end=1)
CONTEXT = ScoreContext(vocabulary=WORDS)


def stack(*sentences):
    return WORDS.stack(sentences, length=8)


@pytest.mark.parametrize(
    ("pad", "end", "row", "real"),
    [
        (0, 1, [5, 6, 1, 0, 0], [1, 1, 1, 0, 0]),
        (0, 0, [5, 6, 0, 0, 0], [1, 1, 1, 0, 0]),
        (0, -1, [5, 6, 0, 0, 0], [1, 1, 0, 0, 0]),
        (0, 0, [5, 6, 7, 8, 9], [1, 1, 1, 1, 1]),
    ],
)
def test_what_belongs_to_a_sentence(pad, end, row, real):
    vocabulary = Vocabulary(size=50, pad=pad, end=end)
    assert vocabulary.real(torch.tensor([row])).int().tolist() == [real]


@pytest.mark.parametrize(
    "wrong", [{"size": 1, "pad": 0}, {"size": 5, "pad": 5}, {"size": 5, "pad": 0, "end": 9}]
)
def test_marks_are_tokens(wrong):
    with pytest.raises(BadValue, match="below size"):
        Vocabulary(**wrong)


def test_the_corpus_is_made_of_its_words_and_has_no_sentence_twice():
    every = [s for part in corpus.sentences().values() for s in part]
    assert len(set(every)) == len(every) == 3700
    own = read_tokenizer("words")
    assert all(len(tokens) == len(s.split()) for tokens, s in zip(own.encode(every), every, strict=True))
    assert own.decode(own.encode([every[0]])[0]) == every[0]


@pytest.mark.parametrize("name", ["words", "bytes"])
def test_any_sentence_comes_back(name):
    own = read_tokenizer(name)
    text = "anna mag überraschungen , 🙂 !"
    assert own.decode(own.encode([text])[0]).replace(" ", "") == text.replace(" ", "")


def test_tokenizers_come_from_files(tmp_path):
    tokenizers = pytest.importorskip("tokenizers", reason="the extra 'text'")
    letters = {c: i for i, c in enumerate("abcdefgh")} | {"<|endoftext|>": 8}
    (tmp_path / "vocab.json").write_text(json.dumps(letters))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    one = read_tokenizer(str(tmp_path))
    assert one.vocabulary == Vocabulary(size=9, pad=8, end=8)
    assert one.encode(["abc"]) == [[0, 1, 2]]
    whole = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "a": 3}, "a")
    )
    whole.save(str(tmp_path / "tokenizer.json"))
    assert read_tokenizer(str(tmp_path / "tokenizer.json")).vocabulary == Vocabulary(
        size=4, pad=0, end=2, start=1
    )


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "none of them"), ("{", "undamaged"), ('{"a": 0}', "undamaged")],
)
def test_tokenizers_that_are_none_say_what_is_wrong(tmp_path, content, says):
    pytest.importorskip("tokenizers", reason="the extra 'text'")
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(BadFile, match=says):
        read_tokenizer(str(path))


def test_files_are_classes_folders_are_splits_and_columns_have_numbers(tmp_path):
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "good.txt").write_text("well done\n\nvery well\n")
        (tmp_path / split / "bad.txt").write_text("not so good\n")
    source = load(f"text:{tmp_path}")
    assert source.class_names == ("bad", "good")
    assert {n: p.labels.tolist() for n, p in source.splits.items()} == {"train": [0, 1, 1], "test": [0, 1, 1]}
    table = tmp_path / "cola.tsv"
    table.write_text('x\t1\t\tHe said "no".\nx\t0\t*\tHim said.\n')
    read = load(f"text:{table}#4,2")
    assert read.splits["train"].labels.tolist() == [1, 0]
    decode = read_tokenizer("words").decode
    assert decode(read.splits["train"].stored[0].tolist()) == 'he said " no " .'
    assert len(load(f"text:{table}#4").class_names) == 2


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("", "no path"),
        ("no.txt", "no such file"),
        ("x.tsv#9", "9 columns"),
        ("x.tsv#a", "columns as"),
        ("y.tsv#1,2", "a label in every row"),
        ("latin", "UTF-8"),
    ],
)
def test_texts_that_cannot_be_read_say_so(tmp_path, monkeypatch, place, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.tsv").write_text("one\ttwo\n")
    (tmp_path / "y.tsv").write_text("another\tgood\na sentence\t\n")
    (tmp_path / "latin").write_bytes("schön".encode("latin-1"))
    with pytest.raises(BadFile, match=says):
        load(f"text:{place}")


@pytest.mark.parametrize("column", ["", "#label", "#label,text"])
def test_sentences_of_the_hub(tmp_path, column):
    features = {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["a", "b"])}
    table = datasets.Dataset.from_dict(
        {"text": ["one sentence", "another"], "label": [1, 0]}, features=datasets.Features(features)
    )
    datasets.DatasetDict({"train": table, "validation": table}).save_to_disk(tmp_path / "hf")
    source = load(f"hf:{tmp_path / 'hf'}{column}", tokenizer="bytes")
    assert source.class_names == ("a", "b")
    assert source.splits["val"].labels.tolist() == [1, 0]
    assert read_tokenizer("bytes").decode(source.splits["train"].stored[0].tolist()) == "one sentence"


def test_exact_counts_each_claim_and_each_sentence_once():
    truth = stack([5, 6, 7], [5, 6, 7], [8, 9])
    claimed = stack([8, 9], [5, 6, 7], [4, 4])
    assert ExactSentences().score(claimed, truth, context=CONTEXT).tolist() == [1, 0, 1]
    assert ExactClaims().score(claimed, truth, context=CONTEXT).tolist() == [1, 1, 0]
    assert ExactSentences().score(claimed[:0], truth, context=CONTEXT).tolist() == [0, 0, 0]
    with pytest.raises(NothingClaimed):
        ExactClaims().score(claimed[:0], truth, context=CONTEXT)


def test_marks_make_no_difference():
    plain = Vocabulary(size=50, pad=0).stack([[5, 6, 7]], length=4)
    assert ExactSentences().score(plain, stack([5, 6, 7]), context=CONTEXT).tolist() == [1]


def test_tokens_count_at_their_place_after_pairing():
    truth = stack([5, 6, 7, 8], [10, 11])
    claimed = stack([10, 12], [5, 6, 8, 7])
    assert TokenAccuracy().score(claimed, truth, context=CONTEXT).tolist() == [0.5, 0.5]


def test_identification_is_among_sentences_of_the_same_length():
    pool = [[20 + i, 21 + i, 22 + i] for i in range(3)] + [[5, 6, 7, 8]] * 5
    context = ScoreContext(vocabulary=WORDS, distractors=stack(*pool))
    metric = SentenceIdentification(others=3)
    truth = stack([5, 6, 9])
    assert metric.score(stack([5, 6, 7, 8]), truth, context=context).tolist() == [
        1
    ]  # longer ones do not compete
    assert metric.score(stack([20, 21, 22]), truth, context=context).tolist() == [0]
    assert metric.score(stack([30, 31, 32]), truth, context=context).tolist() == [0]  # a tie is a miss
    with pytest.raises(Undefined, match="19 other sentences"):
        SentenceIdentification().score(truth, truth, context=context)


def test_named_tokens():
    truth, named = stack([5, 6, 5], [7, 8]), torch.tensor([5, 7, 30])
    assert TokensNamed().score(named, truth, context=CONTEXT).tolist() == [0.5, 0.5]
    assert TokensNamedRight().score(named, truth, context=CONTEXT).tolist() == [1, 1, 0]


def test_rouge_is_that_of_the_package_on_words():
    pytest.importorskip("rouge_score", reason="the extra 'text'")
    from rouge_score import rouge_scorer

    from glasshouse.metrics.text.rouge import Rouge1, Rouge2, RougeL

    draws = np.random.default_rng(0)
    for _ in range(20):
        one, other = (draws.integers(2, 12, size=draws.integers(2, 8)).tolist() for _ in range(2))
        texts = [" ".join(f"w{t}" for t in tokens) for tokens in (one, other)]
        theirs = rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL"]).score(*texts)
        for metric, name in ((Rouge1(), "rouge1"), (Rouge2(), "rouge2"), (RougeL(), "rougeL")):
            (own,) = metric.score(stack(other), stack(one), context=CONTEXT)
            assert own == pytest.approx(theirs[name].fmeasure)
    assert Rouge2().score(stack([5]), stack([5]), context=CONTEXT).tolist() == [1]


def null_sentences():
    inputs = load("sentences").inputs
    return {null.name: null for null in inputs.nulls() if null.knows == "domain"}


@pytest.mark.parametrize("name", sorted(null_sentences()))
def test_who_guesses_writes_as_auxiliary_sentences_are(name):
    part = load("sentences").splits["train"].batch(torch.arange(200))
    words = load("sentences").inputs.vocabulary
    guess = null_sentences()[name].guess(part, Wanted(count=30), Rng.root(0))
    assert guess.inputs.shape == (30, 32)
    assert set(guess.inputs.flatten().tolist()) <= set(part.inputs.flatten().tolist())
    lengths = words.real(guess.inputs).sum(1)
    assert 8 <= float(lengths.double().mean()) <= 20
    again = null_sentences()[name].guess(part, Wanted(count=30), Rng.root(0))
    assert torch.equal(guess.inputs, again.inputs)


def test_a_language_model_writes_only_pairs_that_occur_most_of_the_time():
    part = load("sentences").splits["train"].batch(torch.arange(400))
    pairs = {p for row in part.inputs.tolist() for p in itertools.pairwise(row)}
    model = null_sentences()["samples of a language model"]
    guess = model.guess(part, Wanted(count=50), Rng.root(0)).inputs.tolist()
    seen = [p in pairs for row in guess for p in itertools.pairwise(row)]
    assert np.mean(seen) > 0.8
    assert len({tuple(row) for row in guess}) > 40


def test_a_batch_has_one_label_per_example():
    with pytest.raises(BadValue, match="one label per example"):
        Batch(inputs=torch.zeros(2, 3), labels=torch.zeros(3).long())


def test_a_number_for_a_vocabulary_is_refused_with_what_to_give():
    with pytest.raises(BadValue, match=r"Vocabulary\(size=V, pad=0\)"):
        Sentence(vocabulary=50, length=4)
