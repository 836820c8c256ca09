"""``arrays:PATH``: examples of any fixed shape in one ``.npz`` file: volumes, series, features."""

import json
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from glasshouse.cache import digest
from glasshouse.data.base import DataSource, Examples, check_count, with_groups
from glasshouse.data.paths import SPLITS, bad_data, require_existing
from glasshouse.data.targets import check_targets, suggested_task
from glasshouse.modalities.array import Array
from glasshouse.modalities.base import Modality
from glasshouse.outside import limits
from glasshouse.outside.arrays import read_arrays
from glasshouse.outside.schema import PluginFile, parse_as, plugin_of
from glasshouse.registry import Card

FIX: Final = "docs/data.md shows how to write such a file"
_bad: Final = partial(bad_data, fix=FIX)


@Card(
    summary="arrays:PATH, a numpy archive: train_inputs, train_labels, range (two numbers); optional val_*, "
    "test_*, *_groups, class_names",
    details={"modality": "array"},
)
def arrays(where: str, *, resize: int | None = None) -> DataSource:
    """Read ``where``; ``range`` holds the smallest and largest possible number, declared and never measured.

    Instead of ``range`` the file may hold ``modality``: a text of JSON with the registered ``name`` of a
    modality and its ``fields``, for inputs that are already as they enter the network.

    Raises:
        BadFile: missing file, keys or range, or inputs that are not examples of the modality.
    """
    del resize  # for pictures only
    name = f"arrays:{where}"
    path = require_existing(where, name=name)
    return source_of(name, read_arrays(path, subject=f"data '{name}'", fix=FIX))


def source_of(name: str, contents: dict[str, NDArray[Any]]) -> DataSource:
    """The data set in arrays by their names; raises as :func:`arrays`."""
    splits = [split for split in SPLITS if f"{split}_inputs" in contents]
    missing = [f"{split}_labels" for split in splits if f"{split}_labels" not in contents]
    if "train" not in splits or missing:
        got = f"{', '.join(missing or ['train_inputs'])} missing; there is {', '.join(contents) or 'nothing'}"
        raise _bad(name, "train_inputs and train_labels, and both of val_*, test_* or neither", got)
    inputs = _modality(contents, name)
    return assemble_examples(
        name,
        {split: (contents[f"{split}_inputs"], contents[f"{split}_labels"]) for split in splits},
        inputs=inputs,
        class_names=tuple(map(str, contents["class_names"])) if "class_names" in contents else None,
        groups={split: contents[f"{split}_groups"] for split in splits if f"{split}_groups" in contents},
    )


def assemble_examples(
    name: str,
    parts: dict[str, tuple[NDArray[Any], NDArray[Any]]],
    *,
    inputs: Modality,
    class_names: tuple[str, ...] | None = None,
    groups: dict[str, NDArray[Any]] | None = None,
) -> DataSource:
    """Examples as they enter the network, with their targets, as a data set.

    Args:
        name: of the source, also used in errors.
        parts: per split inputs (N, ...) and targets (N, ...).
        inputs: what they must be.
        class_names: one per class; None: numbers.
        groups: per split whose examples they are, (N,) integers.

    Raises:
        BadFile: targets that are none, or more classes than names.
        BadValue: inputs that are no examples of the modality.
    """
    splits = {}
    for split, (values, labels) in parts.items():
        subject = f"data '{name}', split '{split}'"
        check_count(len(values), limits.EXAMPLES, inputs.nouns, name=name)
        stored = torch.from_numpy(np.ascontiguousarray(values)).to(inputs.dtype)
        inputs.check(stored, subject=subject, fix=FIX)
        splits[split] = Examples(stored=stored, labels=check_targets(labels, len(stored), subject))
    first = splits["train"].labels
    whole = first.ndim == 1 and not first.is_floating_point()
    highest = max(int(part.labels.max()) for part in splits.values()) if whole else -1
    names = class_names or tuple(map(str, range(highest + 1)))
    if highest >= len(names):
        raise _bad(name, f"labels from 0 to {len(names) - 1}, one name each", f"a label {highest}")
    content = {split: [part.stored, part.labels] for split, part in splits.items()}
    source = DataSource(
        name=name,
        splits=splits,
        class_names=names if whole else (),
        checksum=digest({"splits": content, "names": list(names), "inputs": repr(inputs)}),
        public=False,
        inputs=inputs,
        task=suggested_task(first, len(names)),
    )
    return with_groups(source, groups or {})


def _modality(contents: dict[str, NDArray[Any]], name: str) -> Modality:
    """The modality that the file describes."""
    subject = f"data '{name}'"
    if "modality" in contents:
        try:
            raw = json.loads(str(contents["modality"]))
        except ValueError as error:
            raise _bad(name, "modality: a text of JSON with name and fields", str(error)) from error
        stated = parse_as(PluginFile, raw, subject=subject, fix=FIX)
        described: Modality = plugin_of("modalities", stated, subject=subject, fix=FIX)
        return described
    limits_of = contents.get("range")
    if limits_of is None or limits_of.shape != (2,) or not np.issubdtype(limits_of.dtype, np.number):
        raise _bad(name, "range: the smallest and the largest possible number", ", ".join(contents))
    low, high = map(float, limits_of)
    return Array(size=tuple(contents["train_inputs"].shape[1:]), range=(low, high))
