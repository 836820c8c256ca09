"""TBI and PLI: what they read, what they ask, what they claim; against slow definitions."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from glasshouse.attacks.base import ClassRepresentatives, PriorSamples
from glasshouse.attacks.logits import invert
from glasshouse.attacks.logits.invert import InversionTraining, Task, each
from glasshouse.attacks.logits.linear import RidgeInversion, choose_penalty, invert_by_ridge
from glasshouse.attacks.logits.material import Material, material
from glasshouse.attacks.logits.network import InversionNet, network
from glasshouse.attacks.logits.pli import attack as pli
from glasshouse.attacks.logits.pli.attack import Pli
from glasshouse.attacks.logits.pli.prior import prior_images
from glasshouse.attacks.logits.pli.translate import pairs as pairs_module
from glasshouse.attacks.logits.pli.translate.pairs import pairs_of
from glasshouse.attacks.logits.pli.translate.resume import keep
from glasshouse.attacks.logits.queries import choose_smooth, choose_surest, one_hot, unsure_server
from glasshouse.attacks.logits.tbi import Tbi
from glasshouse.errors import BadValue, Inapplicable, Undefined
from glasshouse.images import ssim, total_variation
from glasshouse.metrics.attribution import Owner
from glasshouse.metrics.base import ScoreContext
from glasshouse.metrics.classes import (
    AttackAccuracy,
    ClassIdentification,
    IdentityMatch,
    SsimGap,
    SsimPrivate,
    SsimPublic,
    TargetIdentification,
    TooClose,
)
from glasshouse.metrics.gallery import Gallery, SsimTable
from glasshouse.rng import Rng
from glasshouse.testing.toys import toy
from glasshouse.transcript.cut import cut
from glasshouse.transcript.grants import Grants
from glasshouse.transcript.threat import Threat
from glasshouse.wire import Batch

SMALL = {"training": InversionTraining(width=8, epochs=1, learning_rate=1e-3)}


def rand(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def view(protocol="fedmd", clients=2, rounds=2, threat=None, **terms):
    labels = torch.arange(20) % 10 if protocol != "dsfl" else torch.full((20,), -1)
    terms = {"sends": "logits", "sensitive": 12, "targets": 4} | terms
    terms.setdefault("public", Batch(inputs=rand(20, 1, 8, 8), labels=labels))
    result = toy(protocol=protocol, clients=clients, examples=4, rounds=rounds, learning_rate=1e-2, **terms)
    own = {t: {"logits": rand(20, 10, seed=t)} for t in range(1, rounds + 1)}
    return cut(result.transcript, threat=threat or Threat(), grants=Grants(), own=own, memory={})


def representatives(claims):
    return [c for c in claims if isinstance(c, ClassRepresentatives)]


@pytest.mark.parametrize("protocol", ["fedmd", "fedgems", "dsfl"])
@pytest.mark.parametrize("attack", [Pli(**SMALL), Tbi(**SMALL)], ids=["pli", "tbi"])
def test_a_claim_per_upload_with_own_logits(protocol, attack):
    claims = representatives(attack.run(view(protocol), rng=Rng.root(0)))
    assert [c.about.rounds for c in claims] == [(1,), (1, 2)]
    for claim in claims:
        assert claim.inputs.shape == (4, 1, 8, 8)
        assert claim.inputs.min() >= 0
        assert claim.inputs.max() <= 1
        assert claim.labels.tolist() == [0, 1, 2, 3]
        assert set(claim.source.tolist()) <= {-1, 0, 1}


def test_the_same_stream_gives_the_same_images_in_any_number_of_processes():
    one = representatives(Pli(**SMALL).run(view(), rng=Rng.root(3)))[-1]
    two = representatives(Pli(**SMALL, processes=2).run(view(), rng=Rng.root(3)))[-1]
    assert torch.equal(one.inputs, two.inputs)


def test_global_randomness_is_left_alone():
    records = view()
    before = torch.get_rng_state()
    Pli(**SMALL).run(records, rng=Rng.root(0))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("attack", [Pli(**SMALL), Pli(inverter="ridge"), Tbi(**SMALL)], ids=str)
def test_without_uploads_the_uploads_do_not_matter(attack):
    seen = [view(batch_size=4), view(batch_size=2)]
    blind = [one.without_updates() for one in seen]
    claims = [representatives(attack.run(one, rng=Rng.root(0)))[-1] for one in [*seen, *blind]]
    assert not torch.equal(claims[0].inputs, claims[1].inputs)
    assert torch.equal(claims[2].inputs, claims[3].inputs)
    assert claims[2].about == claims[0].about


def test_a_view_without_updates_holds_nothing_that_clients_sent():
    seen = view()
    blind = seen.without_updates()
    assert [r.round for r in blind.rounds] == [1, 2]  # before the first round the server has no logits
    for one in blind.rounds:
        own = seen.own[one.round]["logits"]
        assert all(torch.equal(update.tensors["logits"], own) for update in one.updates.values())
        assert torch.equal(one.broadcast.tensors["logits"], own)
        assert len(one.updates) == 2
    assert view(threat=Threat(sees=frozenset({"update", "broadcast"}))).without_updates() is None
    weights = toy(examples=4, rounds=1, learning_rate=1e-2)
    own = {0: dict(weights.transcript.rounds[0].updates[0].tensors)}
    sent = cut(weights.transcript, threat=Threat(), grants=Grants(), own=own, memory={})
    assert sent.rounds[0].updates
    assert sent.without_updates() is None


def test_tbi_uses_every_client_s_own_logits():
    """Its network must see other examples when client 0's upload changes, and when client 1's does."""
    attack = Tbi(**SMALL)
    records = view()
    base = representatives(attack.run(records, rng=Rng.root(0)))[0].inputs
    for client in (0, 1):
        other = view()
        table = other.rounds[1].updates[client].tensors["logits"]
        table.copy_(table.flip(1))
        assert not torch.equal(base, representatives(attack.run(other, rng=Rng.root(0)))[0].inputs)


def test_shrinking_moves_to_the_prior_and_files_it():
    claims = Pli(**SMALL, shrink=0.999).run(view(), rng=Rng.root(0))
    prior = next(c for c in claims if isinstance(c, PriorSamples))
    torch.testing.assert_close(representatives(claims)[-1].inputs, prior.inputs, atol=2e-3, rtol=0)
    mean = view().terms.public.inputs[:12].mean(0)
    torch.testing.assert_close(prior.inputs[0], mean)


def test_the_mean_over_rounds_is_the_mean_of_what_each_round_claims():
    records = view(clients=1, rounds=3)
    plain = representatives(Pli(**SMALL).run(records, rng=Rng.root(0)))
    averaged = representatives(Pli(**SMALL, average=True).run(records, rng=Rng.root(0)))
    assert [c.about.rounds for c in averaged] == [(1,), (1, 2), (1, 2, 3)]
    for i, claim in enumerate(averaged):
        torch.testing.assert_close(claim.inputs, torch.stack([c.inputs for c in plain[: i + 1]]).mean(0))
    assert not torch.allclose(averaged[-1].inputs, plain[-1].inputs)


def test_the_client_is_chosen_by_the_images_that_are_averaged():
    """Of two clients the smoother one may be another after each round; the mean of its images is claimed."""
    images = torch.stack([rand(2, 4, 1, 8, 8, seed=k) for k in range(2)])  # (clients, rounds, classes, ...)
    records = view(clients=2, rounds=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pli, "each", lambda tasks, **_: list(images * 2 - 1))
        last = representatives(Pli(**SMALL, average=True).run(records, rng=Rng.root(0)))[-1]
    means = images.mean(1)
    picked = choose_smooth(means, roughness=Pli().roughness)
    torch.testing.assert_close(last.inputs, means[picked, torch.arange(4)])


def ridge_task(*, entries=5, queries=3, priors=None, goals=None):
    """Uploads of two rounds that are linear in the pictures, up to noise, with a tiny spread."""
    images = rand(40, 1, 4, 4) * 2 - 1
    tables = [
        0.2 + 1e-3 * (images.flatten(1) @ rand(16, entries, seed=s) + rand(40, entries, seed=s + 9))
        for s in (1, 2)
    ]
    return Task(
        how=InversionTraining(),
        images=images,
        vectors=tuple(tables),
        queries=torch.eye(entries)[:queries],
        priors=priors,
        goals=goals,
        key=b"",
    )


def test_ridge_inversion_is_the_slow_definition():
    task = ridge_task()
    fast = invert_by_ridge(task, penalty=0.3, spread=0.5)
    x = task.images.flatten(1).double().numpy()
    for number, table in enumerate(task.vectors):
        z = table.double().numpy()
        z_middle, x_middle = z.mean(0), x.mean(0)
        both, own = np.zeros((5, 16)), np.zeros((5, 5))
        for a, b in zip(z - z_middle, x - x_middle, strict=True):
            both += np.outer(a, b) / 40
            own += np.outer(a, a) / 40
        slopes = np.linalg.inv(own + 0.3 * np.trace(own) / 5 * np.eye(5)) @ both
        for j in range(3):
            step = (np.eye(5)[j] - z_middle) @ slopes
            far = 0.5 * math.sqrt(((x - x_middle) ** 2).mean()) / math.sqrt((step**2).mean())
            np.testing.assert_allclose(fast[number, j].flatten().numpy(), x_middle + far * step, atol=1e-5)


def test_ridge_inversion_counts_deviations_from_the_prior_images():
    """What is added is as far from the query's own prior as the images are from theirs."""
    priors, goals = rand(40, 1, 4, 4, seed=7) * 2 - 1, rand(3, 1, 4, 4, seed=5)
    drawn = invert_by_ridge(ridge_task(priors=0.5 * priors, goals=goals), penalty=0.1)
    size = (drawn - goals).square().mean((2, 3, 4)).sqrt()
    left = ridge_task().images - 0.5 * priors
    centred = left - left.mean(0)
    torch.testing.assert_close(size, torch.full((2, 3), float(centred.square().mean().sqrt())))


