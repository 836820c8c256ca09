"""Attacks on a device that is not the CPU: they run there, and claim what they claim on the CPU.

All of them, in the toy federations of their contract; the searches in several forms of their own.
"""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pretend_device import DEVICE, pretended

from glasshouse import registry
from glasshouse.attacks.inversion.dlg import DLG
from glasshouse.attacks.inversion.ggl.attack import GGL
from glasshouse.attacks.inversion.ggl.search import LatentSearch
from glasshouse.attacks.inversion.ggl.wgan import GeneratorTraining
from glasshouse.attacks.inversion.gradinversion.attack import GradInversion
from glasshouse.attacks.inversion.idlg import IDLG
from glasshouse.attacks.inversion.inverting_gradients import InvertingGradients
from glasshouse.attacks.inversion.label_inference import LabelInference
from glasshouse.attacks.inversion.linear_input import LinearInput
from glasshouse.attacks.parts.matching.exact import QuasiNewton
from glasshouse.attacks.parts.readout.columns import read_columns
from glasshouse.attacks.parts.readout.head_gradient import Inversion
from glasshouse.attacks.parts.search.adam import Descent
from glasshouse.attacks.parts.search.features import Distance
from glasshouse.attacks.transfer.nex import Nex
from glasshouse.audit.attacking.isolation import own_device, run_on
from glasshouse.executors.local import SHARING, processes_on
from glasshouse.federation.defenses.soteria import Soteria
from glasshouse.guard.layers.contributions import Contributions
from glasshouse.guard.layers.standing import find_examples
from glasshouse.guard.layers.trace import LayerTrace
from glasshouse.guard.rules.rows import identical_rows
from glasshouse.guard.vectors import vectors_of
from glasshouse.rng import Rng
from glasshouse.tensors import copy_to
from glasshouse.testing.toys import Recorder, toy
from glasshouse.transcript.grants import Grants
from glasshouse.transcript.record import Keep, Log
from glasshouse.wire import Batch

sys.path.append(str(Path(__file__).parents[1] / "contract"))
import test_attack_contract as contract

HEAD = {
    "protocol": "transfer",
    "model": "maui_cnn",
    "arguments": {"width": 4, "hidden": 32},
    "trained": "head.",
}
STEPS = {"examples": 2, "protocol": "fedavg", "batch_size": 1}
GENERATOR = {"latent": 4, "training": GeneratorTraining(width=4, steps=2, batch_size=4)}
PIXELS = Inversion(iterations=2, distance=Distance())
CASES = [
    (DLG(search=QuasiNewton(iterations=1, restarts=2), adaptive=True), {}),
    (IDLG(search=QuasiNewton(iterations=1, restarts=2)), {"examples": 2}),
    (InvertingGradients(search=Descent(iterations=3, restarts=2), adaptive=True), {"examples": 4}),
    (InvertingGradients(search=Descent(iterations=4, restarts=2)), STEPS),
    (
        GradInversion(search=Descent(iterations=3, restarts=2, schedule="warm_cosine", noise=0.2)),
        {"examples": 2},
    ),
    (LinearInput(), {}),
    (LabelInference(), {"examples": 4}),
    (GGL(**GENERATOR, search=LatentSearch(optimizer="adam", evaluations=3, restarts=2)), {}),
    (Nex(inversion=PIXELS), HEAD),
    (Nex(inversion=replace(PIXELS, invert="generator")), HEAD),
]
"""Searches, where a second step follows on the rounding of the first: few of them."""

ALONE = {n for n in contract.ours() if any(type(a) is registry.load("attacks", n) for a, _ in CASES)}
SHORT = {"maui": {"inversion": PIXELS}}
"""Where rounding would be amplified: the settings that replace the contract's."""


def same_claims(there, here, *, close=1e-3):
    assert [type(c) for c in there] == [type(c) for c in here]
    for one, other in zip(here, there, strict=True):
        for name, value in vars(one).items():
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(getattr(other, name), value, rtol=close, atol=close)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path / "here"))


