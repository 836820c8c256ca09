"""FLARE's messages as they were seen in a job: recorded, named, and read again."""

import json

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("nvflare")

import nvflare.client as flare
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.app_common.abstract.statistics_spec import Bin, Histogram, HistogramType
from nvflare.app_common.statistics.statisitcs_objects_decomposer import fobs_registration
from nvflare.fuel.utils import fobs

from glasshouse.errors import BadValue
from glasshouse.integrations.nvflare import CaptureResults, CaptureTasks, capture
from glasshouse.integrations.nvflare.messages import take_apart
from glasshouse.integrations.nvflare.truth import recorded, truth
from glasshouse.transcript.files import describe_architecture, read_transcript
from glasshouse.truth.recorded import read_recorded
from glasshouse.wire import Architecture


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        return self.fc(x.flatten(1))


ARCHITECTURE = json.loads(json.dumps(describe_architecture(Architecture.of(f"{__name__}:Net", (1, 2, 2), 3))))
TERMS = {"batch_size": 2, "learning_rate": 0.5}


def weights(value=0.0):
    return {"fc.weight": np.full((3, 4), value, np.float32), "fc.bias": np.full(3, value, np.float32)}


def context(client, task="train"):
    ctx, peer = FLContext(), FLContext()
    peer.set_prop(ReservedKey.IDENTITY_NAME, client, private=False)
    ctx.set_peer_context(peer)
    ctx.set_prop(FLContextKey.TASK_NAME, task)
    return ctx


def message(data, kind=DataKind.WEIGHTS, *, round=None, **meta):
    made = DXO(data_kind=kind, data=data, meta=meta).to_shareable()
    if round is not None:
        made.set_header("current_round", round)
    return made


def pair(folder, architecture=ARCHITECTURE):
    arguments = (str(folder), architecture, TERMS)
    return CaptureTasks(*arguments), CaptureResults(*arguments)


def lines(folder):
    return [json.loads(line) for line in (folder / "messages.jsonl").read_text().splitlines()]


def test_models_and_updates_become_a_transcript(tmp_path):
    tasks, results = pair(tmp_path / "c")
    for client in ("a", "b"):
        sent = message(weights(), round=0)
        assert tasks.process(sent, context(client)) is sent
    for client, value, steps in (("a", 1.0, 1), ("b", 2.0, 3)):
        meta = {"NUM_STEPS_CURRENT_ROUND": steps, "initial_metrics": {"accuracy": 0.5}}
        results.process(message(weights(value), **meta), context(client))
    tasks.process(message(weights(1.75), round=1), context("a"))
    transcript = read_transcript(tmp_path / "c" / "transcript", trust_factory=True)
    first = transcript.rounds[0]
    assert len(first.broadcasts) == 1
    assert [(u.client, u.steps, u.examples) for u in first.updates] == [(0, 1, 2), (1, 3, 6)]
    assert [m.values["meta.initial_metrics.accuracy"] for m in first.metrics] == [0.5, 0.5]
    mean = sum(u.steps * u.tensors["fc.bias"] for u in first.updates) / 4
    assert torch.equal(mean, transcript.rounds[1].broadcasts[0].tensors["fc.bias"])
    assert json.loads((tmp_path / "c" / "nodes.json").read_text()) == {"a": 0, "b": 1}


def test_a_change_is_recorded_as_one(tmp_path):
    tasks, results = pair(tmp_path / "c")
    tasks.process(message(weights(), round=0), context("a"))
    results.process(message(weights(0.25), DataKind.WEIGHT_DIFF), context("a"))
    transcript = read_transcript(tmp_path / "c" / "transcript", trust_factory=True)
    assert transcript.terms.sends == "delta"
    assert transcript.rounds[0].updates[0].kind == "delta"


def test_a_failure_is_a_drop_out(tmp_path):
    tasks, results = pair(tmp_path / "c")
    for client in ("a", "b"):
        tasks.process(message(weights(), round=0), context(client))
    results.process(make_reply(ReturnCode.EXECUTION_EXCEPTION), context("a"))
    tasks.process(message(weights(), round=1), context("a"))
    dropped = read_transcript(tmp_path / "c" / "transcript", trust_factory=True).rounds[0].dropouts
    assert [(d.client, d.reason) for d in dropped] == [(0, "EXECUTION_EXCEPTION"), (1, "")]


def test_trees_are_stored_as_they_are(tmp_path):
    _, results = pair(tmp_path / "c", None)
    results.process(message({"model_data": b"tree one"}), context("a"))
    results.process(message({"model_data": b"tree one"}), context("b"))
    names = {line["payloads"]["data.model_data"] for line in lines(tmp_path / "c")}
    assert [(tmp_path / "c" / "payloads" / name).read_bytes() for name in names] == [b"tree one"]
    assert not (tmp_path / "c" / "transcript").exists()


def test_statistics_are_decoded():
    fobs_registration()
    histogram = Histogram(HistogramType.STANDARD, [Bin(0.0, 1.0, 7)])
    statistics = fobs.dumps({"count": {"train": {"age": 7}}, "histogram": {"train": {"age": histogram}}})
    data = {"fed_stats_task_key": "fed_stats_1st_statistics", "fed_stats_1st_statistics": statistics}
    values = take_apart(message(data, DataKind.STATISTICS)).values
    assert values["data.fed_stats_1st_statistics.count.train.age"] == 7
    assert 7 in {value for name, value in values.items() if "histogram" in name}


