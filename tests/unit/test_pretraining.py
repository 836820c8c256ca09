"""What a transfer federation starts from, and private data of another set."""

from itertools import combinations

import numpy as np
import pytest
import torch
from torch import nn

from glasshouse.audit.simulation import pretraining
from glasshouse.audit.simulation.build import build
from glasshouse.errors import BadScenario, BadValue
from glasshouse.models.base import RENAMINGS
from glasshouse.models.zoo import imagenet
from glasshouse.scenario.load import from_dict
from glasshouse.store import write_tensors


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path / "cache"))


BASE = {
    "name": "test",
    "data": {"public": 200, "auxiliary": 50, "heldout": 50, "examples": 2},
    "model": {"name": "maui_cnn", "width": 4, "hidden": 16, "pretraining": {"epochs": 1}},
    "federation": {"protocol": "transfer", "clients": 2, "batch_size": 2},
    "attacks": [{"name": "nex"}],
    "audit": {"metrics": ["psnr"]},
}


def scenario(**tables):
    return from_dict({**BASE, **{name: {**BASE[name], **table} for name, table in tables.items()}})


def test_features_are_trained_and_the_head_starts_fresh_or_fitted():
    linear = {"epochs": 1, "behind": "linear"}
    plain, again = (build(scenario(model={"pretraining": linear}), seed=0) for _ in range(2))
    how = {**linear, "head_epochs": 3}
    fitted = build(scenario(model={"pretraining": how}), seed=0)
    untrained = build(scenario(model={"pretraining": {}}), seed=0)
    start = {name: b.setting.start for name, b in (("plain", plain), ("fitted", fitted), ("none", untrained))}
    assert all(torch.equal(t, again.setting.start[n]) for n, t in start["plain"].items())
    for name, t in start["plain"].items():
        same = torch.equal(t, start["none"][name])
        assert same == (name.startswith("head.") or (name.endswith("num_batches_tracked") and not t.any())), (
            name
        )
        if name.startswith("head."):
            assert not torch.equal(t, start["fitted"][name])
        else:
            assert torch.equal(t, start["fitted"][name])
    assert plain.facts.pretrained.keys() == {"natural", "n", "robust", "n_robust"}
    assert untrained.facts.pretrained is None


def test_features_may_be_trained_behind_the_agreed_head():
    built = build(scenario(model={"pretraining": {"epochs": 1}}), seed=0)
    untrained = build(scenario(model={"pretraining": {}}), seed=0)
    name = "head.out.weight"
    assert not torch.equal(built.setting.start[name], untrained.setting.start[name])
    assert built.facts.pretrained is not None


def test_adversarial_training_is_another_model():
    table = {"none": build(scenario(), seed=0).setting.start}
    for method in ("fgsm", "pgd"):
        how = {"epochs": 1, "adversarial": {"method": method, "steps": 2}}
        table[method] = build(scenario(model={"pretraining": how}), seed=0).setting.start
    weights = [start["features.conv0.weight"] for start in table.values()]
    assert not any(torch.equal(a, b) for a, b in combinations(weights, 2))


@pytest.mark.parametrize(
    ("written", "keyed"),
    [
        ({"method": "fgsm"}, ("fgsm", 4.0, 1.25)),
        ({"method": "fgsm", "step": 1.0, "radius": 8}, ("fgsm", 8.0, 1.0)),
        ({"method": "pgd", "step": 0.25}, ("pgd", 4.0, 0.25)),
        ({"method": "pgd"}, ("pgd", 4.0, 0.5)),
        ({}, None),
    ],
)
def test_features_in_the_cache_are_found_under_the_step_that_was_taken(monkeypatch, written, keyed):
    """The whole description: with the step that the method takes where none is given."""
    keys, real = [], pretraining.load_or_make

    def spy(kind, key, make):
        keys.append(key)
        return real(kind, key, make)

    monkeypatch.setattr(pretraining, "load_or_make", spy)
    how = {"epochs": 1, "adversarial": {**written, "steps": 2}}
    build(scenario(model={"pretraining": how}, audit={"utility": False}), seed=0)
    plain = {
        "epochs": 1,
        "batch_size": 64,
        "learning_rate": 0.05,
        "schedule": "onecycle",
        "optimizer": "sgd",
        "momentum": 0.9,
        "weight_decay": 5e-4,
        "flip": False,
        "shift": 0,
        "cutout": 0,
        "precision": "float32",
        "channels_last": False,
        "adversarial": None,
    }
    if keyed is not None:
        method, radius, step = keyed
        plain["adversarial"] = {"method": method, "radius": radius / 255, "step": step, "steps": 2}
    assert [key["how"] for key in keys] == [plain]


