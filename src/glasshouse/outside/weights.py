"""Read a model's weights from an untrusted file: safetensors, npz, or torch's without running its pickle."""

import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from glasshouse.errors import BadFile
from glasshouse.outside import limits
from glasshouse.outside.arrays import BROKEN, read_arrays
from glasshouse.outside.files import check_size, check_unpacked, damaged, printable, reason, unreadable
from glasshouse.outside.kinds import refuse_foreign
from glasshouse.store import TensorFile, read_json
from glasshouse.tensors import Lazy

_SHARD: Final = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.\w+)")
_INDEX: Final = ".index.json"
_WRAPPERS: Final = ("state_dict", "model_state_dict", "model", "module")


def read_weights(path: Path) -> Mapping[str, Tensor]:
    """Read a model's tensors by name from safetensors, npz, or a torch file, which is read weights-only.

    Those of safetensors are read when they are asked for, one at a time.

    A torch file may hold the tensors themselves, or a dictionary with them under ``state_dict``, ``model``,
    ``model_state_dict`` or ``module``. A checkpoint in several files is read as one model: by its
    ``*.index.json``, by one of its shards, or by the folder that holds it.

    Raises:
        BadFile: missing, corrupt, containing code or other objects, not a mapping of names to tensors, of a
            kind that is not read here, or larger than the limits allow.
    """
    subject = f"file '{path}'"
    refuse_foreign(path, subject=subject)
    if path.is_dir():
        return read_weights(_of_folder(path))
    if path.name.endswith(_INDEX):
        return _joined(_listed(path), subject=subject)
    if (shard := _SHARD.fullmatch(path.name)) is not None and path.is_file():
        stem, _, total, ending = shard.groups()
        names = [f"{stem}-{number:05d}-of-{total}{ending}" for number in range(1, int(total) + 1)]
        return _joined([path.with_name(name) for name in names[: limits.SHARDS]], subject=subject)
    return _read_file(path)


def _of_folder(folder: Path) -> Path:
    """The one index, or the one file of weights, in a folder."""
    for pattern in (f"*{_INDEX}", "*.safetensors", "*.bin", "*.pt", "*.pth", "*.npz"):
        found = sorted(folder.glob(pattern))
        if len(found) == 1 or (found and _SHARD.fullmatch(found[0].name)):
            return found[0]
    raise BadFile(
        f"folder '{folder}'",
        needs="one file of weights, or the shards of one checkpoint",
        got="none, or several" if any(folder.iterdir()) else "an empty folder",
        fix="name the file",
    )


def _listed(index: Path) -> list[Path]:
    """The shards that an index names, each a plain file beside it."""
    subject = f"index '{index}'"
    raw = read_json(index, most=limits.JSON_BYTES)
    named = raw.get("weight_map") if isinstance(raw, dict) else None
    files = sorted(set(named.values())) if isinstance(named, dict) and all(
        isinstance(value, str) for value in named.values()
    ) else []  # fmt: skip
    plain = all(Path(name).name == name and not name.endswith(_INDEX) for name in files)
    if not files or len(files) > limits.SHARDS or not plain:
        raise damaged(subject, needs=f"a weight_map to 1 to {limits.SHARDS} files beside it", got="another")
    return [index.with_name(name) for name in files]


def _joined(parts: Sequence[Path], *, subject: str) -> Mapping[str, Tensor]:
    """The tensors of several files as one model."""
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise BadFile(
            subject,
            needs="all parts of the checkpoint beside it: a part alone is no model",
            got=f"{len(missing)} of {len(parts)} missing: {', '.join(map(printable, missing[:2]))}",
            fix="put them into one folder",
        )
    size = sum(part.stat().st_size for part in parts)
    _check_weights(size, subject=subject)
    tensors: dict[str, Mapping[str, Tensor]] = {}
    for part in parts:
        own = _read_file(part)
        if twice := sorted(own.keys() & tensors.keys()):
            raise damaged(subject, needs="each tensor in one part", got=f"'{printable(twice[0])}' in two")
        tensors |= dict.fromkeys(own, own)
    return Lazy(lambda: tensors, lambda name: tensors[name][name], int)


def _read_file(path: Path) -> Mapping[str, Tensor]:
    """The tensors of one file."""
    subject = f"file '{path}'"
    # The first bytes decide what the file is; its suffix is only a hint.
    refuse_foreign(path, subject=subject)
    if not path.is_file():
        raise unreadable(path, subject=subject)
    if path.suffix == ".safetensors" or _is_safetensors(path):
        _check_weights(path.stat().st_size, subject=subject)
        return TensorFile(path).lazy()
    size = path.stat().st_size
    _check_weights(size, subject=subject)
    if path.suffix == ".npz":
        return _from_arrays(path, subject)
    content: Any = _unpickled(path, size, subject)
    # Training loops put the weights beside optimizer and epoch, at times twice over.
    for wrapper in _WRAPPERS:
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
    if not (isinstance(content, dict) and content and all(isinstance(t, Tensor) for t in content.values())):
        got = f"a {type(content).__name__} that holds something else"
        raise damaged(subject, needs="tensors by name", got=got)
    tensors = {str(name): tensor for name, tensor in content.items()}
    _check_backed(tensors, subject=subject)
    return tensors


def _check_weights(size: int, *, subject: str) -> None:
    check_size(size, limits.WEIGHT_BYTES(), subject=subject, fix=limits.WEIGHT_BYTES.advice)


def _is_safetensors(path: Path) -> bool:
    """Whether a file of another name begins like safetensors: the length of its header, then the header."""
    if not path.is_file():  # opening a pipe would wait for ever
        return False
    try:
        with path.open("rb") as file:
            head = file.read(9)
        return head[8:] == b"{" and int.from_bytes(head[:8], "little") < path.stat().st_size
    except OSError:
        return False


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
        if total > limits.NUMBERS():
            got = f"{total:,} in all, with shape {tuple(t.shape)}"
        elif is_dense and t.numel() * t.element_size() > t.untyped_storage().nbytes():
            got = f"{t.numel():,} numbers made of {t.untyped_storage().nbytes():,} bytes"
        else:
            continue
        raise BadFile(
            subject,
            needs=f"at most {limits.NUMBERS():,} numbers, each of them in the file",
            got=f"'{printable(name)}': {got}",
            fix="have copies saved: {name: t.clone() for name, t in model.state_dict().items()}, or "
            + limits.NUMBERS.advice,
        )
