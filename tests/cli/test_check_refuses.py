"""``check`` refuses what ``audit`` would refuse: the key, what it needs, exit code 2, and nothing is run."""

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from glasshouse.audit.preflight.inspect import check_suite
from glasshouse.cli import main
from glasshouse.data.sources import load as load_source
from glasshouse.data.survey import survey
from glasshouse.errors import BadScenario
from glasshouse.scenario.load import load
from glasshouse.scenario.shipped import presets
from glasshouse.scenario.suite import Suite

SMALL = """
name = "small"
[data]
examples = 4
auxiliary = 60
heldout = 40
[model]
name = "mlp"
[federation]
clients = 4
rounds = 2
batch_size = 2
[[attacks]]
name = "idlg"
[audit]
metrics = ["psnr"]
utility = false
controls = false
"""
LOGITS = (
    'federation.protocol="fedmd"', "federation.clients=2", "data.domains.targets=4",
    'data.domains.shifts=["lower_half_mask"]', 'attacks=["tbi"]', 'audit.metrics=["ssim_private"]',
    "data.auxiliary=0", "federation.learning_rate=0.01",
)  # fmt: skip
Case = tuple[str, tuple[str, ...], str, str]


def attack(name: str, **arguments: object) -> str:
    """An assignment of one attack with these arguments."""
    words = "".join(f", {key} = {value}" for key, value in arguments.items())
    return f'attacks=[{{name = "{name}"{words}}}]'


