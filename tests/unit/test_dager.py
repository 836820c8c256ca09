"""DAGER's kernels against obviously right slow twins, and the attack on what clients may send."""

import itertools
from dataclasses import replace

import pytest
import torch

from glasshouse.attacks.base import About
from glasshouse.attacks.text.dager import Dager
from glasshouse.attacks.text.prefixes import Limits, grow
from glasshouse.attacks.text.reading import Answer, heads_span, input_span
from glasshouse.attacks.text.span import candidates, received, span_of, with_directions, within_reach
from glasshouse.audit.run import audit
from glasshouse.errors import Inapplicable
from glasshouse.federation.defenses.gaussian_noise import GaussianNoise
from glasshouse.interfaces import mean_loss
from glasshouse.models import build as models
from glasshouse.rng import Rng
from glasshouse.scenario.load import from_dict
from glasshouse.scenario.suite import Member, Suite
from glasshouse.settings import Optimizer
from glasshouse.tasks.classification import Classification
from glasshouse.testing.toys import sentence_model, toy
from glasshouse.tokens.vocabulary import Vocabulary
from glasshouse.wire import Architecture, Batch

WORDS = Vocabulary(size=60, pad=0, end=1)
MARKED = Vocabulary(size=60, pad=0, end=1, start=2)
LEAST = 2e-3
CLASSES = Classification(classes=10)


def model(name="small_gpt", words=WORDS, length=10, classes=0, **arguments):
    arguments = {"width": 64, **arguments}
    architecture = sentence_model(name, words, length=length, classes=classes, **arguments)
    return models.build(architecture, rng=Rng.root(3)).eval()


def batch(net, sentences, length=10):
    return net.vocabulary.stack(sentences, length=length)


def gradient(net, tokens):
    named = {n: p for n, p in net.named_parameters() if p.requires_grad}
    loss = mean_loss(net, Batch(inputs=tokens, labels=torch.arange(len(tokens)) % 2))
    return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))


def read(net, sent, examples, **settings):
    answer = Answer(about=About(rounds=(0,)), model=net, sent=sent, examples=examples, steps=1)
    found = Dager(**settings).sentences(answer, length=10, generator=torch.Generator().manual_seed(0))
    marks = {net.vocabulary.pad, net.vocabulary.end, net.vocabulary.start}
    return [tuple(t for t in one.tokens if t not in marks) for one in found]


SENTENCES = [(5, 9, 13, 7, 30), (40, 9, 22, 5, 6, 8), (5, 9, 50)]


@pytest.mark.parametrize("noise", [0.0, 1e-6, 1e-3])
@pytest.mark.parametrize("uneven", [False, True])
def test_rank_is_that_of_the_signal_whatever_the_noise(noise, uneven):
    draws = torch.Generator().manual_seed(0)
    inputs = torch.randn(20, 64, generator=draws)
    rows = torch.randn(192, 20, generator=draws) @ inputs
    sizes = 10 ** torch.linspace(0, -3, 192)[:, None] if uneven else torch.ones(192, 1)
    span = span_of((rows + noise * torch.randn(rows.shape, generator=draws)) * sizes)
    assert span.rank == 20
    assert bool((span.distances(inputs) <= span.limits(inputs, 1e-5)).all())
    others = torch.randn(500, 64, generator=draws)
    assert not bool((span.distances(others) <= span.limits(others, 1e-5)).any())


def test_what_shows_no_inputs_holds_none():
    draws = torch.Generator().manual_seed(0)
    others = torch.randn(50, 64, generator=draws)
    for rows in (torch.randn(192, 64, generator=draws), torch.zeros(8, 64)):
        span = span_of(rows)
        assert span.rank == 0
        assert not bool((span.distances(others) <= span.limits(others, LEAST)).any())
    inputs = torch.randn(4, 64, generator=draws)
    mixtures = span_of(torch.randn(3, 4, generator=draws) @ inputs)  # fewer rows than inputs
    assert mixtures.free == 0 or float(mixtures.distances(inputs).min()) > 0.01


def test_known_directions_join_a_span():
    draws = torch.Generator().manual_seed(0)
    inputs, more = torch.randn(5, 32, generator=draws), torch.randn(3, 32, generator=draws)
    wide = with_directions(span_of(torch.randn(90, 5, generator=draws) @ inputs), torch.cat([more, inputs]))
    assert (wide.rank, wide.free) == (8, 24)
    assert float(wide.distances(torch.cat([inputs, more])).max()) < 1e-5


def test_one_pass_over_the_vocabulary_loses_no_token():
    net = model()
    sent = gradient(net, batch(net, SENTENCES))
    with torch.no_grad():
        span = input_span(net, 0, sent)
        which = candidates(net, span, length=10, least=LEAST)
        every = torch.arange(WORDS.size)
        for place in range(10):
            slow = every[span.distances(received(net, every, place)) < LEAST]
            assert set(slow.tolist()) == set(which.at(place).tolist())
            assert {s[place] for s in SENTENCES if place < len(s)} <= set(slow.tolist())