def test_ridge_inversion_draws_what_raises_the_logit():
    """Uploads nearly uniform: a class's logit follows one pixel, and that pixel is drawn, bright."""
    images = rand(200, 1, 4, 4) * 2 - 1
    table = (0.05 * images.flatten(1)[:, :5]).softmax(1)
    task = Task(
        how=InversionTraining(),
        images=images,
        vectors=(table,),
        queries=torch.eye(5),
        priors=None,
        goals=None,
        key=b"",
    )
    drawn = (invert_by_ridge(task, penalty=0.1)[0] - images.mean(0)).flatten(1)
    assert drawn.argmax(1).tolist() == [0, 1, 2, 3, 4]


def test_uploads_that_say_nothing_give_the_prior_image():
    task = ridge_task()
    still = Task(
        how=task.how,
        images=task.images,
        vectors=(torch.full((40, 5), 0.2),),
        queries=task.queries,
        priors=None,
        goals=None,
        key=b"",
    )
    mean = task.images.mean(0).expand(1, 3, -1, -1, -1)
    drawn = invert_by_ridge(still, penalty=0.1)
    assert bool(drawn.isfinite().all())
    torch.testing.assert_close(drawn, mean)


def people_task(noise, *, seed=0):
    """Twenty people with three images each; a column of the predictions follows each person's face."""
    faces = torch.randn(20, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
    people = torch.arange(20).repeat_interleave(3)
    images = faces[people] + 0.3 * torch.randn(60, 1, 8, 8, generator=torch.Generator().manual_seed(seed + 1))
    table = images.flatten(1) @ faces.flatten(1).T / 64
    table = table + noise * torch.randn(60, 20, generator=torch.Generator().manual_seed(seed + 2))
    task = Task(how=InversionTraining(), images=images, vectors=(table,), queries=torch.eye(20), key=b"")
    return task, people


@pytest.mark.parametrize(("named", "penalties"), [(True, (0.001, 0.3, 10.0)), (False, (0.03, 1.0, 100.0))])
def test_the_penalty_is_the_slow_definition(named, penalties):
    task, people = people_task(0.1)
    queries = torch.eye(20) if named else None
    means = torch.stack([task.images[people == who].mean(0).flatten() for who in range(20)])
    ranks = []
    for penalty in penalties:
        rank = 0
        for fold in range(5):
            out = [who for who in range(20) if who % 5 == fold]
            rows = torch.tensor([i for i, who in enumerate(people.tolist()) if who not in out])
            middle = task.images[rows].flatten(1).mean(0)
            left = Task(how=task.how, images=task.images[rows], vectors=(task.vectors[0][rows],), key=b"",
                        queries=torch.stack([queries[who] if named else task.vectors[0][people == who].mean(0)
                                             for who in out]))  # fmt: skip
            drawn = (invert_by_ridge(left, penalty=penalty)[0].flatten(1) - middle).numpy()
            for row, who in zip(drawn, out, strict=True):
                others = (means - middle).numpy()
                near = [float(row @ m / np.linalg.norm(row) / np.linalg.norm(m)) for m in others]
                rank += sum(value >= near[who] for value in near)
        ranks.append(rank)
    assert len(set(ranks)) == 3, "the penalties must differ, or this test shows nothing"
    best = penalties[int(np.argmin(ranks))]
    assert choose_penalty([task], people, queries, penalties=penalties) == best


def test_the_penalty_follows_the_noise_and_no_private_class():
    calm, people = people_task(0.0)
    loud, _ = people_task(30.0)
    grid = (1e-6, 10.0)
    chosen = [choose_penalty([t], people, torch.eye(20), penalties=grid) for t in (calm, loud)]
    assert chosen[0] <= chosen[1]
    assert choose_penalty([calm], people, None, penalties=(0.7,)) == 0.7
    assert choose_penalty([calm], torch.zeros(60), None, penalties=(0.1, 1.0, 10.0)) == 1.0  # one person
    with pytest.raises(BadValue, match="penalt"):
        RidgeInversion(penalties=())


@pytest.mark.parametrize("protocol", ["fedmd", "dsfl"])
def test_the_regression_reads_every_round_and_needs_no_network(protocol, monkeypatch):
    monkeypatch.setattr(pli, "each", None)
    records = view(protocol)
    attack = Pli(inverter="ridge", choice="predictions")
    plain = representatives(attack.run(records, rng=Rng.root(0)))
    assert [c.about.rounds for c in plain] == [(1,), (1, 2)]
    assert plain[-1].inputs.shape == (4, 1, 8, 8)
    assert not torch.equal(plain[0].inputs, plain[1].inputs)
    again = representatives(attack.run(records, rng=Rng.root(1)))[-1]
    assert torch.equal(again.inputs, plain[-1].inputs)  # nothing is drawn at random
    assert attack.budget.amount == 0


def test_refusals():
    with pytest.raises(Inapplicable, match="keep"):
        Pli(**SMALL).run(view(threat=Threat(sees=frozenset({"update", "broadcast"}))), rng=Rng.root(0))
    with pytest.raises(Inapplicable, match=r"data\.domains"):
        Tbi(**SMALL).run(view(sensitive=0), rng=Rng.root(0))
    with pytest.raises(Inapplicable, match="labels"):
        Pli(**SMALL, prior="ridge").run(view("dsfl"), rng=Rng.root(0))
    with pytest.raises(BadValue, match="shrink"):
        Pli(shrink=1.0)
    with pytest.raises(BadValue, match="temperature > 0"):
        Tbi(temperature=0.0)
    with pytest.raises(BadValue, match="batch_size >= 2"):  # an untrained network would be the answer
        InversionTraining(batch_size=1)


def test_optimal_logits_maximise_what_eq_4_asks_for():
    """No random distribution near or far has a larger p_j + alpha · entropy."""
    for alpha in (0.1, 1.0, 5.0):
        best = unsure_server(3, 5, confidence=alpha)

        def quality(p, alpha=alpha):
            return p[..., 1] - alpha * (p * p.clamp_min(1e-12).log()).sum(-1)

        others = torch.distributions.Dirichlet(torch.ones(5)).sample((2000,))
        assert (quality(best[1]) >= quality(others) - 1e-6).all()
        near = (best[1] + 0.01 * torch.eye(5)[0] - 0.01 * torch.eye(5)[1]).clamp_min(0)
        assert quality(best[1]) > quality(near)
        assert best.argmax(1).tolist() == [0, 1, 2]  # each row in its own column, none in its neighbour's
        torch.testing.assert_close(best.sum(1), torch.ones(3))


def test_choice_among_clients_against_the_formula():
    x = rand(3, 2, 1, 16, 16)
    x[1] = x[0] + 0.01 * rand(2, 1, 16, 16, seed=4)
    slow = []
    for j in range(2):
        scores = []
        for k in range(3):
            alike = [ssim(x[k, j : j + 1], x[i, j : j + 1]).item() for i in range(3) if i != k]
            scores.append(sum(alike) / 2 + 0.1 * 2 * total_variation(x[k, j : j + 1]).item())
        slow.append(int(np.argmin(scores)))
    assert choose_smooth(x, roughness=0.1).tolist() == slow == [2, 2]
    assert choose_smooth(x[:1], roughness=0.1).tolist() == [0, 0]


def test_the_surest_client_is_the_one_with_the_most_probability_over_all_uploads():
    uploads = [3 * torch.randn(3, 7, 5, generator=torch.Generator().manual_seed(t)) for t in range(4)]
    mass = np.zeros((3, 5))
    for upload in uploads:
        for k in range(3):
            odds = np.exp(upload[k].double().numpy())
            mass[k] += (odds / odds.sum(1, keepdims=True)).mean(0)
    assert choose_surest(uploads, 2).tolist() == mass[:, :2].argmax(0).tolist()
    assert choose_surest([u + 5 for u in uploads], 2).tolist() == choose_surest(uploads, 2).tolist()


def test_the_choice_by_predictions_changes_whose_image_is_claimed_and_no_image():
    records = view(clients=3, rounds=2)
    by_images, by_predictions = (
        representatives(Pli(**SMALL, choice=c).run(records, rng=Rng.root(0)))
        for c in ("images", "predictions")
    )
    heldout = material(records, subject="a test")
    for i, (one, other) in enumerate(zip(by_images, by_predictions, strict=True)):
        rows = [torch.stack([t[k][:12] for k in range(3)]) for t in heldout.clients[: i + 1]]
        assert other.source.tolist() == choose_surest(rows, 4).tolist()
        same = one.source == other.source
        assert torch.equal(one.inputs[same], other.inputs[same])
    with pytest.raises(BadValue, match="choice one of images, predictions"):
        Pli(choice="guess")


def test_the_first_layer_is_the_transposed_convolution():
    """The same weights as a plain module give the same images and gradients."""
    net = network(20, (3, 64, 64), width=16, rngs=[Rng.root(0)])
    plain = nn.Sequential(nn.ConvTranspose2d(20, 16, 4), net.norm, nn.Tanh(), net.rest, nn.Tanh())
    plain[0].load_state_dict({"weight": net.weight.detach(), "bias": net.bias.detach()})
    vectors = rand(5, 20)
    torch.testing.assert_close(
        net.eval()(vectors[None])[0], plain.eval()(vectors[:, :, None, None]), atol=1e-5, rtol=1e-4
    )
    net(vectors[None]).sum().backward()
    plain(vectors[:, :, None, None]).sum().backward()
    torch.testing.assert_close(net.weight.grad, plain[0].weight.grad, atol=1e-4, rtol=1e-3)


def test_products_of_bfloat16_matrices_are_the_transposed_convolutions():
    """The same weights to within bfloat16's 8 bits, forwards and backwards."""
    exact = network(20, (3, 64, 64), width=32, rngs=[Rng.root(0)])
    fast = network(20, (3, 64, 64), width=32, rngs=[Rng.root(0)], bfloat16=True)
    vectors = rand(1, 5, 20)
    torch.testing.assert_close(fast(vectors), exact(vectors), atol=0.02, rtol=0.02)
    for net in (exact, fast):
        net(vectors).square().sum().backward()
    for ours, theirs in zip(fast.parameters(), exact.parameters(), strict=True):
        if ours.dim() > 1:  # a bias before batch norm has no gradient but rounding
            assert F.cosine_similarity(ours.grad.flatten(), theirs.grad.flatten(), dim=0) > 0.99


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 64, 64)])
def test_images_of_any_size(shape):
    net = InversionNet(6, shape, width=16, networks=3)
    assert net(rand(3, 2, 6)).shape == (3, 2, *shape)