def test_a_collection_and_metrics_are_taken_apart():
    inner = DXO(data_kind=DataKind.METRICS, data={"loss": 0.25})
    parts = take_apart(message({"mine": inner}, DataKind.COLLECTION))
    assert parts.kind == "COLLECTION"
    assert parts.values["data.mine.data.loss"] == 0.25


def test_an_array_in_meta_is_seen_but_is_no_tensor_of_the_model():
    parts = take_apart(message(weights(), secret=np.arange(5.0)))
    assert parts.arrays["meta.secret"].shape == (5,)


def test_a_message_without_a_dxo_is_read():
    parts = take_apart(Shareable({"note": "text", "n": 3}))
    assert (parts.kind, parts.values) == ("", {"note": "text", "n": 3})


class Recipe:
    train_args = "--batch_size 8 --epochs 2 --lr 0.1"

    def __init__(self):
        self.added = []

    def add_server_output_filter(self, one, tasks):
        self.added.append((one, tasks))

    add_server_input_filter = add_server_output_filter


def test_terms_come_from_the_scripts_arguments(tmp_path):
    recipe = Recipe()
    capture(recipe, tmp_path / "c", model=(Net, (1, 2, 2), 3))
    assert [type(one).__name__ for one, _ in recipe.added] == ["CaptureTasks", "CaptureResults"]
    assert recipe.added[0][0].terms == {"batch_size": 8, "local_epochs": 2, "learning_rate": 0.1}
    assert recipe.added[0][0].architecture == ARCHITECTURE


def test_a_star_is_no_task(tmp_path):
    with pytest.raises(BadValue, match="no message would be seen"):
        capture(Recipe(), tmp_path / "c", tasks=["*"])


def test_no_batch_size_is_said_before_the_job(tmp_path):
    recipe = Recipe()
    recipe.train_args = ""
    with pytest.raises(BadValue, match="batch_size"):
        capture(recipe, tmp_path / "c", model=(Net, (1, 2, 2), 3))


class Api:
    """Stands in for FLARE's client API: two rounds, nothing travels."""

    def __init__(self):
        self.models = [flare.FLModel(params=weights(), current_round=r, params_type="FULL") for r in (0, 1)]
        self.sent = []

    def receive(self, timeout=None):
        return self.models[0] if self.models else None

    def send(self, model, clear_cache=True):
        self.models.pop(0)
        self.sent.append(model)

    def get_site_name(self):
        return "ward-3"


def train(net, count):
    net.train()
    for _ in range(count):
        loss = nn.functional.cross_entropy(net(torch.rand(2, 1, 2, 2)), torch.tensor([0, 1]))
        loss.backward()


def test_a_script_records_what_it_trains_on(tmp_path, monkeypatch):
    api, net = Api(), Net()
    monkeypatch.setattr(flare.api, "get_context", lambda ctx=None: type("C", (), {"api": api}))
    truth(tmp_path)
    for count in (1, 2):
        flare.receive()
        train(net, count)
        flare.send(flare.FLModel(params=net.state_dict()))
    seen = list(read_recorded(tmp_path))
    assert [(one.node, one.round, len(one.steps)) for one in seen] == [("ward-3", 0, 1), ("ward-3", 1, 2)]
    assert torch.equal(seen[0].sent["fc.bias"], net.state_dict()["fc.bias"])
    assert len(api.sent) == 2


def test_an_executor_records_around_a_round(tmp_path):
    net = Net()
    with recorded(tmp_path, site="a", round=4) as sent:
        train(net, 1)
        sent.update(net.state_dict())
    (one,) = read_recorded(tmp_path)
    assert (one.node, one.round, sorted(one.sent)) == ("a", 4, ["fc.bias", "fc.weight"])


def test_an_exported_job_holds_none_of_our_code(tmp_path):
    from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe

    (tmp_path / "script.py").write_text("from glasshouse.integrations.nvflare import truth")
    recipe = FedAvgRecipe(
        name="small", model=Net(), min_clients=1, num_rounds=1, train_script=str(tmp_path / "script.py")
    )
    capture(recipe, tmp_path / "c", model=(Net, (1, 2, 2), 3), terms=TERMS)
    recipe.export(str(tmp_path / "jobs"))
    assert list((tmp_path / "jobs").rglob("config_fed_server.json"))
    assert not list((tmp_path / "jobs").rglob("custom/glasshouse"))


def test_a_server_without_code_of_its_own_is_sent_a_file(tmp_path):
    """Or FLARE holds the capture's filters to its list of classes, and ends the job."""
    from nvflare.app_common.np.np_model_persistor import NPModelPersistor  # any component that FLARE ships
    from nvflare.job_config.api import FedJob
    from nvflare.recipe.spec import Recipe

    job = FedJob(name="plain", min_clients=1)
    job.to_server(NPModelPersistor(), id="persistor")
    recipe = Recipe(job)
    capture(recipe, tmp_path / "c", tasks=("fed_stats",))
    recipe.export(str(tmp_path / "jobs"))
    (server,) = {path.parents[1] for path in (tmp_path / "jobs").rglob("config_fed_server.json")}
    assert [path.name for path in (server / "custom").iterdir()] == ["CAPTURED.txt"]
