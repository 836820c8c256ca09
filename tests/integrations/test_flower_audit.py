"""A capture of a Flower run is audited like a simulation: attacks, nulls, controls, report."""

import dataclasses
import functools
import importlib
import json
import math
import re
import threading

import flower_apps as apps
import pytest
import torch
from flower_apps import message_client, message_server, numpy_client, workflow_server
from flwr.client.mod import secaggplus_mod
from flwr.clientapp.mod import LocalDpMod

from glasshouse.api.terms import terms as terms_of
from glasshouse.audit.captured.collect import collect
from glasshouse.audit.captured.tables import captured_tables
from glasshouse.audit.captured.terms import TOLERANCE, check_terms
from glasshouse.audit.run import audit
from glasshouse.audit.simulation.monitor import BothSides
from glasshouse.cli.main import main
from glasshouse.errors import BadFile, BadScenario, BadValue
from glasshouse.federation import unstated
from glasshouse.federation.client import LocalTraining
from glasshouse.federation.rounds import play
from glasshouse.federation.setting import Setting
from glasshouse.federation.unstated import Unstated
from glasshouse.integrations.flower import capture, truth_mod
from glasshouse.integrations.flower.in_process import InProcessGrid, run_in_process
from glasshouse.models.build import build
from glasshouse.report.html import write_html
from glasshouse.rng import Rng
from glasshouse.scenario.load import load
from glasshouse.settings import Optimizer
from glasshouse.store import read_json
from glasshouse.tensors import difference, norm
from glasshouse.transcript.files import read_transcript
from glasshouse.transcript.record import Keep, Log
from glasshouse.truth.record import read_truth
from glasshouse.wire import Batch, Terms

MINE = """
name = "mine"

[data]
source = "digits"
auxiliary = 200
auxiliary_split = "train"
heldout = 60
heldout_split = "train"

[[attacks]]
name = "label_inference"

[audit]
metrics = ["label_accuracy"]
rounds = [0]
controls = false
"""


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """A run of four clients, of which three are test clients."""
    folder = tmp_path_factory.mktemp("real")
    run(folder, terms=apps.TERMS)
    return folder


def run(
    folder, *, terms, recorded=3, client=message_client, server=message_server, mods=(), keep=None, **settings
):
    """Capture two rounds of four clients, of which the first ones record what they train on."""
    model = settings.get("model", apps.MODEL)
    test, plain = (client(mods=m, **settings) for m in ([*mods, truth_mod(folder / "client")], mods))
    grid = InProcessGrid(apps={100 + i: test if i < recorded else plain for i in range(4)})
    run_in_process(capture(server(rounds=2), folder / "run", model=model, terms=terms, keep=keep), grid)
    if recorded:
        collect(folder / "run", [folder / "client"])


def audited(real, tmp_path, *sets, text=MINE):
    (tmp_path / "mine.toml").write_text(text)
    suite = load(str(tmp_path / "mine.toml"), sets, captured=captured_tables(real / "run"))
    return audit(suite, out=tmp_path / "out", jobs=1)


def test_an_audit_of_a_capture_scores_the_test_clients(real, tmp_path, capsys):
    (tmp_path / "mine.toml").write_text(MINE)
    with pytest.raises(SystemExit):
        main(["audit", f"{tmp_path}/mine.toml", f"--captured={real}/run", f"--out={tmp_path}/o", "--json"])
    result = json.loads(capsys.readouterr().out)
    (finding,) = result["findings"]
    assert finding["n"] == 3
    assert 0 <= finding["value"] <= 1
    card = result["threats"][0]
    assert "4 clients, 4 per round, 2 rounds" in card["federation"]
    assert any("The declared training is the real one" in note for note in card["notes"])
    assert "No defence is declared, and no update shows one." in card["notes"]


def test_the_page_says_which_defence_ran(tmp_path):
    noise = LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=10.0, delta=1e-5)
    run(tmp_path, terms=apps.TERMS, mods=[noise])
    declared = '[[defenses]]\nname = "gaussian_noise"\nstd = {}\n\n[audit]'
    for std, ruling in ((0.484, "as declared"), (4.84, "mis-set")):
        place = tmp_path / ruling
        place.mkdir()
        text = MINE.replace("[audit]", declared.format(std))
        (note,) = [n for n in audited(tmp_path, place, text=text).threats[0].notes if "Defence check" in n]
        stated, observed = re.search(
            r"gaussian_noise, std: declared (\S+), observed (\d\.\d+),", note
        ).groups()
        assert float(stated) == std
        assert float(observed) == pytest.approx(0.484, rel=0.1)  # the mod draws from no seed
        assert f"{ruling} at 4 clients" in note


def test_images_that_a_test_client_trained_on_serve_nobody_else(real, tmp_path):
    with pytest.raises(BadValue, match="no image that a test client trained on"):
        audited(real, tmp_path, "data.auxiliary_split=test")


def test_a_scenario_beside_a_capture_states_no_federation(real, tmp_path):
    with pytest.raises(BadScenario, match="--captured says what federation ran"):
        audited(real, tmp_path, text=MINE + "\n[federation]\nclients = 3\n")


