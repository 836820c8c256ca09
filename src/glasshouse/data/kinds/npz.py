"""Images in one ``.npz`` file, in the layout of MedMNIST."""

import zipfile
from collections import Counter
from functools import partial
from typing import Final

import numpy as np

from glasshouse.data.base import DataSource, assemble, with_groups
from glasshouse.data.paths import SPLITS, bad_data, require_existing
from glasshouse.data.survey import Survey, count_classes, counted_by
from glasshouse.outside.arrays import read_arrays
from glasshouse.registry import Card

_FIX: Final = "docs/data.md shows how to write such a file"
_bad: Final = partial(bad_data, fix=_FIX)


def _count(where: str) -> Survey | None:
    """Labels are read, of the images the header of their array; None where the targets are no classes."""
    path = require_existing(where, name=f"npz:{where}")
    if not zipfile.is_zipfile(path):
        raise zipfile.BadZipFile(str(path))
    with np.load(path, allow_pickle=False) as archive:
        class_names = len(archive["class_names"]) if "class_names" in archive.files else 0
        labels = {split: archive[f"{split}_labels"] for split in SPLITS if f"{split}_labels" in archive.files}
    if any(one.dtype.kind not in "iu" or one.size != len(one) for one in labels.values()):
        return None
    counts = {split: Counter(one.reshape(-1).tolist()) for split, one in labels.items()}
    # The pictures stay packed: their header says the shape.
    with zipfile.ZipFile(path) as archive, archive.open("train_images.npy") as file:
        old = np.lib.format.read_magic(file) == (1, 0)
        read = np.lib.format.read_array_header_1_0 if old else np.lib.format.read_array_header_2_0
        shape = read(file)[0]
    if not counts or len(shape) not in (3, 4):
        return None
    depth = shape[3] if len(shape) == 4 else 1
    return Survey(
        counts=counts, shape=(depth, shape[1], shape[2]), classes=class_names or count_classes(counts)
    )


@counted_by(_count)
@Card(
    summary="npz:PATH, a numpy archive: train_images, train_labels, optional val_*, test_*, *_groups, "
    "class_names",
    source="layout of Yang et al. 2023, MedMNIST v2, arXiv:2110.14795",
)
def npz(where: str, *, resize: int | None = None) -> DataSource:
    """Read ``where``. Only plain arrays are read: an archive with Python objects is refused.

    Raises:
        BadFile: missing file, not an archive, missing keys, or arrays that are not images and labels.
    """
    name = f"npz:{where}"
    path = require_existing(where, name=name)
    arrays = read_arrays(path, subject=f"data '{name}'", fix=_FIX)
    missing = [key for key in ("train_images", "train_labels") if key not in arrays]
    # Only training data must be there; of another split both arrays or neither.
    for split in SPLITS[1:]:
        pair = {f"{split}_images", f"{split}_labels"}
        if pair & arrays.keys():
            missing += sorted(pair - arrays.keys())
    if missing:
        got = f"{', '.join(missing)} missing; there is {', '.join(arrays) or 'nothing'}"
        raise _bad(name, "train_images and train_labels, and both of val_*, test_* or neither", got)
    labels = arrays.get("class_names")
    if labels is not None and labels.ndim != 1:
        raise _bad(name, "class_names as a list of names", f"shape {labels.shape}")
    source = assemble(
        name,
        {s: (arrays[f"{s}_images"], arrays[f"{s}_labels"]) for s in SPLITS if f"{s}_images" in arrays},
        class_names=None if labels is None else [str(n) for n in labels],
        public=False,
        resize=resize,
    )
    return with_groups(source, {s: arrays[f"{s}_groups"] for s in source.splits if f"{s}_groups" in arrays})
