"""SCAFFOLD, FedBuff and clients that differ, each beside a loop of plain torch; attacks follow."""

import copy
import math

import pytest
import torch
from torch.nn import functional as F

from glasshouse.attacks.inversion.inverting_gradients import InvertingGradients
from glasshouse.attacks.parts.matching.distance import objective
from glasshouse.attacks.parts.replica import replica
from glasshouse.attacks.property.prolin import Prolin
from glasshouse.audit.attacking.needs import find_refusal
from glasshouse.errors import BadScenario, Inapplicable
from glasshouse.federation.defenses.dp_sgd import DpSgd
from glasshouse.federation.protocols.fedavg import FedAvg
from glasshouse.federation.protocols.fedbuff import FedBuff, delay_of
from glasshouse.federation.protocols.scaffold import Scaffold
from glasshouse.federation.rounds import select
from glasshouse.federation.setting import Setting
from glasshouse.models import build as models
from glasshouse.rng import Rng
from glasshouse.scenario.load import load
from glasshouse.settings import Training
from glasshouse.testing.toys import toy
from glasshouse.transcript.cut import cut
from glasshouse.transcript.files import read_transcript, write_transcript
from glasshouse.transcript.grants import Grants
from glasshouse.transcript.record import Keep, Log
from glasshouse.transcript.threat import Threat

RATE, ROUNDS, CLIENTS = 0.2, 4, 3
SERVER = Threat(sees=frozenset({"broadcast", "update", "own"}))


class Keeping:
    """A recorder that keeps the rows of every step, too."""

    def __init__(self, log):
        self.prepare, self.broadcast, self.update = log.prepare, log.broadcast, log.update
        self.aggregate, self.own, self.order = log.aggregate, log.own, {}

    def private(self, round, client, *, index, trained, behaviour):
        self.order[round, client] = [index[rows] for rows in trained.order]


def played(protocol, runner, *, seed=3, **settings):
    """(setting, transcript, final model, rows of every step, the server's own tensors)."""
    fields = {"rounds": ROUNDS, "clients": CLIENTS, "examples": 4, "batch_size": 2, "learning_rate": RATE}
    made: Setting = toy(protocol=protocol, **{**fields, **settings}).setting
    log = Log(terms=made.terms, keep=Keep())
    recorder = Keeping(log)
    final = runner.play(made, recorder=recorder, rng=Rng.root(seed))
    return made, log.transcript(), final, recorder.order, log.servers


def gradients(model, setting, rows):
    loss = F.cross_entropy(model(setting.private.inputs[rows]), setting.private.labels[rows])
    return torch.autograd.grad(loss, list(model.parameters()))


def loaded(setting, weights):
    model = models.build(setting.terms.architecture).eval()
    model.load_state_dict(weights)
    return model


def assert_models(one, other, words):
    for name, t in other.items():
        torch.testing.assert_close(one[name], t, rtol=1e-5, atol=1e-6, msg=f"{words}, {name}")


