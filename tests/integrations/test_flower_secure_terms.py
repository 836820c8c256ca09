"""A client refuses terms of SecAgg+ under which its update could be unmasked, and no honest ones."""

import random
from copy import deepcopy

import flower_apps as apps
import pytest
from flower_apps import numpy_client, workflow_server
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage

from glasshouse.integrations.flower import capture, guard_mod, preflight_mod
from glasshouse.integrations.flower.in_process import InProcessGrid, run_in_process
from glasshouse.store import read_jsonl
from glasshouse.transcript.files import read_transcript
from glasshouse.wire import Architecture

NODES = (7_001, 7_002, 7_003)
TINY = Architecture.of("mlp", (1, 8, 8), 10, {"hidden": 4, "mean": 0.0, "std": 1.0})


def run(server, client, folder, *, model=TINY, nodes=NODES, offline=None):
    grid = InProcessGrid(apps=dict.fromkeys(nodes, client), offline=offline)
    run_in_process(capture(server, folder / "run", model=model, terms=apps.TERMS), grid)
    return read_transcript(folder / "run" / "transcript")


def decisions(folder):
    return [line for file in sorted(folder.glob("*.jsonl")) for line in read_jsonl(file)]


def refusals(folder):
    return [line["reasons"][1] for line in decisions(folder) if line["decision"] == "refused"]


def secure_client(folder):
    mods = [
        guard_mod(TINY, reports=folder),
        secaggplus_mod,
        preflight_mod(TINY, reports=folder, most=99),
    ]
    return numpy_client(mods=mods, model=TINY)


def server_of(rounds, **settings):
    """A server that starts from the tiny network: what is refused here does not depend on the network."""
    strategy = apps.LegacyFedAvg(initial_parameters=apps.first_parameters(TINY))
    return workflow_server(rounds, strategy=strategy, **settings)


def test_nothing_travels_in_clear_beside_a_secure_sum(tmp_path):
    """Metrics are taken out and counts are 1; those of an evaluation too, which would give them away."""
    transcript = run(server_of(2, secure=True), secure_client(tmp_path / "guard"), tmp_path)
    assert [record.aggregate is not None for record in transcript.rounds] == [True, True]
    metrics = [m for record in transcript.rounds for m in record.metrics]
    assert [m.values for m in metrics if m.stage == "train"] == [{"num_examples": 1}] * 6
    evaluated = [m.values for m in metrics if m.stage == "evaluate"]
    assert evaluated == [{"accuracy": 0.5, "loss": 1.5, "num_examples": 1}] * 6
    assert refusals(tmp_path / "guard") == []
    hidden = [line["reasons"] for line in decisions(tmp_path / "guard")]
    assert sum("train_loss" in reasons for reasons in hidden) == 6


def test_counts_of_an_evaluation_without_secure_sums_are_the_clients_own(tmp_path):
    guarding = numpy_client(mods=[guard_mod(TINY, reports=tmp_path / "guard")], model=TINY)
    transcript = run(server_of(1), guarding, tmp_path)
    evaluated = [m.values for m in transcript.rounds[0].metrics if m.stage == "evaluate"]
    assert [values["num_examples"] for values in evaluated] == [apps.EXAMPLES] * 3


def few(configs):
    configs[Key.SAMPLE_NUMBER] = 2


def low(configs):
    configs[Key.THRESHOLD] = 1


def both_ways(configs):
    configs[Key.DEAD_NODE_ID_LIST] = list(configs[Key.ACTIVE_NODE_ID_LIST])[:1]


def missing(configs):
    configs[Key.ACTIVE_NODE_ID_LIST] = list(configs[Key.ACTIVE_NODE_ID_LIST])[1:]


def foreign(configs):
    for node in NODES:
        configs[str(node)] = [configs[str(node)][0] + b"0", configs[str(node)][1]]


def again(configs):
    """Nothing is changed: the message comes twice."""


@pytest.mark.parametrize(
    ("stage", "change", "word"),
    [
        (Stage.SETUP, few, "fewer than 3"),
        (Stage.SETUP, low, "at most half"),
        (Stage.UNMASK, both_ways, "active and as dropped out"),
        (Stage.UNMASK, again, "twice"),
        (Stage.UNMASK, missing, "missing neighbour"),
        (Stage.SHARE_KEYS, foreign, "not its own"),
    ],
)
def test_terms_that_may_show_a_single_update_are_refused(stage, change, word, tmp_path):
    client = secure_client(tmp_path / "guard")

    def tampered(message, context):
        configs = message.content.config_records.get(RECORD_KEY_CONFIGS, {})
        if configs.get(Key.STAGE) == stage:
            change(configs)
            if change is again:
                client(deepcopy(message), context)
        return client(message, context)

    transcript = run(server_of(1, secure=True), tampered, tmp_path)
    assert all(record.aggregate is None for record in transcript.rounds)
    refused = refusals(tmp_path / "guard")
    assert len(refused) == len(NODES)
    assert all(word in reason for reason in refused)


class Still(NumPyClient):
    """Sends back what it received."""

    def __init__(self, examples):
        self.examples = examples

    def fit(self, parameters, config):
        return parameters, self.examples, {"train_loss": 1.0}

    def evaluate(self, parameters, config):
        return 1.0, self.examples, {}


def still_client(folder):
    return ClientApp(
        client_fn=lambda context: Still(5 + context.node_config["partition-id"]).to_client(),
        mods=[guard_mod(TINY, reports=folder), secaggplus_mod],
    )


def honest_terms(draw):
    """A cohort of 3 to 12, its quorum above half of the shares; at least 3 of them where clients drop out.

    With neighbourhoods of 3, a client that drops out leaves 2, whose terms are refused: by 2 a sum hides
    nobody.
    """
    clients, lossy = draw.randint(3, 12), draw.random() < 0.4
    shares = draw.choice([0.5, 0.7, 1.0, *range(5 if lossy else 3, clients + 1, 2)])
    some = {
        "num_shares": shares,
        "reconstruction_threshold": draw.choice([0.6, 0.75, 0.9]),
        "max_weight": draw.choice([20.0, 100.0, 1000.0]),
        "clipping_range": draw.choice([2.0, 8.0]),
    }
    if lossy:
        clients = max(clients, 5)
        some |= {"num_shares": max(5, round(shares * clients) if isinstance(shares, float) else shares)}
    return clients, some, draw.choice([0.02, 0.05]) if lossy else 0.0


@pytest.mark.slow
def test_no_honest_round_is_refused(tmp_path):
    sums = 0
    for seed in range(60):
        draw = random.Random(seed)
        clients, terms, loss = honest_terms(draw)
        strategy = apps.LegacyFedAvg(
            initial_parameters=apps.first_parameters(TINY),
            fraction_fit=draw.choice([1.0, 0.8]),
            min_fit_clients=min(5, clients),
        )
        folder = tmp_path / str(seed)
        transcript = run(
            workflow_server(5, secure=True, strategy=strategy, **terms),
            still_client(folder / "guard"),
            folder,
            model=TINY,
            nodes=range(1, clients + 1),
            offline=lambda node, message, draw=draw, loss=loss: draw.random() < loss,
        )
        assert refusals(folder / "guard") == []
        sums += sum(record.aggregate is not None for record in transcript.rounds)
    assert sums >= 200
