"""Build a module from an architecture, load weights into it, and read its tensors.

A registered model comes from the zoo or a plug-in; ``module:factory`` is the user's own. Both are called as
``factory(input_shape, classes, **arguments)``, ``classes`` being the number of outputs, or with the modality
and the task, ``factory(inputs=..., task=..., **arguments)``, and return a network; one without ``features``
and ``head`` is adapted (:mod:`glasshouse.models.adapt`). A plain network class that takes none of these is
called with its own arguments only; additional arguments ``mean`` and ``std`` normalise the inputs before it.
"""

import copy
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from glasshouse import registry
from glasshouse.errors import BadValue, GlasshouseError, in_a_line
from glasshouse.interfaces.modes import FAULTS
from glasshouse.modalities.base import Modality
from glasshouse.models.adapt import AdaptedNetwork, adapt, check_place, find_head
from glasshouse.models.base import RENAMINGS, SplitModel, evaluated
from glasshouse.models.handed_over import check_handed_over, copied
from glasshouse.models.text.base import TextModel
from glasshouse.rng import Rng
from glasshouse.settings import NORMALISATION, ModelCall, covers, model_call
from glasshouse.wire import CONTROL, Architecture


def build(architecture: Architecture, *, rng: Rng | None = None) -> nn.Module:
    """A new module, in training mode, on the CPU.

    Args:
        architecture: what to build.
        rng: stream of the initial weights. None: a fixed stream, for weights that will be overwritten.

    Raises:
        UnknownName: no model of that name.
        BadValue: the factory does not accept an argument, or does not return a module; or the module does not
            fit the examples or the task.
        BadFile: the module of ``module:factory`` cannot be imported.
    """
    factory = registry.load_model(architecture.name)
    call = model_call(factory)
    _check_arguments(call, architecture)
    positional, own, normalize = _arguments_of(call, architecture)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed((rng or Rng.root(0)).seed())
        try:
            model = factory(*positional, **own)
        except TypeError as error:
            raise BadValue(
                f"model '{architecture.name}'",
                needs="a factory that takes (input_shape, classes) and the arguments of the [model] table",
                got=str(error),
                fix="correct the factory's signature, or the arguments",
            ) from error
        if not isinstance(model, nn.Module):
            raise BadValue(
                f"model '{architecture.name}'",
                needs="a factory that returns a torch.nn.Module",
                got=f"a {type(model).__name__}",
                fix="return the network, or glasshouse.adapt(network)",
            )
        if not isinstance(model, SplitModel | TextModel):
            model = adapt(model, normalize=normalize)
        model.task = architecture.task  # the loss of whoever trains it or repeats its training
        if ":" in architecture.name:
            _check_forward(model, architecture)
    built: nn.Module = model
    return built


def adapted_copy(model: nn.Module) -> nn.Module:
    """A copy of the user's own network with the interface that an audit needs; tensor names are kept.

    Raises:
        BadValue: it cannot be copied or trained (:mod:`glasshouse.models.handed_over`).
    """
    check_handed_over(model)
    other = copied(model)
    return other if isinstance(other, SplitModel | TextModel | AdaptedNetwork) else adapt(other)


