"""What a Flower server saw is in the transcript, whichever API it uses."""

import dataclasses
import itertools
import subprocess
import sys
from pathlib import Path

import flower_apps as apps
import pytest
import torch
from flower_apps import message_client, message_server, numpy_client, strategy_server, workflow_server
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import parameters_to_ndarrays

from glasshouse.errors import BadFile, BadValue
from glasshouse.integrations.flower import capture, watch
from glasshouse.integrations.flower.in_process import InProcessGrid, run_in_process
from glasshouse.store import read_json
from glasshouse.transcript.files import read_transcript
from glasshouse.transcript.record import Keep

NODES = (7_001, 7_002, 7_003)


def run(server, client, folder, *, offline=None, **settings):
    grid = InProcessGrid(apps=dict.fromkeys(NODES, client), offline=offline)
    run_in_process(capture(server, folder, model=apps.MODEL, terms=apps.TERMS, **settings), grid)
    return read_transcript(folder / "transcript")


def mean_of(record):
    weight = sum(u.examples for u in record.updates)
    return {
        name: sum(u.examples * u.tensors[name].double() for u in record.updates) / weight
        for name in record.updates[0].tensors
    }


def largest_difference(one, other):
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


@pytest.mark.parametrize(
    ("server", "client"),
    [
        (message_server, message_client),
        (strategy_server, numpy_client),
        (workflow_server, numpy_client),
    ],
)
def test_the_mean_of_the_captured_updates_is_the_next_broadcast(server, client, tmp_path):
    first, second = run(server(), client(), tmp_path).rounds
    for record in (first, second):
        assert len(record.broadcasts) == 1
        assert record.broadcasts[0].client is None
        assert {u.client for u in record.updates} == {0, 1, 2}
        assert {u.examples for u in record.updates} == {apps.EXAMPLES}
        assert {u.steps for u in record.updates} == {2}
    assert largest_difference(mean_of(first), second.broadcasts[0].tensors) <= 1e-6


def true_mean(broadcast):
    """The mean of what the clients would send without a mask."""
    states = []
    for number in range(len(NODES)):
        network = apps.start()
        network.load_state_dict(dict(broadcast.tensors))
        apps.train(network, number)
        states.append(network.state_dict())
    return {name: sum(s[name].double() for s in states) / len(states) for name in states[0]}


def test_of_a_secure_sum_the_mean_is_recorded_and_no_masked_vector(tmp_path):
    transcript = run(workflow_server(secure=True), numpy_client(mods=[secaggplus_mod]), tmp_path)
    assert transcript.terms.secure_sum
    for record in transcript.rounds:
        assert record.updates == ()
        assert len(record.broadcasts) == 1
        aggregate = record.aggregate
        assert (aggregate.selected, aggregate.dropped, aggregate.examples) == ((0, 1, 2), (), 48)
        counts = {m.client: m.values["num_examples"] for m in record.metrics if m.stage == "train"}
        assert counts == dict.fromkeys(range(3), apps.EXAMPLES)  # in clear, although the weight is masked


FLOWERS = {"max_weight": 1000.0, "clipping_range": 8.0, "quantization_range": 2**22}
"""What ``SecAggPlusWorkflow`` does unless told otherwise."""


def rounding(max_weight, clipping_range, quantization_range):
    """Largest error of a mean under SecAgg+: each client rounds ``n / max_weight`` times its parameters."""
    return 2 * clipping_range / quantization_range * max_weight / apps.EXAMPLES


@pytest.mark.parametrize(
    ("changed", "most"),
    [
        ({}, 2.4e-4),
        ({"max_weight": 400.0}, 1e-4),
        ({"max_weight": 100.0}, 3e-5),
        ({"quantization_range": 2**24}, 1e-4),
        ({"clipping_range": 2.0}, 1e-4),
        ({"clipping_range": 2.0, "max_weight": 100.0}, 1e-5),
    ],
)
def test_the_mean_of_a_secure_sum_is_the_true_one_but_for_the_rounding_of_the_protocol(
    changed, most, tmp_path
):
    """It is above 1e-4 at Flower's defaults where clients hold 16 examples: that is what SecAgg+ computes."""
    settings = {**FLOWERS, **changed}
    server = workflow_server(1, secure=True, **settings)
    record = run(server, numpy_client(mods=[secaggplus_mod]), tmp_path).rounds[0]
    mean = {name: t / record.aggregate.weight for name, t in record.aggregate.tensors.items()}
    error = largest_difference(mean, true_mean(record.broadcasts[0]))
    assert rounding(**settings) <= most
    assert 0.01 * rounding(**settings) < error <= rounding(**settings)


