"""Data in memory as arrays by name: from a pair, a dictionary, or a data set or loader of PyTorch."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from json import dumps
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from glasshouse.data.paths import SPLITS
from glasshouse.errors import BadValue
from glasshouse.modalities.base import Modality
from glasshouse.outside import limits

__all__ = ["Arrays", "count_labels", "has_told_targets", "named_arrays"]

Arrays = tuple[Any, Any] | Mapping[str, Any] | Dataset[Any] | DataLoader[Any]
"""(images, labels), or arrays by their names in an ``npz`` file: ``train_images``, ``test_labels``, ...;
examples of another modality as ``train_inputs``, ``test_inputs``, with ``range`` or ``modality``; or a data
set of PyTorch, or a loader, with an image and a label an item."""

PAIR: Final = ("train_images", "train_labels")
FORMS: Final = "(images, labels), a Dataset of such pairs, or a dictionary with train_images, train_labels"
OTHER: Final = (
    'data = {"train_inputs": x, "train_labels": y, "range": (low, high)}, with the smallest and largest '
    "number that there can be; a table: a CSV file with a schema (`glasshouse schema`)"
)
CHANNELS: Final = (1, 3)
"""Numbers of channels of a picture."""


def named_arrays(data: Arrays) -> dict[str, NDArray[Any]]:
    """Arrays as they are stored in an ``npz`` file: pictures with their channels last.

    Args:
        data: torch's tensors of pictures have their channels first; numpy's last, or first where only that
            can be meant.

    Raises:
        BadValue: another form, values that are no arrays of numbers, or a pair without pictures.
    """
    named = _by_name(data)
    if isinstance(modality := named.get("modality"), Modality):
        named["modality"] = dumps({"name": modality.name, "fields": asdict(modality)})
    arrays = {name: _array(name, values) for name, values in named.items()}
    known = {f"{split}_{part}" for split in SPLITS for part in ("images", "inputs", "labels")}
    if not known & arrays.keys():
        raise BadValue("data in memory", needs=FORMS, got=f"the keys {', '.join(arrays)}", fix="name them so")
    if not isinstance(data, Mapping) and arrays[PAIR[0]].ndim not in (3, 4):
        shape = arrays[PAIR[0]].shape
        raise BadValue("data in memory", needs=f"pictures, in {FORMS}", got=f"shape {shape}", fix=OTHER)
    return arrays


def count_labels(arrays: Mapping[str, NDArray[Any]]) -> int:
    """Number of labels of all splits."""
    return sum(len(values) for name, values in arrays.items() if name.endswith("_labels") and values.ndim)


def has_told_targets(arrays: Mapping[str, NDArray[Any]]) -> bool:
    """Whether targets are masks, which nothing infers from an update and no search finds beside the image."""
    labels = arrays.get("train_labels")
    return labels is not None and labels.ndim > 2 and labels.shape[1:] != (1, 1)


def _by_name(handed: Arrays) -> dict[str, Any]:
    """The parts of what was handed over by name, unchanged."""
    # A loader's order, shuffling and dropped batches are the federation's business.
    data: Any = handed.dataset if isinstance(handed, DataLoader) else handed
    if isinstance(data, Mapping):
        return dict(data)
    if isinstance(data, Dataset) or _is_list_of_pairs(data):
        data = _stacked(data)
    if not isinstance(data, tuple | list) or len(data) != len(PAIR) or any(part is None for part in data):
        raise BadValue("data in memory", needs=FORMS, got=_words(data), fix="docs/python.md shows them")
    return dict(zip(PAIR, data, strict=True))


def _is_list_of_pairs(data: object) -> bool:
    """A list of (image, label), each a tuple; not the pair (images, labels)."""
    return isinstance(data, list) and all(isinstance(one, tuple) for one in data)


def _stacked(data: Any) -> tuple[Any, Any]:
    """The items of a data set, one after another: (images, labels)."""
    if not hasattr(data, "__len__"):
        raise BadValue(
            "data in memory",
            needs="a data set with a length, as torch.utils.data.Dataset has with __len__",
            got=_words(data),
            fix="take as many items as the audit shall have: list(itertools.islice(data, 1000))",
        )
    if len(data) > limits.EXAMPLES:
        fix = "take a part: torch.utils.data.Subset(data, range(1000))"
        raise BadValue(
            "data in memory", needs=f"at most {limits.EXAMPLES:,} examples", got=f"{len(data):,}", fix=fix
        )
    items = [data[number] for number in range(len(data))]
    if not all(isinstance(item, tuple | list) and len(item) == len(PAIR) for item in items):
        first = _words(items[0]) if items else "none"
        fix = f"choose them: [(item[0], item[1]) for item in data], of dictionaries by keys; or give {FORMS}"
        raise BadValue("data in memory", needs="items (image, label)", got=first, fix=fix)
    images, labels = zip(*items, strict=True)
    return _together(images), _together(labels)


def _together(values: Iterable[Any]) -> Any:
    """Tensors in one, where they are tensors of one shape; else the list."""
    listed = list(values)
    is_one = all(isinstance(one, Tensor) for one in listed) and len({one.shape for one in listed}) == 1
    return torch.stack(listed) if is_one else listed


def _array(name: str, values: Any) -> NDArray[Any]:
    """An array as stored in an ``npz`` file: images with channels last; tensors have channels first."""
    if (isinstance(values, Tensor) and values.is_meta) or np.ma.is_masked(values):
        raise BadValue(
            f"data in memory, '{name}'",
            needs="a value everywhere",
            got="a tensor on the meta device" if isinstance(values, Tensor) else "masked values",
            fix="fill in what is missing, such as array.filled(0), or leave those examples out",
        )
    if isinstance(values, Tensor):
        values = values.detach().cpu().to_dense()
        values = (values.float() if values.is_floating_point() else values).numpy()
        is_first = True
    else:
        is_first = False
    try:
        array = np.asarray(values)
    except (TypeError, ValueError):
        array = np.empty(0, dtype=object)
    if name.endswith("_labels") and (array.dtype.kind in "US" or _are_texts(array)):
        raise BadValue(
            f"data in memory, '{name}'",
            needs="classes as numbers from 0",
            got=f"texts such as {str(array.flat[0])!r}" if array.size else "texts",
            fix="number them: classes, labels = numpy.unique(labels, return_inverse=True)",
        )
    if array.dtype.hasobject:
        labels = name.endswith("_labels")
        raise BadValue(
            f"data in memory, '{name}'",
            needs="an array of numbers, the same shape for every example",
            got="Python objects, or examples of different shapes",
            fix="leave out the examples without a label, and give integers"
            if labels
            else "stack the examples into one array: numpy.stack; resize them to one size first",
        )
    if name.endswith("_images") and array.ndim == 4:
        sides = array.shape
        is_first |= sides[1] in CHANNELS and sides[3] not in CHANNELS
        array = np.moveaxis(array, 1, -1) if is_first else array
    return array


def _are_texts(array: NDArray[Any]) -> bool:
    """Whether all values are texts, as in a categorical column."""
    return array.dtype == object and array.size > 0 and all(isinstance(one, str) for one in array.flat)


def _words(data: object) -> str:
    if isinstance(data, tuple | list):
        kinds = ", ".join(dict.fromkeys(type(part).__name__ for part in data[:3]))
        return f"a {type(data).__name__} of {len(data)}: {kinds or 'nothing'}"
    return f"a {type(data).__name__}"
