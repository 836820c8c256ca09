"""Originals next to reconstructions, as embedded images or sentences; private ones are hidden.

A blurred image keeps only a mosaic of 3 × 3 areas with 8 brightness levels, drawn smoothly: enough to see
where the image is bright, too little to recognise a person, a character or an object.
"""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple, final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from glasshouse.errors import BadFile
from glasshouse.report.cards import Cards
from glasshouse.report.exhibits import Drawing
from glasshouse.results.files import pictures, sentences
from glasshouse.results.records import Exhibit
from glasshouse.results.rows import grouped

MOSAIC: Final = 3
STEPS: Final = 8
HIDDEN: Final = (
    " Hidden: these are private data, and a claim that is right is as private as its original; "
    "--show-private shows them."
)
Images = NDArray[np.float64]


class Picture(NamedTuple):
    """One image: its data URL, its alternative text, and whether it was blurred."""

    source: str
    alt: str
    blurred: bool


class Row(NamedTuple):
    """One row of a contact sheet: its label, and one image per example."""

    label: str
    pictures: tuple[Picture, ...]


@final
@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A contact sheet: examples side by side, each original above its reconstructions.

    Attributes:
        title: title of the sheet.
        caption: text below it.
        columns: labels of the examples.
        rows: the first holds the originals.
        blurred: whether the images are blurred.
    """

    title: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    blurred: bool


def sheet(exhibit: Exhibit, run: Path, *, cards: Cards, show: bool) -> Sheet:
    """The contact sheet of an exhibit.

    The exhibit's columns (original, reconstruction, ...) become rows, so that examples are side by side;
    an exhibit with more columns than rows and no "original" column is not transposed.

    If an exhibit holds private data and ``show`` is False, **every** image is blurred: a good
    reconstruction of a private image is as private as the original.

    Args:
        exhibit: an exhibit of kind ``pictures``.
        run: its run directory.
        cards: titles of the attacks.
        show: do not blur (the data are public, or the user asked for it).

    Raises:
        BadFile: the archive is missing, outside the run directory, or not (rows, columns, H, W, C) in [0, 1].
    """
    images = _load(exhibit, run)
    across = _names(exhibit.data.get("rows"), images.shape[0], "")
    down = _names(exhibit.data.get("columns"), images.shape[1], "column")
    if len(down) > len(across) and "original" not in down:
        across, down = down, across
    else:
        images = images.swapaxes(0, 1)
    hide = bool(exhibit.private) and not show
    return Sheet(
        title=cards.title(exhibit.title),
        caption=exhibit.caption,
        columns=across,
        rows=tuple(_row(label, across, row, hide=hide) for label, row in zip(down, images, strict=True)),
        blurred=hide,
    )


def merge_sheets(sheets: Sequence[Sheet]) -> list[Sheet]:
    """Merge two-row sheets that share their originals: originals first, then one row per sheet, by title."""
    pairs = grouped((s for s in sheets if len(s.rows) == 2), lambda s: (s.columns, s.rows[0]))
    whole = [_merge(group) if len(group) > 1 else group[0] for group in pairs.values()]
    return [*whole, *(s for s in sheets if len(s.rows) != 2)]


def _merge(group: Sequence[Sheet]) -> Sheet:
    first = group[0]
    rows = [s.rows[1]._replace(label=s.title) for s in group]
    title, caption = "The same examples, attack by attack", " ".join(dict.fromkeys(s.caption for s in group))
    return replace(first, title=title, caption=caption, rows=(first.rows[0], *rows))


def _row(label: str, across: Sequence[str], images: Images, *, hide: bool) -> Row:
    tail = " (blurred)" if hide else ""
    sources = [png(blur(image) if hide else image) for image in images]
    alts = [f"{label}, {name}{tail}" for name in across]
    return Row(label, tuple(Picture(s, alt, blurred=hide) for s, alt in zip(sources, alts, strict=True)))


def blur(image: Images) -> Images:
    """Blur an image so that no individual can be identified.

    ``MOSAIC``² mean colours, quantised to ``STEPS`` levels and enlarged smoothly.

    Args:
        image: (H, W, C) in [0, 1].

    Returns:
        An image of the same shape; it depends on the rounded means only, so detail cannot be recovered.
    """
    height, width, channels = image.shape
    tiles = [
        [block.mean(axis=(0, 1)) for block in np.array_split(band, min(MOSAIC, width), axis=1)]
        for band in np.array_split(image, min(MOSAIC, height), axis=0)
    ]
    means = np.round(np.asarray(tiles) * (STEPS - 1)) / (STEPS - 1)
    size = (max(width, 24), max(height, 24))
    planes = [
        np.asarray(Image.fromarray(means[..., c].astype(np.float32)).resize(size, Image.Resampling.BICUBIC))
        for c in range(channels)
    ]
    smooth = np.stack(planes, axis=-1).astype(np.float64).clip(0, 1)
    rows = np.arange(height) * size[1] // height
    columns = np.arange(width) * size[0] // width
    shrunk: Images = smooth[rows][:, columns]
    return shrunk


def png(image: Images) -> str:
    """An image (H, W, C) in [0, 1] as a PNG data URL; one channel is grey, three are RGB."""
    whole = np.round(image.clip(0, 1) * 255).astype(np.uint8)
    picture = Image.fromarray(whole[..., 0] if whole.shape[-1] == 1 else whole)
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _load(exhibit: Exhibit, run: Path) -> Images:
    path = run / exhibit.file
    subject = f"pictures '{exhibit.title}'"
    fix = "run the audit again, or make the report where the run directory is whole"
    if not path.resolve().is_relative_to(run.resolve()):
        raise BadFile(subject, needs="a file below the run directory", got=exhibit.file, fix=fix)
    try:
        images = pictures(exhibit, run)
    except (BadFile, OSError, KeyError, TypeError, ValueError) as error:
        got = error.got if isinstance(error, BadFile) else str(error)
        raise BadFile(subject, needs=f"{exhibit.file} with 'images'", got=got, fix=fix) from error
    inside = images.size and np.isfinite(images).all() and images.min() >= 0 and images.max() <= 1
    if images.ndim != 5 or images.shape[-1] not in {1, 3} or not inside:
        got = f"shape {images.shape}" + ("" if inside else ", empty or with values outside [0, 1]")
        raise BadFile(subject, needs="(rows, columns, H, W, 1 or 3) in [0, 1]", got=got, fix=fix)
    return images


def _names(given: object, n: int, kind: str) -> tuple[str, ...]:
    names = [str(name) for name in given] if isinstance(given, list | tuple) else []
    return tuple(names[i] if i < len(names) else f"{kind} {i + 1}".strip() for i in range(n))


def spoken(exhibit: Exhibit, run: Path, *, show: bool) -> Drawing:
    """The sentences of an exhibit as a table.

    If it holds private data and ``show`` is False, **every** sentence is replaced by its number of words: a
    correct reconstruction is as private as the original.

    Raises:
        BadFile: the file is missing, outside the run directory, or its rows do not match the columns.
    """
    columns = [str(column) for column in exhibit.data.get("columns", ())]
    names = [str(name) for name in exhibit.data.get("rows", ())]
    rows = sentences(exhibit, run)
    if len(rows) != len(names) or any(len(row) != len(columns) for row in rows):
        raise BadFile(
            f"sentences '{exhibit.title}'",
            needs=f"{len(names)} rows of {len(columns)} texts",
            got=f"{len(rows)} rows",
            fix="run the audit again",
        )
    hide = [not show and column in exhibit.private for column in columns]
    shown = [[_hidden(text) if h else text for text, h in zip(row, hide, strict=True)] for row in rows]
    named = tuple((name, *texts) for name, texts in zip(names, shown, strict=True))
    return Drawing(columns=("", *columns), rows=named)


def _hidden(text: str) -> str:
    words = len(text.split())
    return text if words <= 1 and not text.isalnum() else f"({words} words, hidden)"