def run_there(attack, view, monkeypatch, tmp_path):
    """Its claims on the pretended device, with nothing from the cache."""
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path / "there"))
    with pretended(monkeypatch):
        return copy_to(attack.run(copy_to(view, DEVICE), rng=Rng.root(0)), "cpu")


@pytest.mark.parametrize(("attack", "how"), CASES, ids=lambda x: getattr(type(x), "__name__", ""))
def test_an_attack_runs_where_its_view_lies(attack, how, monkeypatch, tmp_path):
    images = torch.rand((8, 1, 8, 8), generator=torch.Generator().manual_seed(0))
    auxiliary = Batch(inputs=images, labels=torch.arange(8))
    view = toy(**how).view(grants=Grants(auxiliary=auxiliary))
    here = attack.run(view, rng=Rng.root(0))
    same_claims(run_there(attack, view, monkeypatch, tmp_path), here)
    if torch.cuda.is_available():
        assert len(attack.run(copy_to(view, "cuda"), rng=Rng.root(0))) == len(here)


@pytest.mark.parametrize("name", sorted(contract.ours() - ALONE))
def test_an_attack_of_the_contract_runs_there(name, monkeypatch, tmp_path):
    """Sums of rounds, crafted models, logits: on the toy that its contract plays."""
    attack, view = contract.made(name)
    attack = replace(attack, **SHORT.get(name, {}))
    here = attack.run(view, rng=Rng.root(0))
    close = 1e-2 if name == "scale_mia" else 1e-3  # its decoder runs in bfloat16 where the CPU knows it
    same_claims(run_there(attack, view, monkeypatch, tmp_path), here, close=close)
    if torch.cuda.is_available():
        assert len(attack.run(copy_to(view, "cuda"), rng=Rng.root(0))) == len(here)


def test_clients_train_and_defend_there(monkeypatch):
    """What they send lies on the CPU again, and is what it is without a device."""
    arguments = {"clients": 2, "examples": 3, "protocol": "fedavg", "local_epochs": 2, "batch_size": 2}
    here = toy(**arguments, defenses=[Soteria(share=0.5)])
    with pretended(monkeypatch):
        there = play_on(DEVICE.type, here)
    for one, other in zip(here.transcript.rounds[0].updates, there.rounds[0].updates, strict=True):
        for name, tensor in one.tensors.items():
            torch.testing.assert_close(other.tensors[name], tensor, rtol=1e-4, atol=1e-6)


def play_on(device, played):
    """The federation of a toy again, with clients that compute on ``device``."""
    log = Log(terms=played.setting.terms, keep=Keep())
    runner = registry.load("protocols", played.setting.terms.protocol)()
    rng = Rng.root(0, salt="toy").child("federation")
    runner.play(replace(played.setting, device=device), recorder=Recorder(log), rng=rng)
    return log.transcript()


SEARCHES = (DLG, IDLG, InvertingGradients, GradInversion, GGL)


@pytest.mark.parametrize(
    ("attack", "how"), [c for c in CASES if isinstance(c[0], SEARCHES)], ids=lambda x: type(x).__name__
)
def test_a_search_asks_no_float64_of_a_device_without_it(attack, how, monkeypatch, tmp_path):
    """MPS computes in float32 alone; the widest sums are taken in what there is."""
    images = torch.rand((8, 1, 8, 8), generator=torch.Generator().manual_seed(0))
    auxiliary = Batch(inputs=images, labels=torch.arange(8))
    view = toy(**how).view(grants=Grants(auxiliary=auxiliary))
    monkeypatch.setattr("glasshouse.tensors.NARROW", {DEVICE.type})
    with pretended(monkeypatch, narrow=True):
        there = copy_to(attack.run(copy_to(view, DEVICE), rng=Rng.root(0)), "cpu")
    assert all(bool(claim.inputs.isfinite().all()) for claim in there if claim.kind == "reconstruction")


def test_what_a_device_lacks_is_done_on_the_cpu_with_a_word(monkeypatch, caplog):
    """The closed forms compute in float64: a device without it does not run them, and a note says so."""
    view = toy().view()
    attack = LinearInput()
    here = attack.run(view, rng=Rng.root(0))
    with pretended(monkeypatch, narrow=True):
        there = run_on(DEVICE.type, lambda d: attack.run(copy_to(view, d), rng=Rng.root(0)), subject="it")
    same_claims(there, here)
    assert "it runs on the CPU: the framework of this device doesn't support float64" in caplog.text


