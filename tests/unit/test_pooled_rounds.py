"""Sums of gradients that no server sees singly are computed in one pass: what clients would send together."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from glasshouse.federation import rounds
from glasshouse.federation.defenses.clip import Clip
from glasshouse.federation.pooled import is_poolable
from glasshouse.rng import Rng
from glasshouse.testing.toys import toy
from glasshouse.tokens.vocabulary import Vocabulary

WORDS = Vocabulary(size=80, pad=0, end=1, start=2)


def pool_of(setting):
    clients = rounds.Clients(setting)
    sent, asked = setting.start, range(setting.terms.clients)
    return clients, rounds.requests_to(asked, setting, 0, sent, None, rng=Rng.root(5))


def gap(total, answers, weights):
    """Largest difference from the clients' own gradients, relative to the largest entry of each tensor."""
    gaps = []
    for name, t in total.items():
        own = sum(w * a.update.tensors[name].double() for w, a in zip(weights, answers, strict=True))
        gaps.append(float((t - own).abs().max() / own.abs().max().clamp_min(1e-12)))
    return max(gaps)


@pytest.mark.parametrize(
    ("what", "how"),
    [
        ("pictures", {}),
        (
            "sentences of different lengths",
            {"model": "small_gpt", "arguments": {"width": 32}, "vocabulary": WORDS},
        ),
        ("volumes", {"array": (2, 4, 4, 4)}),
        ("size", {"weighting": "size"}),
        ("a cohort, a client short of one pass", {"batch_size": 3, "examples": 5}),
    ],
)
def test_the_sum_is_that_of_the_clients(what, how):
    made = toy(**{"clients": 6, "examples": 4, "secure_sum": True, **how})
    clients, requests = pool_of(made.setting)
    assert clients.pool.takes(requests)
    (joint,) = clients.pool.sums(requests)
    answers = [clients.answer(request) for request in requests]
    assert gap(joint.tensors, answers, joint.weights) < 1e-5
    assert [list(t.order[0]) for t in joint.trained] == [list(a.trained.order[0]) for a in answers]
    assert joint.examples == sum(a.update.examples for a in answers)


def test_a_round_is_the_same_and_names_the_same_clients():
    how = {"clients": 8, "examples": 2, "secure_sum": True, "dropout": 0.3, "rounds": 3}
    pooled = toy(**how)
    alone = toy(**how, options={"sum_bits": 32})  # rounded one by one, so nothing is pooled
    for one, other in zip(pooled.transcript.rounds, alone.transcript.rounds, strict=True):
        one, other = one.aggregate, other.aggregate
        assert (one.selected, one.dropped, one.weight) == (other.selected, other.dropped, other.weight)
        assert (one.kind, one.steps, one.examples) == (other.kind, other.steps, other.examples)
        for name, t in one.tensors.items():
            torch.testing.assert_close(t, other.tensors[name], rtol=1e-4, atol=1e-6)


def test_large_clients_are_summed_in_parts():
    made = toy(clients=6, examples=100, secure_sum=True)
    clients, requests = pool_of(made.setting)
    assert clients.pool.takes(requests)
    assert [joint.clients for joint in clients.pool.sums(requests)] == [(0, 1), (2, 3), (4, 5)]


class Mixing(nn.Module):
    """Its output for one example depends on the others."""

    def __init__(self, start):
        super().__init__()
        self.inner = start
        self.task = start.task

    def forward(self, x):
        return self.inner(x - x.mean(0))


def test_a_network_that_mixes_examples_is_not_pooled():
    made = toy(clients=5, examples=3, secure_sum=True)
    build = made.setting.build
    setting = replace(made.setting, build=lambda *a, **k: Mixing(build(*a, **k)))
    start = {f"inner.{name}": t for name, t in made.setting.start.items()}
    clients, requests = pool_of(replace(setting, start=start))
    assert not clients.pool.takes(requests)


def test_clients_that_received_different_models_are_not_pooled():
    made = toy(clients=5, examples=3, secure_sum=True)
    clients, requests = pool_of(made.setting)
    apart = [replace(one, tensors={n: t.clone() for n, t in one.tensors.items()}) for one in requests]
    assert not clients.pool.takes(apart)


@pytest.mark.parametrize(
    "how",
    [
        {"secure_sum": False},
        {"defenses": [Clip(norm=1.0)]},
        {"options": {"sum_bits": 8}},
        {"options": {"dropout": True}},
        {"protocol": "fedavg"},
    ],
)
def test_whatever_happens_to_single_updates_is_not_pooled(how):
    assert not is_poolable(toy(**{"secure_sum": True, "clients": 5, **how}).setting)


def test_a_diverged_client_is_an_error_that_names_the_part():
    made = toy(clients=5, examples=2, secure_sum=True)
    spoiled = replace(made.setting.private, inputs=made.setting.private.inputs.clone())
    spoiled.inputs[-1] = float("nan")
    setting = replace(made.setting, private=spoiled)
    clients, requests = pool_of(setting)
    assert clients.pool.takes(requests)
    with pytest.raises(ValueError, match="clients 0 to 4 in round 0"):
        list(clients.pool.sums(requests))
