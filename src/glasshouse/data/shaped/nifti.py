"""``nifti:FOLDER``: volumes in NIfTI files, in a folder per class."""

from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from glasshouse.data.base import DataSource, check_count
from glasshouse.data.paths import class_folders, files_of, require_existing, split_folders
from glasshouse.data.shaped.arrays import assemble_examples
from glasshouse.errors import BadFile, not_installed
from glasshouse.modalities.array import Array
from glasshouse.outside import limits
from glasshouse.outside.files import shorten
from glasshouse.registry import Card

try:
    import nibabel
except ImportError as error:
    raise not_installed("data source 'nifti'", "nibabel", error, extra="volumes") from error

SUFFIXES: Final = frozenset({".nii", ".gz"})
FIX: Final = "store volumes of one size as .nii or .nii.gz, in a folder per class, with cal_min and cal_max"


@Card(
    summary="nifti:FOLDER, volumes as .nii or .nii.gz in a folder per class (with train/, test/: per split)",
    extra="volumes",
    details={"modality": "array"},
)
def nifti(where: str, *, resize: int | None = None) -> DataSource:
    """Read the volumes below ``where``; their range is ``cal_min`` to ``cal_max`` of the first file's header.

    Raises:
        BadFile: no volumes, a damaged one, volumes of different sizes, or no declared range.
    """
    del resize  # for pictures only
    name = f"nifti:{where}"
    folders = split_folders(require_existing(where, name=name, folder=True))
    classes = sorted({place.name for folder in folders.values() for place in class_folders(folder)})
    parts: dict[str, tuple[NDArray[Any], NDArray[Any]]] = {}
    limits_of: tuple[float, float] | None = None
    for split, folder in folders.items():
        volumes, labels = [], []
        for place in class_folders(folder):
            for path in files_of(place, SUFFIXES):
                volume, stated = _read(path, name)
                limits_of = limits_of or stated
                volumes.append(volume)
                labels.append(classes.index(place.name))
        check_count(len(volumes), limits.EXAMPLES, "volumes", name=name)
        if not volumes or len({volume.shape for volume in volumes}) != 1:
            sizes = ", ".join(sorted({str(volume.shape) for volume in volumes})) or "none"
            raise BadFile(f"data '{name}', split '{split}'", needs="volumes of one size", got=sizes, fix=FIX)
        parts[split] = np.stack(volumes)[:, None], np.array(labels, dtype=np.int64)
    assert limits_of is not None  # every split has a volume
    size = tuple(parts["train"][0].shape[1:])
    inputs = Array(size=size, range=limits_of)
    return assemble_examples(name, parts, inputs=inputs, class_names=tuple(classes))


def _read(path: Path, name: str) -> tuple[NDArray[np.float32], tuple[float, float]]:
    """One volume (D, H, W), and the range that its header declares."""
    try:
        image: Any = nibabel.load(path)
        shape = tuple(int(side) for side in image.shape)
        if len(shape) != 3 or np.prod(shape) > limits.IMAGE_VALUES:
            raise ValueError(f"shape {shape}: three sides, at most {limits.IMAGE_VALUES:,} numbers")
        low, high = float(image.header["cal_min"]), float(image.header["cal_max"])
        volume = np.asarray(image.dataobj, dtype=np.float32)
    except (OSError, ValueError, KeyError, EOFError, nibabel.filebasedimages.ImageFileError) as error:
        raise BadFile(
            f"data '{name}'", needs="NIfTI volumes", got=shorten(f"{path.name}: {error}"), fix=FIX
        ) from error
    if not low < high:
        got = f"cal_min = {low:g}, cal_max = {high:g} in '{path.name}'"
        raise BadFile(f"data '{name}'", needs="a declared range: cal_min < cal_max", got=got, fix=FIX)
    return volume, (low, high)
