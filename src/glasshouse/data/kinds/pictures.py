"""Shared by sources of single image files: decoding, and stacking into one array, which is cached."""

import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from glasshouse.cache import Checkpoint, load_or_make
from glasshouse.data.base import resize_images
from glasshouse.errors import BadFile
from glasshouse.outside import limits

SUFFIXES: Final = frozenset(
    {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)
MANY: Final = 500
"""From this number of images on, reading a cached copy is faster than decoding."""
BROKEN: Final = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    RuntimeError,
    MemoryError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)
"""What readers such as Pillow and pydicom raise on damaged files."""
_MODES: Final = {"L": "L", "1": "L", "RGB": "RGB", "P": "RGB"}
"""Supported Pillow modes → grey or RGB. Others (transparency, CMYK, floats) are refused."""
_DEEP: Final = frozenset({"I;16", "I;16L", "I;16B", "I;16N"})
"""Modes of grey images with 16 bits."""
_WIDE: Final = frozenset({"PNG", "PPM"})
"""Formats whose 16-bit images Pillow may open as 32-bit (mode I)."""
_WHITE: Final = 2**16 - 1


def decode(image: Image.Image, *, name: str, place: str) -> NDArray[Any]:
    """One image as (H, W) or (H, W, 3), uint8; 16-bit images as float32 in [0, 1].

    Args:
        image: an opened image.
        name: name of the source.
        place: identifies the image in errors.

    Raises:
        BadFile: neither grey with 8 or 16 bits nor RGB with 8, or more than ``limits.PICTURE_PIXELS`` pixels.
    """
    if image.width * image.height > limits.PICTURE_PIXELS:
        needs = f"pictures of at most {limits.PICTURE_PIXELS:,} pixels"
        got, fix = f"{image.width:,} × {image.height:,} in {place}", "make it smaller"
    elif image.mode in _DEEP or (image.mode == "I" and image.format in _WIDE):
        return np.asarray(image).astype(np.float32) / _WHITE
    elif image.mode in _MODES:
        return np.asarray(image.convert(_MODES[image.mode]), dtype=np.uint8)
    else:
        needs, got = "grey pictures with 8 or 16 bits, or RGB with 8", f"mode {image.mode} in {place}"
        fix = "convert it: transparency, CMYK and floats have no one right reading"
    raise BadFile(f"data '{name}'", needs=needs, got=got, fix=fix)


def stack_images(images: Iterable[NDArray[Any]], resize: int | None, *, name: str) -> NDArray[Any]:
    """Stack to (N, H, W) or (N, H, W, 3); each image is resized before the next one is decoded.

    Raises:
        BadFile: different sizes without ``resize``, or a mix of grey and colour, or of 8 and 16 bits.
    """
    images = [image if resize is None else _square(image, resize) for image in images]
    shapes = {image.shape for image in images}
    if len({image.dtype for image in images}) > 1:
        needs, got = "pictures of one depth", "some with 8 bits, some with 16"
        fix = "store them alike: 16 bits are divided by 65,535, 8 bits by 255"
    elif len(shapes) > 1:
        sizes = ", ".join(" × ".join(map(str, shape)) for shape in sorted(shapes)[:4])
        needs = "pictures of one size, all grey or all in colour"
        got = f"{len(shapes)} kinds: {sizes}" + (", ..." if len(shapes) > 4 else "")
        fix = "set data.resize for one size; convert pictures that are grey among coloured ones"
    else:
        return np.stack(images) if images else np.zeros((0, 1, 1), dtype=np.uint8)
    raise BadFile(f"data '{name}'", needs=needs, got=got, fix=fix)


def stack_cached(
    read: Callable[[], Iterable[NDArray[Any]]],
    count: int,
    resize: int | None,
    *,
    files: Mapping[str, str],
    name: str,
) -> NDArray[Any]:
    """As :func:`stack_images`; a large set is cached until ``files``, the state of its files, changes.

    Args:
        read: decodes the images, one after the other.
        count: number of images.
        resize: pixels per side; None: unchanged.
        files: identifies the files and their state.
        name: name of the source.
    """

    def make(_: Checkpoint | None = None) -> dict[str, Tensor]:
        return {"pixels": torch.from_numpy(stack_images(read(), resize, name=name))}

    key = {**files, "resize": resize, "version": 1}
    tensors = make() if count < MANY else load_or_make("pictures", key, make)
    return tensors["pixels"].numpy()


def _square(image: NDArray[Any], side: int) -> NDArray[Any]:
    """One image resized to ``side`` × ``side`` by :func:`resize_images`."""
    flat = image.ndim == 2
    pixels = torch.from_numpy(image[None].copy() if flat else image.transpose(2, 0, 1).copy())[None]
    out = resize_images(pixels, side)[0]
    array: NDArray[Any] = (out[0] if flat else out.permute(1, 2, 0)).numpy()
    return array
