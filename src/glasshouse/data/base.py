"""The data set type, and the checks that every source goes through.

Shape letters: N examples, C channels, H and W pixels, L tokens, K classes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from glasshouse.cache import digest
from glasshouse.data.targets import check_targets, suggested_task
from glasshouse.errors import BadFile, BadValue
from glasshouse.limits import Count, Fix, check_value
from glasshouse.modalities.base import Modality
from glasshouse.modalities.image import Image
from glasshouse.outside import limits
from glasshouse.tasks.base import Task
from glasshouse.wire import Batch

_CHUNK: Final = 2048
_LUMA: Final = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in a grey image (ITU-R BT.601)."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Examples:
    """One split, as stored. Images read as bytes stay uint8: a quarter of the memory of float32.

    Attributes:
        stored: inputs (N, ...) of the source's modality; pictures may be uint8 in 0..255.
        labels: targets (N, ...); classes (N,) int64 in [0, K).
        groups: id of the person in each image, or the author of each sentence, (N,) int64; None: unknown.
    """

    stored: Tensor
    labels: Tensor
    groups: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, index: Tensor | None = None) -> Batch:
        """The examples at ``index`` (None: all); images as float32 in [0, 1]."""
        stored = self.stored if index is None else self.stored[index]
        labels = self.labels if index is None else self.labels[index]
        groups = self.groups if self.groups is None or index is None else self.groups[index]
        inputs = stored / 255 if stored.dtype == torch.uint8 else stored
        return Batch(inputs=inputs, labels=labels, groups=groups)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class DataSource:
    """A validated data set.

    Attributes:
        name: as given by the user: ``digits``, ``npz:faces.npz``.
        splits: by name: those of ``train``, ``val`` and ``test`` that the source has.
        class_names: one per class; their number is K.
        checksum: SHA-256 over examples, labels and class names.
        public: the examples are public; the report hides those of other data sets.
        inputs: what the examples look like.
        task: drafted from the labels; a scenario may declare another.
    """

    name: str
    splits: Mapping[str, Examples]
    class_names: tuple[str, ...]
    checksum: str
    public: bool
    inputs: Modality
    task: Task

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return self.inputs.shape

    @property
    def facts(self) -> dict[str, Any]:
        """What a declared task takes from the data: classes, numbers per target, fields of the modality."""
        labels = next(iter(self.splits.values())).labels
        return {"classes": self.classes, "targets": math.prod(labels.shape[1:]), **vars(self.inputs)}

    @property
    def classes(self) -> int:
        """K."""
        return len(self.class_names)

    def split(self, name: str) -> Examples:
        """The split called ``name``.

        Raises:
            BadValue: there is none; the message lists the existing ones.
        """
        if name not in self.splits:
            raise BadValue(
                f"data '{self.name}'",
                needs=f"a split among {', '.join(self.splits)}",
                got=f"'{name}'",
                fix="name one of these for every role in the [data] table",
            )
        return self.splits[name]


def assemble(
    name: str,
    arrays: Mapping[str, tuple[NDArray[Any], NDArray[Any]]],
    *,
    class_names: Sequence[str] | None,
    public: bool,
    resize: int | None,
) -> DataSource:
    """Validate raw arrays and build a :class:`DataSource` from them.

    Args:
        name: name of the source, also used in errors.
        arrays: per split the images, (N, H, W), (N, H, W, 1) or (N, H, W, 3), uint8 or floats in
            [0, 1], and the targets: classes (N,) or (N, 1), integers; others as in ``targets``.
        class_names: one per class; None: classes are named by their numbers, up to the highest label.
        public: see :class:`DataSource`.
        resize: side of the square that images are resized to (bilinear, antialiased); None: unchanged.

    Raises:
        BadFile: the arrays do not fit this description; the message names the split and the problem.
    """
    splits = {}
    for split, (images, labels) in arrays.items():
        pixels = resize_images(check_pixels(images, subject=_where(name, split)), resize)
        splits[split] = Examples(
            stored=pixels, labels=check_targets(labels, len(pixels), _where(name, split))
        )
    shapes = {split: tuple(data.stored.shape[1:]) for split, data in splits.items()}
    if len(set(shapes.values())) != 1:
        raise BadFile(
            f"data '{name}'",
            needs="images of one size and one number of channels in all splits",
            got=", ".join(f"{split} {shape}" for split, shape in shapes.items()) or "no splits",
            fix="convert them, or set data.resize",
        )
    first = next(iter(splits.values())).labels
    names = _class_names(name, splits, class_names)
    content = {split: [data.stored, data.labels] for split, data in splits.items()}
    checksum = digest({"splits": content, "names": list(names)})
    channels, height, width = next(iter(shapes.values()))
    return DataSource(
        name=name,
        splits=splits,
        class_names=names,
        checksum=checksum,
        public=public,
        inputs=Image(size=(channels, height, width)),
        task=suggested_task(first, len(names)),
    )


def _class_names(
    name: str, splits: Mapping[str, Examples], class_names: Sequence[str] | None
) -> tuple[str, ...]:
    """One name per class; none where the targets are no classes."""
    first = next(iter(splits.values())).labels
    if first.ndim > 1 or first.is_floating_point():
        return ()
    highest = max(int(data.labels.max()) for data in splits.values())
    check_count(highest + 1, limits.CLASSES, "classes", name=name)
    names = tuple(map(str, range(highest + 1))) if class_names is None else tuple(class_names)
    if highest >= len(names):
        raise BadFile(
            f"data '{name}'",
            needs=f"labels from 0 to {len(names) - 1}: there are {len(names)} class names",
            got=f"a label {highest}",
            fix="correct the labels, or name every class",
        )
    return names


def assemble_built_in(
    name: str, images: NDArray[Any], labels: NDArray[Any], class_names: Sequence[str], resize: int | None
) -> DataSource:
    """:func:`assemble` for images that come with a library: every fourth one is in the test split."""
    test = np.arange(len(images)) % 4 == 3
    arrays = {"train": (images[~test], labels[~test]), "test": (images[test], labels[test])}
    return assemble(name, arrays, class_names=class_names, public=True, resize=resize)


MAPPED: Final = "(x - low) / (high - low)"
"""How a range becomes [0, 1], in a hint."""


def check_pixels(images: NDArray[Any], *, subject: str) -> Tensor:
    """Raw images as (N, C, H, W), uint8 or float32; 16 bits are divided by 65,535, as those of files.

    Raises:
        BadFile: wrong type, shape or range, non-finite values, or no images.
    """
    if images.dtype == np.bool_:  # black and white
        images = images.astype(np.float32)
    floats = np.issubdtype(images.dtype, np.floating)
    if images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[3] not in (1, 3)):
        needs, got = "images (N, H, W), (N, H, W, 1) or (N, H, W, 3)", f"shape {images.shape}"
        fix = "store grey or RGB images, channels last"
    elif images.size == 0:
        needs, got, fix = "at least one image", f"shape {images.shape}", "leave the split out"
    elif not floats and images.dtype not in (np.uint8, np.uint16):
        needs = "images as uint8 (divided by 255), uint16 (divided by 65,535) or floats in [0, 1]"
        got = f"type {images.dtype}, values from {images.min()} to {images.max()}"
        parts = "take magnitude or phase, as the network does, and " if images.dtype.kind == "c" else ""
        fix = f"{parts}map the range that the scanner can produce to [0, 1], as {MAPPED}, in float32"
    elif floats and not ((images >= 0) & (images <= 1)).all():
        bad = int((~np.isfinite(images)).sum())
        needs = "float images in [0, 1]"
        got = f"{bad} values not finite" if bad else f"values from {images.min():.4g} to {images.max():.4g}"
        fix = _into_range(images, bad=bad)
    else:
        numbers = images
        if floats or images.dtype == np.uint16:
            numbers = images.astype(np.float32) / np.float32(1 if floats else 65_535)
        pixels = torch.from_numpy(np.require(numbers, requirements=["C", "W"]))
        return pixels.unsqueeze(1) if images.ndim == 3 else pixels.permute(0, 3, 1, 2).contiguous()
    raise BadFile(subject, needs=needs, got=got, fix=fix)


def _into_range(images: NDArray[Any], *, bad: int) -> str:
    """What to do about float images outside [0, 1], by what is outside."""
    if bad:
        return "leave those images out, or fill in what is missing: NaN is no measurement"
    if images.min() >= 0:
        largest = 255 if images.max() <= 255 else 65_535 if images.max() <= 65_535 else float(images.max())
        return f"divide by {largest:,}, the largest value that there can be"
    return (
        "map the range that there can be to [0, 1], as (x - low) / (high - low); where a normalisation "
        "went before, undo it: the model normalises"
    )


def check_count(count: int, most: int, what: str, *, name: str) -> None:
    """Refuse a number of classes, examples or files above a limit.

    Raises:
        BadFile: ``count`` is above ``most``.
    """
    if count > most:
        raise BadFile(
            f"data '{name}'",
            needs=f"at most {most:,} {what}",
            got=f"{count:,}",
            fix="number the classes from 0 without gaps",
        )


def check_labels(labels: NDArray[Any], n: int, subject: str) -> Tensor:
    """Raw labels of ``n`` images as (n,) int64.

    Raises:
        BadFile: wrong length or shape, negative, or not integers.
    """
    fix = "number the classes from 0"
    if labels.shape not in ((n,), (n, 1)):
        needs, got = f"one label per image: ({n},) or ({n}, 1)", f"labels of shape {labels.shape}"
        fix = "give every image exactly one class"
    elif not np.issubdtype(labels.dtype, np.integer):
        needs, got = "labels that are whole numbers", f"type {labels.dtype}"
    elif int(labels.min()) < 0 or int(labels.max()) > np.iinfo(np.int32).max:
        needs = "labels from 0 to the number of classes - 1"
        got = f"labels from {labels.min()} to {labels.max()}"
    else:
        return torch.from_numpy(labels.reshape(-1).astype(np.int64))
    raise BadFile(subject, needs=needs, got=got, fix=fix)


def resize_images(pixels: Tensor, side: int | None) -> Tensor:
    """Resize images (N, C, H, W) to ``side`` × ``side``: bilinear with antialiasing; type and range are kept.

    Raises:
        BadValue: ``side`` is below 1.
    """
    if side is None or pixels.shape[2:] == (side, side):
        return pixels
    check_value("size of images", "resize", side, Annotated[Count, Fix("set data.resize to pixels per side")])

    def change(part: Tensor) -> Tensor:
        return functional.interpolate(part.float(), (side, side), mode="bilinear", antialias=True)

    return torch.cat([_as_stored(change(part), pixels.dtype) for part in torch.split(pixels, _CHUNK)])


def _as_stored(pixels: Tensor, kind: torch.dtype) -> Tensor:
    """Computed pixels in the type and range of stored ones."""
    return pixels.round().clamp(0, 255).to(kind) if kind == torch.uint8 else pixels.clamp(0, 1)


def with_groups(source: DataSource, groups: Mapping[str, NDArray[Any]]) -> DataSource:
    """``source`` with a group id (a person or scene) for every image, by split.

    Raises:
        BadFile: not one integer per image.
    """
    splits = dict(source.splits)
    for split, numbers in groups.items():
        count = len(splits[split])
        if numbers.shape != (count,) or not np.issubdtype(numbers.dtype, np.integer):
            raise BadFile(
                _where(source.name, split),
                needs=f"groups as whole numbers, one per image: ({count},)",
                got=f"shape {numbers.shape} of {numbers.dtype}",
                fix="number the people, the same person alike in all splits",
            )
        splits[split] = replace(splits[split], groups=torch.from_numpy(numbers.astype(np.int64)))
    return replace(source, splits=splits)


def with_channels(source: DataSource, channels: int | None) -> DataSource:
    """``source`` with grey images repeated in three channels, or colour images converted to grey (BT.601).

    Raises:
        BadValue: ``channels`` is neither 1 nor 3 nor None.
    """
    if channels is None or not isinstance(source.inputs, Image) or channels == source.inputs.size[0]:
        return source
    if channels not in (1, 3):
        raise BadValue(
            f"data '{source.name}'", needs="channels: 1 or 3", got=str(channels), fix="correct data.channels"
        )

    def change(images: Examples) -> Examples:
        if channels == 3:
            return replace(images, stored=images.stored.expand(-1, 3, -1, -1).contiguous())
        weights = torch.tensor(_LUMA).view(1, 3, 1, 1)
        parts = [(part * weights).sum(1, keepdim=True) for part in torch.split(images.stored, _CHUNK)]
        return replace(images, stored=_as_stored(torch.cat(parts), images.stored.dtype))

    splits = {name: change(images) for name, images in source.splits.items()}
    inputs = Image(size=(channels, *source.inputs.size[1:]))
    return replace(source, splits=splits, inputs=inputs, checksum=digest([source.checksum, channels]))


def _where(name: str, split: str) -> str:
    return f"data '{name}', split '{split}'"