def test_the_rank_of_the_first_layer_is_that_of_tokens_and_places_not_of_their_number():
    net = model()
    sentences = [(5, 9, 13, 7), (7, 5, 9, 13), (13, 7, 5, 9), (9, 13, 7, 5)]
    pairs = {(token, place) for s in sentences for place, token in enumerate(s)}
    nodes = [(("token", t), ("place", p)) for t, p in pairs]
    root = {n: n for pair in nodes for n in pair}

    def top(n):
        while root[n] != n:
            n = root[n]
        return n

    for a, b in nodes:
        root[top(a)] = top(b)
    expected = len(root) - len({top(n) for n in root})
    assert input_span(net, 0, gradient(net, batch(net, sentences))).rank == expected < len(pairs)


def prefixes_by_force(net, after, sets):
    """Every combination, sent whole through the first block."""
    right = {()}
    ended = set()
    for place, tokens in enumerate(sets):
        longer = set()
        for prefix in right:
            good = set()
            for token in tokens.tolist():
                row = torch.tensor([[*prefix, token]])
                places = torch.arange(place + 1)[None]
                hidden = net.through(0, net.embed(row, places), places, torch.ones_like(row).bool())
                vector = net.anatomy.blocks[1].attended(hidden)[0, -1:]
                if float(after.distances(vector)) < LEAST:
                    good.add((*prefix, token))
            ended |= set() if good else {prefix}
            longer |= good
        right = longer
    return (ended | right) - {()}


def test_kept_keys_and_values_find_what_whole_prefixes_find():
    net = model()
    sent = gradient(net, batch(net, SENTENCES))
    with torch.no_grad():
        first, second = (input_span(net, layer, sent) for layer in (0, 1))
        which = candidates(net, first, length=10, least=LEAST)
        sets = list(itertools.takewhile(len, (which.at(place) for place in range(10))))
        slow = prefixes_by_force(net, second, sets)
        limits = Limits(least=LEAST, beam=100, length=10)
        for found in (None, heads_span(net, 0, sent)):
            assert {one.tokens for one in grow(net, second, found, which.at, limits=limits)} == slow
    assert set(SENTENCES) <= slow


@pytest.mark.parametrize(
    ("name", "words", "arguments"),
    [
        ("small_gpt", WORDS, {}),
        ("small_gpt", WORDS, {"layers": 3, "classes": 2}),
        ("small_gpt", MARKED, {"frozen": "embeddings"}),
        ("gpt2", WORDS, {"layers": 2, "heads": 4}),
        ("gpt2", WORDS, {"layers": 2, "heads": 4, "rank": 24}),
        ("llama", WORDS, {"layers": 2, "heads": 4}),
        ("llama", WORDS, {"layers": 2, "heads": 4, "key_heads": 2}),
        ("bert", MARKED, {"layers": 3, "heads": 4, "classes": 2}),
    ],
)
def test_sentences_come_out_exactly(name, words, arguments):
    if name != "small_gpt":
        pytest.importorskip("transformers")
        pytest.importorskip("peft")
    net = model(name, words=words, **arguments)
    tokens = batch(net, SENTENCES)
    found = read(net, gradient(net, tokens), 3)
    assert set(SENTENCES) == set(found[:3])


def test_a_batch_that_fills_the_layer_is_not_read():
    net = model(width=16)
    draws = torch.Generator().manual_seed(0)
    sentences = [tuple(torch.randperm(55, generator=draws)[:8].add(4).tolist()) for _ in range(6)]
    assert read(net, gradient(net, batch(net, sentences)), 6) == []


@pytest.mark.parametrize(("width", "count", "seed"), [(16, 6, 4), (16, 3, 5), (32, 6, 4)])
def test_a_batch_that_overfills_the_layer_invents_nothing(width, count, seed):
    """Draws in which the tail of a full span was taken for noise, or only what no input reaches was free."""
    net = model(width=width)
    draws = torch.Generator().manual_seed(seed)
    sentences = [tuple(torch.randperm(55, generator=draws)[:8].add(4).tolist()) for _ in range(count)]
    assert read(net, gradient(net, batch(net, sentences)), count) == []


def test_a_direction_that_no_input_reaches_is_not_free():
    """A layer norm's output has no part along its first diagonal: a full span has that one left."""
    net = model(width=32)
    draws = torch.Generator().manual_seed(4)
    sentences = [tuple(torch.randperm(55, generator=draws)[:8].add(4).tolist()) for _ in range(6)]
    sent = gradient(net, batch(net, sentences))
    with torch.no_grad():
        every = received(net, torch.arange(WORDS.size), torch.arange(WORDS.size) % 10)
        full = span_of(net.input_rows(0, sent))
        assert (full.rank, full.free) == (31, 1)
        assert input_span(net, 0, sent).free == within_reach(full, every).free == 0
        part = span_of(torch.randn(96, 20, generator=draws) @ every[:20])
        inside = within_reach(part, every)
        assert (part.free, inside.free) == (12, 11)
        assert float(inside.distances(every[:20]).max()) < LEAST