def test_scaffold_is_algorithm_1_of_the_paper():
    made, transcript, final, order, _ = played(
        "scaffold", Scaffold(), cohort=2, weighting="uniform", local_epochs=2, server_rate=0.7
    )
    model = loaded(made, made.start)
    names = [name for name, _ in model.named_parameters()]
    c = [torch.zeros_like(p) for p in model.parameters()]
    own = {client: [torch.zeros_like(p) for p in model.parameters()] for client in range(CLIENTS)}
    for number, record in enumerate(transcript.rounds):
        sent = record.broadcasts[0].tensors
        assert_models(sent, dict(model.named_parameters()), f"round {number}")
        assert_models({n: sent[f"control.{n}"] for n in names}, dict(zip(names, c, strict=True)), "c")
        steps, changes, taken = [], [], [client for r, client in order if r == number]
        assert len(taken) == 2
        for client in taken:
            local = copy.deepcopy(model)
            for rows in order[number, client]:
                slope = gradients(local, made, rows)
                with torch.no_grad():
                    for p, g, mine, servers in zip(local.parameters(), slope, own[client], c, strict=True):
                        p -= RATE * (g - mine + servers)
            moved = [x - y for x, y in zip(model.parameters(), local.parameters(), strict=True)]
            count = len(order[number, client])
            new = [
                mine - servers + way / (count * RATE)
                for mine, servers, way in zip(own[client], c, moved, strict=True)
            ]
            steps.append([-way for way in moved])
            changes.append([after - before for after, before in zip(new, own[client], strict=True)])
            own[client] = [t.detach() for t in new]
            update = next(u for u in record.updates if u.client == client)
            assert_models(update.tensors, dict(zip(names, steps[-1], strict=True)), f"update of {client}")
        with torch.no_grad():
            for p, each in zip(model.parameters(), zip(*steps, strict=True), strict=True):
                p += 0.7 * torch.stack(each).mean(0)
            c = [
                t + torch.stack(each).sum(0) / CLIENTS
                for t, each in zip(c, zip(*changes, strict=True), strict=True)
            ]
    assert_models(final, dict(model.named_parameters()), "final")
    assert not [name for name in final if name.startswith("control.")]


@pytest.mark.parametrize("round", [0, 2])
def test_an_attack_knows_the_corrections_of_every_round(round):
    made, transcript, _, order, own = played("scaffold", Scaffold())
    view = cut(transcript, threat=SERVER, grants=Grants(), own=own, memory={}, rounds=(round,), client=1)
    client, rows = replica(view, subject="test"), torch.cat(order[round, 1])
    measure = objective(client, distance="squared")
    truth = made.private.inputs[rows][None], made.private.labels[rows][None]
    assert float(measure(*truth).detach()) < 1e-6 * measure.target_square
    blind = replica(cut(transcript, threat=SERVER, grants=Grants(), own={}, memory={}, rounds=(round,),
                        client=1), subject="test")  # fmt: skip
    missed = float(objective(blind, distance="squared")(*truth).detach()) / measure.target_square
    assert (missed > 1e-3) == (round > 0)
    assert find_refusal(InvertingGradients(), "a", SERVER, Grants(), made.terms) is None
    refusal = find_refusal(Prolin(), "prolin", SERVER, Grants(), made.terms)
    assert refusal is not None


def test_control_variates_survive_the_file(tmp_path):
    _, transcript, *_ = played("scaffold", Scaffold())
    write_transcript(transcript, tmp_path / "transcript")
    again = read_transcript(tmp_path / "transcript")
    for one, other in zip(transcript.rounds, again.rounds, strict=True):
        for sent, read in zip(one.updates, other.updates, strict=True):
            assert sent.buffers.keys() == read.buffers.keys()
            assert all(name.startswith("control.") for name in read.buffers)


def test_fedbuff_is_algorithm_1_of_the_paper():
    made, transcript, final, order, _ = played(
        "fedbuff", FedBuff(), options={"buffer": 2, "late": 2}, server_rate=0.9, rounds=6
    )
    model, version, arriving, buffer = loaded(made, made.start), 0, [], []
    stale = 0
    for number, record in enumerate(transcript.rounds):
        assert_models(record.broadcasts[0].tensors, dict(model.named_parameters()), f"round {number}")
        stream = Rng.root(3).child(f"round/{number}")
        for client in select(made, rng=stream)[1]:
            local = copy.deepcopy(model)
            for rows in order[number, client]:
                with torch.no_grad():
                    for p, g in zip(local.parameters(), gradients_of(local, made, rows), strict=True):
                        p -= RATE * g
            change = [(y - x).detach() for x, y in zip(model.parameters(), local.parameters(), strict=True)]
            when = number + delay_of(2, rng=stream.child(f"client/{client}"))
            arriving.append((when, version, change))
        now = [one for one in arriving if one[0] == number]
        arriving = [one for one in arriving if one[0] != number]
        for _, answered, change in now:
            buffer.append((answered, change))
            if len(buffer) < 2:
                continue
            stale += sum(version > old for old, _ in buffer)
            with torch.no_grad():
                for i, p in enumerate(model.parameters()):
                    p += 0.9 / 2 * sum(each[i] / math.sqrt(1 + version - old) for old, each in buffer)
            version, buffer = version + 1, []
    assert_models(final, dict(model.named_parameters()), "final")
    assert stale > 2
    assert version > 3


