"""A malicious server's model travels through Flower, is captured, and the audit scores what it took."""

from functools import partial

import pytest
import torch
from flower_apps import DIGITS
from flwr.client.mod import secaggplus_mod
from reproduce.flower_apps import RATE, Crafting, MaliciousFedAvg, numpy_client, secure_server

from glasshouse.attacks.linear.scale_mia.attack import ScaleMia
from glasshouse.attacks.linear.scale_mia.autoencoder import AutoencoderTraining
from glasshouse.audit.captured.collect import collect
from glasshouse.audit.captured.tables import captured_tables
from glasshouse.audit.run import audit
from glasshouse.integrations.flower import capture, truth_mod
from glasshouse.integrations.flower.in_process import InProcessGrid, run_in_process
from glasshouse.models import build as models
from glasshouse.rng import Rng
from glasshouse.scenario.load import load
from glasshouse.store import write_tensors
from glasshouse.transcript.files import read_transcript
from glasshouse.transcript.grants import Grants
from glasshouse.transcript.threat import Threat
from glasshouse.transcript.view import RoundView, View
from glasshouse.wire import Architecture, Broadcast, Terms

MODEL = Architecture.of("scale_mia_cnn", (1, 8, 8), 10, {"bins": 128})
ROUNDS, CLIENTS, EACH = 4, 3, 4
SCENARIO = """
name = "crafted"

[data]
source = "digits"
auxiliary = 800
auxiliary_split = "train"
heldout = 60
heldout_split = "train"

[threat]
changes = ["parameters"]

[[attacks]]
name = "scale_mia"
training.steps = 1500

[audit]
metrics = ["rate_blind"]
rounds = [0, 1, 2, 3]
controls = false
"""


def digits(split, rows):
    return DIGITS.splits[split].batch(rows)


@pytest.fixture(scope="module")
def malicious():
    """What the server does, which never sees the clients' images: they are of the other split."""
    terms = Terms(
        protocol="fedavg",
        architecture=MODEL,
        sends="parameters",
        clients=CLIENTS,
        cohort=CLIENTS,
        batch_size=EACH,
        learning_rate=RATE,
        secure_sum=True,
    )
    start = models.state(models.build(MODEL, rng=Rng.root(1)))
    view = View(
        terms=terms,
        threat=Threat(changes=frozenset({"parameters"})),
        rounds=(RoundView(round=0, broadcast=Broadcast(round=0, architecture=MODEL, tensors=start)),),
        grants=Grants(auxiliary=digits("train", torch.arange(800))),
    )
    return Crafting(ScaleMia(training=AutoencoderTraining(steps=1500)), view)


def test_a_crafted_model_is_captured_and_what_it_took_is_scored(malicious, tmp_path):
    shards = [digits("test", rows) for rows in torch.arange(CLIENTS * ROUNDS * EACH).split(ROUNDS * EACH)]
    client = partial(numpy_client, each=EACH)(MODEL, shards, [secaggplus_mod, truth_mod(tmp_path / "client")])
    fine = {"max_weight": float(EACH), "clipping_range": 0.01}  # at Flower's defaults the step drowns
    server = secure_server(MaliciousFedAvg(malicious), ROUNDS, **fine)
    terms = {"batch_size": EACH, "learning_rate": RATE}
    grid = InProcessGrid(apps=dict.fromkeys(range(1, CLIENTS + 1), client))
    run_in_process(capture(server, tmp_path / "run", model=MODEL, terms=terms), grid)
    collect(tmp_path / "run", [tmp_path / "client"])
    write_tensors(tmp_path / "run/adversary/memory.safetensors", malicious.memory)
    first, *later = read_transcript(tmp_path / "run/transcript").rounds
    for record in later:  # crafted anew, whatever the clients made of it
        sent, before = record.broadcasts[0].tensors, first.broadcasts[0].tensors
        assert torch.equal(sent["features.fc1.bias"], before["features.fc1.bias"])
    (tmp_path / "mine.toml").write_text(SCENARIO)
    suite = load(str(tmp_path / "mine.toml"), captured=captured_tables(tmp_path / "run"))
    (finding,) = audit(suite, out=tmp_path / "out", jobs=1).findings
    assert (finding.attack, finding.metric, finding.n) == ("scale_mia", "rate_blind", ROUNDS)
    assert finding.value - finding.baseline_value > 0.3
    assert finding.low <= finding.value <= finding.high