def test_a_capture_loses_nothing_of_a_secure_sum(tmp_path):
    received = []

    class Receiving(apps.LegacyFedAvg):
        def aggregate_fit(self, server_round, results, failures):
            received.append(parameters_to_ndarrays(results[0][1].parameters))
            return super().aggregate_fit(server_round, results, failures)

    strategy = Receiving(initial_parameters=apps.first_parameters())
    server = workflow_server(2, secure=True, strategy=strategy, **FLOWERS)
    first, second = run(server, numpy_client(mods=[secaggplus_mod]), tmp_path).rounds
    for record, arrays in zip((first, second), received, strict=True):
        mean = {name: t / record.aggregate.weight for name, t in record.aggregate.tensors.items()}
        theirs = dict(zip(apps.start().state_dict(), map(torch.from_numpy, arrays), strict=True))
        assert largest_difference(mean, theirs) <= 1e-15
    mean = {name: t / first.aggregate.weight for name, t in first.aggregate.tensors.items()}
    assert largest_difference(mean, second.broadcasts[0].tensors) <= 1e-7


def test_a_strategy_outside_a_capture_is_not_touched():
    strategy, grid = apps.FedAvg(), InProcessGrid(apps={})
    assert watch(strategy, grid) is strategy


def test_what_travels_in_clear_is_kept_beside_the_tensors(tmp_path):
    first = run(message_server(rounds=1), message_client(), tmp_path).rounds[0]
    train = next(m for m in first.metrics if m.stage == "train" and m.client == 0)
    assert train.values["num-examples"] == apps.EXAMPLES
    assert 0 < train.values["train_loss"] < 10
    evaluate = next(m for m in first.metrics if m.stage == "evaluate" and m.client == 0)
    assert evaluate.values["eval_loss"] == 1.5


def test_errors_and_silence_are_dropouts(tmp_path):
    client = message_client(fails=(1,))
    transcript = run(
        message_server(rounds=2), client, tmp_path, offline=lambda node, message: node == NODES[2]
    )
    works, fails, sleeps = (read_json(tmp_path / "nodes.json")[str(node)] for node in NODES)
    for record in transcript.rounds:
        assert [u.client for u in record.updates] == [works]
        reasons = {d.client: d.reason for d in record.dropouts}
        assert reasons == {fails: "RuntimeError: out of memory", sleeps: ""}
    assert (transcript.terms.clients, transcript.terms.cohort) == (3, 3)


class Unequal(apps.FedAvg):
    """Sends the last node another model than the others."""

    def configure_train(self, server_round, arrays, config, grid):
        messages = list(super().configure_train(server_round, arrays, config, grid))
        other = {name: t + 1 for name, t in arrays.to_torch_state_dict().items()}
        last = max(messages, key=lambda m: m.metadata.dst_node_id)
        last.content = RecordDict({"arrays": ArrayRecord(other), "config": ConfigRecord(dict(config))})
        return messages


def test_a_server_that_treats_one_client_differently_is_seen(tmp_path):
    record = run(message_server(rounds=1, strategy=Unequal()), message_client(), tmp_path).rounds[0]
    nodes = read_json(tmp_path / "nodes.json")
    broadcasts = {b.client: b for b in record.broadcasts}
    if None in broadcasts and len(broadcasts) == 2:
        addressed = next(c for c in broadcasts if c is not None)
        assert addressed == nodes[str(max(NODES))]
        difference = largest_difference(broadcasts[addressed].tensors, broadcasts[None].tensors)
        assert difference == pytest.approx(1)
    else:  # the odd one was sent first: everybody else is addressed
        assert set(broadcasts) == {None} | set(nodes.values()) - {nodes[str(max(NODES))]}


