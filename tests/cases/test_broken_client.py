"""One client of a captured federation sends NaN; its server drops it, and everybody else is audited."""

import math

import pytest
import torch
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from tests.worlds import LABELS_OF_A_CAPTURE
from torch import nn
from torch.nn import functional as F

import glasshouse as gh
from glasshouse.audit.captured.collect import collect
from glasshouse.audit.captured.tables import captured_tables
from glasshouse.audit.run import audit
from glasshouse.data.sources import load as load_source
from glasshouse.errors import BadValue
from glasshouse.integrations.flower import capture, truth_mod
from glasshouse.integrations.flower.in_process import InProcessGrid, run_in_process
from glasshouse.models import build as models
from glasshouse.scenario.load import load
from glasshouse.transcript.files import read_transcript
from glasshouse.wire import Architecture

MODEL = Architecture.of("mlp", (1, 8, 8), 10)
BROKEN, NODES = 11, (10, 11, 12)


def not_a_number(state):
    """fp16 overflow, a batch without labels."""
    return {name: t * math.nan for name, t in state.items()}


def infinite_in_one_place(state):
    """One entry that overflowed."""
    broken = {name: t.clone() for name, t in state.items()}
    broken["head.bias"][0] = math.inf
    return broken


def of_another_model(state):
    """A client that was not updated to the model of today."""
    return {name: t[:-1] if name == "head.bias" else t for name, t in state.items()}


def with_a_part_missing(state):
    """A message that was cut off."""
    return dict(list(state.items())[:-1])


BREAKS = {
    not_a_number: "not finite: 'features.fc1.weight': ",
    infinite_in_one_place: "not finite: 'head.bias': 1 of 10 entries",
    of_another_model: "sent an update of another model",
    with_a_part_missing: "sent a part of what the others do: ",
}


def client(node, mods, spoil):
    """One step of SGD on four digits of its own; the broken one spoils its state."""
    app, split = ClientApp(mods=mods), load_source("digits").splits["test"]

    @app.train()
    def _train(message, context):
        network, batch = models.build(MODEL), split.batch(torch.arange(4) + 4 * (node - 10))
        network.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        nn.CrossEntropyLoss()(network(batch.inputs), batch.labels).backward()
        optimizer.step()
        state = network.state_dict()
        state = spoil(state) if node == BROKEN else state
        content = {"arrays": ArrayRecord(state), "metrics": MetricRecord({"num-examples": 4})}
        return FlowerMessage(RecordDict(content), reply_to=message)

    return app


class Dropping(FedAvg):
    """FedAvg that leaves out replies that are not finite or of another shape."""

    def aggregate_train(self, server_round, replies):
        shapes = [t.shape for t in models.build(MODEL).state_dict().values()]

        def sound(reply):
            tensors = reply.content["arrays"].to_torch_state_dict().values()
            return [t.shape for t in tensors] == shapes and all(bool(t.isfinite().all()) for t in tensors)

        return super().aggregate_train(server_round, [r for r in replies if sound(r)])


@pytest.fixture(scope="module", params=BREAKS, ids=lambda spoil: spoil.__name__)
def run(request, tmp_path_factory):
    folder, server = tmp_path_factory.mktemp("broken"), ServerApp()

    @server.main()
    def _main(grid, context):
        start = ArrayRecord(models.build(MODEL).state_dict())
        Dropping(fraction_evaluate=0.0).start(grid=grid, initial_arrays=start, num_rounds=2)

    terms = {"batch_size": 4, "learning_rate": 0.1}
    grid = InProcessGrid(
        apps={node: client(node, [truth_mod(folder / "client")], request.param) for node in NODES}
    )
    run_in_process(capture(server, folder / "run", model=MODEL, terms=terms), grid)
    collect(folder / "run", [folder / "client"])
    return folder / "run", BREAKS[request.param]


def test_the_broken_update_is_noted_like_a_dropout(run):
    for record in read_transcript(run[0] / "transcript").rounds:
        assert len(record.updates) == 2
        (dropped,) = record.dropouts
        assert dropped.client not in {u.client for u in record.updates}
        assert run[1] in dropped.reason


def test_everybody_else_is_audited(run, tmp_path):
    (tmp_path / "mine.toml").write_text(LABELS_OF_A_CAPTURE)
    suite = load(str(tmp_path / "mine.toml"), (), captured=captured_tables(run[0]))
    result = audit(suite, out=tmp_path / "out", jobs=1)
    (finding,) = result.findings
    assert finding.n == 2
    notes = result.threats[0].notes
    assert any("The declared training is the real one" in note for note in notes)
    assert any(note.startswith("Left out, the others are audited: client ") for note in notes)


def test_a_view_refuses_nan_at_once():
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    loss = F.cross_entropy(network(torch.rand(1, 1, 8, 8)), torch.tensor([2]))
    update = [g * math.nan for g in torch.autograd.grad(loss, list(network.parameters()))]
    with pytest.raises(BadValue, match=r"'1\.weight': 256 of 256 entries not finite"):
        gh.view(network, update, input_shape=(1, 8, 8))
