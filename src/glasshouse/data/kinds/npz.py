"""Images in one ``.npz`` file, in the layout of MedMNIST."""

from functools import partial
from typing import Final

from glasshouse.data.base import DataSource, assemble, with_groups
from glasshouse.data.paths import SPLITS, bad_data, require_existing
from glasshouse.outside.arrays import read_arrays
from glasshouse.registry import Card

_FIX: Final = "docs/data.md shows how to write such a file"
_bad: Final = partial(bad_data, fix=_FIX)


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
