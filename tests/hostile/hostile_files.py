"""Models, data and results that would harm whoever opens them without care."""

import gzip
import json
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tests.hostile.hostile_runs import Case, linked, safetensors_bytes

from glasshouse.store import write_tensors

SCENARIO = """
name = "mine"
[data]
source = "{source}"
examples = 1
[model]
name = "mlp"
[federation]
clients = 2
[[attacks]]
name = "linear_input"
[audit]
metrics = ["psnr"]
utility = false
controls = false
"""


class Runs:
    """Unpickled, it would run a command."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, ("touch EVIL",))


def model(name: str, make: Callable[[Path], None], *, agreed: str = "") -> Case:
    """``guard`` on a file."""

    def build(place: Path, honest: Path) -> list[str]:
        del honest
        make(place / name)
        return ["guard", name, *(["--agreed", agreed] if agreed else [])]

    return build


def agreed(**architecture: Any) -> Case:
    """``guard --agreed`` with terms from outside."""

    def build(place: Path, honest: Path) -> list[str]:
        del honest
        (place / "evilmod.py").write_text("open('EVIL', 'w').close()\ndef f(*a, **k): ...\n")
        inputs = {"name": "image", "fields": {"size": [1, 8, 8]}}
        task = {"name": "classification", "fields": {"classes": 10}}
        plain = {"name": "mlp", "inputs": inputs, "task": task, "arguments": {}, **architecture}
        (place / "terms.json").write_text(json.dumps({"architecture": plain}))
        write_tensors(place / "m.safetensors", {"fc.weight": torch.randn(8, 64)})
        return ["guard", "m.safetensors", "--agreed", "terms.json"]

    return build


def data(source: str, make: Callable[[Path], None]) -> Case:
    """``audit`` of a scenario whose data lie in ``x``."""

    def build(place: Path, honest: Path) -> list[str]:
        del honest
        make(place / "x")
        (place / "mine.toml").write_text(SCENARIO.format(source=source))
        return ["audit", "mine.toml", "--out", "out", "--jobs", "1"]

    return build


def result(change: Callable[[dict[str, Any]], Any], beside: Callable[[Path], None] | None = None) -> Case:
    """``report`` of a run with another result."""

    def build(place: Path, honest: Path) -> list[str]:
        (place / "run").mkdir()
        raw = json.loads((honest / "result.json").read_text())
        changed = change(raw)
        text = changed if isinstance(changed, str) else json.dumps(changed)
        (place / "run" / "result.json").write_text(text)
        if beside is not None:
            beside(place / "run")
        return ["report", "run"]

    return build


def saved(value: Any) -> Callable[[Path], None]:
    """A torch file."""
    return lambda path: torch.save(value, path)


def sparse_file(path: Path) -> None:
    """One number, in a tensor of 2^40."""
    place = torch.tensor([[0], [0]])
    huge = torch.sparse_coo_tensor(place, [1.0], (2**20, 2**20), check_invariants=True)
    torch.save({"a.weight": huge}, path)


def torch_bomb(path: Path) -> None:
    """A torch file whose archive says that it unpacks to 4 GB."""
    torch.save({"w": torch.zeros(4)}, path)
    path.write_bytes(swollen(path.read_bytes()))


def swollen(archive: bytes) -> bytes:
    """A zip file whose first entry claims 4 GB in the list of its contents."""
    at = archive.index(b"PK\x01\x02")
    return archive[: at + 24] + struct.pack("<I", 0xF0000000) + archive[at + 28 :]


def npz(path: Path, **arrays: Any) -> None:
    """A numpy archive of ten small pictures, with other arrays in place of its own."""
    usual = {"train_images": np.zeros((10, 8, 8), np.uint8), "train_labels": np.arange(10)}
    np.savez_compressed(path, **{**usual, **arrays})
    path.with_suffix(".npz").rename(path)


def npz_header(path: Path, shape: str) -> None:
    """An array whose header claims a shape."""
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "train_images.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(64)
        )


def npz_bomb(path: Path) -> None:
    npz(path)
    path.write_bytes(swollen(path.read_bytes()))


def pictures(path: Path) -> Path:
    """A folder of two classes with a picture each."""
    for name in "ab":
        (path / name).mkdir(parents=True)
        Image.new("L", (8, 8)).save(path / name / "1.png")
    return path


def picture_bomb(path: Path) -> None:
    """A PNG whose header says 50,000 × 50,000."""
    file = pictures(path) / "a" / "1.png"
    content = bytearray(file.read_bytes())
    content[16:24] = struct.pack(">II", 50_000, 50_000)
    content[29:33] = struct.pack(">I", zlib.crc32(bytes(content[12:29])))
    file.write_bytes(content)


def picture_link(path: Path) -> None:
    Image.new("L", (8, 8)).save(path.parent / "elsewhere.png")
    (pictures(path) / "a" / "2.png").symlink_to(path.parent / "elsewhere.png")


def class_link(path: Path) -> None:
    pictures(path.parent / "elsewhere")
    (pictures(path) / "c").symlink_to(path.parent / "elsewhere" / "a")


def idx(path: Path, images: bytes, *, packed: bool = False) -> None:
    path.mkdir()
    (path / f"train-images-idx3-ubyte{'.gz' if packed else ''}").write_bytes(images)
    (path / "train-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1]) + struct.pack(">I", 1) + b"\0")


def cifar(path: Path, content: bytes | None) -> None:
    path.mkdir()
    if content is None:
        linked_batch = path.parent / "elsewhere"
        linked_batch.write_bytes(b"x")
        (path / "data_batch_1").symlink_to(linked_batch)
    else:
        (path / "data_batch_1").write_bytes(content)


def zipped(**exhibit: Any) -> Callable[[dict[str, Any]], Any]:
    """A result with one exhibit of pictures more."""
    usual = {
        "kind": "pictures",
        "scenario": "mine",
        "title": "t",
        "caption": "",
        "data": {},
        "private": [],
    }
    return lambda raw: {**raw, "exhibits": [{**usual, **exhibit}]}


_TERA = {"w": {"dtype": "F32", "shape": [2**38], "data_offsets": [0, 2**40]}}
_MEMO = pickle.PROTO + b"\x02" + b"]" + pickle.LONG_BINPUT + struct.pack("<I", 2**31) + pickle.STOP
_LONG = pickle.PROTO + b"\x04" + pickle.BINBYTES8 + struct.pack("<Q", 2**40) + b"x" + pickle.STOP
_BLOCK = gzip.compress(bytes(2**22))

FILES: dict[str, Case] = {
    "agreed: a factory of the current folder": agreed(name="evilmod:f"),
    "agreed: 10^9 classes": agreed(task={"name": "classification", "fields": {"classes": 10**9}}),
    "agreed: 10^6 wide": agreed(name="resnet18", arguments={"width": 10**6}),
    "agreed: a list for a name": agreed(name=["mlp"]),
    "model: a pickle that runs a command": model("m.pt", lambda p: p.write_bytes(pickle.dumps(Runs()))),
    "model: a torch file that runs a command": model("m.pt", saved({"w": Runs()})),
    "model: a whole module": model("m.pt", saved(torch.nn.Linear(2, 2))),
    "model: 2^36 numbers made of one": model(
        "m.pt", saved({"a.weight": torch.zeros(1).expand(2**18, 2**18)})
    ),
    "model: sparse, 2^40 numbers": model(
        "m.pt",
        sparse_file,
    ),
    "model: an archive of 4 GB": model("m.pt", torch_bomb),
    "model: garbage": model("m.pt", lambda p: p.write_bytes(b"garbage" * 99)),
    "model: empty": model("m.pth", lambda p: p.write_bytes(b"")),
    "model: a pipe": model("m.pt", os.mkfifo),
    "model: an endless device": model("m.safetensors", lambda p: p.symlink_to("/dev/zero")),
    "model: 2^38 numbers claimed": model("m.safetensors", lambda p: p.write_bytes(safetensors_bytes(_TERA))),
    "model: a version of 5,000 digits": model(
        "m.safetensors",
        lambda p: p.write_bytes(safetensors_bytes({"__metadata__": {"glasshouse_format": "9" * 5000}})),
    ),
    "model: names that are markup": model(
        "m.safetensors", lambda p: write_tensors(p, {"[/bold]\x1b[2J.weight": torch.zeros(16, 16)})
    ),
    "npz: an archive of 4 GB": data("npz:x", npz_bomb),
    "npz: 2^40 numbers claimed": data("npz:x", lambda p: npz_header(p, "(1048576, 1024, 1024)")),
    "npz: a negative shape": data("npz:x", lambda p: npz_header(p, "(-1, 8, 8)")),
    "npz: Python objects": data(
        "npz:x", lambda p: npz(p, train_labels=np.array([Runs()] * 10, dtype=object))
    ),
    "npz: a label of 10^9": data("npz:x", lambda p: npz(p, train_labels=np.arange(10) + 10**9)),
    "npz: negative labels": data("npz:x", lambda p: npz(p, train_labels=-np.arange(10))),
    "npz: class names that are one number": data("npz:x", lambda p: npz(p, class_names=np.array(3))),
    "npz: a pipe": data("npz:x", os.mkfifo),
    "folder: a picture of 50,000 pixels a side": data("folder:x", picture_bomb),
    "folder: a link out of it": data("folder:x", picture_link),
    "folder: a class that is a link": data("folder:x", class_link),
    "folder: a pipe for a picture": data("folder:x", lambda p: os.mkfifo(pictures(p) / "a" / "2.png")),
    "folder: garbage for a picture": data(
        "folder:x", lambda p: (pictures(p) / "a" / "2.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"x" * 99)
    ),
    "idx: 2^60 pixels claimed": data(
        "idx:x", lambda p: idx(p, bytes([0, 0, 8, 3]) + struct.pack(">III", 2**20, 2**20, 2**20))
    ),
    "idx: an archive of zeros": data("idx:x", lambda p: idx(p, _BLOCK * 300, packed=True)),
    "cifar10: a pickle that runs a command": data("cifar10:x", lambda p: cifar(p, pickle.dumps(Runs()))),
    "cifar10: a memo of 2^31 entries": data("cifar10:x", lambda p: cifar(p, _MEMO)),
    "cifar10: a text of 2^40 bytes": data("cifar10:x", lambda p: cifar(p, _LONG)),
    "cifar10: a link": data("cifar10:x", lambda p: cifar(p, None)),
    "result: a list": result(lambda raw: [raw]),
    "result: 100,000 brackets": result(lambda _: "[" * 100_000),
    "result: findings of texts": result(lambda raw: {**raw, "findings": ["x"]}),
    "result: a gain of text": result(
        lambda raw: {**raw, "findings": [{**raw["findings"][0], "gain": "<script>"}]}
    ),
    "result: keys are missing": result(lambda raw: {"format": raw["format"], "suite": 7}),
}

SHOWN: dict[str, Case] = {
    "result: pictures above the folder": result(zipped(file="../../../../etc/passwd")),
    "result: pictures through a link": result(zipped(file="p.npz"), lambda p: linked(p / "p.npz")),
    "result: pictures in an archive of 4 GB": result(zipped(file="p.npz"), lambda p: npz_bomb(p / "p.npz")),
}
"""Cases in which a report is written all the same, and says what could not be shown."""