def test_a_network_learns_to_invert():
    """Four vectors, four images: training brings the queries' images to them; a prior pulls them away."""
    images = rand(4, 1, 8, 8) * 2 - 1
    task = Task(
        how=InversionTraining(epochs=150, batch_size=4, learning_rate=1e-2, width=16),
        images=images, vectors=(torch.eye(4),), queries=torch.eye(4), priors=None, goals=None,
        key=Rng.root(0).key,
    )  # fmt: skip
    (result,) = each([task], processes=1, label="test")
    assert F.mse_loss(result[0], images) < 0.02
    zero = torch.zeros(1, 1, 8, 8)
    pulled = {"priors": zero, "goals": zero, "prior_weight": 1.0, "tuning": True}
    (other,) = each([Task(**{**vars(task), **pulled})], processes=1, label="t")
    assert other[0].abs().mean() < 0.7 * result[0].abs().mean()


@pytest.mark.parametrize(("width", "batches"), [(16, 1), (invert.SMALL + 1, 3)])
@pytest.mark.parametrize("bfloat16", [False, True])
def test_networks_in_one_batch_learn_what_each_learns_alone(monkeypatch, width, batches, bfloat16):
    """Three small networks share a batch, larger ones do not; none sees what another is trained with."""

    def task(i):
        return Task(
            how=InversionTraining(epochs=2, batch_size=4, learning_rate=1e-3, width=width, bfloat16=bfloat16),
            images=rand(5, 1, 16, 16, seed=i), vectors=(rand(9, 6, seed=i), rand(9, 6, seed=10 + i)),
            queries=rand(3, 6, seed=20 + i), priors=rand(5, 1, 16, 16, seed=30 + i),
            goals=rand(1, 1, 16, 16, seed=40 + i), key=Rng.root(i).key, prior_weight=0.1, tuning=True,
        )  # fmt: skip

    ran, plain = [], invert.invert_queries
    monkeypatch.setattr(invert, "invert_queries", lambda tasks: (ran.append(len(tasks)), plain(tasks))[1])
    together = each([task(i) for i in range(3)], processes=1, label="test")
    assert len(ran) == batches
    for i, images in enumerate(together):
        (alone,) = each([task(i)], processes=1, label="test")
        assert images.shape == alone.shape == (2, 3, 1, 16, 16)
        torch.testing.assert_close(images, alone, atol=2e-2 if bfloat16 else 1e-3, rtol=0)
    assert not torch.allclose(together[0], together[1], atol=0.01)