def test_noise_is_no_reason_to_let_a_part_of_all_vectors_in():
    draws = torch.Generator().manual_seed(0)
    span = span_of(torch.randn(48, 10, generator=draws) @ torch.randn(10, 16, generator=draws))
    loud = replace(span, leak=torch.full((span.rank,), 0.1))
    strangers = torch.randn(2_000, 16, generator=draws)
    assert not bool((loud.distances(strangers) <= loud.limits(strangers, LEAST)).any())


def test_noise_is_allowed_for_as_far_as_it_goes():
    net = model(width=128)
    sent = gradient(net, batch(net, SENTENCES))
    draws = torch.Generator().manual_seed(0)
    size = float(torch.cat([g.flatten() for g in sent.values()]).std())

    def noisy(share):
        return {n: g + share * size * torch.randn(g.shape, generator=draws) for n, g in sent.items()}

    assert set(read(net, noisy(1e-3), 3)) == set(SENTENCES)
    assert set(read(net, noisy(1e-2), 3)) == set(SENTENCES)
    assert not set(read(net, noisy(30.0), 3)) & set(SENTENCES)


def claimed(**changes):
    played = toy(
        **{
            "model": "small_gpt", "vocabulary": WORDS, "arguments": {"width": 64}, "examples": 2,
            "clients": 2, **changes,
        }
    )  # fmt: skip
    client = None if changes.get("secure_sum") else 0
    (claim,) = Dager().run(played.view(client=client), rng=Rng.root(0))
    private = played.setting.private.inputs
    want = [tuple(t for t in row.tolist() if t > 1) for row in private]
    found = [tuple(t for t in row.tolist() if t > 1) for row in claim.tokens]
    return claim, want, found


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"protocol": "fedavg", "local_epochs": 3, "learning_rate": 0.01},
        {"protocol": "fedavg", "optimizer": Optimizer(name="sgd", weight_decay=0.1), "learning_rate": 0.1},
        {"defenses": (GaussianNoise(std=1e-6),)},
    ],
)
def test_gradients_changes_and_decay_are_read(changes):
    claim, want, found = claimed(**changes)
    assert claim.about == About(rounds=(0,), client=0)
    assert set(want[:2]) <= set(found)


def test_a_secure_sum_gives_the_sentences_of_all_clients_and_names_none():
    claim, want, found = claimed(secure_sum=True)
    assert claim.about.client is None
    assert set(want) <= set(found)


def test_it_says_what_it_needs():
    with pytest.raises(Inapplicable, match="a model that reads sentences"):
        Dager().check_model(Architecture.of("mlp", (1, 8, 8), 10))
    with pytest.raises(Inapplicable, match="gradients of the first two attention layers"):
        claimed(protocol="transfer", trained="head.", arguments={"width": 64}, task=CLASSES)
    with pytest.raises(Inapplicable, match="at least 2 blocks"):
        claimed(arguments={"width": 64, "layers": 1})
    with pytest.raises(Inapplicable, match="clients that step by sgd"):
        claimed(protocol="fedavg", optimizer=Optimizer(name="adam"))


def test_an_audit_finds_the_leak_with_its_control(tmp_path):
    scenario = from_dict(
        {
            "name": "letters",
            "data": {"source": "sentences", "auxiliary": 120, "heldout": 80, "images_are_public": False},
            "model": {"name": "small_gpt", "width": 64},
            "federation": {"clients": 4, "batch_size": 1},
            "attacks": [{"name": "dager"}],
            "audit": {"metrics": ["exact_sentences"], "victims": 4, "distractors": 60, "utility": False},
        }
    )
    members = (Member(scenario=scenario),)
    result = audit(Suite(name="letters", members=members, given="letters"), out=tmp_path / "run", jobs=1)
    (finding,) = result.findings
    assert finding.value == 1.0
    assert finding.control.passed


def noisy_rows(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows (192, 64) that 12 inputs span, under noise of a twentieth of their size; and the inputs."""
    generator = torch.Generator().manual_seed(seed)
    inputs, weights, noise = (
        torch.randn(*shape, generator=generator, dtype=torch.double)
        for shape in ((12, 64), (192, 12), (192, 64))
    )
    signal = weights @ inputs
    return signal + 0.05 * signal.square().mean().sqrt() * noise, inputs


def test_noise_is_seldom_taken_for_a_direction_and_never_hides_an_input():
    """Without a margin above the edge of pure noise, the rank of 9 in 10 would be too large."""
    too_large = 0
    for seed in range(10):
        rows, inputs = noisy_rows(seed)
        span = span_of(rows)
        assert span.rank >= 12
        assert bool((span.distances(inputs) <= span.limits(inputs, 1e-3)).all())
        too_large += span.rank > 12
    assert too_large <= 2
