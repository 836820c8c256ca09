"""Every kind of source reads what it should; what is wrong with a data set is said in one sentence."""

import gzip
import io
import pickle
import struct
from pathlib import Path
from typing import ClassVar

import datasets
import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image

from glasshouse import registry
from glasshouse.data.sources import load
from glasshouse.errors import BadFile, BadValue, UnknownName

SHARED = Path(__file__).parents[3] / "shared" / "data"
IMAGES = (np.arange(6 * 8 * 8 * 3) % 251).astype(np.uint8).reshape(6, 8, 8, 3)
LABELS = np.array([0, 1, 2, 0, 1, 2])
GREY = IMAGES[..., 0]


def npz(path, **arrays):
    np.savez(path / "x.npz", **{"train_images": IMAGES, "train_labels": LABELS, **arrays})
    return f"npz:{path / 'x.npz'}"


def pictures(path, images, labels, split=""):
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        target = path / split / f"class{label}" / f"{i}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(target)
    return f"folder:{path}"


def idx(path, images=GREY, labels=LABELS, prefix="train", pack=gzip.compress):
    for part, array in (("images-idx3", images), ("labels-idx1", labels.astype(np.uint8))):
        header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
        suffix = ".gz" if pack is gzip.compress else ""
        (path / f"{prefix}-{part}-ubyte{suffix}").write_bytes(pack(header + array.tobytes()))
    return f"idx:{path}"


CIFAR = (np.arange(2 * 3 * 32 * 32) % 253).astype(np.uint8).reshape(2, 3, 32, 32)


class Python2(pickle._Pickler):
    """Writes bytes as Python 2 wrote its strings: the official batches are from there."""

    def save_bytes(self, value):
        self.write(pickle.BINSTRING + struct.pack("<i", len(value)) + value)

    dispatch: ClassVar = {**pickle._Pickler.dispatch, bytes: save_bytes}


def cifar(path, name="data_batch_1", content=None):
    content = {b"data": CIFAR.reshape(2, -1), b"labels": [3, 9]} if content is None else content
    with (path / name).open("wb") as file:
        Python2(file, protocol=2).dump(content)
    return f"cifar10:{path}"