CASES: list[Case] = [
    # what is measured
    ("a metric of clients for images", ('audit.metrics=["psnr", "auc"]',), "audit.metrics[1]", "claim"),
    (
        "one victim without an interval",
        ('audit.metrics=["mse"]', "audit.victims=1"),
        "audit.victims",
        "a lower and an upper end",
    ),
    # the data: files, splits, classes, numbers of images
    ("no such file", ('data.source="npz:/nowhere/set.npz"',), "data.source", "existing file"),
    ("no such folder", ('data.source="folder:/nowhere"',), "data.source", "existing folder"),
    ("no private source", ('data.private_source="npz:/no.npz"',), "data.private_source", "existing file"),
    ("no other domain", (*LOGITS, 'data.domains.other="npz:/no.npz"'), "data.domains.other", "existing file"),
    ("no weights", ('model.weights="/nowhere/w.safetensors"',), "model.weights", "existing safetensors"),
    ("a split that is not there", ('data.private_split="val"',), "data.private_split", "train, test"),
    ("an auxiliary split", ('data.auxiliary_split="val"',), "data.auxiliary_split", "train, test"),
    ("a private class", ("data.private_classes=[3, 12]",), "data.private_classes", "from 0 to 9"),
    ("an auxiliary class", ("data.auxiliary_classes=[10]",), "data.auxiliary_classes", "from 0 to 9"),
    ("too many clients", ("federation.clients=500",), "data.examples", "2,000 private"),
    ("too much auxiliary data", ("data.auxiliary=1790",), "data.auxiliary", "images"),
    ("too much of one class", ("data.private_classes=[4]", "data.examples=50"), "data.examples", "200"),
    ("two parts of one split", ('data.private_split="test"', 'data.heldout_split="test"',
     "data.examples=100", "data.heldout=100"), "data.examples", "500 images"),
    ("more targets than classes", (*LOGITS, "data.domains.targets=10"), "data.domains.targets", "identities"),
    ("more identities than classes", (*LOGITS, "data.domains.identities=40"), "data.domains.identities",
     "<= 10"),
    ("whole classes for too many", ('data.partition="classes"', "federation.clients=12"),
     "federation.clients", "at most 10"),
    ("two of one class", ('data.partition="pathological"', "data.private_classes=[3]"), "data.partition",
     "2 classes"),
    ("one image in two pieces", ('data.partition="shards"', "data.examples=1", "federation.batch_size=1"),
     "data.examples", "at least 2"),
    ("more members than clients", ("data.members=5",), "data.members", "at most federation.clients = 4"),
    ("a challenge for nobody", ("grants.challenge=true",), "grants.challenge", "data.members"),
    ("too little for the nulls", ("data.auxiliary=9",), "data.auxiliary", "at least 10"),
    ("too little for the nulls of a sum", ("federation.secure_sum=true", "data.auxiliary=20",
     'attacks=["idlg", "loki"]'), "data.auxiliary", "at least 22"),
    # the model
    ("images too small", ("data.resize=2", 'model={name = "maui_cnn"}'), "model", "images"),
    ("a width of 0", ('model={name = "convnet", width = 0}',), "model.width", ">= 1"),
    ("a huge width", ('model={name = "convnet", width = 100000}',), "model", "parameters"),
    ("a width beyond all numbers", ('model={name = "convnet", width = 99999999999}',), "model.width", "<="),
    # the attacks
    ("negative iterations", (attack("inverting_gradients", search="{iterations = -5}"),),
     "attacks[0].search.iterations", ">= 1"),
    ("no iterations", (attack("idlg", search="{iterations = 0}"),), "attacks[0].search.iterations", ">= 1"),
    ("no restarts", (attack("dlg", search="{restarts = 0}"),), "attacks[0].search.restarts", ">= 1"),
    ("a rate of 0", (attack("gradinversion", search="{learning_rate = 0.0}"),),
     "attacks[0].search.learning_rate", "> 0"),
    ("a rate that overflows", (attack("inverting_gradients", search="{learning_rate = 1e308}"),),
     "attacks[0].search.learning_rate", "<= 1e+30"),
    ("a negative weight", (attack("inverting_gradients", tv=-0.1),), "attacks[0].tv", ">= 0"),
    ("no images in a batch", (*LOGITS, attack("tbi", training="{batch_size = 0}")),
     "attacks[0].training.batch_size", ">= 2"),
    ("no epochs", (*LOGITS, attack("pli", training="{epochs = 0}")), "attacks[0].training.epochs", ">= 1"),
    ("no evaluations", (attack("ggl", search="{evaluations = 0}"),), "attacks[0].search.evaluations", ">= 1"),
    ("every attack needs updates", ("federation.secure_sum=true",), "attacks", "sees broadcast, update"),
    ("every attack needs a grant", (attack("ggl"), "grants.auxiliary=false"), "attacks", "auxiliary"),
    ("no auxiliary data behind a grant", (attack("ggl"), "data.auxiliary=0", 'audit.metrics=["f1"]'),
     "attacks", "side knowledge"),
    ("every attack needs another protocol", (attack("tbi"),), "attacks", "protocol dsfl or fedgems"),
    ("a malicious server that changes nothing", (attack("loki"),), "attacks", "changes"),
    ("nobody sees a sum or an update", (attack("nex"), 'threat.sees=["broadcast"]'), "attacks",
     "aggregate or update"),
    ("a convolution comes first", (attack("linear_input"), 'model={name = "lenet5"}',
     "federation.batch_size=1"), "attacks", "first layer that is linear"),
    ("a read-out of one example of several", (attack("linear_input"), 'model={name = "mlp"}',
     "federation.batch_size=4"), "attacks", "exactly 1 example"),
    ("a head of one layer", (attack("nex"), 'model={name = "convnet"}'), "attacks", "linear layers"),
    # the federation
    ("a cohort of half a client", ("federation.cohort=0.1",), "federation.cohort", "at least one"),
    ("the sum of one client", ("federation.clients=1", "federation.secure_sum=true"),
     "federation.secure_sum", "at least 2"),
    ("nobody answers", ("federation.dropout=0.9",), "federation.dropout", "at least one of 4"),
    ("a rate that leaves float32", ("federation.learning_rate=1e308",), "federation.learning_rate", "1e+30"),
    ("rounds beyond all numbers", ("federation.rounds=99999999999",), "federation.rounds", "whole number"),
    ("a batch beyond the data", ("federation.batch_size=5",), "federation.batch_size", "at most"),
    ("local epochs of one gradient", ("federation.local_epochs=2",), "federation.local_epochs", "1 under"),
    ("gradients under fedavg", ('federation.protocol="fedavg"', 'federation.sends="gradient"'),
     "federation.sends", "delta or parameters"),
    ("gradients under fedmd", (*LOGITS, 'federation.sends="gradient"'), "federation.sends", "logits"),
    ("a part of the clients shares logits", (*LOGITS, "federation.cohort=0.5"), "federation.cohort", "1.0"),
    ("logits in a secure sum", (*LOGITS, "federation.secure_sum=true"), "federation.secure_sum", "false"),
    ("logits to a malicious server", (*LOGITS, 'threat.changes=["parameters"]'), "threat.changes", "[]"),
    # the audit
    ("a round that is not played", ("audit.rounds=[2]",), "audit.rounds[0]", "from -2 to 1"),
    ("one round twice", ("audit.rounds=[1, -1]",), "audit.rounds", "different rounds"),
    ("no rounds", ("audit.rounds=[]",), "audit.rounds", "at least one"),
    ("no victims", ("audit.victims=0",), "audit.victims", ">= 1"),
    ("a seed twice", ("audit.seeds=[1, 1]",), "audit.seeds", "different seeds"),
    ("an unknown null adversary", ('audit.baselines=["gray picture"]',), "audit.baselines[0]",
     "grey picture"),
    ("a limit on what is not measured", ("policy.max_gain={ssim=0.1}",), "policy.max_gain.ssim", "asks for"),
    ("a limit that nothing could break", ('audit.metrics=["identification"]', "audit.distractors=1",
     "policy.max_gain={identification=0.6}"), "policy.max_gain.identification", "guessing reaches 0.5"),
    ("a limit of one less chance", ('audit.metrics=["identification"]', "audit.distractors=4",
     "policy.max_gain={identification=0.8}"), "policy.max_gain.identification", "a limit below 0.8"),
    ("a limit beyond the metric's range", ("policy.max_gain={psnr=100}",), "policy.max_gain.psnr",
     "no attack can gain more"),
    ("a limit below what a guess gains", ("policy.max_gain={psnr=-1}",), "policy.max_gain.psnr", "0 or more"),
    ("a margin that no number of victims meets", ("audit.margin=1e-300",), "audit.margin", "0.001"),
    ("accuracy without utility", ("policy.min_accuracy=0.5",), "policy.min_accuracy", "utility = true"),
    ("too few distractors", ('audit.metrics=["identification"]', "data.heldout=20"), "audit.distractors",
     "at most data.heldout"),
    ("one path in two axes", ('axes={seed=[0, 1]}', "axes_zipped=[{seed=[2, 3]}]"), 'axes."seed"',
     "one axis"),
    ("one path spelt twice", ('axes={"attacks.0.search.restarts"=[1], "attacks[0].search.restarts"=[2]}',),
     "axes.", "one axis"),
]  # fmt: skip


