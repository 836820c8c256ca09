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


def foreign_kind(path: Path) -> tuple[str, str] | None:
    """What kind of model a file or folder is, and how to export it instead; None: one that may be read.

    Raises:
        OSError: it cannot be opened.
    """
    if path.is_dir():
        if (path / "saved_model.pb").is_file():
            return "a TensorFlow SavedModel", _KERAS
        return None
    if path.exists() and not path.is_file():  # a pipe or a device, which whoever reads weights refuses
        return None
    with path.open("rb") as file:
        head = file.read(_HEAD)
    version_of_onnx = head[:1] == b"\x08" and len(head) > 2 and 0 < head[1] < 32 and head[2] in _ONNX_FIELDS
    if path.suffix == ".onnx" or version_of_onnx:
        return "ONNX", f"{TORCH} from the network that was exported, or numpy.savez of onnx's initializers"
    if head[:4] == b"GGUF":
        return "GGUF, whose weights are quantised in blocks", "the safetensors files that it was made from"
    if head[4:8] == b"TFL3":
        return "TensorFlow Lite", _KERAS
    if head[:8] == b"\x89HDF\r\n\x1a\n":
        return "HDF5, as of Keras (.h5)", _KERAS
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            names = set(archive.namelist())
        if "config.json" in names and "model.weights.h5" in names:
            return "a Keras archive (.keras)", _KERAS
    return None


def refuse_foreign(path: Path, *, subject: str) -> None:
    """Raise if the file is a model of a kind that is not read here.

    Raises:
        BadFile: names the kind, and what to export instead.
    """
    try:
        kind = foreign_kind(path)
    except (OSError, zipfile.BadZipFile):
        return  # whoever reads it says so
    if kind is not None:
        raise BadFile(
            subject,
            needs="weights as safetensors, torch's own format or npz",
            got=kind[0],
            fix=f"have it exported: {kind[1]}",
        )
