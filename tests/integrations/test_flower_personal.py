"""Captured apps whose messages leave layers out (FedBN, a head alone, LoRA), or hold numbers of 16 bits."""

import pytest
import torch
from flower_apps import BATCH, EXAMPLES, RATE, ServerApp, shard
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from tests.worlds import LABELS_OF_A_CAPTURE
from torch import nn

from glasshouse.audit.captured.collect import collect
from glasshouse.audit.captured.tables import captured_tables
from glasshouse.audit.captured.terms import TOLERANCE, check_terms
from glasshouse.audit.run import audit
from glasshouse.integrations.flower import capture, truth_mod
from glasshouse.integrations.flower.in_process import InProcessGrid, run_in_process
from glasshouse.models import build as models
from glasshouse.scenario.load import load
from glasshouse.settings import covers
from glasshouse.transcript.files import read_transcript
from glasshouse.truth.record import read_truth
from glasshouse.wire import Architecture

KINDS = {
    "fedbn": (
        Architecture.of("convnet", (1, 8, 8), 10, {"width": 4}),
        {"mode": "training", "personal": ["*bn*"]},
    ),
    "head": (Architecture.of("mlp", (1, 8, 8), 10), {"fixed": ["features"]}),
    "lora": (Architecture.of("lora_pictures:LoraNet", (1, 8, 8), 10), {"fixed": ["*.base_layer"]}),
    "half": (Architecture.of("mlp", (1, 8, 8), 10), {}),
}


def network(model):
    """The network as every party builds it."""
    return models.build(model)


def client(number, model, training, mods, *, half=False):
    """Keeps its own network over the rounds; sends what the terms say that travels."""
    app, mine = ClientApp(mods=mods), network(model)
    apart = (*training.get("personal", ()), *training.get("fixed", ()))

    @app.train()
    def _train(message, context):
        mine.load_state_dict(message.content["arrays"].to_torch_state_dict(), strict=False)
        mine.train()
        trained = [p for n, p in mine.named_parameters() if not covers(tuple(training.get("fixed", ())), n)]
        optimizer, loss = torch.optim.SGD(trained, lr=RATE), nn.CrossEntropyLoss()
        inputs, labels = shard(number)
        for rows in torch.arange(EXAMPLES).split(BATCH):
            optimizer.zero_grad()
            loss(mine(inputs[rows]), labels[rows]).backward()
            optimizer.step()
        state = {n: t for n, t in mine.state_dict().items() if not covers(apart, n)}
        state = {n: t.half() for n, t in state.items()} if half else state
        content = {"arrays": ArrayRecord(state), "metrics": MetricRecord({"num-examples": EXAMPLES})}
        return Message(RecordDict(content), reply_to=message)

    return app


@pytest.fixture(params=sorted(KINDS))
def run(request, tmp_path):
    model, training = KINDS[request.param]
    apart, server = (*training.get("personal", ()), *training.get("fixed", ())), ServerApp()

    @server.main()
    def _main(grid, context):
        start = {n: t for n, t in network(model).state_dict().items() if not covers(apart, n)}
        strategy = FedAvg(fraction_evaluate=0.0)
        strategy.start(grid=grid, initial_arrays=ArrayRecord(start), num_rounds=2)

    half = request.param == "half"
    apps = {10 + n: client(n, model, training, [truth_mod(tmp_path / "client")], half=half) for n in range(2)}
    terms = {"batch_size": BATCH, "learning_rate": RATE, "training": training}
    run_in_process(capture(server, tmp_path / "run", model=model, terms=terms), InProcessGrid(apps=apps))
    collect(tmp_path / "run", [tmp_path / "client"])
    return tmp_path / "run"


def test_what_does_not_travel_is_in_no_update_and_the_terms_are_checked(run, tmp_path):
    transcript = read_transcript(run / "transcript", trust_factory=True)
    training = transcript.terms.training
    for record in transcript.rounds:
        for update in record.updates:
            assert update.tensors
            apart = (*training.personal, *training.fixed)
            assert not [n for n in (*update.tensors, *update.buffers) if covers(apart, n)]
    checked = check_terms(run, transcript, read_truth(run / "truth"))
    assert checked.n == (2 if training.personal else 4)  # own layers are known before the first round only
    assert checked.error <= TOLERANCE, checked.suspect
    (tmp_path / "mine.toml").write_text(LABELS_OF_A_CAPTURE)
    suite = load(str(tmp_path / "mine.toml"), (), captured=captured_tables(run))
    (finding,) = audit(suite, out=tmp_path / "out", jobs=1).findings
    assert finding.n == 2