def gallery(rows=(0, 16), classes=5, targets=3):
    people, public = rand(classes, 1, 16, 16, seed=1), rand(classes, 1, 16, 16, seed=2)
    return Gallery(
        people=people, known=torch.tensor([True] * 4 + [False]), public=public, targets=targets, rows=rows,
        prior=people[targets:].mean(0, keepdim=True), owners=torch.tensor([0, 1, 1]),
        classes=(7, 3, 5),
    )  # fmt: skip


@pytest.mark.parametrize("size", [(8, 8), (4, 8), (16, 28), (32, 64)])
def test_cached_ssim_is_ssim(size):
    a, b = rand(3, 2, *size), rand(4, 2, *size, seed=9)
    result = SsimTable(b, data_range=1.0)(a)
    slow = torch.stack([ssim(a.double(), y.expand_as(a).double(), data_range=1.0) for y in b], 1)
    torch.testing.assert_close(result, slow.double(), atol=1e-6, rtol=0)


def scores(metric, images, labels=(0, 1, 2), **how):
    context = ScoreContext(gallery=gallery(**how))
    return metric.score(images, torch.tensor(labels), context=context).tolist()


def test_what_each_metric_counts():
    g = gallery()
    private, public, stranger = g.people[:3], g.public[:3], g.people[3:4].expand(3, -1, -1, -1)
    assert scores(AttackAccuracy(), private) == [1, 1, 1]
    assert scores(AttackAccuracy(), public) == [0, 0, 0]
    assert scores(TooClose(), public) == [1, 1, 1]
    assert scores(IdentityMatch(), torch.cat([private[:1], public[1:2], private[:1]])) == [1, 1, 0]
    assert scores(ClassIdentification(), private) == [1, 1, 1]
    assert scores(ClassIdentification(), stranger) == [0, 0, 0]
    mixed = 0.4 * private + 0.6 * stranger
    assert scores(ClassIdentification(), mixed) == [0, 0, 0]
    assert scores(TargetIdentification(), mixed) == [1, 1, 1]
    assert scores(SsimPrivate(), private) == pytest.approx([1, 1, 1])
    assert scores(SsimPublic(), public) == pytest.approx([1, 1, 1])
    assert min(scores(SsimGap(), private)) > 0.5 > -0.5 > max(scores(SsimGap(), public))


