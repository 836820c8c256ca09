"""Scans as hospitals store them: rescaled, windowed, inverted, 8 to 16 bits; nobody's name is read."""

import sys
import tracemalloc

import numpy as np
import pytest
import torch
from pydicom import config
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.pixels.processing import apply_modality_lut, apply_windowing
from pydicom.sequence import Sequence
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    ExplicitVRLittleEndian,
    JPEGLSLossless,
    RLELossless,
    SecondaryCaptureImageStorage,
    generate_uid,
)

from glasshouse import registry
from glasshouse.data.kinds import dicom
from glasshouse.data.sources import load
from glasshouse.data.survey import survey
from glasshouse.errors import BadFile, NotInstalled

NAME = "Doe^Jane"
RAMP = np.arange(64).reshape(8, 8)


def scan(values, *, bits=12, signed=False, syntax=ExplicitVRLittleEndian, **tags):
    """A data set as a modality would write it."""
    data = Dataset()
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID = SecondaryCaptureImageStorage
    data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID = generate_uid()
    data.PatientName, data.PatientID, data.PatientBirthDate = NAME, "4711", "19700101"
    data.Rows, data.Columns = values.shape[:2]
    data.SamplesPerPixel = values.shape[2] if values.ndim == 3 else 1
    data.PhotometricInterpretation = "RGB" if values.ndim == 3 else "MONOCHROME2"
    if values.ndim == 3:
        data.PlanarConfiguration = 0
    data.BitsAllocated = 8 if bits <= 8 else 16
    data.BitsStored, data.HighBit, data.PixelRepresentation = bits, bits - 1, int(signed)
    kind = f"{'i' if signed else 'u'}{data.BitsAllocated // 8}"
    data.PixelData = values.astype(kind).tobytes()
    data["PixelData"].VR = "OB" if bits <= 8 else "OW"
    for name, value in tags.items():
        setattr(data, name, value)
    if syntax == RLELossless:
        data.compress(RLELossless)
    if syntax == JPEGLSLossless:  # nothing here decodes it
        data.PixelData = encapsulate([b"x" * 64])
    data.file_meta.TransferSyntaxUID = syntax
    return data


def write(folder, *scans):
    """One class per scan."""
    for i, data in enumerate(scans):
        place = folder / f"class{i}"
        place.mkdir(parents=True, exist_ok=True)
        data.save_as(place / "a.dcm", enforce_file_format=True)
    return f"dicom:{folder}"


def read(folder, data):
    return load(write(folder, data)).split("train").batch().inputs[0]


@pytest.mark.parametrize("syntax", [ExplicitVRLittleEndian, RLELossless])
@pytest.mark.parametrize("bits", [8, 12, 16])
def test_without_a_window_values_are_divided_by_what_their_bits_can_hold(bits, syntax, tmp_path):
    values = RAMP * (2**bits - 1) // 63
    pixels = read(tmp_path, scan(values, bits=bits, syntax=syntax))
    torch.testing.assert_close(pixels[0], torch.tensor(values / (2**bits - 1), dtype=torch.float32))


def test_signed_values_with_a_slope_span_the_same_range(tmp_path):
    values = RAMP * 65 - 2048
    pixels = read(tmp_path, scan(values, signed=True, RescaleSlope=2, RescaleIntercept=-1024))
    torch.testing.assert_close(pixels[0], torch.tensor((values + 2048) / 4095, dtype=torch.float32))


@pytest.mark.parametrize("function", ["LINEAR", "LINEAR_EXACT", "SIGMOID"])
def test_the_first_window_is_the_one_that_pydicom_applies(function, tmp_path):
    data = scan(
        RAMP * 65,
        RescaleSlope=1.5,
        RescaleIntercept=-1024,
        WindowCenter=[900, 40],
        WindowWidth=[1400, 80],
        VOILUTFunction=function,
    )
    shown = apply_windowing(apply_modality_lut(data.pixel_array, data), data)
    low, high = -1024, 4095 * 1.5 - 1024
    torch.testing.assert_close(
        read(tmp_path, data)[0], torch.tensor((shown - low) / (high - low), dtype=torch.float32)
    )


