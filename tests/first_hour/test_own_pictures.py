"""Pictures of one's own: a zip read in place, 16 bits, arrays in memory."""

import io
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images

from glasshouse.data.base import assemble
from glasshouse.data.kinds import pictures, zipped
from glasshouse.data.sources import load
from glasshouse.data.survey import survey
from glasshouse.errors import BadFile, BadValue

FACES = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)
LABELS = np.arange(12) % 3


def zip_of(path, prefix=""):
    with zipfile.ZipFile(path, "w") as archive:
        for i, (image, label) in enumerate(zip(FACES, LABELS, strict=True)):
            content = io.BytesIO()
            Image.fromarray(image).save(content, "PNG")
            archive.writestr(f"{prefix}person{label}/{i:02}.png", content.getvalue())
        archive.writestr(f"{prefix}README.txt", b"x")
    return path


@pytest.mark.parametrize("prefix", ["", "faces/", "a/b/"])
def test_a_zip_is_read_in_place_as_its_folder_would_be(prefix, tmp_path):
    path = zip_of(tmp_path / "faces.zip", prefix)
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path / "unpacked")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("__MACOSX/person0/._00.png", b"what Finders add")
    source = load(f"zip:{path}")
    assert source.checksum == load(f"folder:{tmp_path}/unpacked/{prefix}").checksum
    assert source.class_names == ("person0", "person1", "person2")
    assert survey(f"zip:{path}") == survey(f"folder:{tmp_path}/unpacked/{prefix}")


def test_a_zip_with_splits(tmp_path):
    path = tmp_path / "two.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for split, label, shade in (("train", "a", 1), ("train", "b", 2), ("test", "b", 3)):
            content = io.BytesIO()
            Image.new("L", (4, 4), shade).save(content, "PNG")
            archive.writestr(f"set/{split}/{label}/x.png", content.getvalue())
    source = load(f"zip:{path}")
    assert {name: part.labels.tolist() for name, part in source.splits.items()} == {
        "train": [0, 1],
        "test": [1],
    }
    assert survey(f"zip:{path}").counts == {"train": {0: 1, 1: 1}, "test": {1: 1}}


def test_a_zip_of_many_pictures_comes_from_the_cache_until_it_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(pictures, "MANY", 3)
    path = zip_of(tmp_path / "faces.zip")
    first = load(f"zip:{path}").checksum
    monkeypatch.setattr(zipped, "decode", None)  # a second decoding would fail
    assert load(f"zip:{path}").checksum == first


def bomb(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for i in range(3):
            archive.writestr(f"a/{i}.png", bytes(2**29))


def broken_picture(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/x.png", b"no picture")


def flat(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.png", b"no picture")


@pytest.mark.parametrize(
    ("write", "match"),
    [
        (lambda p: p.write_text("no zip"), "a zip of pictures, undamaged"),
        (broken_picture, "'a/x.png'"),
        (flat, "no folders with pictures"),
        pytest.param(bomb, "unpacks to at most", marks=pytest.mark.slow),
    ],
)
def test_a_zip_that_is_none_says_so(write, match, tmp_path):
    write(tmp_path / "x.zip")
    with pytest.raises(BadFile, match=match):
        load(f"zip:{tmp_path}/x.zip")


def deep(folder, kind="png"):
    values = (np.arange(64).reshape(8, 8) * 1040).astype(np.uint16)
    for label in ("a", "b"):
        (folder / label).mkdir(parents=True)
        Image.fromarray(values).save(folder / label / f"x.{kind}")
    return values


@pytest.mark.parametrize("kind", ["png", "tif"])
def test_pictures_of_16_bits_keep_them(kind, tmp_path):
    values = deep(tmp_path / "scans", kind)
    source = load(f"folder:{tmp_path}/scans")
    inputs = source.split("train").batch().inputs
    torch.testing.assert_close(inputs[0, 0], torch.from_numpy(values.astype(np.float32) / 65535))
    assert len(inputs[0].unique()) == 64
    assert survey(f"folder:{tmp_path}/scans").shape == source.input_shape == (1, 8, 8)
    assert load(f"folder:{tmp_path}/scans", resize=4).input_shape == (1, 4, 4)


def test_8_and_16_bits_are_not_mixed(tmp_path):
    deep(tmp_path / "scans")
    Image.new("L", (8, 8)).save(tmp_path / "scans" / "a" / "y.png")
    with pytest.raises(BadFile, match="one depth"):
        load(f"folder:{tmp_path}/scans")


def test_arrays_in_memory_are_a_source():
    source = assemble(
        "my scans", {"train": (FACES, LABELS)}, class_names=["a", "b", "c"], public=False, resize=None
    )
    assert (source.input_shape, source.classes, len(source.split("train"))) == ((3, 8, 8), 3, 12)


def test_the_built_in_photographs_are_cut_without_sharing_a_pixel():
    source = load("photos")
    counts = {
        split: dict(enumerate(part.labels.bincount().tolist())) for split, part in source.splits.items()
    }
    assert survey("photos").counts == counts
    assert (survey("photos").shape, survey("photos").classes) == (source.input_shape, source.classes)
    assert source.public
    china, flower = load_sample_images().images
    used = torch.cat([source.split("train").stored, source.split("test").stored]).permute(0, 2, 3, 1)
    whole = np.concatenate([photo[:416].reshape(-1, 3) for photo in (china, flower)])
    assert len(used) * 32 * 32 == len(whole), "every pixel once, but the last rows"
    assert used.sum() == whole.sum(dtype=np.int64)
    with pytest.raises(BadValue, match="write 'photos' alone"):
        load("photos:here")