def test_an_error_of_the_attack_itself_is_not_blamed_on_the_device():
    def work(device):
        raise RuntimeError("shapes do not fit")

    with pytest.raises(RuntimeError, match="shapes"):
        run_on("cuda:0", work, subject="it")


def test_few_processes_share_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert processes_on("cuda", 64) == 2 * SHARING
    assert processes_on("cuda", 3) == 3
    assert own_device("cuda") in ("cuda:0", "cuda:1")


@pytest.mark.parametrize("name", contract.ACTIVE)
def test_a_server_crafts_there(name, monkeypatch, tmp_path):
    """What is trained for the crafted model is trained on the device."""
    attack, view = contract.made(name)
    before = replace(
        view, rounds=tuple(replace(r, updates={}, aggregate=None) for r in view.rounds), memory={}
    )
    here = attack.craft(before, rng=Rng.root(1))
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path / "there"))
    with pretended(monkeypatch):
        there = copy_to(attack.craft(copy_to(before, DEVICE), rng=Rng.root(1)), "cpu")
    for tensor, value in here.default.tensors.items():
        torch.testing.assert_close(there.default.tensors[tensor], value, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_columns_are_read_where_they_lie(noise, monkeypatch):
    g = torch.Generator().manual_seed(1)
    y, dz = torch.rand((3, 6), generator=g), torch.zeros(3, 40)
    dz[0, :2], dz[1, 2:4], dz[2, 4], dz[:, 5] = 1.0, -2.0, 3.0, 1.0  # alone, alone, alone once, mixed
    weight, bias = (x + noise * torch.randn(x.shape, generator=g) for x in (dz.T @ y, dz.sum(0)))
    here = read_columns(weight, bias, limit=3)
    with pretended(monkeypatch):
        there = read_columns(weight.to(DEVICE), bias.to(DEVICE), limit=3)
        vectors = there.vectors.cpu()
    assert len(here.vectors) == 3
    assert here.noisy == (noise > 0)
    torch.testing.assert_close(vectors, here.vectors)


def test_the_pretended_device_tells_devices_apart(monkeypatch):
    with pretended(monkeypatch):
        away = torch.ones(2).to(DEVICE)
        with pytest.raises(RuntimeError, match="on the CPU and on the other device"):
            away + torch.ones(2)
        with pytest.raises(RuntimeError, match="a generator of the CPU"):
            torch.rand(2, generator=torch.Generator(), device=DEVICE)
        with pytest.raises(RuntimeError, match="numpy"):
            away.numpy()
        assert (2 * away + torch.tensor(1.0)).tolist() == [3.0, 3.0]


def test_an_update_is_looked_at_where_it_lies(monkeypatch):
    """Rules and preflight on a device find what they find on the CPU."""
    g = torch.Generator().manual_seed(1)
    layer = torch.nn.Linear(24, 40)
    inputs, pulls = torch.rand((6, 24), generator=g), torch.randn((6, 40), generator=g)
    pulls[1:, :4], pulls[2:, 4:8] = 0, 0
    weight, bias = pulls.T @ inputs, pulls.sum(0)

    def look(device):
        trace = LayerTrace(
            name="1",
            layer=copy_to(layer, device),
            inputs=inputs.to(device),
            pulls=pulls.to(device),
        )
        leaks = [
            find_examples(
                weight.to(device),
                Contributions.of(trace, "input", is_exact=is_exact),
                bias=bias.to(device),
            )
            for is_exact in (True, False)
        ]
        vectors = vectors_of({"1.weight": weight.to(device), "1.bias": bias.to(device)})
        return leaks, [v.entropies.tolist() for v in vectors], identical_rows(vectors)

    here = look("cpu")
    with pretended(monkeypatch):
        there = look(DEVICE)
    assert {leak.example for leak in here[0][0]} >= {0, 1}
    assert there == here
