"""Personal layers stay with their client; fixed ones with everybody; attacks see what travels."""

import pytest
import torch

from glasshouse.attacks.parts.local_steps import LocalSteps
from glasshouse.attacks.parts.matching.plain import Plain
from glasshouse.attacks.parts.replica import replica
from glasshouse.errors import BadValue
from glasshouse.federation.client import LocalTraining
from glasshouse.federation.rounds import Clients
from glasshouse.federation.setting import Request
from glasshouse.models import build as models
from glasshouse.rng import Rng
from glasshouse.settings import Training, covers
from glasshouse.testing.toys import toy

PERSONAL = Training(personal=("head",))
FEDBN = Training(mode="training", personal=("*bn*",))


def played(training=PERSONAL, **settings):
    given = {"protocol": "fedavg", "examples": 4, "batch_size": 2, "rounds": 3, "learning_rate": 0.3}
    return toy(**{**given, **settings}, training=training)


@pytest.mark.parametrize("sends", ["delta", "parameters"])
@pytest.mark.parametrize("secure", [False, True])
def test_they_are_never_sent_after_the_agreed_start(sends, secure):
    first, *later = played(sends=sends, secure_sum=secure).transcript.rounds
    for record in (first, *later):
        for message in [record.aggregate] if secure else record.updates:
            assert message.tensors
            assert not any(name.startswith("head.") for name in message.tensors)


def test_the_server_never_moves_them_and_each_client_has_its_own():
    result = played()
    start = result.setting.start
    assert all(torch.equal(result.final[n], start[n]) for n in start if n.startswith("head."))
    clients = Clients(result.setting)
    for client in (0, 1):
        for number in range(2):
            clients.answer(request(result.setting, client, number))
    own = [clients._personal[client]["head.weight"] for client in (0, 1)]
    assert not torch.equal(own[0], own[1])
    assert not torch.equal(own[0], start["head.weight"])


def request(setting, client, number, tensors=None):
    return Request(
        round=number,
        client=client,
        architecture=setting.terms.architecture,
        tensors=tensors or setting.start,
        rng=Rng.root(number).child(f"client/{client}"),
    )


def test_a_client_goes_on_from_what_it_kept_whatever_is_sent_under_that_name():
    setting = played(rounds=1).setting
    one, other = Clients(setting), Clients(setting)
    lies = {n: t + 9 if n.startswith("head.") else t for n, t in setting.start.items()}
    for number in range(2):
        honest = one.answer(request(setting, 0, number)).update.tensors
        lied_to = other.answer(request(setting, 0, number, lies)).update.tensors
        assert all(torch.equal(honest[n], lied_to[n]) for n in honest)


def test_two_rounds_are_those_of_a_loop_by_hand():
    """One client, one step per round: the head goes on from its own, the rest from the server's model."""
    result = played(clients=1, batch_size=4, rounds=2)
    model, batch = models.build(result.setting.terms.architecture), result.setting.shard(0)
    models.load(model, result.setting.start)
    for _ in range(2):
        loss = torch.nn.functional.cross_entropy(model.eval()(batch.inputs), batch.labels)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for p, g in zip(model.parameters(), gradients, strict=True):
                p -= 0.3 * g
    for name, p in model.named_parameters():
        if not name.startswith("head."):
            torch.testing.assert_close(result.final[name], p.detach(), rtol=1e-5, atol=1e-6)


def test_under_fedbn_neither_parameters_nor_statistics_of_batch_norm_travel():
    result = played(FEDBN, model="convnet", arguments={"width": 4})
    norms = {n.rpartition(".")[0] for n in result.setting.start if n.endswith("running_mean")}
    assert norms
    assert all(covers(FEDBN.personal, n) for n in norms)
    for record in result.transcript.rounds:
        for update in record.updates:
            assert update.tensors
            assert not [n for n in (*update.tensors, *update.buffers) if n.rpartition(".")[0] in norms]


def test_fixed_layers_are_neither_trained_nor_sent():
    result = played(Training(fixed=("features",)), sends="delta")
    for record in result.transcript.rounds:
        assert all(u.tensors.keys() == {"head.weight", "head.bias"} for u in record.updates)
    moved = {n for n, t in result.final.items() if not torch.equal(t, result.setting.start[n])}
    assert moved == {"head.weight", "head.bias"}
    with pytest.raises(BadValue, match="parameters whose name"):
        played(Training(fixed=("*",)))


def test_an_attack_repeats_steps_in_which_personal_layers_move_too():
    """Repeating only what was sent gives another change."""
    result = played(clients=1, rounds=1, local_epochs=2)
    view, batch = result.view(), result.setting.shard(0)
    order = [torch.tensor(rows) for rows in ([0, 1], [2, 3], [1, 3], [0, 2])]
    trainer = LocalTraining.of(result.setting.terms, round=0)
    model = models.build(result.setting.terms.architecture)
    models.load(model, result.setting.start)
    sent = trainer.__class__(**{**vars(trainer), "order": tuple(order)})(
        model, batch, rng=Rng.root(0)
    ).tensors
    client = replica(view, subject="test")
    errors = {}
    for name, training in (("told", PERSONAL), ("not told", Training())):
        steps = LocalSteps(rows=tuple(order), rates=(0.3,) * 4, how=client.terms.optimizer, training=training)
        target = {n: t for n, t in sent.items() if not n.startswith("head.")}
        engine = Plain(client.model, client.received, target, steps=steps)
        again = engine.update(batch.inputs, batch.labels, create_graph=False)
        assert again.keys() == target.keys()
        errors[name] = max(float((again[n] - t).abs().max()) for n, t in target.items())
    assert errors["told"] < 1e-6
    assert errors["not told"] > 100 * errors["told"]


def test_a_pattern_is_text():
    with pytest.raises(BadValue):
        Training(personal=(1,))
