"""Tables, numbers as targets, several labels and masks: audited like pictures of classes."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import glasshouse as gh
from glasshouse.errors import BadScenario
from glasshouse.modalities.array import Array
from glasshouse.tasks.regression import Regression

pytest.importorskip("pandas")

NETWORKS = '''
import math
import torch
from torch import nn


def own(input_shape, classes, width=64):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(input_shape), width), nn.Sigmoid(), nn.Linear(width, classes)
    )


class Masks(nn.Module):
    """A U-Net of one level."""

    def __init__(self, width=4, classes=2):
        super().__init__()
        self.first = nn.Conv2d(1, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.last = nn.Conv2d(2 * width, classes, 1)

    def forward(self, x):
        high = torch.sigmoid(self.first(x))
        return self.last(torch.cat([high, self.up(torch.sigmoid(self.down(high)))], 1))
'''
SEARCH = {"name": "inverting_gradients", "search": {"iterations": 40, "restarts": 1}}


@pytest.fixture(scope="module", autouse=True)
def _networks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("networks")
    (folder / "networks_of_mine.py").write_text(NETWORKS)
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def census(tmp_path_factory):
    """A table of 600 made-up people, with a schema."""
    folder, draws = tmp_path_factory.mktemp("census"), np.random.default_rng(0)
    works = ("office", "shop", "farm", "none")
    rows = [
        f"{draws.integers(18, 90)},{draws.integers(0, 90_000)},{works[max(0, draws.integers(8) - 4)]},"
        f"{('no', 'yes')[draws.integers(2)]}"
        for _ in range(600)
    ]
    (folder / "people.csv").write_text("age,income,work,votes\n" + "\n".join(rows))
    (folder / "people.schema.toml").write_text(
        "confirmed = true\n"
        '[[column]]\nname = "age"\nkind = "integer"\nlow = 17\nhigh = 99\n'
        '[[column]]\nname = "income"\nkind = "integer"\nlow = 0\nhigh = 100000\n'
        f'[[column]]\nname = "work"\nkind = "categorical"\nlevels = {list(works)}\n'.replace("'", '"')
        + '[[column]]\nname = "votes"\nkind = "binary"\nrole = "target"\nlevels = ["no", "yes"]\n'
    )
    return f"table:{folder / 'people.csv'}"


def audited(tmp_path, *, data=None, tables=(), **changes):
    scenario = {
        "name": "other",
        "data": {"auxiliary": 120, "heldout": 60, **dict(tables)},
        "federation": {"clients": 6, "batch_size": 1},
        "audit": {"victims": 6, "metrics": ["psnr"]},
        **changes,
    }
    return gh.audit(scenario, data=data, out=tmp_path / "run", jobs=1)


def test_rows_are_read_cell_by_cell_from_a_gradient(tmp_path, census):
    result = audited(
        tmp_path,
        tables={"source": census},
        model={"name": "networks_of_mine:own"},
        attacks=["linear_input", "label_inference", "ggl"],
        audit={"victims": 6, "metrics": ["rows_exact", "row_cells", "label_accuracy"]},
    )
    values = {(f.attack, f.metric): f.value for f in result.findings}
    assert values["linear_input", "rows_exact"] == 1
    assert values["linear_input", "row_cells"] == 1
    assert values["label_inference", "label_accuracy"] == 1
    gains = {f.metric: f.value - f.gain for f in result.findings if f.attack == "linear_input"}
    assert gains["rows_exact"] == 0 < gains["row_cells"] < 0.5
    (refusal,) = (r for r in result.refusals if "ggl" in r.subject)
    assert (refusal.needs, refusal.got) == ("data of modality image", "rows")


@pytest.fixture(scope="module")
def pictures():
    draws = np.random.default_rng(1)
    centres = draws.uniform(2, 10, (400, 2))
    y, x = np.mgrid[:12, :12]
    far = (y[None] - centres[:, 0, None, None]) ** 2 + (x[None] - centres[:, 1, None, None]) ** 2
    return np.exp(-far / 8).astype(np.float32) * 0.8 + draws.uniform(0, 0.2, (400, 12, 12)).astype(np.float32)


def targets_of(pictures, kind):
    light = pictures.mean((1, 2))
    if kind == "regression":
        return light.astype(np.float32)
    if kind == "multilabel":
        return np.stack([light > np.median(light), pictures[:, 3, 3] > 0.3], 1)
    return (pictures > 0.5).astype(np.int64)


@pytest.mark.parametrize("kind", ["regression", "multilabel"])
def test_other_targets_are_audited_and_what_needs_classes_is_refused(tmp_path, pictures, kind):
    result = audited(
        tmp_path,
        data=(pictures, targets_of(pictures, kind)),
        model={"name": "networks_of_mine:own"},
        grants={"labels": True},
        attacks=["linear_input", "label_inference", "dlg", SEARCH],
    )
    values = {f.attack: f.value for f in result.findings}
    assert values["linear_input"] > 80
    assert "inverting_gradients" in values
    refused = {r.subject: (r.needs, r.got) for r in result.refusals}
    why = ("a task with one class per example", f"task '{kind}'")
    assert refused == {"attack 'label_inference'": why, "attack 'dlg'": why}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["regression", "multilabel"])
def test_chest_x_rays_are_read_whatever_is_learnt_of_them(tmp_path, kind):
    """As a number (the share that is light), and as two labels (pneumonia; a light picture)."""
    file = Path(os.environ.get("GLASSHOUSE_DATA", "")) / "chest_xray_28.npz"
    if not file.is_file():
        pytest.skip("needs ../shared/data/chest_xray_28.npz")
    with np.load(file) as arrays:
        images, ill = arrays["train_images"], arrays["train_labels"][:, 0]
    light = (images > 128).mean((1, 2))
    numbers = light.astype(np.float32)
    result = audited(
        tmp_path,
        tables={"heldout": 120},
        data=(images, numbers if kind == "regression" else np.stack([ill == 1, light > np.median(light)], 1)),
        model={"name": "networks_of_mine:own"},
        federation={"clients": 20, "batch_size": 1},
        grants={"labels": True},
        attacks=["linear_input", SEARCH],
        audit={"victims": 20, "metrics": ["psnr", "identification"]},
    )
    found = {(f.attack, f.metric): f for f in result.findings}
    exact, named = found["linear_input", "psnr"], found["linear_input", "identification"]
    assert (exact.n, named.n) == (20, 20)
    assert exact.value > 80
    assert exact.value - exact.gain < 25
    assert named.value == 1
    assert named.low > 0.8
    assert named.control is not None
    assert named.control.passed
    assert named.verdict == "leaks"
    assert [u.metric for u in result.utility] == ["R2" if kind == "regression" else "label accuracy"]
    assert ("inverting_gradients", "psnr") in found


def test_a_search_for_targets_that_nobody_infers_says_which_grant_it_needs(tmp_path, pictures):
    with pytest.raises(BadScenario, match="nothing infers under task 'regression'") as refused:
        audited(
            tmp_path,
            data=(pictures, targets_of(pictures, "regression")),
            model={"name": "networks_of_mine:own"},
            attacks=[SEARCH],
        )
    assert "set grants.labels = true" in str(refused.value)


def test_series_in_memory_are_read_and_searched(tmp_path):
    draws = np.random.default_rng(2)
    series = draws.uniform(-2, 2, (300, 2, 20)).astype(np.float32)
    result = audited(
        tmp_path,
        data={
            "train_inputs": series,
            "train_labels": (series[:, 0, 0] > 0).astype(np.int64),
            "modality": Array(size=(2, 20), range=(-2.0, 2.0)),
        },
        model={"name": "networks_of_mine:own"},
        attacks=["linear_input", SEARCH, {"name": "robbing_the_fed", "bins": 32}],
        audit={"victims": 6, "metrics": ["mse"]},
    )
    values = {f.attack: f.value for f in result.findings}
    assert values["linear_input"] < 1e-6
    assert values["inverting_gradients"] < 1.5


def test_one_logit_for_two_classes_is_declared_in_the_scenario(tmp_path, pictures):
    light = pictures.mean((1, 2))
    result = audited(
        tmp_path,
        data=(pictures, (light > np.median(light)).astype(np.int64)),
        tables={"task": "multilabel"},
        model={"name": "networks_of_mine:own"},
        attacks=["linear_input"],
    )
    assert [f.value > 80 for f in result.findings] == [True]


def test_a_u_net_on_masks_is_matched_and_measured_by_dice(tmp_path, pictures):
    result = audited(
        tmp_path,
        data=(pictures, targets_of(pictures, "segmentation")),
        model={"name": "networks_of_mine:Masks"},
        grants={"labels": True},
        attacks=[SEARCH, "linear_input"],
    )
    assert [f.attack for f in result.findings] == ["inverting_gradients"]
    assert [u.metric for u in result.utility] == ["Dice"]
    assert 0 <= result.utility[0].value <= 1


def test_a_gradient_of_a_regression_network_is_read_in_memory():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Sigmoid(), nn.Linear(16, 1))
    image, target = torch.rand(1, 1, 8, 8), torch.tensor([0.7])
    loss = nn.functional.mse_loss(net(image)[:, 0], target)
    gradient = torch.autograd.grad(loss, net.parameters())
    with pytest.raises(gh.GlasshouseError, match="logits"):
        gh.view(net, gradient, input_shape=(1, 8, 8))
    seen = gh.view(net, gradient, input_shape=(1, 8, 8), task=Regression())
    (claim,) = gh.attack("linear_input")(seen)
    assert float((claim.inputs - image).abs().max()) < 1e-4
    assert claim.labels is None