@pytest.fixture(scope="module")
def public_features(tmp_path_factory):
    """A file of trained features without any head, as somebody may publish them."""
    place = tmp_path_factory.mktemp("published")
    how = {"epochs": 4, "behind": "linear", "batch_size": 16}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLASSHOUSE_CACHE", str(place))
        start = build(scenario(data={"public": 600}, model={"pretraining": how}), seed=3).setting.start
    features = {name: t for name, t in start.items() if name.startswith("features.")}
    path = place / "features.safetensors"
    write_tensors(path, features)
    return path, features


def given(path, **pretraining):
    return scenario(
        data={"public": 600, "heldout": 300}, model={"weights": str(path), "pretraining": pretraining}
    )


def test_public_features_come_without_a_head_which_starts_fresh_or_is_fitted(public_features):
    path, features = public_features
    fresh, fitted = (build(given(path, head_epochs=epochs), seed=0) for epochs in (0, 20))
    untrained = build(scenario(model={"pretraining": {}}), seed=0).setting.start
    for start in (fresh.setting.start, fitted.setting.start):
        assert all(torch.equal(start[name], t) for name, t in features.items())
    heads = [name for name in untrained if name.startswith("head.")]
    assert all(torch.equal(fresh.setting.start[name], untrained[name]) for name in heads)
    assert not any(torch.equal(fitted.setting.start[name], untrained[name]) for name in heads)
    assert fresh.facts.pretrained is None  # the accuracy of a head that nobody trained says nothing
    result = fitted.facts.pretrained
    assert result["natural"] > 0.7 > 0.3 > accuracy_of(fresh)
    assert result["natural"] == pytest.approx(accuracy_of(fitted))
    assert result["robust"] <= result["natural"]


def accuracy_of(built):
    model = built.setting.build(built.setting.terms.architecture)
    model.load_state_dict(dict(built.setting.start))
    return float((model.eval()(built.heldout.inputs).argmax(1) == built.heldout.labels).double().mean())


def test_a_head_in_the_file_is_kept_and_its_accuracy_shown(public_features, tmp_path):
    path, _ = public_features
    whole = build(given(path, head_epochs=20), seed=0).setting.start
    write_tensors(tmp_path / "whole.safetensors", whole)
    again = build(given(tmp_path / "whole.safetensors"), seed=1)
    assert all(torch.equal(again.setting.start[name], t) for name, t in whole.items())
    assert again.facts.pretrained["natural"] == pytest.approx(accuracy_of(again))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop("features.conv2.bias"), "missing features.conv2.bias"),
        (lambda t: t.update({"head.out.bias": torch.zeros(10)}), "missing head.hidden.weight, head.hidden"),
        (lambda t: t.update({"features.conv0.bias": torch.zeros(5)}), r"is \(5,\), not \(4,\)"),
        (lambda t: t.update({"features.conv9.bias": torch.zeros(5)}), "unknown features.conv9.bias"),
    ],
    ids=["a feature missing", "part of a head", "another shape", "unknown"],
)
def test_a_file_with_less_than_the_features_or_other_ones_is_refused(
    public_features, tmp_path, change, words
):
    tensors = dict(public_features[1])
    change(tensors)
    write_tensors(tmp_path / "bad.safetensors", tensors)
    with pytest.raises(BadValue, match=words):
        build(given(tmp_path / "bad.safetensors"), seed=0)


def test_outside_transfer_federations_the_head_must_be_in_the_file(public_features):
    whole = scenario(
        model={"weights": str(public_features[0]), "pretraining": {}}, federation={"protocol": "fedsgd"}
    )
    with pytest.raises(BadValue, match=r"missing head\.hidden\.weight"):
        build(whole, seed=0)


def test_weights_go_with_the_fitting_of_a_head_but_not_with_training_of_the_features(public_features):
    path, _ = public_features
    with pytest.raises(BadScenario, match="head_epochs may still fit the head"):
        given(path, epochs=1)
    with pytest.raises(BadScenario, match=r"model\.pretraining\.head_epochs .*the images to fit the head to"):
        scenario(data={"public": 0}, model={"weights": str(path), "pretraining": {"head_epochs": 1}})


