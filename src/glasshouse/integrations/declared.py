"""What the operator of a captured federation declares: its network, and how clients train."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from torch import nn

from glasshouse.errors import BadFile, BadValue
from glasshouse.integrations.recording import Recording
from glasshouse.interfaces import stated_training
from glasshouse.modalities.base import Modality
from glasshouse.models import build as models
from glasshouse.outside.schema import freeze
from glasshouse.settings import NORMALISATION, Optimizer, Training
from glasshouse.tasks.base import Task
from glasshouse.transcript.record import Keep
from glasshouse.wire import Architecture, Terms

MOST_BYTES: Final = 20 * 2**30
"""Default maximum size of a capture: 20 GiB."""

Pixels = tuple[float | Sequence[float], float | Sequence[float]]
Model = Architecture | tuple[str | Callable[..., nn.Module], tuple[int, int, int] | Modality, int | Task]
"""A network: its architecture; or its class, factory or registered name, the (C, H, W) of its pictures or
another modality, and the number of classes or another task."""


def start(
    folder: str | Path,
    architecture: Architecture,
    declared: Mapping[str, Any],
    *,
    keep: Keep | None = None,
    most_bytes: int = MOST_BYTES,
) -> Recording:
    """A recording in a new ``folder``.

    Raises:
        BadValue: the batch size is not declared.
        BadFile: ``folder`` contains a capture.
    """
    stated, place = terms_of(architecture, declared), Path(folder).expanduser()
    if (place / "transcript").exists():
        raise BadFile(
            f"capture in '{place}'", needs="a new folder", got="a transcript", fix="choose another folder"
        )
    network = models.build(architecture)
    return Recording(folder=place, terms=stated, network=network, keep=keep or Keep(), most_bytes=most_bytes)


def architecture_of(model: Model, normalize: Pixels | None) -> Architecture:
    """The architecture from which an audit builds the network in another process.

    Raises:
        BadValue: another process cannot import the network, or mean or deviation differ between channels.
    """
    if isinstance(model, tuple):
        name = model[0] if isinstance(model[0], str) else _name_of(model[0])
        model = Architecture.of(name, model[1], model[2])
    if normalize is None:
        return model
    numbers = [set(one) if isinstance(one, Sequence) else {one} for one in normalize]
    if any(len(one) != 1 for one in numbers):
        raise BadValue(
            "normalize of a captured network",
            needs="one mean and one standard deviation for all channels",
            got=str(normalize),
            fix="give as model a function that returns glasshouse.adapt(network, normalize=(means, stds))",
        )
    outside = dict(zip(NORMALISATION, (float(one.pop()) for one in numbers), strict=True))
    return replace(model, arguments={**model.arguments, **outside})


def _name_of(factory: Callable[..., nn.Module]) -> str:
    """The name by which another process imports ``factory``."""
    module, name = getattr(factory, "__module__", ""), getattr(factory, "__qualname__", "")
    if module in ("", "__main__") or not name.isidentifier():
        raise BadValue(
            "network of a captured federation",
            needs="a class or function that an audit can import: at the top of a module",
            got=f"'{name or factory}' of '{module}'",
            fix="move it to a file of its own, and import it from there",
        )
    return f"{module}:{name}"


def check_known(declared: Mapping[str, Any]) -> None:
    """Reject fields that terms do not have."""
    known = {f.name for f in fields(Terms)} - {"architecture", "sends", "secure_sum", "public"}
    if unknown := sorted(declared.keys() - known):
        raise _bad_terms(f"fields among {', '.join(sorted(known))}", ", ".join(unknown))


def terms_of(model: Architecture, declared: Mapping[str, Any]) -> Terms:
    """Declared terms; the observed ones are filled in later.

    Raises:
        BadValue: the batch size is missing.
    """
    if "batch_size" not in declared:
        raise _bad_terms(
            "the examples in a step of the clients' training",
            "no batch_size in terms, and no batch-size in the run's configuration",
        )
    optimizer = Optimizer.model_validate(freeze(declared.get("optimizer", {})))
    training = Training.model_validate(freeze(declared.get("training", {})))
    terms = {"protocol": "fedavg", "clients": 1, "cohort": 1, **declared}
    training = stated_training(terms["protocol"], terms.get("options", {}), training)
    terms |= {"optimizer": optimizer, "training": training}
    return Terms(**terms, architecture=model, sends="parameters")


def _bad_terms(needs: str, got: str) -> BadValue:
    fix = "say how clients train: terms={'batch_size': 32, 'local_epochs': 1, 'learning_rate': 0.1}"
    return BadValue("terms of a captured federation", needs=needs, got=got, fix=fix)
