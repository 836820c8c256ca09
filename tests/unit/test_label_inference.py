"""Labels from the last layer's gradient: exact where theory says so, estimates elsewhere, refusals."""

import pytest
import torch
from torch import nn

import glasshouse as gh
from glasshouse.attacks.inversion.label_inference import LabelInference
from glasshouse.attacks.parts.labels import counts, infer_labels, known_labels, minima
from glasshouse.attacks.parts.replica import replica
from glasshouse.errors import BadValue, Inapplicable
from glasshouse.federation.defenses.clip import Clip
from glasshouse.federation.defenses.prune import Prune
from glasshouse.modalities.array import Array
from glasshouse.models.adapt import adapt
from glasshouse.rng import Rng
from glasshouse.tasks.classification import Classification
from glasshouse.testing.toys import toy
from glasshouse.transcript.grants import Grants

RNG = Rng.root(0)


def inferred(made, rule="sums"):
    return infer_labels(replica(made.view(), subject="a test"), rng=RNG, rule=rule).tolist()


def true(made):
    return made.setting.shard(0).labels.sort().values.tolist()


@pytest.mark.parametrize("model", ["mlp", "lenet_sigmoid", "convnet"])
@pytest.mark.parametrize("rule", ["sums", "minima"])
def test_one_example_is_exact(model, rule):
    arguments = {"width": 2} if model == "convnet" else {}
    for seed in range(5):
        result = toy(model=model, arguments=arguments, seed=seed)
        assert inferred(result, rule) == true(result)


@pytest.mark.parametrize("examples", [4, 16])
def test_counts_of_an_untrained_model_are_exact(examples):
    """With classes more than once, which minima cannot say."""
    for seed in range(5):
        result = toy(examples=examples, seed=seed)
        assert inferred(result) == true(result)


def test_a_clipped_gradient_gives_the_same_counts():
    """The unit follows from the sums themselves."""
    for seed in range(5):
        result = toy(examples=8, seed=seed, defenses=(Clip(norm=1e-3),))
        assert inferred(result) == true(result)


def test_a_pruned_bias_tells_one_class_and_the_rows_of_the_weight_the_others():
    for seed in range(5):
        result = toy(examples=4, seed=seed, defenses=(Prune(share=0.9),))
        assert int(result.view().rounds[0].updates[0].tensors["head.bias"].count_nonzero()) == 1
        assert inferred(result) == true(result)


def test_more_pruned_examples_than_classes_keep_the_unit_of_the_bias():
    """Sums of rows count features, biases examples: of more examples than classes only the latter will do."""
    found = []
    for seed in range(5):
        result = toy(examples=16, seed=seed, defenses=(Prune(share=0.5),))
        counted = torch.bincount(torch.tensor(inferred(result)), minlength=10)
        found.append(
            int(torch.minimum(counted, torch.bincount(torch.tensor(true(result)), minlength=10)).sum())
        )
    assert min(found) >= 15


def test_a_bias_that_is_whole_is_read_alone_whatever_the_rows_say():
    result = toy(examples=4)
    view = result.view()
    view.rounds[0].updates[0].tensors["head.weight"].neg_()
    assert infer_labels(replica(view, subject="a test"), rng=RNG).tolist() == true(result)


def test_one_pruned_example_is_read_off_the_bias_that_is_left():
    result = toy(examples=1, defenses=(Prune(share=0.9),))
    view = result.view()
    view.rounds[0].updates[0].tensors["head.weight"].neg_()
    assert infer_labels(replica(view, subject="a test"), rng=RNG).tolist() == true(result)


def test_several_local_steps_give_an_estimate():
    outcome = toy(protocol="fedavg", examples=8, batch_size=2, local_epochs=2, learning_rate=0.01)
    result = torch.bincount(torch.tensor(inferred(outcome)), minlength=10)
    assert int((result - torch.bincount(torch.tensor(true(outcome)), minlength=10)).abs().sum()) <= 2


def test_without_a_bias_the_rows_are_summed():
    result = toy(examples=4)
    view = result.view()
    del view.rounds[0].updates[0].tensors["head.bias"]
    assert infer_labels(replica(view, subject="a test"), rng=RNG).tolist() == true(result)


def test_minima_by_hand():
    weight = torch.tensor([[0.2, -0.1], [0.5, 0.1], [-0.9, 0.4]])
    assert minima(weight).tolist() == pytest.approx([-0.1, 0.1, -0.9])


def test_counts_add_up_whatever_the_sums():
    draws = torch.Generator().manual_seed(0)
    for n in (1, 3, 50):
        sums = torch.randn(10, generator=draws, dtype=torch.float64)
        assert int(counts(sums, torch.full((10,), 0.1), n).sum()) == n


def test_the_claim_counts_classes():
    result = toy(examples=4)
    (claim,) = LabelInference().run(result.view(), rng=RNG)
    assert claim.counts.tolist() == torch.bincount(result.setting.shard(0).labels, minlength=10).tolist()
    assert (claim.about.rounds, claim.about.client) == ((0,), 0)


def test_granted_labels_win():
    view = toy(examples=2).view(grants=Grants(labels={(0, 0): torch.tensor([7, 7])}))
    rebuilt = replica(view, subject="a test")
    assert known_labels(view, rebuilt, rng=RNG).tolist() == [7, 7]
    short = toy(examples=2).view(grants=Grants(labels={(0, 0): torch.tensor([7])}))
    with pytest.raises(BadValue, match="2 for client 0, round 0"):
        known_labels(short, rebuilt, rng=RNG)


def test_minima_refuse_more_examples_than_classes():
    with pytest.raises(Inapplicable, match="at most 10 examples"):
        inferred(toy(examples=11), "minima")


def test_refuses_without_the_last_layer():
    view = toy().view()
    tensors = view.rounds[0].updates[0].tensors
    del tensors["head.bias"], tensors["head.weight"]
    for rule in ("sums", "minima"):
        with pytest.raises(Inapplicable, match="gradient of 'head'"):
            LabelInference(rule=rule).run(view, rng=RNG)


@pytest.mark.parametrize("saturating", [False, True])
def test_one_logit_for_two_classes_gives_the_labels_of_two_logits(saturating):
    """Clients train by binary cross-entropy; the network is handed over with the other logit, which is 0."""
    draws = torch.Generator().manual_seed(0)
    inputs, labels = torch.rand(8, 6, generator=draws), torch.tensor([0, 1, 1, 0, 1, 0, 0, 0])
    last = [nn.Sigmoid()] if saturating else []
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1), *last)
    loss = nn.BCELoss() if saturating else nn.BCEWithLogitsLoss()
    loss(net(inputs)[:, 0], labels.float()).backward()
    sent = {name: p.grad for name, p in net.named_parameters()}

    def both(z):
        return torch.cat([torch.zeros_like(z), z.logit() if saturating else z], 1)

    seen = gh.view(
        adapt(net, logits=both),
        sent,
        inputs=Array(size=(6,)),
        task=Classification(classes=2),
        examples=8,
        batch_size=8,
    )
    client = replica(seen, subject="a test")
    assert infer_labels(client, rng=RNG).tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