def test_without_truth_claims_are_not_scored(tmp_path):
    run(tmp_path, terms=apps.TERMS, recorded=0)
    result = audited(tmp_path, tmp_path)
    assert not result.findings
    assert any("4 claims, not scored" in refusal.got for refusal in result.refusals)
    assert any("not checked" in note for note in result.threats[0].notes)


WRONG = {
    "learning_rate: declared 0.5, about 0.05 fits": {"learning_rate": 0.5},
    "batch_size: declared 4": {"batch_size": 4},
    "local_epochs: declared 3": {"local_epochs": 3},
    "momentum: 0 fits": {"optimizer": {"momentum": 0.9}},
    "optimizer: sgd fits": {"optimizer": {"name": "adam"}, "learning_rate": apps.RATE},
}


@pytest.mark.parametrize("suspect", WRONG)
def test_training_that_is_not_the_declared_one_takes_the_power_and_is_named(suspect, tmp_path):
    run(tmp_path, terms={**apps.TERMS, **WRONG[suspect]})
    transcript = read_transcript(tmp_path / "run/transcript")
    checked = check_terms(tmp_path / "run", transcript, read_truth(tmp_path / "run/truth"))
    assert suspect in checked.suspect
    if "rate" in suspect or "momentum" in suspect:
        assert checked.error > 100 * TOLERANCE


def run_with_kept_optimizers(tmp_path):
    """A run in which each client's momentum goes on from round to round, against its terms."""
    running, kept = threading.local(), {}

    def note(message, context, call_next):
        running.number = context.node_config["partition-id"]
        return call_next(message, context)

    def carried(network):
        made = torch.optim.SGD(network.parameters(), lr=apps.RATE, momentum=0.9)
        if (before := kept.get(running.number)) is not None:
            made.load_state_dict(before.state_dict())
        kept[running.number] = made
        return made

    terms = {**apps.TERMS, "optimizer": {"momentum": 0.9}}
    run(tmp_path, terms=terms, mods=[note], optimizer=carried)


