"""A client refuses crafted models and leaking updates."""

import sys
from importlib import import_module
from pathlib import Path

import flower_apps as apps
import pytest
import torch
from flower_apps import message_client, message_server
from flwr.app import ArrayRecord

from glasshouse.guard.preflight import preflight
from glasshouse.integrations.flower import capture, guard_mod, guarded, preflight_mod
from glasshouse.integrations.flower.in_process import InProcessGrid, run_in_process
from glasshouse.models import build as models
from glasshouse.rng import Rng
from glasshouse.store import read_json, read_jsonl
from glasshouse.transcript.files import read_transcript
from glasshouse.wire import Architecture

NODES = (7_001, 7_002, 7_003)
PLAIN = {"hidden": 512, "mean": 0.0, "std": 1.0}
MLP = Architecture.of("mlp", (1, 8, 8), 10, PLAIN)
NARROW = Architecture.of("mlp", (1, 8, 8), 10, {**PLAIN, "hidden": 128})
"""A quarter of its rows, for honest models: among so few, trap weights do not stand out from honest rows."""
EXAMPLES = 64


def own_data(context):
    """64 digits of a node, none of which another node has."""
    first = context.node_config["partition-id"] * EXAMPLES
    part = apps.DIGITS.splits["train"]
    batch = part.batch(torch.arange(first, first + EXAMPLES))
    return batch.inputs, batch.labels


def public_brightness():
    part = apps.DIGITS.splits["train"]
    return part.batch(torch.arange(800, 1200)).inputs.flatten(1).mean(1)


def layers(state):
    """Names of the two linear layers' tensors."""
    return list(state)


def bins(state, *, rows=128, noise=0.5):
    """Robbing the Fed in the agreed structure, along a noisy direction and at various scales."""
    first, bias, last, _ = layers(state)
    generator = torch.Generator().manual_seed(4)
    direction = (1 + noise * torch.randn(64, generator=generator)) / 64
    scales = torch.linspace(0.5, 3, rows)
    thresholds = torch.quantile(public_brightness(), torch.linspace(0.01, 0.99, rows))
    state[first][:rows] = scales[:, None] * direction
    state[bias][:rows] = -scales * thresholds
    state[last][:, :rows] = torch.randn(10, 1, generator=generator) / scales
    return state


def trap_weights(state):
    """Boenisch et al. 2023: half of each row negative, the other half as large but for a factor."""
    first, bias, *_ = layers(state)
    generator = torch.Generator().manual_seed(5)
    for row in state[first]:
        places = torch.randperm(64, generator=generator)
        sizes = torch.rand(32, generator=generator)
        row[places[:32]], row[places[32:]] = -sizes, 0.6 * sizes
    state[bias].zero_()
    return state


def one_class(state):
    """Wen et al. 2022: only examples of one class reach the layer in front."""
    *_, last, bias = layers(state)
    state[last][torch.arange(10) != 3] *= 1e-3
    state[bias][torch.arange(10) != 3] = 10
    return state


def equal_rows(state):
    """Robbing the Fed as published: every row measures the same."""
    return bins(state, noise=0.0)


class Crafting(apps.FedAvg):
    """Sends a crafted model."""

    craft = staticmethod(lambda state: state)

    def configure_train(self, server_round, arrays, config, grid):
        state = {name: t.clone() for name, t in arrays.to_torch_state_dict().items()}
        return super().configure_train(server_round, ArrayRecord(self.craft(state)), config, grid)


def run(server, client, folder, *, model=MLP):
    grid = InProcessGrid(apps=dict.fromkeys(NODES, client))
    run_in_process(capture(server, folder / "run", model=model, terms=apps.TERMS), grid)
    return read_transcript(folder / "run" / "transcript")


def decisions(folder):
    return [line for file in sorted(folder.glob("*.jsonl")) for line in read_jsonl(file)]


def guarding_client(folder, model=MLP, **settings):
    return message_client(model, mods=[guard_mod(model, data=own_data, reports=folder)], **settings)


@pytest.mark.parametrize("craft", [bins, trap_weights, one_class, equal_rows])
def test_crafted_models_are_refused_by_every_client_before_training(craft, tmp_path):
    strategy = Crafting()
    strategy.craft = craft
    client = guarding_client(tmp_path / "guard", fails=range(3))  # training would raise
    record = run(message_server(1, MLP, strategy), client, tmp_path).rounds[0]
    assert record.updates == ()
    reason = "refused by the client's guard: a model that clients do not train on"
    assert [d.reason for d in record.dropouts] == [reason] * 3
    reports = decisions(tmp_path / "guard")
    assert [(line["round"], line["decision"]) for line in reports] == [(0, "refused")] * 3
    assert all(len(line["reasons"]) > 1 for line in reports)


