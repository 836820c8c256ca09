"""Networks that are handed over as objects: what cannot be copied, trained or compared is refused first."""

import copy
import inspect
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from glasshouse.errors import BadValue, in_a_line

SHOWN: Final = 3
"""Names in an error."""
REAL: Final = (
    "real weights, as messages carry them",
    "hold real and imaginary parts in two parameters, or in one of shape (..., 2): torch.view_as_complex",
)
"""What is needed in place of complex weights, and how to get there."""


def memo_of(net: nn.Module) -> dict[int, Any]:
    """The memo for a copy of a network that keeps tensors of its last pass: detached, as they have a graph.

    A weight that a hook computes (pruning, torch's older weight and spectral norm) is such a tensor; the next
    pass computes it anew.
    """
    kept: dict[int, Any] = {}
    for module in net.modules():
        for value in vars(module).values():
            parts = value.values() if isinstance(value, dict) else value
            for one in parts if isinstance(value, dict | list | tuple) else (value,):
                if isinstance(one, torch.Tensor) and not one.is_leaf:
                    kept[id(one)] = one.detach().clone()
    return kept


def copied(net: nn.Module) -> nn.Module:
    """A copy of a network, also of one that keeps tensors of its last pass.

    Raises:
        BadValue: it holds what cannot be copied.

    Examples:
        >>> net = nn.utils.spectral_norm(nn.Linear(2, 3))
        >>> outputs = net(torch.ones(1, 2))
        >>> torch.equal(copied(net).weight_orig, net.weight_orig)
        True
    """
    try:
        return copy.deepcopy(net, memo_of(net))
    except (TypeError, RuntimeError, AttributeError, ValueError) as error:
        raise BadValue(
            f"network '{type(net).__name__}'",
            needs="a network that copy.deepcopy can copy",
            got=in_a_line(error),
            fix="keep locks, files, loggers, generators and results of earlier passes outside of it",
        ) from error


def check_handed_over(net: nn.Module) -> None:
    """Refuse a network whose weights have no size or no values yet, or whose code cannot be copied.

    Raises:
        BadValue: no network, or lazy layers that were never called, weights on the meta device, complex ones,
            a network of TorchScript, or one that was quantized.

    Examples:
        >>> check_handed_over(nn.Linear(2, 3))
        >>> try:
        ...     check_handed_over(nn.LazyLinear(3))
        ... except BadValue as error:
        ...     print(error.got)
        lazy ones that were never called: weight, bias
    """
    check_module(net)
    subject = f"network '{type(net).__name__}'"
    if isinstance(net, torch.jit.ScriptModule):
        raise BadValue(
            subject,
            needs="a network as Python code",
            got="TorchScript, which is compiled and cannot be copied",
            fix="hand over the network that was scripted or traced; its state_dict has the same names",
        )
    held: list[tuple[str, Any]] = [*net.named_parameters(), *net.named_buffers()]
    if lazy := [name for name, tensor in held if is_lazy(tensor)]:
        raise BadValue(
            subject,
            needs="layers whose size is known",
            got=f"lazy ones that were never called: {', '.join(lazy[:SHOWN])}",
            fix="call net(example) once before handing it over, or give the layers their sizes",
        )
    if empty := [name for name, tensor in held if tensor.is_meta]:
        raise BadValue(
            subject,
            needs="weights with values",
            got=f"weights on the meta device: {', '.join(empty[:SHOWN])}",
            fix="build it on the CPU, or net.to_empty(device='cpu') and net.load_state_dict(weights)",
        )
    if complexes := [name for name, tensor in held if tensor.is_complex()]:
        raise BadValue(
            subject, needs=REAL[0], got=f"complex ones: {', '.join(complexes[:SHOWN])}", fix=REAL[1]
        )
    state = net.state_dict()
    if packed := [name for name, value in state.items() if _is_quantized(value)]:
        raise BadValue(
            subject,
            needs="weights in floating point, as clients train them",
            got=f"quantized ones: {', '.join(packed[:SHOWN])}",
            fix="hand over the network from before quantization",
        )


def _check_train(name: str, module: nn.Module) -> None:
    """Refuse a method ``train`` that is a training loop, and hides the one that sets the mode."""
    try:
        for mode in ((), (True,)):
            inspect.signature(module.train).bind(*mode)
    except TypeError:
        raise BadValue(
            f"network '{type(module).__name__}'" + (f" ('{name}')" if name else ""),
            needs="the method train(mode) of torch.nn.Module, which sets the mode",
            got=f"train{inspect.signature(module.train)}",
            fix="give your training loop another name",
        ) from None
    except ValueError:  # written in C, so without a signature
        return


def check_module(net: object) -> None:
    """Refuse what is no network: its class, its weights, a function.

    Raises:
        BadValue: says what it is.
    """
    if isinstance(net, nn.Module):
        for name, module in net.named_modules():
            _check_train(name, module)
        return
    if isinstance(net, type):
        got, fix = f"the class {net.__name__}", f"build it: {net.__name__}(...)"
    elif isinstance(net, Mapping):
        got, fix = (
            f"a {type(net).__name__}, as a state_dict is",
            "load it into the network: net.load_state_dict(weights)",
        )
    else:
        got, fix = (
            f"an object of type {type(net).__name__}",
            "hand over the network, an object of torch.nn.Module",
        )
    raise BadValue("model", needs="a network of PyTorch", got=got, fix=fix)


def _is_quantized(value: object) -> bool:
    return isinstance(value, torch.dtype) or (isinstance(value, torch.Tensor) and value.is_quantized)