def test_rows_that_do_not_count_change_nothing():
    images = gallery().people[:3].clone()
    images[:, :, :8] = 0
    assert scores(SsimPrivate(), images, rows=(8, 16)) == pytest.approx([1, 1, 1])
    assert max(scores(SsimPrivate(), images)) < 0.9


def test_whole_pictures_count_what_is_public_too():
    """Where only the upper half of the right person is shown, the lower half is no success."""
    people = gallery().people
    images = people[:3].clone()
    images[:, :, 8:] = people[[1, 2, 0], :, 8:]
    images[:, :, 6:8] = 0.5
    for hidden, whole in (
        (AttackAccuracy(), AttackAccuracy(whole=True)),
        (ClassIdentification(), ClassIdentification(whole=True)),
    ):
        assert scores(hidden, images, rows=(8, 16)) == [0, 0, 0]
        assert scores(hidden, images, rows=(0, 8)) == [1, 1, 1]
        assert scores(whole, people[:3], rows=(8, 16)) == [1, 1, 1]
        assert scores(whole, images, rows=(8, 16)) == scores(hidden, images, rows=(0, 16))
    assert ClassIdentification(whole=True).chance(ScoreContext(gallery=gallery())) == 0.25


def test_likeness_is_computed_once_for_all_metrics(monkeypatch):
    calls = []
    plain = SsimTable.__call__
    monkeypatch.setattr(SsimTable, "__call__", lambda self, x: calls.append(1) or plain(self, x))
    context = ScoreContext(gallery=gallery(rows=(8, 16)))
    images = rand(3, 1, 16, 16, seed=5)
    for metric in (
        AttackAccuracy(),
        SsimPrivate(),
        AttackAccuracy(whole=True),
        TooClose(),
        ClassIdentification(whole=True),
    ):
        metric.score(images.clone(), torch.arange(3), context=context)
    assert len(calls) == 2  # the hidden half, and the whole
    SsimPrivate().score(1 - images, torch.arange(3), context=context)
    assert len(calls) == 3