def hugging(path, features=None, rows=None):
    rows = rows or {"img": [Image.fromarray(i) for i in IMAGES], "label": LABELS.tolist()}
    features = features or {"img": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c"])}
    table = datasets.Dataset.from_dict(rows, features=datasets.Features(features))
    datasets.DatasetDict({"train": table, "validation": table, "extra": table}).save_to_disk(path / "hf")
    return f"hf:{path / 'hf'}"


def stored_pictures(path, stored):
    """A saved data set whose pictures are these bytes and paths."""
    place = hugging(path)
    table = pa.table({"img": stored, "label": [0] * len(stored)}).cast(
        pa.schema({"img": pa.struct({"bytes": pa.binary(), "path": pa.string()}), "label": pa.int64()})
    )
    for split in ("train", "validation", "extra"):
        (file,) = (path / "hf" / split).glob("*.arrow")
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    return place


def edited(file, old, new):
    """A saved data set, one of whose files says something else."""

    def make(path):
        place = hugging(path)
        changed = path / "hf" / file
        changed.write_text(changed.read_text().replace(old, new))
        return place

    return make


def expected(images):
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255


def test_digits():
    source = load("digits")
    inputs = source.split("train").batch().inputs
    assert source.public
    assert inputs.dtype == torch.float32
    assert (inputs.min(), inputs.max()) == (0, 1)
    assert source.class_names == tuple("0123456789")


def test_npz(tmp_path):
    source = load(
        npz(tmp_path, test_images=IMAGES[:2], test_labels=LABELS[:2, None], class_names=list("abc"))
    )
    batch = source.split("train").batch()
    torch.testing.assert_close(batch.inputs, expected(IMAGES))
    assert batch.labels.tolist() == LABELS.tolist()
    assert (source.class_names, source.classes, source.input_shape) == (("a", "b", "c"), 3, (3, 8, 8))
    assert not source.public
    assert len(source.split("test")) == 2


def test_a_relative_path_and_the_home_folder(tmp_path, monkeypatch):
    npz(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load("npz:x.npz").checksum == load("npz:~/x.npz").checksum


def test_grey_and_floats(tmp_path):
    for images in (GREY, GREY[..., None], GREY / 255.0, (GREY / 255.0).astype(np.float32)):
        batch = load(npz(tmp_path, train_images=images)).split("train").batch()
        torch.testing.assert_close(batch.inputs, torch.from_numpy(GREY)[:, None] / 255.0)
        assert batch.inputs.dtype == torch.float32


@pytest.mark.parametrize("split", ["", "test"])
def test_folder(tmp_path, split):
    name = pictures(tmp_path, IMAGES, LABELS, "train" if split else "")
    if split:
        pictures(tmp_path, IMAGES[:1], [1], split)
    (tmp_path / ".hidden").mkdir()
    source = load(name)
    order = np.argsort(LABELS, kind="stable")  # by class, then by file name
    torch.testing.assert_close(source.split("train").batch().inputs, expected(IMAGES[order]))
    assert source.split("train").labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert source.class_names == ("class0", "class1", "class2")
    if split:
        assert source.split("test").labels.tolist() == [1]


def test_pictures_of_several_sizes_are_brought_to_one(tmp_path):
    name = pictures(tmp_path, [GREY[0], GREY[1][:6], np.full((12, 12), 77, np.uint8)], [0, 0, 1])
    source = load(name, resize=8)
    pixels = source.split("train").stored
    assert torch.equal(pixels[0, 0], torch.from_numpy(GREY[0]))  # already that size: untouched
    assert (pixels[2] == 77).all()


@pytest.mark.parametrize("pack", [gzip.compress, bytes])
def test_idx(tmp_path, pack):
    idx(tmp_path, pack=pack)
    source = load(idx(tmp_path, GREY[:2], LABELS[:2], prefix="t10k", pack=pack))
    torch.testing.assert_close(source.split("train").batch().inputs[:, 0], torch.from_numpy(GREY) / 255.0)
    assert source.split("test").labels.tolist() == [0, 1]


def test_cifar10(tmp_path):
    cifar(tmp_path)
    content = {b"data": CIFAR.reshape(2, -1), b"labels": [3, 9]}
    (tmp_path / "data_batch_2").write_bytes(pickle.dumps(content, protocol=4))
    source = load(cifar(tmp_path, "test_batch"))
    assert {split: len(part) for split, part in source.splits.items()} == {"train": 4, "test": 2}
    torch.testing.assert_close(source.split("test").batch().inputs, torch.from_numpy(CIFAR) / 255.0)
    assert source.split("train").labels.tolist() == [3, 9, 3, 9]
    assert source.class_names[9] == "truck"


def test_hugging_face_from_a_folder(tmp_path):
    source = load(hugging(tmp_path))
    torch.testing.assert_close(source.split("val").batch().inputs, expected(IMAGES))
    assert set(source.splits) == {"train", "val"}
    assert source.class_names == ("a", "b", "c")


def test_the_checksum_is_of_the_content(tmp_path):
    first = load(npz(tmp_path)).checksum
    assert load(npz(tmp_path)).checksum == first
    changed = IMAGES.copy()
    changed[0, 0, 0, 0] += 1
    assert load(npz(tmp_path, train_images=changed)).checksum != first
    assert load(npz(tmp_path, train_labels=LABELS[::-1])).checksum != first
    assert load(npz(tmp_path), resize=4).checksum != first
    assert load(npz(tmp_path), channels=1).checksum != first


def test_resizing_keeps_type_range_and_mean(tmp_path):
    whole = load(npz(tmp_path, train_images=GREY), resize=4).split("train").stored
    parts = load(npz(tmp_path, train_images=GREY / 255.0), resize=4).split("train").stored
    assert (whole.dtype, whole.shape) == (torch.uint8, (6, 1, 4, 4))
    torch.testing.assert_close(whole / 255, parts, atol=0.5 / 255 + 1e-6, rtol=0)
    assert parts.mean() == pytest.approx(GREY.mean() / 255, rel=0.02)


def test_channels(tmp_path):
    colour = load(npz(tmp_path, train_images=GREY), channels=3).split("train").stored
    assert torch.equal(colour, torch.from_numpy(GREY)[:, None].expand(-1, 3, -1, -1))
    white = np.full_like(IMAGES, 255)
    white[0] = [255, 0, 0]
    grey = load(npz(tmp_path, train_images=white), channels=1).split("train").stored
    assert grey[0].unique().tolist() == [76]  # 0.299 × 255
    assert grey[1].unique().tolist() == [255]
    assert load(npz(tmp_path), public=True).public


@pytest.mark.parametrize("kind", registry.names("datasets"))
def test_cards(kind):
    assert registry.card("datasets", kind).summary


def nan(images):
    broken = images / 255.0
    broken[1, 2, 3] = np.nan
    return broken


NPZ_MISTAKES = {
    "float 0..255": ({"train_images": IMAGES.astype(float)}, "float images in [0, 1]"),
    "normalised": ({"train_images": IMAGES / 127.5 - 1}, "undo it"),
    "nan": ({"train_images": nan(GREY)}, "1 values not finite"),
    "all nan": ({"train_images": np.full((6, 8, 8), np.nan)}, "384 values not finite"),
    "int32": ({"train_images": IMAGES.astype(np.int32)}, "type int32"),
    "objects": ({"train_images": np.array([{}, 1], dtype=object)}, "plain arrays"),
    "channels first": ({"train_images": IMAGES.transpose(0, 3, 1, 2)}, "channels last"),
    "four channels": ({"train_images": np.zeros((6, 8, 8, 4), np.uint8)}, "grey or RGB"),
    "flat": ({"train_images": IMAGES.reshape(6, -1)}, "shape (6, 192)"),
    "no images": ({"train_images": IMAGES[:0], "train_labels": LABELS[:0]}, "at least one image"),
    "too few labels": ({"train_labels": LABELS[:5]}, "labels of shape (5,)"),
    "negative labels": ({"train_labels": LABELS - 1}, "labels from -1 to 1"),
    "label above names": ({"class_names": ["a", "b"]}, "there are 2 class names"),
    "huge label": ({"train_labels": LABELS.astype(np.uint64) * 2**62}, "labels from 0 to"),
    "test images alone": ({"test_images": IMAGES}, "test_labels missing"),
    "test of another size": ({"test_images": GREY[:, :4], "test_labels": LABELS}, "test (1, 4, 8)"),
    "bad test split": ({"test_images": IMAGES, "test_labels": LABELS - 1}, "split 'test'"),
}


@pytest.mark.parametrize("mistake", NPZ_MISTAKES)
def test_npz_mistakes(tmp_path, mistake):
    arrays, words = NPZ_MISTAKES[mistake]
    if mistake == "objects":
        np.savez(tmp_path / "x.npz", train_labels=LABELS, **arrays)
        name = f"npz:{tmp_path / 'x.npz'}"
    else:
        name = npz(tmp_path, **arrays)
    with pytest.raises(BadFile) as caught:
        load(name)
    assert words in str(caught.value)
    assert name in caught.value.subject


def text(path):
    (path / "x.npz").write_text("hello")
    return f"npz:{path / 'x.npz'}"


def cut(path):
    name = npz(path)
    data = bytearray((path / "x.npz").read_bytes())
    data[100:600] = bytes(500)
    (path / "x.npz").write_bytes(data)
    return name


def keyless(path):
    np.savez(path / "x.npz", images=IMAGES)
    return f"npz:{path / 'x.npz'}"


def transparent(path):
    return pictures(path, [np.zeros((8, 8, 4), np.uint8)], [0])


def damaged(path):
    name = pictures(path, GREY, LABELS)
    (path / "class1" / "1.png").write_bytes(b"\x89PNG\r\n\x1a\nxxxx")
    return name


def hollow(path):
    name = pictures(path, GREY, LABELS)
    (path / "empty").mkdir()
    return name


def half_idx(path):
    name = idx(path)
    (path / "train-labels-idx1-ubyte.gz").unlink()
    return name


def swapped_idx(path):
    name = idx(path)
    (path / "train-labels-idx1-ubyte.gz").write_bytes((path / "train-images-idx3-ubyte.gz").read_bytes())
    return name


def cut_idx(path):
    name = idx(path, pack=bytes)
    file = path / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:-1])
    return name