def gradients_of(model, setting, rows):
    with torch.enable_grad():
        return gradients(model, setting, rows)


DIFFER = Training(epochs_by_client=(1, 3), batch_sizes_by_client=(2, 1, 4), drop_last=True)


def test_clients_differ_in_passes_and_batch_sizes_and_attacks_follow():
    made, transcript, _, order, _ = played("fedavg", FedAvg(), training=DIFFER, examples=5, rounds=1)
    steps = {client: [len(rows) for rows in order[0, client]] for client in range(CLIENTS)}
    assert steps == {0: [2, 2], 1: [1] * 15, 2: [4]}
    for client in range(CLIENTS):
        local = loaded(made, made.start)
        for rows in order[0, client]:
            with torch.no_grad():
                for p, g in zip(local.parameters(), gradients_of(local, made, rows), strict=True):
                    p -= RATE * g
        update = next(u for u in transcript.rounds[0].updates if u.client == client)
        change = {n: p.detach() - made.start[n] for n, p in local.named_parameters()}
        assert_models(update.tensors, change, f"client {client}")
        if client == 1:
            continue  # three passes in three orders: an attack repeats one order
        view = cut(transcript, threat=SERVER, grants=Grants(), own={}, memory={}, rounds=(0,), client=client)
        seen, rows = replica(view, subject="test"), torch.cat(order[0, client])
        assert seen.images == len(rows) == 4
        measure = objective(seen, distance="squared")
        truth = made.private.inputs[rows][None], made.private.labels[rows][None]
        assert float(measure(*truth).detach()) < 1e-6 * measure.target_square


def test_a_number_of_steps_holds_whatever_the_examples():
    how = Training(local_steps=5)
    made, transcript, _, order, _ = played("fedavg", FedAvg(), training=how, examples=3, rounds=1)
    assert [len(rows) for rows in order[0, 0]] == [2, 1, 2, 1, 2]
    assert transcript.rounds[0].updates[0].steps == 5 == made.terms.steps(3)


MINE = """
name = "mine"
[federation]
protocol = "{protocol}"
clients = 4
{more}
[model]
name = "mlp"
[[attacks]]
name = "linear_input"
"""


@pytest.mark.parametrize(
    ("protocol", "more", "words"),
    [
        ("scaffold", "optimizer = {momentum = 0.9}", "plain sgd under scaffold"),
        ("fedbuff", "secure_sum = true", "its server needs single updates"),
        ("fedsgd", "training = {accumulate = 2}", "nothing where clients take no local steps"),
        ("fedsgd", "training = {local_steps = 2}", "nothing where clients take no local steps"),
        ("fedavg", "local_epochs = 2\ntraining = {local_steps = 2}", "nothing beside local_epochs"),
        ("fedavg", "training = {batch_sizes_by_client = [1, 9]}", "at most data.examples = 1"),
    ],
)
def test_what_cannot_be_combined_is_refused(tmp_path, protocol, more, words):
    (tmp_path / "mine.toml").write_text(MINE.format(protocol=protocol, more=more))
    with pytest.raises(BadScenario, match=words):
        load(str(tmp_path / "mine.toml"))


@pytest.mark.parametrize("term", [{"clip_norm": 1.0}, {"accumulate": 2}, {"reduction": "sum"}])
def test_dp_sgd_refuses_steps_that_it_does_not_take(term):
    with pytest.raises(Inapplicable, match=next(iter(term))):
        toy(
            protocol="fedavg",
            examples=4,
            batch_size=2,
            defenses=[DpSgd(clip=1.0, noise_multiplier=1.0)],
            training=Training(**term),
        )
