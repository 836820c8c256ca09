"""Federated transfer learning: what is broadcast, what is sent, what stays as it was."""

import pytest
import torch

from glasshouse.federation.protocols.transfer import Transfer
from glasshouse.rng import Rng
from glasshouse.testing.toys import Recorder, toy
from glasshouse.transcript.record import Keep, Log

MODEL = {"model": "maui_cnn", "arguments": {"width": 4, "hidden": 8}, "trained": "head."}


def test_features_are_broadcast_once_and_the_head_every_round():
    result = toy(protocol="transfer", rounds=3, sends="gradient", **MODEL)
    first, *later = (r.broadcasts[0].tensors for r in result.transcript.rounds)
    assert any(name.startswith("features.") for name in first)
    raw = [r.broadcasts[0] for r in result.transcript.rounds]
    assert len(raw) == 3
    for tensors in later:
        for name, t in tensors.items():
            assert name.startswith("head.") or torch.equal(t, first[name])


@pytest.mark.parametrize("sends", ["gradient", "delta", "parameters"])
@pytest.mark.parametrize("secure", [False, True])
def test_only_the_head_is_sent_and_changes(sends, secure):
    result = toy(protocol="transfer", sends=sends, secure_sum=secure, rounds=2, **MODEL)
    record = result.transcript.rounds[-1]
    messages = [record.aggregate] if secure else list(record.updates)
    assert all(name.startswith("head.") for m in messages for name in m.tensors)
    moved = {n for n, t in result.final.items() if not torch.equal(t, result.setting.start[n])}
    assert moved == {"head.hidden.weight", "head.hidden.bias", "head.out.weight", "head.out.bias"}


def test_local_epochs_move_the_head_further():
    def distance(epochs):
        result = toy(
            protocol="transfer", sends="delta", examples=4, batch_size=2, local_epochs=epochs,
            learning_rate=0.5, **MODEL,
        )  # fmt: skip
        update = result.transcript.rounds[0].updates[0]
        return update.steps, float(sum(t.square().sum() for t in update.tensors.values()))

    (few, near), (many, far) = distance(1), distance(4)
    assert (few, many) == (2, 8)
    assert far > near


@pytest.mark.parametrize("number", [0, 2])
def test_a_tamper_is_asked_with_the_whole_model_whatever_is_kept(number):
    setting = toy(protocol="transfer", rounds=3, **MODEL).setting
    log, result = Log(terms=setting.terms, keep=Keep(broadcasts=frozenset({2}))), {}

    def ask(here):
        result[here] = log.pending

    Transfer().play(setting, recorder=Recorder(log), rng=Rng.root(0), tamper=ask)
    assert result[number].tensors.keys() == setting.start.keys()
    moved = not torch.equal(result[number].tensors["head.out.bias"], setting.start["head.out.bias"])
    assert moved == (number > 0)