def cut_gzip(path):
    name = idx(path)
    file = path / "train-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:-20])
    return name


class Harm:
    def __reduce__(self):
        return (print, ("code of a pickle ran",))


PLACES = {
    "no such kind": (lambda p: "npzz:x", UnknownName, "did you mean npz"),
    "no kind": (lambda p: "", UnknownName, "known: "),
    "a path alone": (lambda p: str(p / "x.npz"), UnknownName, "datasets"),
    "digits with a path": (lambda p: "digits:x", BadValue, "write 'digits' alone"),
    "npz: no path": (lambda p: "npz:", BadFile, "no path"),
    "npz: missing": (lambda p: f"npz:{p / 'no.npz'}", BadFile, "no such file"),
    "npz: a folder": (lambda p: f"npz:{p}", BadFile, "got    a folder"),
    "npz: a text": (text, BadFile, "a numpy archive"),
    "npz: damaged": (cut, BadFile, "undamaged"),
    "npz: keys": (keyless, BadFile, "train_images, train_labels missing; there is images"),
    "folder: missing": (lambda p: f"folder:{p / 'no'}", BadFile, "no such folder"),
    "folder: a file": (lambda p: text(p).replace("npz:", "folder:"), BadFile, "got    a file"),
    "folder: no classes": (lambda p: f"folder:{p}", BadFile, "one folder per class"),
    "folder: empty class": (hollow, BadFile, "none in"),
    "folder: sizes": (lambda p: pictures(p, [GREY[0], GREY[1][:5]], [0, 1]), BadFile, "set data.resize"),
    "folder: grey and colour": (
        lambda p: pictures(p, [GREY[0], IMAGES[1]], [0, 1]),
        BadFile,
        "all grey or all",
    ),
    "folder: transparent": (transparent, BadFile, "mode RGBA"),
    "folder: damaged": (damaged, BadFile, "1.png"),
    "idx: empty": (lambda p: f"idx:{p}", BadFile, "train-images-idx3-ubyte.gz"),
    "idx: half": (half_idx, BadFile, "images and labels of 'train'"),
    "idx: swapped": (swapped_idx, BadFile, "1 dimensions"),
    "idx: cut": (cut_idx, BadFile, "383 bytes"),
    "idx: cut gzip": (cut_gzip, BadFile, "files that can be read"),
    "idx: lengths": (lambda p: idx(p, GREY, LABELS[:3]), BadFile, "one label per example"),
    "cifar10: empty": (lambda p: f"cifar10:{p}", BadFile, "cifar-10-python.tar.gz"),
    "cifar10: code": (lambda p: cifar(p, content=Harm()), BadFile, "the file asks for __builtin__.print"),
    "cifar10: keys": (lambda p: cifar(p, content={b"x": 1}), BadFile, "KeyError"),
    "cifar10: lengths": (
        lambda p: cifar(p, content={b"data": CIFAR, b"labels": [1]}),
        BadFile,
        "6144 bytes, 1",
    ),
    "cifar10: text": (
        lambda p: ((p / "test_batch").write_text("x"), f"cifar10:{p}")[1],
        BadFile,
        "test_batch",
    ),
    "hf: no data set": (lambda p: f"hf:{p}", BadFile, "save_to_disk"),
    "hf: no classes": (
        lambda p: hugging(p, {"img": datasets.Image(), "label": datasets.Value("int64")}),
        BadFile,
        "exactly one class column",
    ),
    "hf: no name": (lambda p: "hf:", BadFile, "or an existing folder"),
    "hf: a path": (lambda p: f"hf:{p / 'no'}", BadFile, "which is neither"),
    "hf: a script": (lambda p: "hf:owner/load.py", BadFile, "which is neither"),
    "hf: an address": (lambda p: "hf:https://example.org/x", BadFile, "which is neither"),
    "hf: one up": (lambda p: "hf:../x", BadFile, "which is neither"),
    "hf: a format": (lambda p: "hf:imagefolder", BadFile, "which is neither"),
    "hf: long": (lambda p: "hf:" + "x" * 300, BadFile, "File name too long"),
    "hf: unknown": (lambda p: "hf:nobody/nothing", BadFile, "a connection to the Hub"),
    "hf: a table outside": (edited("train/state.json", "data-00000", "../../data"), BadFile, "inside"),
    "hf: a split outside": (edited("dataset_dict.json", "train", ".."), BadFile, "inside"),
    "hf: no JSON": (edited("train/dataset_info.json", "{", "["), BadFile, "JSON"),
    "hf: other types": (edited("train/dataset_info.json", "ClassLabel", "Runs"), BadFile, "undamaged"),
    "hf: a picture outside": (
        lambda p: stored_pictures(p, [{"bytes": None, "path": "/etc/passwd"}]),
        BadFile,
        "inside",
    ),
    "hf: a picture elsewhere": (
        lambda p: stored_pictures(p, [{"bytes": None, "path": "https://example.org/a.png"}]),
        BadFile,
        "inside",
    ),
    "hf: no picture": (
        lambda p: stored_pictures(p, [{"bytes": None, "path": None}]),
        BadFile,
        "undamaged",
    ),
    "hf: damaged pictures": (
        lambda p: stored_pictures(p, [{"bytes": b"no picture", "path": None}]),
        BadFile,
        "cannot identify",
    ),
    "hf: a label missing": (
        lambda p: hugging(p, rows={"img": [Image.fromarray(IMAGES[0])], "label": [None]}),
        BadFile,
        "undamaged",
    ),
    "hf: wrong column": (lambda p: hugging(p) + "#img", BadFile, "a class column 'img'"),
}


