"""Images and sentences from the Hugging Face Hub, or from a folder written by ``save_to_disk``.

Imported on demand only: the ``datasets`` library takes a second to load.
"""

import io
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from glasshouse.data.base import DataSource, assemble, check_count
from glasshouse.data.kinds.pictures import BROKEN, decode, stack_images
from glasshouse.data.paths import bad_data, require_inside
from glasshouse.data.texts import Texts
from glasshouse.errors import BadFile, not_installed
from glasshouse.outside import limits
from glasshouse.outside.files import check_unpacked, parse_json, read_limited, reason, shorten
from glasshouse.progress import track
from glasshouse.registry import Card

try:
    import datasets
    from huggingface_hub.constants import HF_HUB_CACHE
except ImportError as error:
    raise not_installed("data source 'hf'", "datasets", error, extra="flower-data") from error

SPLITS: Final = {"train": "train", "validation": "val", "test": "test"}
_NAME: Final = re.compile(r"(\w[\w.-]*/)?\w[\w.-]*(@[\w.-]+)?")
"""NAME or OWNER/NAME of a data set, with an optional configuration."""
_UNREADABLE: Final = (*BROKEN, datasets.exceptions.DatasetsError)
_bad: Final = partial(bad_data, fix="name the class column: hf:NAME#COLUMN, or use folder:")
_READERS: Final = Path(datasets.__file__).parent / "packaged_modules"
"""Formats that the library would read by name from files in the current folder."""


@Card(
    summary="hf:NAME, hf:NAME@CONFIGURATION or hf:FOLDER, images or sentences of the Hugging Face Hub",
    source="Lhoest et al. 2021, arXiv:2109.02846",
    extra="flower-data",
)
def hf(where: str, *, resize: int | None = None) -> DataSource | Texts:
    """Load ``where`` from the Hub's cache, the Hub, or a folder written by ``save_to_disk``.

    The only image column and the only class column are used; ``hf:NAME#COLUMN`` selects the class column if
    there are several. Without an image column the only text column is used, or the one in
    ``hf:NAME#COLUMN,TEXT``; text needs no class column. No code of the data set is run, no file outside the
    data set is opened, and the sizes of all images are read before the first one is decoded.

    Raises:
        BadFile: the data set is not available or too large, has neither an image nor a text column, or not
            exactly one class column.
    """
    name = f"hf:{where}"
    place, _, columns = where.partition("#")
    column, _, text = columns.partition(",")
    folder = Path(place).expanduser()
    try:
        root = folder if place and folder.is_dir() else None
        splits = _load_name(place, name=name) if root is None else _load_folder(root, name=name)
        # in the caches, the Hub's libraries store images as separate files
        roots = (root,) if root else (Path(datasets.config.HF_DATASETS_CACHE), Path(HF_HUB_CACHE))
        first = next(iter(splits.values()))
        if text or not any(isinstance(feature, datasets.Image) for feature in first.features.values()):
            return _texts(splits, column, text, name=name)
        image = _only(first, datasets.Image, "image", name=name)
        label = column or _only(first, datasets.ClassLabel, "class", name=name)
        if not isinstance(first.features.get(label), datasets.ClassLabel):
            raise _bad(name, f"a class column '{label}'", f"columns {', '.join(first.features)}")
        class_names = first.features[label].names
        check_count(len(class_names), limits.CLASSES, "classes", name=name)
        arrays = {
            SPLITS[split]: _arrays(part, image, label, resize, roots, name=name)
            for split, part in splits.items()
        }
    except BadFile:
        raise
    except _UNREADABLE as error:
        raise BadFile(
            f"data '{name}'",
            needs="the data set in the local cache, a connection to the Hub, or a folder; undamaged",
            got=f"{type(error).__name__}: {reason(error)}",
            fix="on a machine with a connection: datasets.load_dataset(NAME).save_to_disk(FOLDER); "
            "then name it hf:FOLDER",
        ) from error
    return assemble(name, arrays, class_names=class_names, public=False, resize=resize)


def _texts(splits: Mapping[str, Any], column: str, text: str, *, name: str) -> Texts:
    """The sentences of a data set without images."""
    features = next(iter(splits.values())).features
    strings = [c for c, f in features.items() if isinstance(f, datasets.Value) and f.dtype == "string"]
    chosen = [c for c in strings if c == text] if text else strings
    if len(chosen) != 1:
        raise _bad(
            name, "an image column, or exactly one column of text", f"text in {', '.join(strings) or 'none'}"
        )
    labels = [c for c, f in features.items() if isinstance(f, datasets.ClassLabel) and column in ("", c)]
    if len(labels) > 1 or (column and not labels):
        raise _bad(name, f"a class column '{column}'", f"columns {', '.join(features)}")
    for part in splits.values():
        check_count(len(part), limits.EXAMPLES, "examples", name=name)
    return Texts(
        name=name,
        sentences={SPLITS[split]: [str(s or "") for s in part[chosen[0]]] for split, part in splits.items()},
        labels={
            SPLITS[split]: np.array(part[labels[0]][:] if labels else [0] * len(part), dtype=np.int64)
            for split, part in splits.items()
        },
        class_names=tuple(features[labels[0]].names) if labels else ("all", "other"),
    )