@pytest.mark.parametrize("by", [1, 2])
@pytest.mark.parametrize("whole", [False, True])
def test_moved_classes_are_those_of_moved_pictures(monkeypatch, by, whole):
    """Their likeness is that of the gallery itself in another order, so it is not computed again."""
    labels = torch.arange(12) % 3
    private = Batch(inputs=rand(12, 1, 16, 16, seed=6), labels=labels)
    shards = {0: [0, 3, 6, 9], 1: [i for i in range(12) if labels[i]]}
    held = gallery(rows=(8, 16)).holding(private, shards)
    expected = held.holding(Batch(inputs=private.inputs, labels=(labels + by) % 3), shards)
    images = rand(3, 1, 16, 16, seed=5)
    held.alike(images, whole=whole)
    alike = expected.alike(images, whole=whole)
    monkeypatch.setattr(SsimTable, "__call__", None)
    moved = held.moved(by)
    assert torch.equal(moved.people, expected.people)
    assert torch.equal(moved.owners, expected.owners)
    assert torch.equal(moved.alike(images, whole=whole), alike)


def test_ties_are_no_success():
    """A masked half tells nobody from anybody: equal public means never count as the own one."""
    g = gallery()
    g.public[:] = 0.0
    blank = torch.zeros(3, 1, 16, 16)
    context = ScoreContext(gallery=g)
    assert TooClose().score(blank, torch.arange(3), context=context).tolist() == [0, 0, 0]
    assert IdentityMatch().score(blank, torch.arange(3), context=context).tolist() == [0, 0, 0]


