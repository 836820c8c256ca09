"""Two parties of a vertical federation: what travels, what each reads of the other, and what hides it."""

import numpy as np
import pytest
import torch
from document_views import Played

from glasshouse.attacks.rows.vertical import EmbeddingRegression, GradientDirection
from glasshouse.data.tables.clinic import clinic
from glasshouse.errors import BadFile, BadValue, Inapplicable
from glasshouse.federation.protocols.documents.vertical import Couple, Vertical
from glasshouse.formats.base import read_document
from glasshouse.formats.carried import NAME, bytes_of
from glasshouse.formats.records import Vectors
from glasshouse.formats.tabular import document_of
from glasshouse.guard.rules.documents import inspect_document
from glasshouse.metrics.base import ScoreContext
from glasshouse.metrics.tables.rows import Cells, RowLabelsRight, RowsExact
from glasshouse.rng import Rng

KNOWN = 20


def people(count=80, seed=0):
    rows = clinic("").splits["train"].batch()
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    return rows.pick(order[:count]), rows.pick(order[count : count + 1000])


def view(data, **options):
    played = Played(clinic(""), data, "vertical", options={"known": KNOWN, **options})
    return played.view()


def examples(batch):
    return torch.cat([batch.inputs.double(), batch.labels.double()[:, None]], 1)


def read_labels(seen, data):
    (claim,) = GradientDirection().run(seen, rng=Rng.root(0))
    secret = data.pick(torch.arange(KNOWN, len(data)))
    return RowLabelsRight().score(claim.labels, examples(secret), context=ScoreContext()).mean()


def test_an_embedding_of_everybody_and_a_gradient_back_as_two_networks_would_compute_them():
    data, _ = people()
    couple = Couple(data, Vertical(known=KNOWN), rng=Rng.root(1))
    with torch.no_grad():
        expected = couple.bottom(data.inputs)
    embedded = expected.clone().requires_grad_()
    loss = torch.nn.functional.binary_cross_entropy_with_logits(
        couple.top(embedded)[:, 0], data.labels.float()
    )
    (gradient,) = torch.autograd.grad(loss, embedded)
    sent = couple.step(Vertical(known=KNOWN), rng=Rng.root(2))
    assert np.allclose(sent.vectors, expected.double().numpy())
    again = Couple(data, Vertical(known=KNOWN, reads="gradients"), rng=Rng.root(1))
    back = again.step(Vertical(known=KNOWN, reads="gradients"), rng=Rng.root(2))
    assert np.allclose(back.vectors, gradient.double().numpy())
    assert back.vectors.shape == (80, 8)


def test_both_learn():
    data, others = people(400)
    couple = Couple(data, Vertical(), rng=Rng.root(1))
    for number in range(80):
        couple.step(Vertical(), rng=Rng.root(number))
    most = max(float((others.labels == k).double().mean()) for k in (0, 1))
    assert couple.accuracy(data) > most + 0.1


def test_known_people_are_told_and_nobody_else_is():
    data, _ = people()
    seen = view(data)
    broadcast, update = seen.single(subject="test")
    roster = read_document(bytes_of(broadcast.tensors[NAME]))[1]
    assert roster.what == "known"
    assert np.allclose(roster.vectors, data.inputs[:KNOWN].double().numpy())
    assert roster.labels.tolist() == data.labels[:KNOWN].tolist()
    assert update.examples == len(data) - KNOWN


def test_labels_are_read_off_the_direction_of_gradients():
    data, public = people()
    assert read_labels(view(data, reads="gradients"), data) == 1.0
    secret = examples(data.pick(torch.arange(KNOWN, len(data))))
    null = RowLabelsRight().blind(secret[:, -1], secret, public, context=ScoreContext())
    assert null.mean() < 0.9


def test_noise_above_the_spread_hides_most_labels_and_rounding_to_it_some():
    data, _ = people()
    noisy = [read_labels(view(data, reads="gradients", noise=8.0), data) for _ in range(1)]
    assert max(noisy) < 0.85
    assert read_labels(view(data, reads="gradients", step=6.0), data) < 1.0


def test_wide_embeddings_give_more_cells_than_guessing_and_noise_takes_them():
    data, public = people(200)
    context = ScoreContext(inputs=clinic("").inputs)
    secret = data.inputs[KNOWN:]

    def cells(**options):
        seen = view(data, width=64, hidden=256, **options)
        (claim,) = EmbeddingRegression().run(seen, rng=Rng.root(0))
        return Cells().score(claim.inputs, secret, context=context).mean()

    guess = Cells().score(public.inputs[: len(secret)], secret, context=context).mean()
    assert cells() > guess + 0.02
    assert cells(noise=8.0) < guess


def test_the_other_attack_and_unknown_people_are_refused():
    data, _ = people()
    with pytest.raises(Inapplicable, match='reads = "embeddings"'):
        EmbeddingRegression().run(view(data, reads="gradients"), rng=Rng.root(0))
    with pytest.raises(Inapplicable, match="known people of both labels"):
        GradientDirection().run(view(data, reads="gradients", known=0), rng=Rng.root(0))
    with pytest.raises(BadValue, match="people whom the other party does not know"):
        view(data, known=80)
    with pytest.raises(BadValue, match="reads embeddings or gradients"):
        Vertical(reads="sums")


def test_vectors_travel_whole_and_damaged_ones_are_refused():
    sent = Vectors(what="known", vectors=np.array([[0.1, 1 / 3]]), labels=np.array([1]))
    media, got = read_document(document_of(sent))
    assert media == "vectors-json"
    assert got.vectors.tolist() == sent.vectors.tolist()
    for damaged in (
        b'{"format": "vectors", "what": "sums", "vectors": [[1]]}',
        b'{"format": "vectors", "what": "gradients", "vectors": [[1], [1, 2]]}',
        b'{"format": "vectors", "what": "gradients", "vectors": [[1]], "labels": [1]}',
        b'{"format": "vectors", "what": "known", "vectors": [[1]]}',
    ):
        with pytest.raises(BadFile):
            read_document(damaged)
    assert (
        "1 gradients of single people"
        in inspect_document(document_of(Vectors(what="gradients", vectors=np.ones((1, 2))))).findings[0]
    )


def test_rows_are_compared_all_at_once_as_one_by_one():
    data, others = people(6)
    context = ScoreContext(inputs=clinic("").inputs)
    rows = torch.cat([others.inputs[:4], data.inputs[:1]])
    for metric in (Cells(), RowsExact()):
        table = metric.pairwise(rows, data.inputs, context=context)
        for r, row in enumerate(rows):
            for n, example in enumerate(data.inputs):
                assert table[r, n] == metric.score(row[None], example[None], context=context)[0]