@pytest.mark.parametrize("model", [NARROW, apps.MODEL])
def test_honest_models_are_trained_on(model, tmp_path):
    client = guarding_client(tmp_path / "guard", model)
    for record in run(message_server(3, model), client, tmp_path, model=model).rounds:
        assert len(record.updates) == 3
        assert record.dropouts == ()
    assert decisions(tmp_path / "guard") == []
    files = list((tmp_path / "guard").glob("*.honest.json"))
    assert 1 <= len(files) <= 3  # of one architecture: single models, and pairs of few and of many


SEEDS = range(10, 15)  # the margins were set on others
HONEST = [(model, seed) for model in (MLP, apps.MODEL) for seed in SEEDS]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "seed"), HONEST)
def test_three_hundred_honest_models_are_trained_on(model, seed, tmp_path, monkeypatch):
    monkeypatch.setattr(apps, "start", lambda which=model: models.build(which, rng=Rng.root(seed)))
    client = guarding_client(tmp_path / "guard", model)
    rounds = run(message_server(10, model), client, tmp_path, model=model).rounds
    assert sum(len(record.updates) for record in rounds) == 30


def preflight_client(folder, **settings):
    return message_client(MLP, mods=[preflight_mod(MLP, reports=folder, **settings)])


def test_an_update_that_shows_examples_is_not_sent(tmp_path):
    strategy = Crafting()
    strategy.craft = bins
    record = run(message_server(1, MLP, strategy), preflight_client(tmp_path / "guard"), tmp_path).rounds[0]
    assert record.updates == ()
    reason = "refused by the client's guard: the update would show examples"
    assert [d.reason for d in record.dropouts] == [reason] * 3
    for line in decisions(tmp_path / "guard"):
        assert "of your 16 examples" in line["reasons"][1]
        assert line["reasons"][2].startswith("example ")


def test_an_update_is_sent_without_what_shows_examples(tmp_path, monkeypatch):
    monkeypatch.setattr(apps, "EXAMPLES", 64)  # of 16 digits more than half of an update would go
    small = Architecture.of("mlp", (1, 8, 8), 10, {**PLAIN, "hidden": 12})
    client = message_client(small, mods=[preflight_mod(small, reports=tmp_path / "guard", mitigated=True)])
    record = run(message_server(1, small), client, tmp_path, model=small).rounds[0]
    made = [line["decision"] for line in decisions(tmp_path / "guard")]
    assert "sent" in made  # an update of which more than half would go is not sent
    assert len(record.updates) == made.count("sent")
    clients = read_json(tmp_path / "run" / "nodes.json")  # in the order in which they were asked
    shards = {clients[str(node)]: apps.shard(number) for number, node in enumerate(NODES)}
    for update in record.updates:
        inputs, labels = shards[update.client]
        network = models.build(small)
        broadcast = record.broadcasts[0].tensors
        models.load(network, broadcast)
        change = {n: update.tensors[n] - broadcast[n] for n, _ in network.named_parameters()}
        assert not preflight(change, network, inputs, labels).leaks


def test_an_update_that_shows_few_enough_examples_is_sent(tmp_path):
    client = preflight_client(tmp_path / "guard", most=apps.EXAMPLES)
    assert len(run(message_server(1, MLP), client, tmp_path).rounds[0].updates) == 3
    assert [line["decision"] for line in decisions(tmp_path / "guard")] == ["sent"] * 3


def test_a_platform_guards_an_app_that_knows_nothing_of_it(tmp_path):
    strategy = Crafting()
    strategy.craft = bins
    reports = tmp_path / "guard"
    record = run(
        message_server(1, MLP, strategy),
        guarded(message_client(MLP), MLP, data=own_data, reports=reports),
        tmp_path,
    ).rounds[0]
    assert (record.updates, len(record.dropouts)) == ((), 3)


@pytest.mark.parametrize("crafted", [False, True])
def test_the_example_runs(crafted, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples" / "flower-guard")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delitem(sys.modules, "careful.client_app", raising=False)
    client, server = import_module("careful.client_app").app, import_module("careful.server_app").app
    settings = {"num-server-rounds": 2, "equal-rows": crafted}
    run_in_process(server, InProcessGrid(apps=dict.fromkeys(NODES, client), run_config=settings))
    made = [line["decision"] for line in decisions(tmp_path / "glasshouse" / "guard")]
    assert made == (["refused"] if crafted else ["sent"]) * 6


def test_a_guard_that_only_reports_lets_a_crafted_model_be_trained(tmp_path):
    strategy = Crafting()
    strategy.craft = trap_weights
    guarding = guard_mod(MLP, data=own_data, reports=tmp_path / "guard", on_finding="report")
    client = message_client(MLP, mods=[guarding])
    record = run(message_server(1, MLP, strategy), client, tmp_path).rounds[0]
    assert (len(record.updates), record.dropouts) == (3, ())
    lines = decisions(tmp_path / "guard")
    assert len(lines) == 3
    assert all(line["decision"] != "refused" for line in lines)
    assert all(any("would give away" in reason for reason in line["reasons"]) for line in lines)
