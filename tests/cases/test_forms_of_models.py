"""Honest models as they arrive: adapters at zero, wrappers' names, shards, parametrised weights."""

import json
import re
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils import parametrizations

import glasshouse as gh
from glasshouse.cli.main import main
from glasshouse.errors import BadFile, BadValue
from glasshouse.guard.forms import effective, zero_adapters


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 6, 5), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(4704, 10))


def adapters(names=("lora_A.weight", "lora_B.weight"), rank=4):
    torch.manual_seed(0)
    return {
        f"h.{layer}.attn.{names[0]}": torch.randn(rank, 64) / 8 for layer in range(2)
    } | {f"h.{layer}.attn.{names[1]}": torch.zeros(96, rank) for layer in range(2)}  # fmt: skip


NAMES = {
    "peft": ("lora_A.weight", "lora_B.weight"),
    "peft with an adapter's name": ("lora_A.default.weight", "lora_B.default.weight"),
    "loralib": ("lora_A", "lora_B"),
    "diffusers": ("lora_down.weight", "lora_up.weight"),
}


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_the_honest_start_of_lora_is_no_finding(names):
    seen = gh.guard(adapters(names))
    assert not seen.findings
    assert len(seen.resting) == 2


def test_a_zero_adapter_without_its_partner_or_after_training_is_a_finding():
    alone = {n: t for n, t in adapters().items() if "lora_B" in n}
    alone["fc.weight"] = torch.randn(32, 64)
    assert any("rows are zero" in sentence for sentence in gh.guard(alone).findings)
    both_zero = {n: torch.zeros_like(t) if "h.0" in n else t for n, t in adapters().items()}
    assert any("h.0.attn.lora_A" in sentence for sentence in gh.guard(both_zero).findings)
    trained = {n: torch.randn_like(t) if "lora_B" in n else t for n, t in adapters().items()}
    assert any("rows are zero" in sentence for sentence in gh.guard(adapters(), reference=trained).findings)
    partly = adapters()
    partly["h.0.attn.lora_B.weight"][0, 0] = 1.0
    assert any("h.0.attn.lora_B" in sentence for sentence in gh.guard(partly).findings)
    assert zero_adapters({"lora_A.weight": torch.randn(4, 8), "lora_B.weight": torch.zeros(9, 3)}) == ()


PREFIXES = ["", "module.", "_orig_mod.", "model.", "net.", "module._orig_mod.", "model.backbone."]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_wrappers_prefix_is_taken_off_and_said(prefix):
    net = network()
    seen = gh.guard({prefix + name: t for name, t in net.state_dict().items()}, agreed=net)
    assert not seen.findings
    assert seen.fits
    assert (prefix in seen.form) if prefix else not seen.form
    reference = {prefix + name: t for name, t in net.state_dict().items()}
    assert not gh.guard(net.state_dict(), agreed=net, reference=reference).findings
    assert not gh.guard(net.state_dict(), reference=reference).findings


def test_a_part_that_was_compiled_is_found_under_its_own_name():
    net = network()
    state = net.state_dict().items()
    compiled = {n.replace("0.", "0._orig_mod.", 1) if n.startswith("0.") else n: t for n, t in state}
    assert not gh.guard(compiled, agreed=net).findings


def test_another_architecture_is_still_a_finding():
    net = network()
    wrong = {f"module.{name}": t for name, t in net.state_dict().items()}
    wrong["module.extra.weight"] = torch.randn(8, 8)
    (finding,) = gh.guard(wrong, agreed=net).findings
    assert finding == "structure: has tensors that were not agreed: extra.weight"


def test_lists_of_trainable_arrays_and_states_without_statistics_are_matched():
    net = network()
    arrays = [p.detach().numpy() for p in net.parameters()]
    assert not gh.guard(arrays, agreed=net).findings
    assert not gh.guard(arrays, agreed=net.state_dict()).findings
    named = dict(net.named_parameters())
    seen = gh.guard({name: p.detach() for name, p in named.items()}, agreed=net)
    assert not seen.findings
    assert "running statistics are missing" in seen.form
    lacking = {name: t for name, t in net.state_dict().items() if name != "4.bias"}
    assert gh.guard(lacking, agreed=net).findings == ("structure: lacks: 4.bias",)


