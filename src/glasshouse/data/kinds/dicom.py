"""DICOM images in folders: one folder per class.

Only the tags needed for the pixels are read: never a patient's name, date of birth or ID. Values are mapped
by the modality's rescaling and the file's own window to [0, 1], black to white (PS3.3, C.11.1 and C.11.2);
without a window they are scaled by the range of the stored bits. Neither scale depends on the pixels.

Source: the DICOM standard, https://www.dicomstandard.org; decoding is pydicom's.
"""

from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from glasshouse.data.base import DataSource
from glasshouse.data.kinds.folder import count_tree, read_tree
from glasshouse.data.survey import Survey, counted_by
from glasshouse.errors import BadFile, not_installed
from glasshouse.outside import limits
from glasshouse.outside.files import read_limited
from glasshouse.registry import Card

try:
    from pydicom import Dataset, dcmread
    from pydicom.errors import InvalidDicomError
    from pydicom.filereader import read_file_meta_info
    from pydicom.pixels.processing import apply_modality_lut, apply_voi
    from pydicom.uid import DeflatedExplicitVRLittleEndian
except ImportError as error:
    raise not_installed("data source 'dicom'", "pydicom", error, extra="dicom") from error

SUFFIXES: Final = frozenset({".dcm", ".dicom"})
_TAGS: Final = [
    "BitsAllocated",
    "BitsStored",
    "Columns",
    "HighBit",
    "ModalityLUTSequence",
    "NumberOfFrames",
    "PhotometricInterpretation",
    "PixelData",
    "PixelRepresentation",
    "PlanarConfiguration",
    "RescaleIntercept",
    "RescaleSlope",
    "Rows",
    "SamplesPerPixel",
    "VOILUTFunction",
    "VOILUTSequence",
    "WindowCenter",
    "WindowWidth",
]
"""The only tags that are read, besides the meta group with the file's encoding."""
_GREY: Final = frozenset({"MONOCHROME1", "MONOCHROME2"})
_COLOUR: Final = frozenset({"RGB", "YBR_FULL", "YBR_FULL_422"})


def _count(where: str) -> Survey:
    return count_tree("dicom", where, suffixes=SUFFIXES, shape=shape_of)


@counted_by(_count)
@Card(
    summary="dicom:PATH, one folder of .dcm pictures per class, maybe below train/, val/, test/",
    source="DICOM PS3.3, https://www.dicomstandard.org",
    extra="dicom",
)
def dicom(where: str, *, resize: int | None = None) -> DataSource:
    """Read the DICOM images below ``where``; classes are numbered in the order of their names.

    Raises:
        BadFile: as ``folder``; also for a file with several frames, or above the size limits.
    """
    return read_tree("dicom", where, resize, suffixes=SUFFIXES, picture=_picture)


def shape_of(path: Path) -> tuple[int, int, int]:
    """(C, H, W) according to the file's header."""
    data = dcmread(path, stop_before_pixels=True, specific_tags=_TAGS)
    return (data.SamplesPerPixel, data.Rows, data.Columns)


def _picture(path: Path, name: str) -> NDArray[Any]:
    """One image: grey as (H, W) float32 in [0, 1], 0 is black; colour as (H, W, 3) uint8."""
    bad = partial(_bad, name, path)
    content = read_limited(path, 8 * limits.PICTURE_PIXELS, subject=f"file '{path}' of data '{name}'")
    try:
        syntax = read_file_meta_info(path).get("TransferSyntaxUID")
        if syntax == DeflatedExplicitVRLittleEndian:  # may inflate to any size before it can be checked
            raise bad("a file that is not deflated as a whole", "a deflated one")
        data: Dataset = dcmread(BytesIO(content), specific_tags=_TAGS)
    except InvalidDicomError as error:
        raise bad("a DICOM file", "one without its header") from error
    kind = data.PhotometricInterpretation
    if kind not in _GREY | _COLOUR or int(data.get("NumberOfFrames") or 1) != 1:
        raise bad("one frame, grey or in colour", f"{data.get('NumberOfFrames') or 1} frames, {kind}")
    if data.Rows * data.Columns > limits.PICTURE_PIXELS:
        raise bad(f"at most {limits.PICTURE_PIXELS:,} pixels", f"{data.Columns:,} × {data.Rows:,}")
    if kind in _COLOUR:
        if data.BitsStored != 8:
            raise bad("colour of 8 bits", f"{data.BitsStored}")
        return np.asarray(data.pixel_array, dtype=np.uint8)
    white = _shown(data)
    return (1 - white if kind == "MONOCHROME1" else white).astype(np.float32)


def _shown(data: Dataset) -> NDArray[np.float64]:
    """Grey values in [0, 1], as the file specifies their display."""
    values = apply_modality_lut(data.pixel_array, data).astype(np.float64)
    if data.get("WindowCenter") is not None and data.get("WindowWidth") is not None:
        return _windowed(values, data)
    if data.get("VOILUTSequence"):
        top = 2 ** int(data.VOILUTSequence[0].LUTDescriptor[2]) - 1
        return np.asarray(apply_voi(np.rint(values).astype(np.int64), data) / top, dtype=np.float64)
    half = 2 ** (data.BitsStored - 1)
    ends = np.array([-half, half - 1] if data.PixelRepresentation else [0, 2 * half - 1])
    low, high = sorted(float(end) for end in apply_modality_lut(ends, data))
    return np.asarray(((values - low) / (high - low)).clip(0, 1), dtype=np.float64)


def _windowed(values: NDArray[np.float64], data: Dataset) -> NDArray[np.float64]:
    """Apply the first window of the file (PS3.3, C.11.2.1.2 and C.11.2.1.3)."""
    center, width = (float(np.atleast_1d(v)[0]) for v in (data.WindowCenter, data.WindowWidth))
    function = str(data.get("VOILUTFunction") or "LINEAR").upper()
    if width < 1 if function == "LINEAR" else width <= 0:
        raise ValueError(f"a window of width {width:g}")
    if function == "SIGMOID":
        return np.asarray(1 / (1 + np.exp(-4 * (values - center) / width)), dtype=np.float64)
    if function == "LINEAR":
        center, width = center - 0.5, width - 1
    if width == 0:  # a threshold
        return np.asarray(values > center, dtype=np.float64)
    return np.asarray(((values - center) / width + 0.5).clip(0, 1), dtype=np.float64)


def _bad(name: str, path: Path, needs: str, got: str) -> BadFile:
    return BadFile(
        f"data '{name}'",
        needs=needs,
        got=f"{got}: '{path}'",
        fix="export single frames, uncompressed, grey or RGB; or leave the file out",
    )