def state(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name: copies, detached."""
    return {name: t.detach().clone() for name, t in model.state_dict().items()}


def load(model: nn.Module, tensors: Mapping[str, Tensor], *, partial: bool = False) -> None:
    """Copy ``tensors`` into ``model``.

    Args:
        model: changed in place.
        tensors: by state_dict name.
        partial: allow missing names: those tensors stay unchanged.

    Raises:
        BadValue: names are missing or unknown, or a shape differs; ``model`` is then unchanged.
    """
    own = model.state_dict()
    tensors = {
        name: t for name, t in tensors.items() if not name.startswith(CONTROL)
    }  # travel beside a model
    missing = [] if partial else [name for name in own if name not in tensors]
    unknown = [name for name in tensors if name not in own]
    shapes = [
        f"'{name}' is {tuple(t.shape)}, not {tuple(own[name].shape)}"
        for name, t in tensors.items()
        if name in own and t.shape != own[name].shape
    ]
    named = {"missing": missing, "unknown": unknown}
    wrong = [f"{what} {shortlist(names)}" for what, names in named.items() if names] + shapes[:3]
    if wrong:
        raise BadValue(
            f"weights for a {type(model).__name__}",
            needs=f"the {len(own)} tensors of this architecture",
            got="; ".join(wrong),
            fix="give the weights of the same architecture: name, classes, image size and arguments",
        )
    with torch.no_grad():
        for name, t in tensors.items():
            own[name].copy_(t)


def rename_tensors(architecture: Architecture, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``tensors`` by the names of this architecture.

    They are unchanged, unless the factory is :func:`~glasshouse.models.base.published` with a function that
    renames published weights.
    """
    rename = RENAMINGS.get(registry.load_model(architecture.name), dict)
    return rename(tensors)


def name_tensors(
    tensors: Mapping[str, Tensor], model: nn.Module, *, apart: tuple[str, ...] = ()
) -> dict[str, Tensor]:
    """``tensors`` by the names of ``model``, matched by name or by order.

    Args:
        tensors: part of the model's state by name; or its whole state, or all parameters, under other names.
        model: the model with the names.
        apart: patterns of names of tensors that may be left out.

    Raises:
        BadValue: names or shapes do not match the model.
    """
    whole = model.state_dict()
    names = dict(model.named_parameters())
    parts = (whole, names) if not apart else (whole, names, *(_without(p, apart) for p in (whole, names)))
    if all(name in whole and t.shape == whole[name].shape for name, t in tensors.items()):
        return dict(tensors)
    for own in parts:
        if [t.shape for t in tensors.values()] == [t.shape for t in own.values()]:
            return dict(zip(own, tensors.values(), strict=True))
    raise BadValue(
        f"tensors for a {type(model).__name__}",
        needs=f"its {len(whole)} tensors: {_shapes(whole)}",
        got=f"{len(tensors)} tensors: {_shapes(tensors)}",
        fix="give the network that is trained: model, its arguments, image size and classes",
    )


def _without(tensors: Mapping[str, Tensor], apart: tuple[str, ...]) -> dict[str, Tensor]:
    return {name: t for name, t in tensors.items() if not covers(apart, name)}


def _shapes(tensors: Mapping[str, Tensor]) -> str:
    return shortlist([f"'{name}' {tuple(t.shape)}" for name, t in tensors.items()])


def shortlist(names: list[str]) -> str:
    """The first three, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _arguments_of(
    call: ModelCall, architecture: Architecture
) -> tuple[tuple[Any, ...], dict[str, Any], tuple[float, float] | None]:
    """The positional and keyword arguments of a factory, and the normalisation to add around its model."""
    if call.way == "described":
        described = {"inputs": architecture.inputs, "task": architecture.task}
        return (), {**described, **architecture.arguments}, None
    if call.way == "shaped":
        outputs = architecture.task.outputs[0]
        return (architecture.input_shape, outputs), dict(architecture.arguments), None
    settings = architecture.arguments
    own = {name: value for name, value in settings.items() if name in call.takes}
    if own.keys() == settings.keys():
        return (), own, None
    mean, std = (
        float(settings.get(name, default)) for name, default in zip(NORMALISATION, (0, 1), strict=True)
    )
    return (), own, (mean, std)


def _check_arguments(call: ModelCall, architecture: Architecture) -> None:
    accepted = tuple(call.settings)
    unknown = next((name for name in architecture.arguments if name not in accepted), None)
    # A factory that takes the modality says by its annotation which one; others take numbers of any shape.
    described = call.inputs
    kind: Any = Modality if described is None else described.annotation
    reads = kind if inspect.isclass(kind) and issubclass(kind, Modality) else Modality
    own = ":" in architecture.name  # tried with a blank example instead
    numbers = architecture.inputs.continuous or described is not None or own
    if not (numbers and isinstance(architecture.inputs, reads)):
        needs = f"data of {reads.nouns}" if described is not None else "data whose numbers a layer can take"
        got, fix = architecture.inputs.nouns, "choose a model that reads these data: glasshouse list models"
    elif unknown is not None:
        needs, got = f"arguments among {', '.join(accepted) or 'none'}", f"'{unknown}'"
        fix = registry.nearest_names(unknown, accepted)
    else:
        return
    raise BadValue(f"model '{architecture.name}'", needs=needs, got=got, fix=fix)


def forward_hint(error: Exception) -> str:
    """What to do about an exception in the forward pass of the user's own network."""
    if isinstance(error, GlasshouseError):
        return error.fix
    if "dtype" in str(error):
        return "keep all its parameters in one type of float: net.float()"
    if isinstance(error, TypeError) and "argument" in str(error):
        return "audit a network of one input; wrap one of several in a module that fixes the others"
    if "more than 1 value per channel" in str(error):
        return "use group norm, or let batch norm track running statistics: one example has none of a batch"
    return "build it for the given input_shape, or change the data (data.resize); no pictures: train_inputs"


def _check_forward(model: nn.Module, architecture: Architecture) -> None:
    """Check that the user's own network maps a blank example to what the task asks for."""
    subject = f"model '{architecture.name}'"
    tried = copy.deepcopy(model)  # a pass may leave something behind, as a moving range
    try:
        with evaluated(tried):
            shape = tuple(tried(architecture.inputs.blank(1)).shape)
            check_place(tried, architecture.inputs.blank(1))
            if isinstance(model, AdaptedNetwork) and model.head_name and not model.head_is_told:
                model.head_name = find_head(tried, architecture.inputs.probes(4, Rng.root(0).torch())[:2])
    except GlasshouseError:
        raise
    except FAULTS as error:
        raise BadValue(
            subject,
            needs=f"a forward pass on {architecture.inputs.nouns} {architecture.input_shape}",
            got=in_a_line(error),
            fix=forward_hint(error),
        ) from error
    if not architecture.task.accepts(shape[1:]):
        asked = ", ".join("any" if size < 0 else str(size) for size in architecture.task.outputs)
        raise BadValue(
            subject,
            needs=f"outputs (B, {asked}) for task '{architecture.task.name}'",
            got=f"{shape} for one {architecture.inputs.noun}",
            fix=_outputs_hint(architecture, shape),
        )


def _outputs_hint(architecture: Architecture, shape: tuple[int, ...]) -> str:
    """What to do about outputs that do not fit the task."""
    classes = architecture.classes
    if not classes or len(shape) != 2:
        return "declare the task (data.task) that the network was built for; classes are integers from 0"
    if shape[1] == 1:
        one = 'set data.task = "multilabel", which takes one logit for two classes'
        return f'{one}, or data.task = "regression"; or give the network {classes} outputs'
    return (
        f"labels go up to {classes - 1}: number the classes from 0 without gaps, or give the network "
        f"{classes} outputs (a factory is called with 'classes'); or declare another task (data.task)"
    )
