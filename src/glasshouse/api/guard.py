"""Inspection of a received model, in any form, before a client trains on it."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from glasshouse.api import AGREED
from glasshouse.data.sources import load as load_data
from glasshouse.errors import BadFile, BadValue, in_a_line
from glasshouse.guard.fit import Fit
from glasshouse.guard.forms import by_position, is_statistic, without_prefix
from glasshouse.guard.inspect import Seen, inspect
from glasshouse.guard.pursuit.examples import Own
from glasshouse.guard.pursuit.inspect import HonestRanges, inspect_in_modes
from glasshouse.guard.pursuit.limits import JUDGED, OTHERS, SEARCHED
from glasshouse.guard.rules.finite import not_finite
from glasshouse.guard.rules.structure import other_structure
from glasshouse.modalities.image import Image
from glasshouse.models.build import adapted_copy, build, load, state
from glasshouse.models.handed_over import check_handed_over
from glasshouse.models.outline import outline
from glasshouse.models.text.base import TextModel
from glasshouse.outside import limits
from glasshouse.outside.files import is_path, printable
from glasshouse.outside.schema import ArchitectureFile, parse_as
from glasshouse.outside.weights import read_weights
from glasshouse.process import as_torch_starts
from glasshouse.scenario.overrides import PathError, split_assignment
from glasshouse.store import read_json
from glasshouse.tasks.base import Task
from glasshouse.tensors import Lazy, tensor_of
from glasshouse.transcript.described import architecture_of
from glasshouse.wire import Architecture

__all__ = [
    "TRIED",
    "Received",
    "agreed_tensors",
    "architecture",
    "guard",
    "named_source",
    "own_examples",
    "tensors_of",
    "with_behaviour",
]


Received = str | Path | nn.Module | Mapping[str, Any] | Sequence[Any]
"""A file (safetensors, torch's own, ``npz``; of several the index, one part or the folder), a network, arrays
or tensors by name, or a list of them."""

TRIED: Final = SEARCHED + JUDGED
"""Examples that a model is tried on."""
_GIVE: Final = (
    "give the model's state_dict, or its arrays; of Flower: record.to_torch_state_dict(), "
    "flwr.common.parameters_to_ndarrays(parameters)"
)


@as_torch_starts()
def guard(
    model: Received,
    *,
    agreed: nn.Module | Mapping[str, Tensor] | str = "",
    reference: Received | None = None,
    data: tuple[Tensor, Tensor] | None = None,
    task: Task | None = None,
) -> Seen:
    """Inspect a model before training on it: odd weights, odd structure, odd behaviour.

    Args:
        model: as received. A list is in the order of the agreed architecture's tensors; without one, tensors
            are judged by their shapes only.
        agreed: the agreed architecture: a network, its state_dict, or in words, as
            ``"mlp 1x8x8 10 hidden=32"``; empty: the structure is not compared, and a ``model`` that is a
            network is tried on data as it is.
        reference: an honest model of that architecture; as many odd rows and kernels as it makes likely
            are not reported. Without ``agreed``, its structure is compared.
        data: your own examples, as they enter the model, and their classes. What fixed read-outs get is then
            searched on up to 64 of them, judged on up to 128 others (up to 1,000 more if few of these make up
            a tensor's update), and compared with honest models of the architecture, which are made for that;
            needs ``model`` or ``agreed`` as a network, or the latter in words. ``verdict`` is "not judged"
            with fewer than 16, or if too little of the model could be looked at.
        task: the loss that clients train with, where it is not the agreed one's: of a network by default the
            cross-entropy of classes (:mod:`glasshouse.tasks`).

    Returns:
        The inspected model; ``findings`` contains a sentence for each reason not to train on it.

    Raises:
        BadFile: a file cannot be read, or contains no model.
        BadValue: tensors without an architecture have no weights of convolutions or linear layers, the
            reference is of another architecture, data are given without one, or a network cannot be copied.

    Examples:
        >>> len(guard([torch.ones(8, 16), torch.zeros(8)]).findings)
        3
    """
    data = None if data is None else _pair(data)
    for network in (model, agreed, reference):
        if isinstance(network, nn.Module):
            check_handed_over(network)
    if isinstance(model, nn.Module) and isinstance(agreed, str) and not agreed and reference is None:
        agreed = model
    if isinstance(agreed, str):
        expected = agreed_tensors(agreed) if agreed else None
    else:
        expected = state(agreed) if isinstance(agreed, nn.Module) else dict(agreed)
    honest = None if reference is None else tensors_of(reference, _orders(agreed, expected))
    tensors = tensors_of(model, _orders(agreed, expected or honest))
    tensors, form = _as_agreed(tensors, expected or honest or {})
    if honest is not None and expected is not None:
        honest = _as_agreed(honest, expected)[0]
    if expected is not None and _only_trainable(tensors, expected):
        form = form or "running statistics are missing: taken for a list of what is trained"
        expected = {name: t for name, t in expected.items() if name in tensors}
    if expected is None and honest is not None:
        shared = tensors.keys() & honest.keys()
        if any(tensors[name].shape != honest[name].shape for name in shared):
            tensors = tensors_of(model)  # the order of tensors in a file may differ
    try:
        outcome = replace(inspect(tensors, agreed=expected, reference=honest), form=form)
        if data is None:
            return outcome
        return with_behaviour(outcome, tensors, _network(agreed, task), data, reference=honest)
    except BadValue as error:
        if not isinstance(model, str | Path):
            raise
        subject = f"file '{model}', {error.subject}"
        raise BadFile(subject, needs=error.needs, got=error.got, fix=error.fix) from error


def _pair(data: Any) -> tuple[Tensor, Tensor]:
    """Own examples and their targets as tensors.

    Raises:
        BadValue: no pair, or no numbers.
    """
    try:
        inputs, labels = map(tensor_of, data)
    except (TypeError, ValueError, RuntimeError) as error:
        got = in_a_line(error)
        fix = "data=(examples, classes), both as tensors or arrays"
        raise BadValue("guard with data", needs="a pair", got=got, fix=fix) from error
    return inputs, labels if labels.is_floating_point() or labels.dtype is torch.bool else labels.long()


def named_source(name: str) -> str:
    """``name`` as a data source: a folder of images, an ``npz`` file, or ``name`` itself."""
    archive = name.endswith(".npz") and (":" not in name or is_path(name))
    kind = "folder:" if Path(name).is_dir() else "npz:" if archive else ""
    return f"{kind}{name}"


def own_examples(name: str, architecture: Architecture) -> tuple[Tensor, Tensor]:
    """Images and classes of a folder, an ``npz`` file or a data set, in the architecture's input form.

    Raises:
        UnknownName: no such data set.
        BadFile: the data cannot be read.
        BadValue: the architecture reads sentences, or the data have more classes than it.
    """
    if not isinstance(architecture.inputs, Image):
        raise BadValue(
            f"data '{name}' for the guard",
            needs="an architecture that reads images",
            got=f"'{architecture.name}', which reads {architecture.inputs.nouns}",
            fix="in Python, glasshouse.guard takes tokens; or leave --data out: the weights alone are judged",
        )
    channels, side, _ = architecture.inputs.size
    source = load_data(named_source(name), resize=side, channels=channels)
    part = next(iter(source.splits.values()))
    # Sources are often sorted by class: the first examples would be of one.
    order = torch.randperm(len(part), generator=torch.Generator().manual_seed(0))[: TRIED + OTHERS]
    batch = part.batch(order)
    if int(batch.labels.max()) >= architecture.classes:
        raise BadValue(
            f"data '{name}' for the guard",
            needs=f"at most {architecture.classes} classes, as the agreed architecture has",
            got=f"a class number {int(batch.labels.max())}",
            fix="give the data that the model is trained on",
        )
    return batch.inputs, batch.labels


def with_behaviour(
    outcome: Seen,
    tensors: Mapping[str, Tensor],
    network: nn.Module,
    data: tuple[Tensor, Tensor],
    *,
    honest: HonestRanges | None = None,
    reference: Mapping[str, Tensor] | None = None,
) -> Seen:
    """Add an inspection of behaviour to one of the weights, unless the structure differs from the agreed one.

    Args:
        outcome: inspection of the weights.
        tensors: the model.
        network: of the agreed architecture; overwritten.
        data: your own examples and their classes.
        honest: ranges of honest models of that architecture; None: they are measured here.
        reference: the last accepted model, if it has all of the network's tensors and they are finite: both
            rounds' updates are judged as one too, and the fit of both models to the examples is added.
    """
    if not outcome.fits:
        return outcome
    # Statistics may be missing from what was received: everything else must be there.
    load(network, tensors, partial=all(map(is_statistic, network.state_dict().keys() - tensors.keys())))
    own = Own(inputs=data[0], targets=data[1])
    honest = HonestRanges.of(network, own) if honest is None else honest
    # Two rounds on the same examples may show together what neither shows alone.
    is_known = reference is not None and _is_whole(reference, network)
    earlier = None
    if is_known and reference is not None:
        earlier = copy.deepcopy(network)
        load(earlier, reference)
    judged = inspect_in_modes(network, own, honest=honest, earlier=() if earlier is None else (earlier,))
    # How well the model fits the own examples tells a model that was never trained from an honest one.
    inputs, labels = data[0][:TRIED], data[1][:TRIED]
    fits = {} if isinstance(network, TextModel) else {"": Fit.of(network, inputs, labels)}
    if fits and earlier is not None:
        fits["reference_"] = Fit.of(earlier, inputs, labels)
    known: dict[str, float] = {}
    for whose, fit in fits.items():
        known |= {f"{whose}{name}": x for name, x in asdict(fit).items() if x is not None}
    both = replace(
        outcome.inspection,
        findings=(*judged.findings, *outcome.inspection.findings),
        values={**outcome.inspection.values, **judged.values, **known},
    )
    return replace(outcome, inspection=both, judged=judged)


def _is_whole(tensors: Mapping[str, Tensor], network: nn.Module) -> bool:
    return not other_structure(tensors, network.state_dict()) and not not_finite(tensors)


def _network(agreed: nn.Module | Mapping[str, Tensor] | str, task: Task | None) -> nn.Module:
    if isinstance(agreed, nn.Module):
        network = adapted_copy(agreed)
        if task is not None:
            vars(network)["task"] = task
        return network
    if isinstance(agreed, str) and agreed:
        return build(architecture(agreed) if task is None else replace(architecture(agreed), task=task))
    raise BadValue(
        "guard with data",
        needs="the agreed architecture: a network, or in words",
        got="tensors" if agreed else "none",
        fix='say agreed="mlp 1x8x8 10 hidden=32", or give the network',
    )


def _orders(
    agreed: nn.Module | Mapping[str, Tensor] | str, expected: Mapping[str, Tensor] | None
) -> tuple[Sequence[str], ...]:
    """Orders in which a list of arrays may be: the whole state, or what is trained."""
    if not expected:
        return ()
    trained = (
        [name for name, _ in agreed.named_parameters()]
        if isinstance(agreed, nn.Module)
        else [name for name in expected if not is_statistic(name)]
    )
    return tuple(expected), trained


def _as_agreed(
    tensors: Mapping[str, Tensor], agreed: Mapping[str, Tensor]
) -> tuple[Mapping[str, Tensor], str]:
    """``tensors`` under the agreed names, and what a wrapper had put into theirs, in words."""
    named, prefix = without_prefix(tensors, frozenset(agreed))
    return named, f"names have '{printable(prefix)}' of a wrapper, which was taken off" if prefix else ""


def _only_trainable(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> bool:
    """Whether exactly the running statistics of the agreed model are missing."""
    missing = [name for name in expected if name not in tensors]
    return bool(missing) and all(is_statistic(name) for name in missing)


def tensors_of(model: Received, names: Sequence[Sequence[str]] = ()) -> Mapping[str, Tensor]:
    """The tensors of a model by name; those of a list by the first order in ``names`` that has as many.

    Raises:
        BadFile: a file that cannot be read.
        BadValue: a value that is not an array of numbers.
    """
    if isinstance(model, nn.Module):
        return state(model)
    weights: Any = read_weights(Path(model)) if isinstance(model, str | Path) else model
    if isinstance(weights, Mapping) and (in_order := by_position(weights)) is not None:
        weights = in_order
    if isinstance(weights, Lazy):
        return weights
    if isinstance(weights, Mapping):
        return {str(name): _tensor(value, str(name)) for name, value in weights.items()}
    if isinstance(weights, Tensor | np.ndarray) or not isinstance(weights, Iterable):
        raise BadValue(
            "a model",
            needs="a network, a file of weights, tensors by name, or a list of arrays",
            got=f"a {type(weights).__name__}"
            if not isinstance(weights, type)
            else f"the class {weights.__name__}",
            fix=_GIVE,
        )
    # Names are lent to a list by the first known order that is as long.
    tensors = [_tensor(value, f"number {i}") for i, value in enumerate(weights)]
    numbered = [_name(i, t) for i, t in enumerate(tensors)]
    own = next((order for order in names if len(order) == len(tensors)), numbered)
    return dict(zip(own, tensors, strict=True))


def agreed_tensors(text: str, *, trust_factory: bool = False) -> dict[str, Tensor]:
    """The tensors, without values, of the architecture that ``text`` describes; see :func:`architecture`."""
    return outline(architecture(text, trust_factory=trust_factory))


def architecture(text: str, *, trust_factory: bool = False) -> Architecture:
    """The architecture that ``text`` describes.

    Args:
        text: the architecture in words, or a path that ends in ``.json``.
        trust_factory: allow ``module:factory`` in a file; in ``text`` it is always allowed.

    Raises:
        BadValue: ``text`` has neither of the forms.
        BadFile: the file cannot be read, or describes no architecture or an unregistered one.

    Examples:
        >>> architecture("mlp 1x8x8 10 hidden=32").arguments
        {'hidden': 32}
    """
    if text.endswith(".json"):
        return _read_architecture(Path(text), trust_factory=trust_factory)
    parts = text.split()
    try:
        name, shape, classes = parts[:3]
        channels, height, width = (int(side) for side in shape.split("x"))
        arguments = dict(split_assignment(part) for part in parts[3:])
        return Architecture.of(name, (channels, height, width), int(classes), arguments)
    except (ValueError, PathError) as error:
        raise BadValue("option --agreed", needs=AGREED, got=f"'{text}'", fix="write it like that") from error


def _read_architecture(path: Path, *, trust_factory: bool) -> Architecture:
    raw = read_json(path, most=limits.JSON_BYTES)
    raw = raw.get("architecture", raw) if isinstance(raw, dict) else raw
    subject = f"architecture in '{path}'"
    fix = "give a transcript's terms.json (name, inputs, task), or the architecture in words"
    stated = parse_as(ArchitectureFile, raw, subject=subject, fix=fix)
    return architecture_of(stated, subject=subject, trust_factory=trust_factory)


def _tensor(value: Any, name: str) -> Tensor:
    if isinstance(value, Mapping):
        raise BadValue(
            "a model",
            needs="one tensor per name",
            got=f"a table under '{name}', as in a checkpoint",
            fix=f"give that table: guard(checkpoint['{name}'])",
        )
    try:
        return tensor_of(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadValue(
            f"a model's tensor '{name}'",
            needs="an array of numbers",
            got=str(error).splitlines()[0],
            fix=_GIVE,
        ) from error


def _name(position: int, tensor: Tensor) -> str:
    """A name that the guard's rules recognise: several dimensions are a weight, one is a bias."""
    return f"{position}.{'weight' if tensor.ndim > 1 else 'bias'}"
