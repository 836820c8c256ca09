"""Files of models that are not read here, recognised by their first bytes, and what to export instead."""

import zipfile
from pathlib import Path
from typing import Final

from glasshouse.errors import BadFile

TORCH: Final = "torch.save(model.state_dict(), 'model.pt')"
_KERAS: Final = (
    "numpy.savez('model.npz', **{v.path: v.numpy() for v in model.variables}) "
    "(Keras kernels are (in, out): transpose dense ones)"
)
_ONNX_FIELDS: Final = frozenset(b"\x12\x1a\x22\x28\x32\x3a\x42")
"""Tags that follow the version of an ONNX file: producer, domain, model, graph, operator sets."""
_HEAD: Final = 64
_TAR: Final = (257, b"ustar")


_AGAIN: Final = "get the file of weights itself"
_UNPACK: Final = "unpack it, and name the file of weights that is in it"
_EXPORTED: Final = "have it exported: "
_ARRAYS: Final = f"{_EXPORTED}numpy.savez('model.npz', **tensors_by_name)"
_HEADS: Final = (
    (
        0,
        b"GGUF",
        "GGUF, whose weights are quantised in blocks",
        "the safetensors files that it was made from",
    ),
    (
        0,
        b"lmgg",
        "GGML, whose weights are quantised in blocks",
        "the safetensors files that it was made from",
    ),
    (4, b"TFL3", "TensorFlow Lite", _KERAS),
    (0, b"\x89HDF\r\n\x1a\n", "HDF5, as of Keras (.h5)", _KERAS),
)
"""Offset, first bytes, kind, and what to export in its place."""
_OTHERS: Final = (
    (b"version https://git-lfs", "a pointer of Git LFS, without the weights", "fetch them: git lfs pull"),
    (b"\x1f\x8b", "a gzip archive", _UNPACK),
    (b"\x28\xb5\x2f\xfd", "a zstd archive", _UNPACK),
    (b"BZh", "a bzip2 archive", _UNPACK),
    (b"\xfd7zXZ", "an xz archive", _UNPACK),
    (b"7z\xbc\xaf", "a 7z archive", _UNPACK),
    (b"\x93NUMPY", "one array of numpy, without a name", _ARRAYS),
)
"""First bytes of what is no model, the kind, and what to do."""
_TEXTS: Final = {b"<": "a web page", b"{": "JSON", b"[": "JSON"}
_ARCHIVES: Final = {
    "models/model.json": (
        "a program of torch.export (.pt2)",
        f"{_EXPORTED}torch.save(program.state_dict, 'model.pt')",
    ),
    "Manifest.json": ("a package of Core ML", f"{_EXPORTED}{TORCH} from the network that was converted"),
}
"""Names of files in a zip archive, the kind that has them, and what to do."""


def foreign_kind(path: Path) -> tuple[str, str] | None:
    """What kind of file or folder it is, and what to do instead; None: one that may be read.

    Raises:
        OSError: it cannot be opened.
    """
    if path.is_dir():
        if (path / "saved_model.pb").is_file():
            return "a TensorFlow SavedModel", f"{_EXPORTED}{_KERAS}"
        return None
    if path.exists() and not path.is_file():  # a pipe or a device, which whoever reads weights refuses
        return None
    with path.open("rb") as file:
        head = file.read(_HEAD)
        file.seek(_TAR[0])
        is_tar = file.read(len(_TAR[1])) == _TAR[1]
    if path.suffix == ".mlmodel":
        return "Core ML", f"{_EXPORTED}{TORCH} from the network that was converted"
    version_of_onnx = head[:1] == b"\x08" and len(head) > 2 and 0 < head[1] < 32 and head[2] in _ONNX_FIELDS
    if path.suffix == ".onnx" or version_of_onnx:
        instead = f"{TORCH} from the network that was exported, or numpy.savez of onnx's initializers"
        return "ONNX", f"{_EXPORTED}{instead}"
    for start, magic, kind, instead in _HEADS:
        if head[start:].startswith(magic):
            return kind, f"{_EXPORTED}{instead}"
    if zipfile.is_zipfile(path):
        return _archive(path)
    return _no_model(path, head, is_tar=is_tar)


def _archive(path: Path) -> tuple[str, str] | None:
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
    if "config.json" in names and "model.weights.h5" in names:
        return "a Keras archive (.keras)", f"{_EXPORTED}{_KERAS}"
    ends = {
        end: what for end, what in _ARCHIVES.items() if any(n == end or n.endswith(f"/{end}") for n in names)
    }
    return next(iter(ends.values()), None)


def _no_model(path: Path, head: bytes, *, is_tar: bool) -> tuple[str, str] | None:
    """Files that stand where weights should be: pointers, archives, pages, texts."""
    if not head:
        return "an empty file", _AGAIN
    if is_tar:
        return "a tar archive", _UNPACK
    for magic, kind, instead in _OTHERS:
        if head.startswith(magic):
            return kind, instead
    # What begins like a text and goes on like one; eight bytes before a brace begin safetensors.
    first = head.lstrip()[:1]
    if first in _TEXTS and head.isascii() and not path.name.endswith(".index.json"):
        return _TEXTS[first], _AGAIN
    return None


def refuse_foreign(path: Path, *, subject: str) -> None:
    """Raise if the file is of a kind that is not read here.

    Raises:
        BadFile: names the kind, and what to do instead.
    """
    try:
        kind = foreign_kind(path)
    except (OSError, zipfile.BadZipFile):
        return  # whoever reads it says so
    if kind is not None:
        raise BadFile(
            subject, needs="weights as safetensors, torch's own format or npz", got=kind[0], fix=kind[1]
        )
