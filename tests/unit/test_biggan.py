"""BigGAN as a generator of GGL, with a stand-in for its package: what is refused, and what the label does."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from glasshouse.attacks.inversion.ggl import generators
from glasshouse.attacks.inversion.ggl.wgan import GeneratorTraining
from glasshouse.audit.attacking.call import AttackTask, run_attack
from glasshouse.audit.attacking.claims import Unit, read_outcome
from glasshouse.audit.attacking.needs import threat_of
from glasshouse.audit.simulation.group import Group, simulate
from glasshouse.errors import Inapplicable, NotInstalled
from glasshouse.scenario.load import load, write_resolved
from glasshouse.scenario.table import Plugin
from glasshouse.wire import Architecture

IMAGENET = Architecture.of("resnet18", (3, 32, 32), 1000)
PACKAGE = "pytorch_pretrained_biggan"


class Grey(nn.Module):
    """Images (N, 3, 128, 128) in [-1, 1] of one level: the class over 999, scaled by the truncation."""

    @classmethod
    def from_pretrained(cls, folder):
        torch.randn(3)  # the real one draws weights and overwrites them
        result = cls()
        result.folder = folder
        return result

    def forward(self, latent, label, truncation):
        assert label.shape == (len(latent), 1000)
        assert label.dtype == latent.dtype
        level = 2 * truncation * label.argmax(1) / 999 - 1
        return level[:, None, None, None] * torch.ones(len(latent), 3, 128, 128)


STUB = SimpleNamespace(BigGAN=Grey)


@pytest.fixture
def package(monkeypatch):
    monkeypatch.setitem(sys.modules, PACKAGE, STUB)


@pytest.fixture
def weights(tmp_path, monkeypatch):
    for name in ("config.json", "pytorch_model.bin"):
        (tmp_path / name).touch()
    monkeypatch.setenv("GLASSHOUSE_BIGGAN", str(tmp_path))
    return tmp_path


def made(architecture=IMAGENET, latent=128):
    return generators.generator("biggan", architecture, GeneratorTraining(), latent=latent, auxiliary=None)


def test_the_label_conditions_its_images_which_are_made_smaller(package, weights):
    state = torch.get_rng_state()
    result = made()
    assert torch.equal(state, torch.get_rng_state())
    assert result.network.folder == str(weights)
    assert not result.training
    images = result(torch.randn(3, 128, generator=torch.Generator()), torch.tensor([0, 333, 999]))
    assert images.shape == (3, 3, 32, 32)
    torch.testing.assert_close(images[:, 0, 0, 0], torch.tensor([0.0, 1 / 3, 1.0]))


def test_without_its_package_it_is_refused_with_the_name_of_the_extra(weights, monkeypatch):
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    with pytest.raises(NotInstalled) as caught:
        made()
    assert caught.value.needs == "the package pytorch-pretrained-biggan"
    assert "pip install 'glasshouse[biggan]'" in caught.value.fix


def test_without_its_weights_it_is_refused_with_their_place(package, weights):
    (weights / "pytorch_model.bin").unlink()
    with pytest.raises(Inapplicable) as caught:
        made()
    assert "GLASSHOUSE_BIGGAN" in caught.value.needs
    assert caught.value.got == f"'{weights}' without pytorch_model.bin"


@pytest.mark.parametrize(
    ("architecture", "latent"),
    [
        (Architecture.of("resnet18", (3, 32, 32), 10), 128),
        (Architecture.of("resnet18", (1, 32, 32), 1000), 128),
        (IMAGENET, 64),
    ],
)
def test_other_classes_grey_images_and_another_latent_size_are_refused(
    package, weights, architecture, latent
):
    with pytest.raises(Inapplicable, match="colour images, 1000 classes and latent = 128"):
        made(architecture, latent=latent)


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """One update of a federation on colour images, of as many classes as this BigGAN knows: 10."""
    monkeypatch.setattr("glasshouse.attacks.inversion.ggl.biggan.CLASSES", 10)
    pixels = np.random.default_rng(0).integers(0, 255, (40, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "colour.npz", train_images=pixels, train_labels=np.arange(40) % 10)
    sets = [f'data.source="npz:{tmp_path / "colour.npz"}"', "data.auxiliary=10", "data.heldout=10"]
    sets += ["audit.distractors=9", "defenses=[]", "federation.clients=1"]
    (scenario,) = load("quickstart-ggl", sets).scenarios
    write_resolved(scenario, tmp_path / "scenario.toml")
    simulate(Group(folder=str(tmp_path), seed=0))
    return AttackTask(
        folder=str(tmp_path),
        out=str(tmp_path / "claims"),
        plugin=Plugin.model_validate(
            {"name": "ggl", "generator": "biggan", "search": {"optimizer": "adam", "evaluations": 1}}
        ),
        threat=threat_of(scenario),
        attack_seed=0,
        unit=Unit(rounds=(0,), client=0),
    )


@pytest.mark.parametrize(("module", "subject"), [(None, "generator 'biggan'"), (STUB, "weights of")])
def test_an_audit_files_what_is_missing_as_a_refusal(recorded, monkeypatch, tmp_path, module, subject):
    monkeypatch.setitem(sys.modules, PACKAGE, module)
    monkeypatch.setenv("GLASSHOUSE_BIGGAN", str(tmp_path / "nowhere"))
    outcome = read_outcome(Path(run_attack(recorded)))
    assert outcome.claims == ()
    assert outcome.refusal is not None
    assert outcome.refusal.subject.startswith(subject)
