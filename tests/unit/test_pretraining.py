"""What a transfer federation starts from, and private data of another set."""

from itertools import combinations

import numpy as np
import pytest
import torch

from glasshouse.audit.build import build
from glasshouse.scenario.load import from_dict


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path / "cache"))


def scenario(**tables):
    base = {
        "name": "test",
        "data": {"public": 200, "auxiliary": 50, "heldout": 50, "examples": 2},
        "model": {"name": "maui_cnn", "width": 4, "hidden": 16, "pretraining": {"epochs": 1}},
        "federation": {"protocol": "transfer", "clients": 2, "batch_size": 2},
        "attacks": [{"name": "nex"}],
        "audit": {"metrics": ["psnr"]},
    }
    for name, table in tables.items():
        base[name] = {**base[name], **table}
    return from_dict(base)


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
    assert plain.facts["pretrained"].keys() == {"natural", "n", "robust", "n_robust"}
    assert untrained.facts["pretrained"] is None


def test_features_may_be_trained_behind_the_agreed_head():
    made = build(scenario(model={"pretraining": {"epochs": 1}}), seed=0)
    untrained = build(scenario(model={"pretraining": {}}), seed=0)
    name = "head.out.weight"
    assert not torch.equal(made.setting.start[name], untrained.setting.start[name])
    assert made.facts["pretrained"] is not None


def test_adversarial_training_is_another_model():
    made = {"none": build(scenario(), seed=0).setting.start}
    for method in ("fgsm", "pgd"):
        how = {"epochs": 1, "adversarial": {"method": method, "steps": 2}}
        made[method] = build(scenario(model={"pretraining": how}), seed=0).setting.start
    weights = [start["features.conv0.weight"] for start in made.values()]
    assert not any(torch.equal(a, b) for a, b in combinations(weights, 2))


def test_private_images_of_another_set_are_made_to_fit(tmp_path):
    images = np.random.default_rng(0).integers(0, 255, (20, 12, 12, 3), dtype=np.uint8)
    np.savez(tmp_path / "other.npz", train_images=images, train_labels=np.arange(20))
    made = build(scenario(data={"private_source": f"npz:{tmp_path / 'other.npz'}"}), seed=0)
    assert made.setting.private.inputs.shape == (4, 1, 8, 8)
    assert int(made.setting.private.labels.max()) < 10
    assert made.auxiliary.inputs.shape[1:] == (1, 8, 8)