def test_owner():
    assert scores(Owner(), torch.tensor([0, 0, -1])) == [1, 0, 0]
    assert Owner().chance(ScoreContext(gallery=gallery())) == 0.5
    assert ClassIdentification().chance(ScoreContext(gallery=gallery())) == 0.25
    assert TargetIdentification().chance(ScoreContext(gallery=gallery())) == pytest.approx(1 / 3)


def test_without_private_classes_nothing_is_scored():
    with pytest.raises(Undefined, match="private classes"):
        SsimGap().score(rand(1, 1, 16, 16), torch.tensor([0]), context=ScoreContext())


def test_entropy_of_the_server_s_half_is_nearly_the_largest():
    query = unsure_server(1, 1000, confidence=5.0)
    assert -(query * query.log()).sum() == pytest.approx(math.log(1000), abs=1e-3)
    assert one_hot(2, 3).tolist() == [[1, 0, 0], [0, 1, 0]]


def held_pairs():
    """Eight classes, the first two private; the shifted images are the clear ones with a black lower half."""
    clear = rand(8, 6, 1, 8, 8)  # (class, photo, C, H, W)
    shifted = clear.clone()
    shifted[..., 4:, :] = 0
    labels = torch.arange(8).repeat_interleave(6)
    public = Batch(
        inputs=torch.cat([clear[2:].flatten(0, 1), shifted.flatten(0, 1)]),
        labels=torch.cat([labels[12:], labels]),
    )
    material = Material(
        public=public, sensitive=36, targets=2, rounds=(1,), server=(), clients=(), image_range=(0.0, 1.0)
    )
    return material, clear


