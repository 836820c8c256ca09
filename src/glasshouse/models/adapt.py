"""Any classifier as a model under audit: its own tensor names, with the parts that an audit asks for.

An audit needs four things of a network: pixels in [0, 1] go in, logits come out, the layer that computes
the logits is known, and what enters that layer can be read (the *representation*). :func:`adapt` adds them
to a network without changing its layers or the names of its tensors, so that weights and updates of the
original fit as they are.

What is found without being told: the last linear layer, and activations that overwrite their input
(``inplace``), which are switched to the ordinary form because attacks differentiate through them; the
function they compute is the same. Attention is computed in its plain form, which has second derivatives.
BatchNorm uses the statistics that it received, and dropout is off unless
the protocol switches it on.
"""

from collections.abc import Callable, Sequence
from typing import Any, final

from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from glasshouse.errors import BadValue
from glasshouse.models.base import Normalize

__all__ = ["AdaptedNetwork", "Logits", "adapt"]

Logits = Callable[[Any], Tensor]
"""From what a network returns to its logits (B, K)."""


@final
class AdaptedNetwork(nn.Module):
    """A network as an audit sees it; made by :func:`adapt`.

    It shares the network's parameters, buffers and sub-modules, under the names that the network gives them.
    """

    def __init__(
        self, net: nn.Module, *, head: str, normalize: Normalize | None, logits: Logits | None
    ) -> None:
        super().__init__()
        if normalize is not None:
            self.normalize = normalize  # attacks find it by this name; it is not in the state
        for name, child in net.named_children():
            self.add_module(name, child)
        for name in ("_parameters", "_buffers", "_non_persistent_buffers_set"):
            self.__dict__[name] = vars(net)[name]  # one dictionary: what is replaced here is replaced there
        self.__dict__["_net"] = net
        self._head = head
        self._logits = logits
        self._normalizes = normalize is not None
        self.training = net.training

    def __setattr__(self, name: str, value: Any) -> None:
        """A sub-module that is replaced here (by DP-SGD, for one) is replaced in the network."""
        super().__setattr__(name, value)
        if isinstance(value, nn.Module) and name != "normalize":
            setattr(self.net, name, value)

    @property
    def net(self) -> nn.Module:
        """The network itself."""
        inner: nn.Module = self.__dict__["_net"]
        return inner

    @property
    def head_name(self) -> str:
        """Name of the layer that computes the logits."""
        return self._head

    def forward(self, x: Tensor) -> Tensor:
        """Pixels (B, C, H, W) in [0, 1] → logits (B, K)."""
        with sdpa_kernel(SDPBackend.MATH):  # fused attention cannot be differentiated twice
            output = self.net(self.normalize(x) if self._normalizes else x)
        logits: Tensor = output if self._logits is None else self._logits(output)
        return logits

    def representation(self, x: Tensor) -> Tensor:
        """What enters the layer that computes the logits, (B, D)."""
        layer_inputs: list[Tensor] = []
        layer = self.get_submodule(self._head)
        hook = layer.register_forward_pre_hook(lambda _module, inputs: layer_inputs.append(inputs[0]))
        try:
            self(x)
        finally:
            hook.remove()
        return layer_inputs[-1].flatten(1)

    def train(self, mode: bool = True) -> "AdaptedNetwork":
        """As for any module."""
        super().train(mode)
        self.net.training = mode
        return self


def adapt(
    net: nn.Module,
    *,
    head: str | None = None,
    normalize: tuple[float | Sequence[float], float | Sequence[float]] | None = None,
    logits: Logits | None = None,
) -> AdaptedNetwork:
    """Make ``net`` a model that Glasshouse can audit. Its tensors keep their names; it is changed in place.

    Args:
        net: a classifier of images.
        head: name of the linear layer that computes the logits; None: ``head`` if there is one,
            else the last linear
            layer.
        normalize: (mean, standard deviation) that ``net`` expects its pixels to be normalised with,
            one number or one
            per channel; None: it takes pixels in [0, 1] as they are, or normalises them itself
            by a sub-module called
            ``normalize``.
        logits: from what ``net`` returns to its logits, where it returns something else (a tuple, a
            dictionary).

    Returns:
        The module to return from ``my_file:my_factory``.

    Raises:
        BadValue: there is no linear layer, ``head`` is not one, or ``net`` normalises already and is told to.

    Examples:
        >>> import torch
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(inplace=True), nn.Linear(32, 10))
        >>> model = adapt(net, normalize=(0.5, 0.5))
        >>> model.head_name, tuple(model(torch.zeros(2, 1, 8, 8)).shape)
        ('3', (2, 10))
        >>> tuple(model.representation(torch.zeros(2, 1, 8, 8)).shape), list(model.state_dict())[:2]
        ((2, 32), ['1.weight', '1.bias'])
    """
    if isinstance(net, AdaptedNetwork):
        return net
    layers = dict(net.named_modules())
    layer = _find_head(net, head)
    if normalize is not None and "normalize" in layers:
        raise BadValue(
            _subject(net),
            needs="normalize given once: to adapt, or as a sub-module of the network",
            got="both",
            fix="leave one of them out",
        )
    for module in layers.values():
        if "inplace" in vars(module):
            module.inplace = False
    before = None if normalize is None else Normalize(mean=normalize[0], std=normalize[1])
    return AdaptedNetwork(net, head=layer, normalize=before, logits=logits)


def _find_head(net: nn.Module, head: str | None) -> str:
    """Name of the linear layer that computes the logits; ``head`` where it is given."""
    layers = dict(net.named_modules())
    linear = [name for name, module in layers.items() if isinstance(module, nn.Linear)]
    if head is None and not linear:
        raise BadValue(
            _subject(net),
            needs="a linear layer that computes the logits",
            got=f"layers of type {', '.join(sorted({type(m).__name__ for m in layers.values()}))}",
            fix="end the network with torch.nn.Linear",
        )
    if head is not None and head not in linear:
        raise BadValue(
            _subject(net),
            needs=f"head: the name of a linear layer, one of {', '.join(linear) or 'none'}",
            got=f"'{head}'",
            fix="leave head out to take the last one",
        )
    return head or ("head" if "head" in linear else linear[-1])


def _subject(net: nn.Module) -> str:
    return f"own model '{type(net).__name__}'"