def checked(place: Path, sets: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and standard error of ``check`` on the small scenario with some keys changed."""
    path = place / "small.toml"
    path.write_text(SMALL)
    options = [part for text in sets for part in ("--set", text)]
    with pytest.raises(SystemExit) as stop:
        main(["check", str(path), *options])
    return int(stop.value.code or 0), capsys.readouterr().err


def test_the_small_scenario_itself_is_valid(tmp_path, capsys):
    assert checked(tmp_path, (), capsys) == (0, "")
    assert checked(tmp_path, LOGITS, capsys) == (0, "")


@pytest.mark.parametrize(("sets", "key", "words"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_it_is_refused_by_its_key(sets, key, words, tmp_path, capsys):
    code, printed = checked(tmp_path, sets, capsys)
    assert code == 2
    assert any(line.split()[:1] == [key] or line.strip().startswith(key) for line in printed.splitlines())
    assert words in printed
    assert "Traceback" not in printed


def test_there_are_enough_cases():
    assert len({name for name, *_ in CASES}) == len(CASES) >= 60


def test_everything_is_said_at_once(tmp_path, capsys):
    sets = ("data.members=9", 'audit.baselines=["x"]', "data.private_classes=[11]", "audit.rounds=[7]")
    _, printed = checked(tmp_path, sets, capsys)
    assert "4 problems" in printed


def test_audit_refuses_with_the_same_words(tmp_path):
    (tmp_path / "small.toml").write_text(SMALL)
    with pytest.raises(BadScenario, match="at least 10"):
        check_suite(load(str(tmp_path / "small.toml"), ["data.auxiliary=9"]))


def is_self_contained(suite: Suite) -> bool:
    """Whether a preset reads no files and needs no extra that are not there on every machine."""
    needs_vision = ("resnet50", "vgg11_bn", "vit_b_32")
    return all(s.data.source == "digits" and s.model.name not in needs_vision for s in suite.scenarios)


def test_shipped_presets_have_no_problem():
    """Found here and not by ``parametrize``: to load them all takes longer than every test of this file."""
    checked = 0
    for name in presets():
        try:
            suite = load(name)
        except BadScenario:  # its data or its extra are not at hand
            continue
        if is_self_contained(suite):
            check_suite(suite)
            checked += 1
    assert checked >= 5


def picture_folder(place: Path) -> str:
    from PIL import Image

    for split, label, number in (("train", "a", 3), ("train", "b", 2), ("test", "a", 1), ("test", "b", 1)):
        folder = place / split / label
        folder.mkdir(parents=True)
        for i in range(number):
            shade = 10 * i + 100 * (split == "test") + 50 * (label == "b")
            Image.new("RGB", (6, 5), (shade, 0, 0)).save(folder / f"{i}.png")
    return f"folder:{place}"


def npz_file(place: Path) -> str:
    images = np.random.default_rng(0).integers(0, 255, (9, 7, 6, 3), dtype=np.uint8)
    np.savez(place / "set.npz", train_images=images, train_labels=np.arange(9) % 3)
    return f"npz:{place}/set.npz"


def idx_files(place: Path) -> str:
    images = np.random.default_rng(0).integers(0, 255, (6, 4, 5), dtype=np.uint8)
    (place / "train-images-idx3-ubyte").write_bytes(
        struct.pack(">4B3I", 0, 0, 8, 3, 6, 4, 5) + images.tobytes()
    )
    (place / "train-labels-idx1-ubyte").write_bytes(
        struct.pack(">4BI", 0, 0, 8, 1, 6) + bytes([0, 1, 2, 0, 1, 0])
    )
    return f"idx:{place}"


@pytest.mark.parametrize("build", [lambda _: "digits", picture_folder, npz_file, idx_files])
@pytest.mark.parametrize("channels", [None, 3])
def test_a_survey_counts_what_the_reader_reads(
    build: Callable[[Path], str], channels: int | None, tmp_path: Path
) -> None:
    name = build(tmp_path)
    result, data = survey(name, None, channels), load_source(name, channels=channels)
    assert result is not None
    assert (result.shape, result.classes) == (data.input_shape, data.classes)
    for split, images in data.splits.items():
        labels, counts = torch.unique(images.labels, return_counts=True)
        assert {k: n for k, n in result.counts[split].items() if n} == dict(
            zip(labels.tolist(), counts.tolist(), strict=True)
        )