@pytest.mark.parametrize("mistake", PLACES)
def test_mistakes_by_their_words(tmp_path, mistake, capsys):
    make, error, words = PLACES[mistake]
    with pytest.raises(error) as caught:
        load(make(tmp_path))
    assert words in str(caught.value)
    assert "code of a pickle ran" not in capsys.readouterr().out


def test_no_script_of_a_saved_data_set_is_run(tmp_path):
    (tmp_path / f"{tmp_path.name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(BadFile, match="save_to_disk"):
        load(f"hf:{tmp_path}")
    assert not (tmp_path / "ran").exists()


def test_sizes_of_pictures_are_added_up_before_one_is_decoded(tmp_path, monkeypatch):
    """Twenty grey pictures of 2^26 pixels each are 64 kB a piece, and 1.3 GB in memory."""
    bomb = io.BytesIO()
    Image.new("1", (2**13, 2**13)).save(bomb, "PNG", compress_level=1)
    place = stored_pictures(tmp_path, [{"bytes": bomb.getvalue(), "path": None}] * 20)
    monkeypatch.setattr("glasshouse.data.kinds.hf.decode", lambda *_, **__: pytest.fail("decoded"))
    with pytest.raises(BadFile, match="unpacks to at most"):
        load(place)


def test_a_saved_data_set_with_too_many_rows_or_classes_is_refused_before_a_picture_is_read(
    tmp_path, monkeypatch
):
    place = hugging(tmp_path)
    for limit, words in (("EXAMPLES", "at most 2 examples"), ("CLASSES", "at most 2 classes")):
        monkeypatch.setattr(f"glasshouse.data.kinds.hf.limits.{limit}", 2)
        with pytest.raises(BadFile, match=words):
            load(place)
        monkeypatch.undo()


@pytest.mark.parametrize(
    ("settings", "words"), [({"resize": 0}, "resize >= 1"), ({"channels": 2}, "channels: 1 or 3")]
)
def test_settings_that_are_refused(settings, words):
    with pytest.raises(BadValue, match=words):
        load("digits", **settings)


def test_a_split_that_is_not_there():
    with pytest.raises(BadValue, match="a split among train, test"):
        load("digits").split("val")


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data")
def test_the_real_files_agree_with_each_other():
    """The MNIST archive was made from the idx files: the same 10,000 images, in other order."""
    archive = load(f"npz:{SHARED / 'mnist_10k.npz'}")
    original = load(f"idx:{SHARED / 'mnist-idx'}")
    sums = torch.cat([archive.splits[s].stored.sum((1, 2, 3)) for s in ("train", "test")]).sort().values
    assert torch.equal(sums, original.split("test").stored.sum((1, 2, 3)).sort().values)