def test_only_what_is_to_be_kept_is_stored(tmp_path):
    keep = Keep(updates=frozenset({1}), clients=frozenset({2}), tensors=("head.",))
    first, second = run(message_server(), message_client(), tmp_path, keep=keep).rounds
    assert first.updates == ()
    assert [u.client for u in second.updates] == [2]
    assert set(second.updates[0].tensors) == {"head.weight", "head.bias"}
    assert len(first.metrics) == 6


def test_recording_ends_at_the_size_limit_and_the_federation_goes_on(tmp_path, caplog):
    transcript = run(message_server(), message_client(), tmp_path, most_bytes=1)
    assert [len(r.broadcasts) for r in transcript.rounds] == [1]
    assert "nothing more is recorded" in caplog.text


def test_a_folder_is_captured_into_once(tmp_path):
    run(message_server(rounds=1), message_client(), tmp_path)
    with pytest.raises(BadFile, match="a new folder"):
        run(message_server(rounds=1), message_client(), tmp_path)


def test_another_network_than_declared_is_refused(tmp_path):
    grid = InProcessGrid(apps=dict.fromkeys(NODES, message_client()))
    other = dataclasses.replace(apps.MODEL, name="mlp")
    with pytest.raises(BadValue, match="the network that is trained"):
        run_in_process(capture(message_server(), tmp_path, model=other, terms=apps.TERMS), grid)


def test_a_network_that_an_audit_could_not_build_is_refused():
    class Inner(torch.nn.Linear):
        pass

    with pytest.raises(BadValue, match="at the top of a module"):
        capture(message_server(), "unused", model=(Inner, (1, 8, 8), 10), terms=apps.TERMS)
    with pytest.raises(BadValue, match="for all channels"):
        capture(message_server(), "unused", model=apps.MODEL, normalize=((0.4, 0.5), 1.0), terms=apps.TERMS)


def test_terms_stand_in_the_runs_configuration(tmp_path):
    settings = {"batch-size": 4, "learning-rate": 0.3, "num-server-rounds": 1}
    grid = InProcessGrid(apps=dict.fromkeys(NODES, message_client()), run_config=settings)
    declared = {"learning_rate": 0.2}
    run_in_process(capture(message_server(1), tmp_path, model=apps.MODEL, terms=declared), grid)
    terms = read_transcript(tmp_path / "transcript").terms
    assert (terms.batch_size, terms.local_epochs, terms.learning_rate) == (4, 1, 0.2)


def test_a_term_that_does_not_exist_is_refused():
    with pytest.raises(BadValue, match="learnrate"):
        capture(message_server(), "unused", model=apps.MODEL, terms={**apps.TERMS, "learnrate": 1})


KILLED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
import flower_apps as apps
from glasshouse.integrations.flower import capture
from glasshouse.integrations.flower.in_process import InProcessGrid, run_in_process

def serve(after):
    client = apps.message_client()
    asked = 0

    def offline(node, message):
        nonlocal asked
        asked += message.metadata.message_type == "train"
        if asked > after:
            os.kill(os.getpid(), signal.SIGKILL)
        return False

    grid = InProcessGrid(apps=dict.fromkeys((1, 2, 3), client), offline=offline)
    folder = {folder!r} + f"/{{after}}"
    run_in_process(capture(apps.message_server(rounds=9), folder, model=apps.MODEL, terms=apps.TERMS), grid)

for after in {places}:
    if (child := os.fork()) == 0:
        serve(after)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
"""


def test_a_server_that_is_killed_in_any_round_keeps_all_rounds_but_that(tmp_path):
    """Answers of three clients are pulled together, after the last."""
    places = (1, 3, 4, 7, 14)
    code = KILLED.format(tests=str(Path(__file__).parent), places=places, folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    for after in places:
        rounds = read_transcript(tmp_path / str(after) / "transcript").rounds
        assert [len(r.updates) for r in rounds] == [3] * (after // 3) + [0]
        for one, following in itertools.pairwise(rounds):
            assert largest_difference(mean_of(one), following.broadcasts[0].tensors) <= 1e-6