def test_a_kept_optimizer_is_seen_where_the_test_clients_first_rounds_are_as_many_as_are_repeated(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("glasshouse.audit.captured.terms.UPDATES", 3)  # of three clients, in two rounds
    run_with_kept_optimizers(tmp_path)
    checked = terms_of(tmp_path / "run").checked
    assert "the optimizer keeps its state from round to round" in checked.suspect
    assert (checked.n, checked.since) == (3, 1)


def test_an_optimizer_made_once_holds_the_terms_in_the_first_round_alone(tmp_path):
    run_with_kept_optimizers(tmp_path)
    checked = terms_of(tmp_path / "run").checked
    assert "the optimizer keeps its state from round to round" in checked.suspect
    assert (checked.n, checked.since) == (6, 1)
    verdicts = []
    for rounds in ("[0]", "[0,1]"):
        place = tmp_path / rounds
        place.mkdir()
        result = audited(tmp_path, place, f"audit.rounds={rounds}")
        verdicts += [finding.verdict == "no power" for finding in result.findings]
        assert any("is the real one before round 1 only" in note for note in result.threats[0].notes)
    assert verdicts == [False, True]


class Shaken(torch.optim.SGD):
    """Steps that nothing repeats."""

    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            parameter.grad *= torch.rand_like(parameter) * 4
        return super().step(closure)


def test_a_repetition_that_diverges_fits_nothing(tmp_path, monkeypatch):
    # as L-BFGS does on some batches: its error is no number, and must not be read as none
    away = Unstated(words="a step too far", optimizer=lambda p, _: torch.optim.SGD(p, lr=math.inf))
    monkeypatch.setattr(unstated, "UNSTATED", (away,))
    run(tmp_path, terms=apps.TERMS, optimizer=lambda network: Shaken(network.parameters(), lr=apps.RATE))
    assert "no single term explains it" in terms_of(tmp_path / "run").checked.suspect


def test_the_page_names_the_wrong_term(tmp_path):
    run(tmp_path, terms={**apps.TERMS, "learning_rate": 0.5})
    (finding,) = audited(tmp_path, tmp_path).findings
    assert finding.verdict == "no power"
    page = write_html(tmp_path / "out").read_text(encoding="utf-8")
    assert "the declared training is not the real one (learning_rate: declared 0.5, about 0.05 fits)" in page


NETS = """
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.fc = nn.Linear(256, 10)

    def forward(self, x):
        return self.fc(self.bn(self.conv(x)).relu().flatten(1))
"""


def test_ones_own_network_with_batch_norm_and_normalised_images(tmp_path, monkeypatch):
    (tmp_path / "my_nets.py").write_text(NETS)
    monkeypatch.syspath_prepend(tmp_path)
    own = importlib.import_module("my_nets").Net
    model = dataclasses.replace(apps.MODEL, name="my_nets:Net", arguments={"mean": 0.5, "std": 0.25})
    server = functools.partial(message_server, model=model)
    terms = {**apps.TERMS, "options": {"dropout": True}}  # clients train in training mode
    run(tmp_path, terms=terms, model=model, server=server, network=own, normalize=(0.5, 0.25))
    transcript = read_transcript(tmp_path / "run/transcript", trust_factory=True)
    update = transcript.rounds[0].updates[0]
    assert set(update.buffers) == {"bn.running_mean", "bn.running_var", "bn.num_batches_tracked"}
    truth = read_truth(tmp_path / "run/truth")
    assert torch.equal(truth.private.inputs[:8], apps.shard(0)[0][:8])
    checked = check_terms(tmp_path / "run", transcript, truth)
    assert (checked.n, checked.suspect) == (6, "")
    inversion = '[[attacks]]\nname = "inverting_gradients"\nsearch.iterations = 4\n\n'
    text = MINE.replace("[audit]", inversion + "[audit]")
    result = audited(tmp_path, tmp_path, text=text.replace('"label_accuracy"', '"label_accuracy", "psnr"'))
    assert {f.attack for f in result.findings} == {"label_inference", "inverting_gradients"}


def test_terms_are_checked_where_updates_are_masked(tmp_path):
    secure = functools.partial(workflow_server, secure=True)
    run(tmp_path, terms=apps.TERMS, recorded=4, client=numpy_client, server=secure, mods=[secaggplus_mod])
    assert captured_tables(tmp_path / "run")["federation"]["secure_sum"]
    transcript = read_transcript(tmp_path / "run/transcript")
    checked = check_terms(tmp_path / "run", transcript, read_truth(tmp_path / "run/truth"))
    assert (checked.n, checked.suspect) == (8, "")


@pytest.mark.parametrize("loss", [apps.called_loss, apps.told_loss])
def test_a_client_whose_loss_is_no_module(loss, tmp_path):
    run(tmp_path, terms=apps.TERMS, loss=loss)
    transcript = read_transcript(tmp_path / "run/transcript")
    checked = check_terms(tmp_path / "run", transcript, read_truth(tmp_path / "run/truth"))
    assert (checked.n, checked.suspect) == (6, "")


def test_collecting_says_what_came_together(real, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["collect", str(real / "run"), str(real / "client")])
    assert stop.value.code == 0
    assert "48 examples of 3 clients, 6 updates" in capsys.readouterr().out


def test_a_folder_that_holds_no_update_is_refused(tmp_path):
    run(tmp_path, terms=apps.TERMS, recorded=0, keep=Keep(updates=frozenset()))
    with pytest.raises(BadFile, match="at least one update"):
        captured_tables(tmp_path / "run")


OPTIMIZERS = {
    "sgd": (Optimizer(), lambda net: torch.optim.SGD(net.parameters(), lr=apps.RATE)),
    "momentum": (
        Optimizer(momentum=0.9, weight_decay=0.01),
        lambda net: torch.optim.SGD(net.parameters(), lr=apps.RATE, momentum=0.9, weight_decay=0.01),
    ),
    "adam": (Optimizer(name="adam"), lambda net: torch.optim.Adam(net.parameters(), lr=apps.RATE)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_our_simulation_sends_what_flowers_clients_send(name, tmp_path):
    ours, theirs = OPTIMIZERS[name]
    terms = Terms(
        **{**apps.TERMS, "local_epochs": 2},
        protocol="fedavg",
        architecture=apps.MODEL,
        sends="delta",
        clients=4,
        cohort=4,
        optimizer=ours,
    )

    def order(number, client):
        stream = Rng.root(0).child(f"round/{number}").child(f"client/{client}").child("train").child("order")
        return list(LocalTraining.of(terms, round=number).schedule(apps.EXAMPLES, rng=stream))

    run(tmp_path, terms={"batch_size": apps.BATCH}, recorded=0, order=order, optimizer=theirs)
    seen = read_transcript(tmp_path / "run/transcript")
    clients = read_json(tmp_path / "run/nodes.json")
    shards = [apps.shard(client) for client in range(4)]
    setting = Setting(
        terms=terms,
        rounds=2,
        private=Batch(inputs=torch.cat([x for x, _ in shards]), labels=torch.cat([y for _, y in shards])),
        shards=torch.arange(4 * apps.EXAMPLES).split(apps.EXAMPLES),
        start=seen.rounds[0].broadcasts[0].tensors,
        build=build,
    )
    log = Log(terms=terms)
    play(setting, recorder=BothSides(log=log), rng=Rng.root(0))
    for captured, simulated in zip(seen.rounds, log.transcript().rounds, strict=True):
        received = captured.broadcasts[0].tensors
        sent = {update.client: update.tensors for update in captured.updates}
        for update in simulated.updates:
            theirs_sent = sent[clients[str(100 + update.client)]]
            real = {n: theirs_sent[n] - received[n] for n in update.tensors}
            error = norm(difference(real, update.tensors)) / norm(real)
            assert error <= (0 if update.round == 0 else 5e-6)  # the server's mean is rounded differently
