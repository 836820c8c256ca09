"""An update as people hand it over, as tensors by the names of a network's parameters."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from glasshouse.errors import BadValue
from glasshouse.guard.forms import by_position, is_statistic, without_prefix
from glasshouse.models.base import evaluated
from glasshouse.tensors import tensor_of
from glasshouse.wire import Kind

__all__ = ["named_update"]

_SUBJECT: Final = "update in memory"
_ORDER: Final = "give them by name, or in the order of model.parameters()"


def named_update(
    update: Any, network: nn.Module, example: Tensor, *, sends: Kind
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The update by parameter name, and the running statistics that came with it, as they are afterwards.

    Frozen parameters are known and do not travel. A ``state_dict`` has both names of a tied weight, and the
    statistics of batch norms: under ``delta`` their changes, which say what they are now.

    Args:
        update: tensors or arrays, by name or in the order of the parameters or of the ``state_dict``.
        network: as it was received.
        example: one that the network takes.
        sends: what the update is.

    Raises:
        BadValue: another form, no numbers, or tensors that are not the network's.
    """
    parameters = {name: p for name, p in network.named_parameters() if p.requires_grad}
    state = network.state_dict()
    given = _by_name(update, parameters, state)
    # DataParallel and its like put a prefix before all names.
    given = dict(without_prefix(given, frozenset(parameters))[0])
    statistics = {name: given.pop(name) for name in [*given] if is_statistic(name) and name in state}
    # Who takes gradients gets None of a parameter that the loss does not reach, such as an unused head.
    present = {n: t for n, t in given.items() if t is not None or n not in parameters}
    unused = given.keys() - present.keys() | _unreached(
        network, example, parameters.keys() - present.keys() - _shared_names(network).keys()
    )
    present |= {name: torch.zeros_like(parameters[name]) for name in unused}
    tensors = _without_copies({name: _numbers(name, t) for name, t in present.items()}, network)
    wrong = [
        *(f"'{name}' is missing" for name in parameters if name not in tensors),
        *(f"'{name}' is unknown" for name in tensors if name not in parameters),
        *(
            f"'{name}' is {tuple(tensors[name].shape)}, not {tuple(p.shape)}"
            for name, p in parameters.items()
            if name in tensors and tensors[name].shape != p.shape
        ),
    ]
    if wrong:
        raise BadValue(
            _SUBJECT,
            needs=f"one tensor for each of the network's {len(parameters)} parameters",
            got="; ".join(wrong[:3]),
            fix=_ORDER,
        )
    return tensors, {} if sends == "gradient" else _statistics(statistics, state, is_change=sends == "delta")


def _by_name(update: Any, parameters: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> dict[str, Any]:
    """What was handed over by name, unchanged.

    Raises:
        BadValue: neither a mapping nor a list of as many as there are parameters, or entries of the state.
    """
    if isinstance(update, Mapping) and (in_order := by_position(update)) is not None:
        update = in_order
    if isinstance(update, Mapping):
        return {str(name): value for name, value in update.items()}
    if not isinstance(update, Sequence) or isinstance(update, str | bytes):
        raise BadValue(
            _SUBJECT,
            needs="tensors by name, or a list of them",
            got=f"an object of type {type(update).__name__}",
            fix="{name: p.grad for name, p in model.named_parameters()}, or list(...) of what yields them",
        )
    if any(isinstance(one, tuple) and len(one) == 2 and isinstance(one[0], str) for one in update):
        raise BadValue(_SUBJECT, needs="tensors by name", got="a list of pairs", fix="give dict(update)")
    # Flower's clients send the values of the whole state.
    names = [*state] if len(update) == len(state) else [*parameters]
    if len(update) > len(names):
        raise BadValue(
            _SUBJECT,
            needs=f"one tensor for each of the network's {len(parameters)} parameters",
            got=f"{len(update)} tensors",
            fix=_ORDER,
        )
    return dict(zip(names, update, strict=False))


def _numbers(name: str, value: Any) -> Tensor:
    """A tensor of ordinary real numbers on the CPU, whatever held them.

    Raises:
        BadValue: no values, complex ones, or whole numbers, whose scale nobody knows.
    """
    try:
        t = tensor_of(value).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        got = f"'{name}': {str(error).splitlines()[0]}"
        raise BadValue(_SUBJECT, needs="tensors or arrays of numbers", got=got, fix=_ORDER) from error
    words = {
        t.is_meta: ("numbers", "on the meta device, which has none", "take the gradient on a real device"),
        t.is_complex(): (
            "real numbers",
            "",
            "give the parts of a complex parameter as two real ones, in the network, too",
        ),
    }
    if True in words:
        needs, got, fix = words[True]
        raise BadValue(_SUBJECT, needs=needs, got=f"'{name}' of {t.dtype} {got}".rstrip(), fix=fix)
    t = t.dequantize() if t.is_quantized else t.to_dense()
    if not t.is_floating_point():
        raise BadValue(
            _SUBJECT,
            needs="floating-point numbers: of whole ones nobody knows the scale",
            got=f"'{name}' of {t.dtype}",
            fix="undo the quantisation first, as its receiver does: value * scale, in float32",
        )
    return (t.float() if t.element_size() == 1 else t).cpu()


def _shared_names(network: nn.Module) -> dict[str, str]:
    """The further names of tied parameters, each with the name that ``named_parameters`` gives them."""
    first: dict[int, str] = {}
    shared: dict[str, str] = {}
    for name, p in network.named_parameters(remove_duplicate=False):
        if first.setdefault(id(p), name) != name:
            shared[name] = first[id(p)]
    return shared


def _without_copies(tensors: dict[str, Tensor], network: nn.Module) -> dict[str, Tensor]:
    """``tensors`` without the further names of tied parameters.

    Raises:
        BadValue: they differ, so that they are no weight of this network.
    """
    shared = _shared_names(network)
    for other, name in shared.items():
        if (t := tensors.pop(other, None)) is None:
            continue
        if not torch.equal(t, tensors.setdefault(name, t)):
            raise BadValue(
                _SUBJECT,
                needs=f"one tensor for '{name}' and '{other}', which are one weight",
                got="two different ones",
                fix="give their sum under the first name, which is the weight's gradient; or untie them",
            )
    return tensors


def _statistics(
    given: Mapping[str, Any], state: Mapping[str, Tensor], *, is_change: bool
) -> dict[str, Tensor]:
    """Running statistics as they are after training; counts of batches say nothing more."""
    found: dict[str, Tensor] = {}
    for name, value in given.items():
        if value is None or not state[name].is_floating_point():
            continue
        t = _numbers(name, value)
        if t.shape != state[name].shape:
            got = f"'{name}' is {tuple(t.shape)}, not {tuple(state[name].shape)}"
            raise BadValue(_SUBJECT, needs="the network's running statistics", got=got, fix="leave them out")
        found[name] = state[name] + t if is_change else t
    return found


def _unreached(network: nn.Module, example: Tensor, names: Collection[str]) -> set[str]:
    """Those of the parameters on which the outputs for an example do not depend."""
    if not names:
        return set()
    parameters = {name: p for name, p in network.named_parameters() if name in names}
    with evaluated(network), torch.enable_grad():
        outputs = network(example)
    slopes: Sequence[Any] = torch.autograd.grad(outputs.sum(), list(parameters.values()), allow_unused=True)
    return {name for name, slope in zip(parameters, slopes, strict=True) if slope is None}