TORCHVISION = {
    "resnet50": (
        ["conv1.weight", "bn1.weight", "bn1.running_mean", "layer1.0.conv1.weight", "fc.weight", "fc.bias"],
        ["conv1.weight", "bn1.weight", "bn1.running_mean", "bn1.num_batches_tracked",
         "layer1.0.conv1.weight"],
    ),
    "vgg11_bn": (
        ["features.0.weight", "features.1.running_mean", "classifier.0.weight", "classifier.6.bias"],
        ["features.1.num_batches_tracked", "features.0.weight", "features.1.running_mean"],
    ),
    "vit_b_32": (
        ["class_token", "encoder.layers.encoder_layer_0.mlp.linear_1.weight", "heads.head.weight",
         "encoder.layers.encoder_layer_0.mlp.linear_2.bias", "encoder.layers.encoder_layer_1.mlp.3.bias"],
        ["class_token", "encoder.layers.encoder_layer_0.mlp.0.weight",
         "encoder.layers.encoder_layer_0.mlp.3.bias", "encoder.layers.encoder_layer_1.mlp.3.bias"],
    ),
}  # fmt: skip
"""Names in files that torchvision published (those of 2017 have no counters), and ours below ``features``."""


@pytest.mark.parametrize("name", TORCHVISION)
def test_names_of_torchvision_become_ours_and_ours_stay(name):
    theirs, ours = TORCHVISION[name]
    tensors = {n: torch.full((2,), float(i)) for i, n in enumerate(theirs)}
    renamed = RENAMINGS[getattr(imagenet, name)](tensors)
    assert set(renamed) == {f"features.{n}" for n in ours}
    same = [t for n, t in tensors.items() if not n.startswith(("fc.", "classifier.", "heads."))]
    assert [t.tolist() for n, t in renamed.items() if "tracked" not in n] == [t.tolist() for t in same]
    again = RENAMINGS[getattr(imagenet, name)](renamed)
    assert all(again[n] is t for n, t in renamed.items())
    assert again.keys() == renamed.keys()


def test_a_file_as_torchvision_publishes_it_is_loaded(tmp_path, monkeypatch):
    class Small(nn.Module):
        """In the place of torchvision's ResNet-50: its outermost names and its number of features."""

        def __init__(self):
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(3, 2048, 3, stride=16, bias=False), nn.BatchNorm2d(2048)
            self.fc = nn.Linear(2048, 1000)

        def forward(self, x):
            return self.fc(self.bn1(self.conv1(x)).amax((2, 3)))

    monkeypatch.setattr(imagenet, "_MISSING", "")
    monkeypatch.setattr(
        imagenet, "_models", type("Models", (), {"resnet50": lambda weights: Small()}), raising=False
    )
    theirs = {n: t + 1 for n, t in Small().state_dict().items() if "tracked" not in n}
    torch.save(theirs, tmp_path / "resnet50.pth")
    model = {"name": "resnet50", "weights": str(tmp_path / "resnet50.pth"), "hidden": 8, "pretraining": {}}
    data = {**BASE["data"], "resize": 32, "channels": 3, "public": 0}
    start = build(from_dict({**BASE, "data": data, "model": model}), seed=0).setting.start
    assert torch.equal(start["features.conv1.weight"], theirs["conv1.weight"])
    assert torch.equal(start["features.bn1.running_var"], theirs["bn1.running_var"])
    assert start["head.hidden.weight"].shape == (8, 2048)
    assert int(start["features.bn1.num_batches_tracked"]) == 0


def test_private_images_of_another_set_are_made_to_fit(tmp_path):
    images = np.random.default_rng(0).integers(0, 255, (20, 12, 12, 3), dtype=np.uint8)
    np.savez(tmp_path / "other.npz", train_images=images, train_labels=np.arange(20))
    built = build(scenario(data={"private_source": f"npz:{tmp_path / 'other.npz'}"}), seed=0)
    assert built.setting.private.inputs.shape == (4, 1, 8, 8)
    assert int(built.setting.private.labels.max()) < 10
    assert built.auxiliary.inputs.shape[1:] == (1, 8, 8)
