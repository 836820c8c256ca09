"""Flower's own clips and noises, on and mis-set, are told from what a server receives."""

import itertools

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.supercore.differential_privacy import KEY_CLIPPING_NORM, add_gaussian_noise_inplace, compute_stdv
from flwr.supercore.task_identity import TaskIdentity

from glasshouse.audit.defenses.check import check_defenses
from glasshouse.federation.client import LocalTraining
from glasshouse.models.build import build
from glasshouse.rng import Rng
from glasshouse.transcript.record import RoundRecord, Transcript
from glasshouse.wire import Architecture, Batch, Broadcast, Mechanism, Terms, Update

LENET = Architecture.of("lenet5", (1, 8, 8), 10)
EXAMPLES, ROUNDS, CLIENTS = 8, 6, 2
TERMS = Terms(
    protocol="fedavg", architecture=LENET, sends="parameters", clients=CLIENTS, cohort=CLIENTS, batch_size=4,
    learning_rate=0.5,
)  # fmt: skip


@pytest.fixture(autouse=True)
def messages_outside_of_a_run(monkeypatch):
    """A message asks which run it belongs to."""
    for part in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, part, 1)


@pytest.fixture(autouse=True)
def flower_draws_from_numpy():
    """Flower's noise comes from numpy's global generator, which stays as it was."""
    before = np.random.get_state()  # noqa: NPY002
    np.random.seed(0)  # noqa: NPY002
    yield
    np.random.set_state(before)  # noqa: NPY002


def answer(weights, mod, client, number, clip):
    """One client's trained parameters, after ``mod``."""
    rng = Rng.root(client).child(f"round {number}")
    draws = rng.torch()
    images, labels = torch.rand(EXAMPLES, 1, 8, 8, generator=draws), torch.randint(10, (8,), generator=draws)
    content = RecordDict({"arrays": ArrayRecord(weights), "config": ConfigRecord({KEY_CLIPPING_NORM: clip})})
    request = Message(content=content, message_type=MessageType.TRAIN, dst_node_id=1)

    def train(message, context):
        model = build(LENET, rng=rng)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        trained = LocalTraining.of(TERMS, round=number)(
            model, Batch(inputs=images, labels=labels), rng=rng.child("order")
        )
        content = RecordDict({"arrays": ArrayRecord(trained.tensors)})
        return Message(content=content, reply_to=message)

    reply = train(request, None) if mod is None else mod(request, None, train)
    return dict(reply.content["arrays"].to_torch_state_dict())


def federate(mod=None, *, clip=1.0, server_std=0.0):
    """Rounds of Flower's arithmetic: parameters travel, the next model is their mean, plus noise."""
    weights = {n: p.detach() for n, p in build(LENET, rng=Rng.root(0)).named_parameters()}
    records = []
    for number in range(ROUNDS):
        sent = [answer(weights, mod, client, number, clip) for client in range(CLIENTS)]
        updates = tuple(
            Update(round=number, client=c, kind="parameters", tensors=t, examples=EXAMPLES, steps=2)
            for c, t in enumerate(sent)
        )
        broadcast = Broadcast(round=number, architecture=LENET, tensors=weights)
        records.append(RoundRecord(round=number, broadcasts=(broadcast,), updates=updates))
        arrays = [torch.stack([t[n] for t in sent]).mean(0).numpy() for n in weights]
        if server_std:
            add_gaussian_noise_inplace(arrays, server_std)
        weights = {n: torch.from_numpy(array) for n, array in zip(weights, arrays, strict=True)}
    return Transcript(terms=TERMS, rounds=tuple(records))


def declare(name, **parameters):
    return Mechanism(name=name, place="update", parameters=parameters)


def said(transcript, *declared):
    rows = check_defenses(transcript, declared)
    return {(row.defense, row.ruling) for row in rows}


def test_a_plain_flower_client_shows_no_defence():
    assert said(federate()) == set()


@pytest.mark.parametrize(
    ("clip", "ruling"), [(0.02, "as declared"), (0.01, "mis-set"), (100.0, "off"), (None, "off")]
)
def test_fixed_clipping(clip, ruling):
    transcript = federate() if clip is None else federate(fixedclipping_mod, clip=clip)
    assert said(transcript, declare("clip", norm=0.02)) == {("clip", ruling)}


def test_a_fixed_clip_that_never_binds():
    never = federate(fixedclipping_mod, clip=100.0)
    assert said(never, declare("clip", norm=100.0)) == {("clip", "never binds")}


@pytest.mark.parametrize(("share", "ruling"), [(1.0, "as declared"), (0.1, "mis-set")])
def test_local_dp(share, ruling):
    epsilon, delta, sensitivity = 10.0, 1e-5, 0.001
    std = sensitivity * float(np.sqrt(2 * np.log(1.25 / delta))) / epsilon
    mod = LocalDpMod(clipping_norm=0.2, sensitivity=sensitivity * share, epsilon=epsilon, delta=delta)
    transcript = federate(mod)
    assert ("gaussian_noise", ruling) in said(transcript, declare("gaussian_noise", std=std))
    rows = check_defenses(transcript, [declare("gaussian_noise", std=std)])
    seen = [row.observation.value / (std * share) for row in rows if row.client is not None]
    assert seen == pytest.approx([1.0] * CLIENTS, rel=0.1)


@pytest.mark.parametrize(("multiplier", "ruling"), [(1.0, "as declared"), (0.1, "mis-set"), (0.0, "off")])
def test_client_side_fixed_clipping_with_noise_of_the_server(multiplier, ruling):
    std = compute_stdv(multiplier, 0.02, CLIENTS)
    transcript = federate(fixedclipping_mod, clip=0.02, server_std=std)
    declared = declare("clip", norm=0.02), declare("server_noise", std=compute_stdv(1.0, 0.02, CLIENTS))
    assert said(transcript, *declared) == {("clip", "as declared"), ("server_noise", ruling)}


def test_the_two_clients_were_not_the_same():
    records = federate().rounds
    pairs = itertools.combinations(records[0].updates, 2)
    assert not any(torch.equal(a.tensors["head.bias"], b.tensors["head.bias"]) for a, b in pairs)
