"""Read a model's weights from an untrusted file: safetensors, npz, or torch's without running its pickle."""

import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glasshouse.errors import BadFile
from glasshouse.outside import limits
from glasshouse.outside.arrays import BROKEN, read_arrays
from glasshouse.outside.files import check_size, check_unpacked, damaged, printable, reason, unreadable
from glasshouse.store import read_tensors


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read a model's tensors by name from safetensors, npz, or a torch file, which is read weights-only.

    A torch file may hold the tensors themselves, or a dictionary with them under ``state_dict``,
    ``model`` or ``model_state_dict``.

    Raises:
        BadFile: missing, corrupt, containing code or other objects, not a mapping of names to tensors, or
            larger than the limits allow.
    """
    if path.suffix == ".safetensors":
        return read_tensors(path, most=limits.FILE_BYTES)
    subject = f"file '{path}'"
    if not path.is_file():
        raise unreadable(path, subject=subject)
    size = path.stat().st_size
    check_size(size, limits.FILE_BYTES, subject=subject)
    if path.suffix == ".npz":
        return _from_arrays(path, subject)
    content: Any = _unpickled(path, size, subject)
    for wrapper in ("state_dict", "model_state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
    if not (isinstance(content, dict) and content and all(isinstance(t, Tensor) for t in content.values())):
        got = f"a {type(content).__name__} that holds something else"
        raise damaged(subject, needs="tensors by name", got=got)
    tensors = {str(name): tensor for name, tensor in content.items()}
    _check_backed(tensors, subject=subject)
    return tensors


def _from_arrays(path: Path, subject: str) -> dict[str, Tensor]:
    """The arrays of a numpy archive; those without names are called ``arr_0``, ``arr_1``, ... by numpy."""
    arrays = read_arrays(path, subject=subject, fix="write it with numpy.savez(path, **tensors_by_name)")
    try:
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    except TypeError as error:
        raise damaged(subject, needs="arrays of numbers", got=reason(error)) from error
    _check_backed(tensors, subject=subject)
    return tensors


def _unpickled(path: Path, size: int, subject: str) -> Any:
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                check_unpacked(size, sum(part.file_size for part in archive.infolist()), subject=subject)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's warnings on odd files address their authors
            return torch.load(path, map_location="cpu", weights_only=True)
    except (*BROKEN, pickle.UnpicklingError, AttributeError, AssertionError, ArithmeticError) as error:
        if isinstance(error, pickle.UnpicklingError):
            asked = re.search(r"GLOBAL ([\w.]+)", str(error))
            got = f"a file that asks for {asked[1]}" if asked else "other objects, or a file of another kind"
            fix = "have model.state_dict() saved instead of the model, or use safetensors"
        elif "weights_only" in str(error):  # torch would advise running the code in such files
            got = "TorchScript, or torch's format before 1.6"
            fix = "have model.state_dict() saved by torch.save of today, or use safetensors"
        else:
            got = f"{type(error).__name__}: {reason(error)}"
            raise damaged(subject, needs="a torch file", got=got) from error
        needs = "tensors and plain containers only: a torch file is never allowed to run code"
        raise BadFile(subject, needs=needs, got=got, fix=fix) from error


def _check_backed(tensors: Mapping[str, Tensor], *, subject: str) -> None:
    """Raise unless every value of every tensor is stored in the file: no views that repeat stored values."""
    total = 0
    for name, t in tensors.items():
        total += 0 if t.is_nested else t.numel()
        is_dense = t.layout is torch.strided and t.device.type == "cpu" and not t.is_nested
        if total > limits.VALUES:
            got = f"{total:,} in all, with shape {tuple(t.shape)}"
        elif is_dense and t.numel() * t.element_size() > t.untyped_storage().nbytes():
            got = f"{t.numel():,} numbers made of {t.untyped_storage().nbytes():,} bytes"
        else:
            continue
        raise BadFile(
            subject,
            needs=f"at most {limits.VALUES:,} numbers, each of them in the file",
            got=f"'{printable(name)}': {got}",
            fix="have copies saved: {name: t.clone() for name, t in model.state_dict().items()}",
        )