def _load_name(place: str, *, name: str) -> dict[str, Any]:
    """Splits of a data set on the Hub; never reads local files."""
    path, _, configuration = place.partition("@")
    fits = _NAME.fullmatch(place) and len(place) <= limits.TEXT
    if not fits or path.endswith(".py") or (_READERS / path).is_dir():
        raise BadFile(
            f"data '{name}'",
            needs="hf:NAME, hf:OWNER/NAME or hf:NAME@CONFIGURATION, or an existing folder",
            got=f"{shorten(place)}, which is neither",
            fix="write the name as the Hub does, or the path of a folder that save_to_disk wrote",
        )
    return _used(datasets.load_dataset(path, configuration or None), name=name)


def _load_folder(root: Path, *, name: str) -> dict[str, Any]:
    """Splits of a saved data set; all files that it refers to must lie in its folder."""
    parts = [root]
    if (root / "dataset_dict.json").exists():
        parts = [root / str(split) for split in _read(root / "dataset_dict.json", root, name)["splits"]]
    elif not (root / "state.json").exists():
        raise FileNotFoundError("the folder has neither dataset_dict.json nor state.json")
    for part in parts:
        require_inside(part, root, name=name, folder=True)
        _read(part / "dataset_info.json", root, name)
        for file in _read(part / "state.json", root, name)["_data_files"]:
            require_inside(part / str(file["filename"]), root, name=name)
    return _used(datasets.load_from_disk(str(root.resolve())), name=name)


def _read(path: Path, root: Path, name: str) -> Any:
    subject = f"data '{name}', '{path.name}'"
    raw = read_limited(require_inside(path, root, name=name), limits.JSON_BYTES, subject=subject)
    return parse_json(raw.decode(), subject=subject)


def _used(dataset: Any, *, name: str) -> dict[str, Any]:
    """The supported splits, by their names on the Hub."""
    splits = {"train": dataset} if isinstance(dataset, datasets.Dataset) else dict(dataset)
    usable = {split: part.with_format(None) for split, part in splits.items() if split in SPLITS}
    if not usable:
        raise _bad(name, f"a split among {', '.join(SPLITS)}", ", ".join(splits) or "no splits")
    return usable


def _only(part: Any, kind: type, word: str, *, name: str) -> str:
    columns: list[str] = [column for column, feature in part.features.items() if isinstance(feature, kind)]
    if len(columns) != 1:
        got = ", ".join(columns) or f"none; columns {', '.join(part.features)}"
        raise _bad(name, f"exactly one {word} column", got)
    return columns[0]


def _arrays(
    part: Any, image: str, label: str, resize: int | None, roots: tuple[Path, ...], *, name: str
) -> tuple[NDArray[Any], NDArray[Any]]:
    check_count(len(part), limits.EXAMPLES, "examples", name=name)
    stored = part.select_columns([image]).cast_column(image, datasets.Image(decode=False))

    def pictures() -> Iterator[tuple[int, Image.Image]]:
        for row in stored:
            raw = _bytes_of(row[image], roots, name=name)
            with Image.open(io.BytesIO(raw)) as picture:  # reads the header alone
                yield len(raw), picture

    packed = unpacked = 0
    for size, picture in pictures():
        packed += size
        unpacked += picture.width * picture.height * len(picture.getbands())
        check_unpacked(packed, unpacked, subject=f"data '{name}'")
    every = track(pictures(), "decoding pictures", total=len(part))
    images = (decode(picture, name=name, place=f"row {i}") for i, (_, picture) in enumerate(every))
    return stack_images(images, resize, name=name), np.array(part[label][:], dtype=np.int64)


def _bytes_of(stored: Any, roots: tuple[Path, ...], *, name: str) -> bytes:
    """The bytes of an image, stored in the data set or in a file that belongs to it."""
    if stored["bytes"] is not None:
        return bytes(stored["bytes"])
    path = Path(stored["path"])
    inside = [root for root in roots if path.resolve().is_relative_to(root.resolve())]
    require_inside(path, (*inside, roots[0])[0], name=name)
    return read_limited(path, limits.FILE_BYTES, subject=f"data '{name}'")
