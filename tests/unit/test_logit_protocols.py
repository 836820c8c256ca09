"""FedMD, FedGEMS and DS-FL: what they compute, what goes over the wire, and where the authors differ."""

import pytest
import torch
from torch.nn import functional as F

from glasshouse.errors import BadValue
from glasshouse.federation.defenses.dp_sgd import DpSgd
from glasshouse.federation.learner import Learner, authors_divergence, divergence
from glasshouse.federation.protocols.dsfl import DsFl
from glasshouse.federation.protocols.fedgems import FedGems, experts
from glasshouse.federation.protocols.fedmd import FedMd
from glasshouse.models import build as models
from glasshouse.registry import load
from glasshouse.rng import Rng
from glasshouse.testing.toys import CLASSES, SHAPE, toy
from glasshouse.wire import Architecture, Batch

PUBLIC = 12


def public(labelled=True, seed=5):
    draws = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (PUBLIC,), generator=draws)
    inputs = torch.rand((PUBLIC, *SHAPE), generator=draws)
    return Batch(inputs=inputs, labels=labels if labelled else torch.full_like(labels, -1))


def run(protocol, clients=2, rounds=2, data=None, **terms):
    terms = {
        "sends": "logits",
        "public": data or public(protocol != "dsfl"),
        "sensitive": 6,
        "targets": 4,
    } | terms
    return toy(
        protocol=protocol, clients=clients, examples=4, rounds=rounds, learning_rate=1e-2, **terms
    ).transcript


def learner(seed=0):
    model = models.build(Architecture.of("mlp", SHAPE, CLASSES), rng=Rng.root(seed))
    return Learner(model, rate=1e-2, decay=0.0, batch_size=4)


@pytest.mark.parametrize("protocol", ["fedmd", "fedgems", "dsfl"])
@pytest.mark.parametrize("clients", [1, 10])
def test_uploads_and_consensus_are_logits_and_one_upload_is_the_last(protocol, clients):
    transcript = run(protocol, clients)
    assert [len(r.updates) for r in transcript.rounds] == [clients] * 3
    assert [len(r.broadcasts) for r in transcript.rounds] == [1, 1, 0]
    for record in transcript.rounds:
        for message in (*record.broadcasts, *record.updates):
            assert set(message.tensors) == {"logits"}
            assert message.tensors["logits"].shape == (PUBLIC, CLASSES)


def test_fedmd_broadcasts_the_mean():
    first = run("fedmd").rounds[0]
    mean = torch.stack([u.tensors["logits"] for u in first.updates]).mean(0)
    torch.testing.assert_close(first.broadcasts[0].tensors["logits"], mean)


def test_dsfl_sharpens_the_mean_prediction():
    first = run("dsfl").rounds[0]
    mean = torch.stack([F.softmax(u.tensors["logits"], 1) for u in first.updates]).mean(0)
    result = F.softmax(first.broadcasts[0].tensors["logits"], 1)
    torch.testing.assert_close(result, F.softmax(mean / 0.1, 1))
    entropy = -(result * result.log()).sum(1).mean()
    assert entropy < -(mean * mean.log()).sum(1).mean()


def test_the_same_seed_gives_the_same_run_and_clients_differ():
    one, two = run("fedmd"), run("fedmd")
    for a, b in zip(one.rounds, two.rounds, strict=True):
        for x, y in zip(a.updates, b.updates, strict=True):
            assert torch.equal(x.tensors["logits"], y.tensors["logits"])
    assert not torch.equal(*[u.tensors["logits"] for u in one.rounds[0].updates])


def test_authors_single_client_of_fedmd_never_sees_the_consensus():
    paper = run("fedmd", 1, rounds=1)
    authors = run("fedmd", 1, rounds=1, options={"variant": "authors", "revisit_epochs": 1})
    silent = run("fedmd", 1, rounds=1, options={"consensus_epochs": 0})
    last = [t.rounds[-1].updates[0].tensors["logits"] for t in (paper, authors, silent)]
    assert torch.equal(last[1], last[2])
    assert not torch.equal(last[0], last[1])