def shards(folder, *, index=True):
    state = network().state_dict()
    names = list(state)
    parts = {"model-00001-of-00002.safetensors": names[:3], "model-00002-of-00002.safetensors": names[3:]}
    for file, own in parts.items():
        save_file({name: state[name].contiguous() for name in own}, folder / file)
    if index:
        weight_map = {name: file for file, own in parts.items() for name in own}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@pytest.mark.parametrize("given", ["model.safetensors.index.json", *SHARDS, ""])
def test_shards_are_one_model(tmp_path, given):
    shards(tmp_path)
    assert not gh.guard(tmp_path / given, agreed=network()).findings


def test_missing_and_odd_shards_are_refused(tmp_path):
    shards(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    for given in (index, tmp_path / "model-00001-of-00002.safetensors"):
        with pytest.raises(BadFile, match=r"1 of 2 missing: model-00002-of-00002\.safetensors"):
            gh.guard(given)
    for name in ("../evil.safetensors", "/etc/passwd", "model.safetensors.index.json"):
        index.write_text(json.dumps({"weight_map": {"a": name}}))
        with pytest.raises(BadFile, match="weight_map"):
            gh.guard(index)


def test_torchs_shards_and_misnamed_safetensors_are_read(tmp_path):
    state = network().state_dict()
    names = list(state)
    files = {"pytorch_model-00001-of-00002.bin": names[:4], "pytorch_model-00002-of-00002.bin": names[4:]}
    for file, own in files.items():
        torch.save({name: state[name] for name in own}, tmp_path / file)
    assert not gh.guard(tmp_path, agreed=network()).findings
    save_file({name: t.contiguous() for name, t in state.items()}, tmp_path / "saved.pt")
    assert not gh.guard(tmp_path / "saved.pt", agreed=network()).findings


def normed(kind):
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 3), nn.Linear(64, 32)]
    wraps = {
        "weight norm": parametrizations.weight_norm,
        "spectral norm": parametrizations.spectral_norm,
        "old weight norm": nn.utils.weight_norm,
        "old spectral norm": nn.utils.spectral_norm,
    }
    return nn.Sequential(*(wraps[kind](layer) for layer in layers)).eval()


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning")
@pytest.mark.parametrize("kind", ["weight norm", "spectral norm", "old weight norm", "old spectral norm"])
def test_parametrised_weights_are_read_as_the_layer_computes_them(kind):
    net = normed(kind)
    seen = gh.guard(net.state_dict(), agreed=net)
    assert not seen.findings
    assert {v.layer for v in seen.vectors if v.kind != "bias"} == {"0", "1"}
    net[0](torch.zeros(1, 3, 8, 8))  # the older forms compute a layer's weight when it is called
    net[1](torch.zeros(1, 64))
    weights = effective(net.state_dict())
    for name, layer in zip(("0.weight", "1.weight"), net, strict=True):
        torch.testing.assert_close(weights[name], layer.weight.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning")
@pytest.mark.parametrize("kind", ["weight norm", "old weight norm"])
def test_crafted_rows_behind_a_weight_norm_are_found(kind):
    net = normed(kind)
    name = "1.weight_v" if kind.startswith("old") else "1.parametrizations.weight.original1"
    state = {key: t.clone() for key, t in net.state_dict().items()}
    state[name][1:] = state[name][:1].clone()
    assert any(
        re.match(r"1: (29|3\d) of 32 rows repeat", one) for one in gh.guard(state, agreed=net).findings
    )


HEADS = {
    "model.onnx": (b"\x08\x08\x12\x07pytorch\x1a\x05", "ONNX"),
    "onnx-without-a-name.pt": (b"\x08\x07\x12\x07pytorch\x1a\x05", "ONNX"),
    "model.tflite": (b"\x1c\x00\x00\x00TFL3\x14\x00", "TensorFlow Lite"),
    "model.gguf": (b"GGUF\x03\x00\x00\x00", "GGUF"),
    "misnamed.safetensors": (b"GGUF\x03\x00\x00\x00" + bytes(64), "GGUF"),
    "model.h5": (b"\x89HDF\r\n\x1a\n" + bytes(32), "HDF5"),
}


@pytest.mark.parametrize("name", HEADS)
def test_kinds_that_are_not_read_are_named(tmp_path, name):
    head, words = HEADS[name]
    (tmp_path / name).write_bytes(head)
    with pytest.raises(BadFile) as caught:
        gh.guard(tmp_path / name)
    assert words in caught.value.got
    assert caught.value.fix.startswith("have it exported: ")
    with pytest.raises(SystemExit) as ended:
        main(["guard", str(tmp_path / name)])
    assert ended.value.code == 2


NO_MODELS = {
    "pointer.safetensors": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 9\n",
        "Git LFS",
        "lfs pull",
    ),
    "page.pt": (b"<!DOCTYPE html><html>404</html>", "a web page", "get the file"),
    "config.json": (b'{"architectures": ["BertModel"]}', "JSON", "get the file"),
    "empty.pt": (b"", "an empty file", "get the file"),
    "model.pt.gz": (b"\x1f\x8b\x08" + bytes(40), "a gzip archive", "unpack it"),
    "model.tar": (bytes(257) + b"ustar" + bytes(300), "a tar archive", "unpack it"),
    "weights.npy": (b"\x93NUMPY\x01\x00" + bytes(40), "one array of numpy", "numpy.savez"),
    "ggml.bin": (b"lmgg" + bytes(40), "GGML", "safetensors"),
    "model.mlmodel": (b"\x08\x04\x12\x0a" + bytes(40), "Core ML", "torch.save"),
}


