"""What the operator of a captured federation declares: its network, and how clients train."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from torch import nn

from glasshouse.audit.captured.origins import origins_of, with_values
from glasshouse.errors import BadFile, BadValue
from glasshouse.integrations.recording import Recording, terms_in
from glasshouse.interfaces import stated_training
from glasshouse.modalities.base import Modality
from glasshouse.models import build as models
from glasshouse.outside import limits
from glasshouse.outside.schema import freeze
from glasshouse.settings import NORMALISATION, Optimizer, Training
from glasshouse.tasks.base import Task
from glasshouse.transcript.record import Keep
from glasshouse.wire import Architecture, Kind, Terms

BATCH: Final = 32
"""Examples in a step, where nobody says."""

Pixels = tuple[float | Sequence[float], float | Sequence[float]]
Model = Architecture | tuple[str | Callable[..., nn.Module], tuple[int, int, int] | Modality, int | Task]
"""A network: its architecture; or its class, factory or registered name, the (C, H, W) of its pictures or
another modality, and the number of classes or another task."""


def start(
    folder: str | Path,
    architecture: Architecture,
    declared: Mapping[str, Any],
    *,
    config: Mapping[str, Any] | None = None,
    keep: Keep | None = None,
    most_bytes: int | None = None,
    documents: bool = False,
) -> Recording:
    """A recording in a new ``folder``.

    Args:
        folder: of the capture.
        architecture: of the network.
        declared: terms that the operator stated.
        config: of the run: terms that are not stated are read from it, else assumed.
        keep: what to store; None: everything.
        most_bytes: maximum size of stored tensors; None: ``GLASSHOUSE_MOST_CAPTURE_BYTES``, else half of what
            is free on the disk.
        documents: clients send documents, for training or as answers to queries: they take no steps of which
            anything would have to be assumed.

    Raises:
        BadValue: terms out of range.
        BadFile: ``folder`` contains a capture.
    """
    read = {} if documents else terms_in(config or {}, "run configuration")
    origins = origins_of(declared, {key: origin for key, (_, origin) in read.items()})
    values = {key: value for key, (value, origin) in read.items() if origins[key] == origin}
    place = Path(folder).expanduser()
    stated = with_values(terms_of(architecture, declared, "document" if documents else "parameters"), values)
    if (place / "transcript").exists():
        raise BadFile(
            f"capture in '{place}'", needs="a new folder", got="a transcript", fix="choose another folder"
        )
    network = models.build(architecture)
    return Recording(
        folder=place,
        terms=stated,
        origins={} if documents else origins,
        network=network,
        keep=keep or Keep(),
        most_bytes=limits.capture_bytes(place) if most_bytes is None else most_bytes,
        carrying=frozenset({"train", "query"}) if documents else frozenset({"train"}),
    )


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


def terms_of(model: Architecture, declared: Mapping[str, Any], sends: Kind = "parameters") -> Terms:
    """Declared terms, with what is assumed; the observed ones are filled in later."""
    optimizer = Optimizer.model_validate(freeze(declared.get("optimizer", {})))
    training = Training.model_validate(freeze(declared.get("training", {})))
    terms = {"protocol": "fedavg", "clients": 1, "cohort": 1, "batch_size": BATCH, **declared}
    training = stated_training(terms["protocol"], terms.get("options", {}), training)
    terms |= {"optimizer": optimizer, "training": training.in_mode_of(sends)}
    return Terms(**terms, architecture=model, sends=sends)


def _bad_terms(needs: str, got: str) -> BadValue:
    fix = "say how clients train: terms={'batch_size': 32, 'local_epochs': 1, 'learning_rate': 0.1}"
    return BadValue("terms of a captured federation", needs=needs, got=got, fix=fix)