def test_options_reach_the_protocol():
    short, long = run("dsfl", options={"private_epochs": 1}), run("dsfl", options={"private_epochs": 4})
    assert short.rounds[0].updates[0].steps == 1
    assert long.rounds[0].updates[0].steps == 4


def test_experts_weigh_by_certainty_among_those_who_are_right():
    sure, unsure = torch.tensor([[5.0, 0.0]]), torch.tensor([[1.0, 0.0]])
    wrong = torch.tensor([[0.0, 50.0]])
    labels = torch.tensor([0])
    result = experts([sure, unsure, wrong], labels)
    assert result[0].tolist() == pytest.approx([5.0, 0.0], abs=1e-3)  # all weight on the surest
    assert torch.equal(experts([wrong, wrong], labels), wrong)
    assert experts([torch.tensor([[1e4, 0.0]])], labels).isfinite().all()


def test_divergence_is_of_the_student_from_the_teacher_per_example():
    draws = torch.Generator().manual_seed(0)
    student, teacher = torch.randn(5, 7, generator=draws), torch.randn(5, 7, generator=draws)
    p, q = F.softmax(teacher, 1), F.softmax(student, 1)
    slow = (p * (p / q).log()).sum() / 5
    torch.testing.assert_close(divergence(student, teacher), slow)
    swapped = (q * (q / p).log()).sum() / (5 * 7)
    torch.testing.assert_close(authors_divergence(student, teacher), swapped)


@pytest.mark.parametrize("variant", ["paper", "authors"])
def test_selective_training_uses_the_three_groups(variant):
    settings = FedGems(variant=variant, hard=0.5)
    data = public()
    server, uploads = learner(), [learner(1).logits(data.inputs)]
    scheme_logits = server.logits(data.inputs)
    rows = torch.arange(PUBLIC)
    right = scheme_logits.argmax(1) == data.labels
    settings._pool[int((~right).nonzero()[0])] = scheme_logits[0]
    value = settings._selective(scheme_logits, rows, data.labels, uploads[0])
    kl = settings.kl
    wrong = (~right).nonzero().squeeze(1)
    pooled, others = wrong[:1], wrong[1:]
    parts = [
        (
            F.cross_entropy(scheme_logits[right], data.labels[right]) if right.any() else torch.zeros(()),
            int(right.sum()),
        ),
        (
            0.5 * F.cross_entropy(scheme_logits[pooled], data.labels[pooled])
            + 0.5 * kl(scheme_logits[pooled], scheme_logits[:1]),
            1,
        ),
        (kl(scheme_logits[others], uploads[0][others]), len(others)),
    ]
    expected = sum(v * (1 if variant == "authors" else n / PUBLIC) for v, n in parts)
    torch.testing.assert_close(value, expected)
    assert len(settings._pool) == int(right.sum()) + 1


@pytest.mark.parametrize(
    ("terms", "word"),
    [({"secure_sum": True}, "secure_sum"), ({"cohort": 1}, "a cohort below"), ({"dropout": 0.5}, "dropout")],
)
def test_what_the_loop_cannot_do_is_refused(terms, word):
    with pytest.raises(BadValue, match=word):
        run("fedmd", **terms)


def test_a_parameter_protocol_s_toy_has_no_public_data():
    with pytest.raises(BadValue, match="no public data"):
        toy(protocol="fedmd", clients=2, examples=4, sends="logits")


@pytest.mark.parametrize("protocol", ["fedmd", "fedgems", "dsfl"])
def test_the_passes_that_a_guarantee_counts_are_those_made(protocol):
    """DP-SGD composes over every private step, those before the first upload included."""
    transcript = run(protocol, 1, rounds=3)
    result = sum(u.steps for r in transcript.rounds for u in r.updates)
    assert (
        load("protocols", protocol)().passes(3) == result
    )  # four examples, batches of four: a step per pass


def test_dp_sgd_acts_on_private_training():
    plain = run("fedmd", 1, rounds=1)
    private = run("fedmd", 1, rounds=1, defenses=[DpSgd(clip=0.1, noise_multiplier=2.0)])
    last = [t.rounds[-1].updates[0].tensors["logits"] for t in (plain, private)]
    assert not torch.equal(*last)


def test_variants_are_named():
    assert {FedMd().variant, FedGems().variant, DsFl().variant} == {"paper"}