def test_monochrome1_is_inverted(tmp_path):
    upright = read(tmp_path / "a", scan(RAMP * 65))
    inverted = read(tmp_path / "b", scan(4095 - RAMP * 65, PhotometricInterpretation="MONOCHROME1"))
    torch.testing.assert_close(inverted, upright)


def test_a_table_of_shown_values_is_looked_up(tmp_path):
    table = Dataset()
    table.LUTDescriptor = [64, 0, 10]
    table.LUTData = list(range(1023, 1023 - 64, -1))
    table["LUTDescriptor"].VR = table["LUTData"].VR = "US"
    pixels = read(tmp_path, scan(RAMP, VOILUTSequence=Sequence([table])))
    torch.testing.assert_close(pixels[0], torch.tensor((1023 - RAMP) / 1023, dtype=torch.float32))


def test_colour_is_read(tmp_path):
    values = np.random.default_rng(0).integers(0, 256, (8, 6, 3))
    source = write(tmp_path, scan(values, bits=8), scan(values, bits=8))
    assert load(source).input_shape == survey(source).shape == (3, 8, 6)
    assert torch.equal(
        load(source).split("train").stored[0], torch.tensor(values, dtype=torch.uint8).permute(2, 0, 1)
    )


def test_scans_of_several_sizes_are_brought_to_one(tmp_path):
    source = write(tmp_path, scan(RAMP), scan(np.zeros((16, 12))))
    assert survey(source, 4).counts == {"train": {0: 1, 1: 1}}
    assert load(source, resize=4).input_shape == survey(source, 4).shape == (1, 4, 4)
    with pytest.raises(BadFile, match="pictures of one size"):
        load(source)


def test_no_name_is_read(tmp_path, monkeypatch):
    read_tags = []
    original = dicom.dcmread

    def dcmread(*arguments, **settings):
        data = original(*arguments, **settings)
        read_tags.extend(element.keyword for element in data)
        return data

    monkeypatch.setattr(dicom, "dcmread", dcmread)
    source = write(tmp_path, scan(RAMP), scan(RAMP + 1))
    survey(source)
    assert NAME not in repr(load(source))
    assert "PixelData" in read_tags
    assert [tag for tag in read_tags if tag.startswith(("Patient", "SOP", "Study"))] == []


def cut(path):
    path.write_bytes(path.read_bytes()[:-20])


def headless(path):
    path.write_bytes(b"no DICOM" * 40)


def test_a_length_that_no_file_has_is_not_allocated(tmp_path):
    source = write(tmp_path, scan(RAMP))
    path = tmp_path / "class0" / "a.dcm"
    content = path.read_bytes()
    place = content.rindex(b"\xe0\x7f\x10\x00") + 8
    path.write_bytes(content[:place] + b"\xf0\xff\xff\xff" + content[place + 4 :])  # 4 GiB of pixels
    tracemalloc.start()
    try:
        load(source)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("tags", "damage", "words"),
    [
        ({}, cut, "pictures that can be read"),
        ({}, headless, "a DICOM file"),
        ({"Rows": 65535, "Columns": 65535}, None, "at most 67,108,864 pixels"),
        ({"NumberOfFrames": 3}, None, "one frame"),
        ({"PhotometricInterpretation": "PALETTE COLOR"}, None, "PALETTE COLOR"),
        ({"WindowCenter": 10, "WindowWidth": -3}, None, "a window of width -3"),
        ({"syntax": DeflatedExplicitVRLittleEndian}, None, "not deflated"),
        ({"syntax": JPEGLSLossless}, None, "pictures that can be read"),
    ],
)
def test_what_cannot_be_read_says_why(tags, damage, words, tmp_path, monkeypatch):
    monkeypatch.setattr(config.settings, "_writing_validation_mode", config.IGNORE)
    source = write(tmp_path, scan(RAMP, **tags))
    if damage:
        damage(tmp_path / "class0" / "a.dcm")
    with pytest.raises(BadFile, match=words) as caught:
        load(source)
    error = caught.value
    assert all((error.subject, error.needs, error.got, error.fix))
    assert NAME not in str(error)


def test_without_its_extra_it_says_which(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydicom", None)
    monkeypatch.delitem(sys.modules, "glasshouse.data.kinds.dicom")
    with pytest.raises(NotInstalled, match=r"glasshouse\[dicom\]"):
        registry.load("datasets", "dicom")