def test_pairs_are_the_same_photo_and_never_a_private_class():
    heldout, clear = held_pairs()
    pairs = pairs_of(heldout)
    assert torch.equal(pairs.clear, heldout.scaled(clear[2:].flatten(0, 1)))
    assert len(pairs.shifted) == 36


@pytest.mark.parametrize("most", [1, 3 * 6 * 64])
def test_pairs_are_the_same_in_pieces(monkeypatch, most):
    """One image at a time, and three of a class's six; photos are noisy, so that no pair is exact."""
    material, _ = held_pairs()
    inputs = (material.public.inputs + 0.2 * rand(*material.public.inputs.shape, seed=5)).clamp(0, 1)
    material = Material(**{**vars(material), "public": Batch(inputs=inputs, labels=material.public.labels)})
    whole = pairs_of(material)
    monkeypatch.setattr(pairs_module, "AT_ONCE", most)
    assert torch.equal(pairs_of(material).clear, whole.clear)
    assert torch.equal(pairs_of(material).shifted, whole.shifted)


@pytest.mark.parametrize("kind", ["ridge", "paired", "cyclegan"])
def test_learned_priors_have_a_class_each_and_come_from_the_cache(kind):
    heldout, _ = held_pairs()
    first = prior_images(kind, heldout, epochs=1, rng=Rng.root(0))
    again = prior_images(kind, heldout, epochs=1, rng=Rng.root(0))
    assert first[0].shape == (36, 1, 8, 8)
    assert first[1].shape == (2, 1, 8, 8)
    assert first[0].abs().max() <= 1
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[1][0], first[1][1])


@pytest.mark.parametrize("kind", ["paired", "cyclegan"])
def test_an_interrupted_translator_goes_on_to_the_same_images(kind, tmp_path, monkeypatch):
    heldout, _ = held_pairs()
    place = {name: tmp_path / name for name in ("whole", "cut")}
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(place["whole"]))
    whole = prior_images(kind, heldout, epochs=7, rng=Rng.root(0))
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(place["cut"]))
    items = []

    def stop(checkpoint, epoch, *state):
        keep(checkpoint, epoch, *state)
        items.append(epoch)
        if len(items) == 6:
            raise KeyboardInterrupt

    monkeypatch.setattr(f"glasshouse.attacks.logits.pli.translate.{kind}.keep", stop)
    with pytest.raises(KeyboardInterrupt):
        prior_images(kind, heldout, epochs=7, rng=Rng.root(0))
    assert len(list(place["cut"].glob("translation/*.partial.safetensors"))) == 1
    again = prior_images(kind, heldout, epochs=7, rng=Rng.root(0))
    assert items == [1, 2, 3, 4, 5, 6, 6, 7]  # the checkpoint is of epoch 5
    for one, other in zip(whole, again, strict=True):
        assert torch.equal(one, other)
    assert not list(place["cut"].glob("translation/*.partial.safetensors"))


@pytest.mark.parametrize("kind", ["ridge", "paired"])
def test_a_translation_learns_what_the_visible_half_tells(kind):
    """Where the lower half repeats the upper one, the hidden half of strangers can be drawn."""
    material, clear = held_pairs()
    both = clear.clone()
    both[..., 4:, :] = both[..., :4, :]
    shifted = both.clone()
    shifted[..., 4:, :] = 0
    inputs = torch.cat([both[2:].flatten(0, 1), shifted.flatten(0, 1)])
    material = Material(**{**vars(material), "public": Batch(inputs=inputs, labels=material.public.labels)})
    _, expected = prior_images(kind, material, epochs=80, rng=Rng.root(0))
    truth = material.scaled(both[:2].mean(1))
    blank = material.scaled(both[2:].flatten(0, 1)).mean(0)
    assert F.mse_loss(expected[..., 4:, :], truth[..., 4:, :]) < 0.8 * F.mse_loss(
        blank.expand_as(truth)[..., 4:, :], truth[..., 4:, :]
    )