@pytest.mark.parametrize("name", NO_MODELS)
def test_what_stands_where_weights_should_be_is_named(tmp_path, name):
    content, kind, instead = NO_MODELS[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadFile) as caught:
        gh.guard(tmp_path / name)
    assert kind in caught.value.got
    assert instead in caught.value.fix


@pytest.mark.parametrize(
    ("part", "kind"), [("x/models/model.json", "torch.export"), ("m.mlpackage/Manifest.json", "Core ML")]
)
def test_archives_of_other_kinds_are_named(tmp_path, part, kind):
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
        archive.writestr(part, "{}")
    with pytest.raises(BadFile, match=kind):
        gh.guard(tmp_path / "model.zip")


@pytest.mark.parametrize("given", ["nothing.safetensors", "https://example.org/model.safetensors"])
def test_files_that_are_not_there_are_refused(given):
    with pytest.raises(BadFile, match="no such file"):
        gh.guard(given)


@pytest.mark.parametrize("given", [None, 3, nn.Linear, torch.ones(3, 3)])
def test_what_is_no_model_is_refused(given):
    with pytest.raises(BadValue, match="a network, a file of weights"):
        gh.guard(given)


def test_keras_archives_and_saved_models_are_named(tmp_path):
    with zipfile.ZipFile(tmp_path / "model.keras", "w") as archive:
        archive.writestr("config.json", "{}")
        archive.writestr("model.weights.h5", b"")
    with pytest.raises(BadFile, match="Keras archive"):
        gh.guard(tmp_path / "model.keras")
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "saved_model.pb").write_bytes(b"")
    with pytest.raises(BadFile, match="SavedModel"):
        gh.guard(tmp_path / "saved")


def test_an_archive_of_numpy_is_still_read(tmp_path):
    np.savez(tmp_path / "model.npz", **{n: t.numpy() for n, t in network().state_dict().items()})
    assert not gh.guard(tmp_path / "model.npz", agreed=network()).findings


def test_arrays_of_any_byte_order_are_read_and_a_checkpoint_is_named():
    network = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))
    state = network.state_dict()
    turned = [t.numpy().astype(t.numpy().dtype.newbyteorder(">")) for t in state.values()]
    assert not gh.guard(turned, agreed=network).findings
    with pytest.raises(BadValue, match=r"guard\(checkpoint\['model'\]\)"):
        gh.guard({"model": state, "epoch": torch.tensor(3)})
