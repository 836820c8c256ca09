"""Apps whose network rebuilds its own input, and one of more outputs than classes, are audited, too."""

import pytest
import torch
from real_apps import (
    EXAMPLES,
    App,
    Autoencoder,
    Rebuilding,
    Variational,
    Wide,
    loader,
    train_autoencoder,
    train_sgd,
    train_variational,
    variational,
)
from torch.nn import functional

import glasshouse as gh
from glasshouse.audit.captured.collect import collect
from glasshouse.audit.captured.documents import targets_of
from glasshouse.audit.captured.terms import TOLERANCE
from glasshouse.errors import BadValue
from glasshouse.integrations.flower import capture, truth_mod
from glasshouse.integrations.flower.in_process import InProcessGrid, run_in_process
from glasshouse.models.adapt import adapt
from glasshouse.tasks.classification import Classification
from glasshouse.tasks.reconstruction import Reconstruction
from glasshouse.tasks.regression import Regression
from glasshouse.truth.record import read_truth

PICTURE = (1, 8, 8)
VARIATIONAL = Reconstruction(size=PICTURE, mean=0.5, std=0.5, latent=3, kl=0.05)
APPS = {
    "autoencoder": App(train=train_autoencoder, network=Autoencoder, audited=Rebuilding),
    "variational": App(train=train_variational, network=Variational, audited=variational),
}
STEPPING = {"autoencoder": (None, "adam", 1e-3), "variational": (0.5, "sgd", 0.1)}
TASKS = {"autoencoder": Reconstruction(size=PICTURE), "variational": VARIATIONAL}


def captured(app, folder, task, normalize=None):
    clients = {10 + n: app.client(n, [truth_mod(folder / "client")]) for n in range(2)}
    pixels = None if normalize is None else (normalize, normalize)
    model = (app.audited or app.network, PICTURE, task)
    run_in_process(
        capture(app.server(), folder / "run", model=model, normalize=pixels), InProcessGrid(apps=clients)
    )
    collect(folder / "run", [folder / "client"])
    return folder / "run"


def audited(place, out, attacks=(), **audit):
    scenario = {
        "name": "real",
        **({"attacks": list(attacks)} if attacks else {}),
        "data": {"source": "digits", "auxiliary": 40, "heldout": 20},
        "audit": {"controls": False, "utility": False, **audit},
    }
    scenario["data"] |= {"auxiliary_split": "train", "heldout_split": "train"}
    return gh.audit(scenario, captured=place, out=out, jobs=1, register=False)


@pytest.mark.parametrize("name", APPS)
def test_an_autoencoder_is_captured_repeated_and_attacked(name, tmp_path):
    normalize, optimizer, rate = STEPPING[name]
    place = captured(APPS[name], tmp_path, TASKS[name], normalize)
    found = gh.terms(place)
    assert (found.terms.optimizer.name, found.terms.learning_rate) == (optimizer, pytest.approx(rate))
    assert found.checked.n == 4
    assert found.checked.error <= TOLERANCE, found.checked.suspect
    assert all(attack in found.runs for attack in ("inverting_gradients", "gradinversion"))
    private = read_truth(place / "truth").private.inputs
    assert tuple(private.shape) == (2 * EXAMPLES, *PICTURE)
    assert 0 <= float(private.min()) <= float(private.max()) <= 1
    search = {"name": "inverting_gradients", "search": {"iterations": 10, "restarts": 1}}
    findings = audited(place, tmp_path / "out", attacks=[search], metrics=["psnr"]).findings
    assert {f.n for f in findings if f.attack == "inverting_gradients"} == {2}


def test_a_network_of_more_outputs_than_classes_is_audited(tmp_path):
    place = captured(App(train=train_sgd, network=Wide), tmp_path, 40)
    assert gh.terms(place).checked.error <= TOLERANCE
    findings = audited(place, tmp_path / "out", metrics=["label_accuracy"], budget="2 s").findings
    assert {f.n for f in findings if f.attack == "label_inference"} == {2}


def test_a_normalisation_beside_an_adapted_network_is_not_lost():
    network = adapt(adapt(Wide()), normalize=(0.5, 0.25))
    assert float(network.normalize.std) == 0.25
    with pytest.raises(BadValue, match="given once"):
        adapt(network, normalize=(0.5, 0.25))


def test_labels_of_binary_cross_entropy_are_classes_of_a_network_with_two_logits():
    """Floats in a column, as ``BCELoss`` takes them; a task of numbers keeps its floats."""
    column = torch.tensor([[0.0], [1.0], [1.0]])
    assert targets_of(column, 3, Classification(classes=2)).tolist() == [0, 1, 1]
    assert targets_of(column, 3, Regression()).tolist() == [0.0, 1.0, 1.0]
    assert targets_of(torch.rand(3, 1, 8, 8), 3, Reconstruction(size=PICTURE)).tolist() == [0, 0, 0]


def test_a_client_that_steps_without_an_optimizer_of_torch_says_so(tmp_path, caplog):
    def step_by_hand(net, number, config):
        for images, labels in loader(number):
            functional.cross_entropy(net(images), labels).backward()
            with torch.no_grad():
                for p in net.parameters():
                    p -= 0.1 * p.grad
                    p.grad = None
        return EXAMPLES

    captured(App(train=step_by_hand, network=Wide), tmp_path, 40)
    assert "no optimizer of torch.optim took its steps" in caplog.text
