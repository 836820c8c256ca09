"""Every registered kind of data keeps the contract of data, on a tiny example that the test writes."""

import gzip
import pickle
import struct
import zipfile

import numpy as np
import pytest
from PIL import Image
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

from glasshouse import registry
from glasshouse.data.named import NAMED
from glasshouse.testing.data_contract import DataContract, ShapedContract, TextContract

DRAWS = np.random.default_rng(0)
PIXELS = DRAWS.integers(0, 256, (20, 16, 16, 3), dtype=np.uint8)
LABELS = np.arange(20) % 4


def write_npz(folder):
    np.savez(folder / "data.npz", train_images=PIXELS, train_labels=LABELS)
    return folder / "data.npz"


def write_folder(folder):
    for i, (pixels, label) in enumerate(zip(PIXELS, LABELS, strict=True)):
        place = folder / "pictures" / "train" / f"class{label}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(place / f"{i}.png")
    return folder / "pictures"


def write_idx(folder):
    place = folder / "mnist"
    place.mkdir()
    for split, prefix in (("train", "train"), ("test", "t10k")):
        del split
        images = struct.pack(">IIII", 2051, 20, 16, 16) + PIXELS[..., 0].tobytes()
        labels = struct.pack(">II", 2049, 20) + LABELS.astype(np.uint8).tobytes()
        (place / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
        (place / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
    return place


def write_cifar10(folder):
    place = folder / "cifar"
    place.mkdir()
    rows = DRAWS.integers(0, 256, (10, 3072), dtype=np.uint8)
    batch = {b"data": rows, b"labels": list(range(10))}
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        (place / name).write_bytes(pickle.dumps(batch))
    return place


def write_zip(folder):
    with zipfile.ZipFile(folder / "pictures.zip", "w") as archive:
        for path in sorted(write_folder(folder).rglob("*.png")):
            archive.write(path, path.relative_to(folder))
    return folder / "pictures.zip"


def write_dicom(folder):
    for i, (pixels, label) in enumerate(zip(PIXELS, LABELS, strict=True)):
        place = folder / "scans" / f"class{label}"
        place.mkdir(parents=True, exist_ok=True)
        data = Dataset()
        data.file_meta = FileMetaDataset()
        data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID = SecondaryCaptureImageStorage
        data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID = generate_uid()
        data.set_pixel_data(pixels[..., 0], "MONOCHROME2", 8)
        data.save_as(place / f"{i:02}.dcm", enforce_file_format=True)
    return folder / "scans"


WRITERS = {
    "dicom": write_dicom,
    "npz": write_npz,
    "zip": write_zip,
    "folder": write_folder,
    "idx": write_idx,
    "cifar10": write_cifar10,
}


def write_arrays(folder):
    inputs = DRAWS.uniform(-2, 2, (20, 2, 30)).astype(np.float32)
    np.savez(folder / "series.npz", train_inputs=inputs, train_labels=LABELS, range=np.array([-2.0, 2.0]))
    return folder / "series.npz"


def write_nifti(folder):
    nibabel = pytest.importorskip("nibabel", reason="the extra 'volumes'")
    for i, label in enumerate(LABELS):
        place = folder / "volumes" / "train" / f"class{label}"
        place.mkdir(parents=True, exist_ok=True)
        volume = nibabel.Nifti1Image(DRAWS.uniform(0, 100, (4, 5, 6)).astype(np.float32), np.eye(4))
        volume.header["cal_min"], volume.header["cal_max"] = 0.0, 100.0
        nibabel.save(volume, place / f"{i:02}.nii.gz")
    return folder / "volumes"


SCHEMA = """
confirmed = true
[[column]]
name = "age"
kind = "integer"
low = 0
high = 100
[[column]]
name = "ill"
kind = "binary"
role = "target"
levels = ["no", "yes"]
"""


def write_table(folder):
    pytest.importorskip("pandas", reason="the extra 'tables'")
    rows = "".join(f"{20 + i},{('no', 'yes')[i % 2]}\n" for i in range(8))
    (folder / "people.csv").write_text("age,ill\n" + rows)
    (folder / "people.schema.toml").write_text(SCHEMA)
    return folder / "people.csv"


SHAPED = {"arrays": write_arrays, "nifti": write_nifti, "table": write_table, "clinic": None, "cohort": None}
BUILT_IN = ("digits", "photos")
OF_SENTENCES = ("sentences", "text")
ELSEWHERE = {"hf"}  # needs a hub: its reader is tested in tests/unit/test_sources.py with a stand-in


def test_every_registered_kind_is_here():
    here = {*WRITERS, *SHAPED, *BUILT_IN, *OF_SENTENCES, *ELSEWHERE, *NAMED}
    assert here == set(registry.names("datasets"))


class TestData(DataContract):
    @pytest.fixture(params=[*sorted(WRITERS), *BUILT_IN])
    def name(self, request):
        return request.param

    @pytest.fixture
    def where(self, name, tmp_path):
        return str(WRITERS[name](tmp_path)) if name in WRITERS else ""


class TestSentences(TextContract):
    @pytest.fixture(params=OF_SENTENCES)
    def name(self, request):
        return request.param

    @pytest.fixture
    def where(self, name, tmp_path):
        if name == "sentences":
            return ""
        (tmp_path / "a.txt").write_text("one sentence\nand another one\n")
        (tmp_path / "b.txt").write_text("a third, of another class\n")
        return str(tmp_path)


class TestShaped(ShapedContract):
    @pytest.fixture(params=sorted(SHAPED))
    def name(self, request):
        return request.param

    @pytest.fixture
    def where(self, name, tmp_path):
        writer = SHAPED[name]
        return str(writer(tmp_path)) if writer else ""
