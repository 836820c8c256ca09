"""Image sets of the Hugging Face Hub, and data sets saved from there to a folder.

Imported only when asked for: the library takes a second to load.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from glasshouse.data.base import DataSource, assemble
from glasshouse.data.kinds.pictures import decode, stack_images
from glasshouse.errors import BadFile, NotInstalled
from glasshouse.progress import track
from glasshouse.registry import Card, carded

try:
    import datasets
except ImportError as error:
    raise NotInstalled(
        "data source 'hf'",
        needs="the package datasets",
        got=str(error),
        fix="pip install 'glasshouse[flower-data]'",
    ) from error

SPLITS: Final = {"train": "train", "validation": "val", "test": "test"}


@carded(
    Card(
        summary="hf:NAME, hf:NAME@CONFIGURATION or hf:FOLDER, an image set of the Hugging Face Hub",
        source="Lhoest et al. 2021, arXiv:2109.02846",
        extra="flower-data",
    )
)
def hf(where: str, *, resize: int | None = None) -> DataSource:
    """Load ``where`` from the Hub's cache, the Hub, or a folder that ``save_to_disk`` wrote.

    The one image column and the one class column are used; ``hf:NAME#COLUMN`` names the class column
    where there are several. No code of the data set is run.

    Raises:
        BadFile: it cannot be had, or it has no image column, or no or several class columns.
    """
    name = f"hf:{where}"
    place, _, column = where.partition("#")
    splits = _load(place, name=name)
    first = next(iter(splits.values()))
    image = _only(first, datasets.Image, "image", name=name)
    label = column or _only(first, datasets.ClassLabel, "class", name=name)
    if not isinstance(first.features.get(label), datasets.ClassLabel):
        raise _bad(name, f"a class column '{label}'", f"columns {', '.join(first.features)}")
    return assemble(
        name,
        {SPLITS[split]: _arrays(part, image, label, resize, name=name) for split, part in splits.items()},
        class_names=first.features[label].names,
        public=False,
        resize=resize,
    )


def _load(place: str, *, name: str) -> dict[str, Any]:
    """Splits by their names on the Hub."""
    path, _, configuration = place.partition("@")
    try:
        if Path(path).expanduser().is_dir():
            dataset = datasets.load_from_disk(str(Path(path).expanduser()))
        else:
            dataset = datasets.load_dataset(path, configuration or None)
    except (OSError, ValueError, LookupError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise BadFile(
            f"data '{name}'",
            needs="the data set in the local cache, a connection to the Hub, or a folder",
            got=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason given'}",
            fix="on a machine with a connection: datasets.load_dataset(NAME).save_to_disk(FOLDER); "
            "then name it hf:FOLDER",
        ) from error
    splits = {"train": dataset} if isinstance(dataset, datasets.Dataset) else dict(dataset)
    used = {split: part for split, part in splits.items() if split in SPLITS}
    if not used:
        raise _bad(name, f"a split among {', '.join(SPLITS)}", ", ".join(splits) or "no splits")
    return used


def _only(part: Any, kind: type, word: str, *, name: str) -> str:
    columns: list[str] = [column for column, feature in part.features.items() if isinstance(feature, kind)]
    if len(columns) != 1:
        got = ", ".join(columns) or f"none; columns {', '.join(part.features)}"
        raise _bad(name, f"exactly one {word} column", got)
    return columns[0]


def _arrays(
    part: Any, image: str, label: str, resize: int | None, *, name: str
) -> tuple[NDArray[Any], NDArray[Any]]:
    pictures = track(part[image], "decoding pictures", total=len(part))
    images = (decode(picture, name=name, place=f"row {i}") for i, picture in enumerate(pictures))
    return stack_images(images, resize, name=name), np.array(part[label], dtype=np.int64)


def _bad(name: str, needs: str, got: str) -> BadFile:
    return BadFile(
        f"data '{name}'", needs=needs, got=got, fix="name the class column: hf:NAME#COLUMN, or use folder:"
    )
