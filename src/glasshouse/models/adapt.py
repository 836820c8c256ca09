"""Adapt any network for an audit, without changing its tensor names.

An audit needs inputs in their declared range and the outputs of the task. Attacks that read the last linear
layer also need its name and its input (the *representation*); networks without one are audited by the others.
:func:`adapt` adds them without changing the network's layers or tensor names, so that its weights and updates
fit unchanged.

Detected automatically: the last linear layer, if there is one, and in-place activations, which are replaced
by the ordinary form because attacks differentiate through them; the computed function is the same. Attention
is computed in its plain form, which has second derivatives. The network trains and evaluates by its own
method ``train``, its root included.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from glasshouse.errors import BadValue, Inapplicable
from glasshouse.models.base import Normalize
from glasshouse.models.handed_over import check_module, memo_of

Logits = Callable[[Any], Tensor]
"""Output of a network → its logits (B, K)."""


@final
class AdaptedNetwork(nn.Module):
    """A network with the interface that an audit needs; created by :func:`adapt`.

    It shares the network's parameters, buffers and sub-modules under their original names.

    Attributes:
        wrapped_network: the network itself, by a name that no sub-module has.
        head_name: name of the linear layer that computes the outputs; empty: there is none.
        head_is_told: it was named by whoever adapted the network.
    """

    wrapped_network: nn.Module

    def __init__(
        self, net: nn.Module, *, head: str, told: bool, normalize: Normalize | None, logits: Logits | None
    ) -> None:
        # No sub-module, so that tensors keep their names; nor a name that one has, as 'net' in many networks.
        self.__dict__["wrapped_network"], training = net, net.training
        super().__init__()
        if normalize is not None:
            self.normalize = normalize  # attacks look it up by this name; not part of the state_dict
        for name, child in net.named_children():
            if hasattr(AdaptedNetwork, name):
                raise BadValue(
                    _subject(net),
                    needs="layers by other names than what an audit asks of a network",
                    got=f"one named '{name}'",
                    fix="rename it, or hand over nn.Sequential(net)",
                )
            self.add_module(name, child)
        for name in ("_parameters", "_buffers", "_non_persistent_buffers_set"):
            self.__dict__[name] = vars(net)[name]  # shared dictionaries: replacements affect both modules
        self.head_name, self.head_is_told = head, told
        self._logits = logits
        self._normalizes = normalize is not None
        self.training = training

    def __setattr__(self, name: str, value: Any) -> None:
        """Replace a sub-module (as DP-SGD does), or set the mode, in the wrapped network as well."""
        super().__setattr__(name, value)
        if (isinstance(value, nn.Module) and name != "normalize") or name == "training":
            setattr(self.wrapped_network, name, value)

    def __deepcopy__(self, memo: dict[int, Any]) -> "AdaptedNetwork":
        """Without the graphs of tensors that the network keeps of its last pass."""
        other = AdaptedNetwork.__new__(AdaptedNetwork)
        memo |= {id(self): other, **memo_of(self.wrapped_network)}
        other.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return other

    def forward(self, x: Tensor) -> Tensor:
        """Inputs (B, ...) → outputs (B, ...), for a classifier logits (B, K)."""
        output = self.returned(x)
        outputs = _outputs_of(output, self.wrapped_network) if self._logits is None else self._logits(output)
        # Losses and scores are computed in single precision, as training in half precision does.
        return outputs.float() if outputs.dtype in (torch.float16, torch.bfloat16) else outputs

    def returned(self, x: Tensor) -> Any:
        """What the network itself returns for inputs (B, ...)."""
        x = self.normalize(x) if self._normalizes else x
        own = next((p.dtype for p in self.wrapped_network.parameters() if p.is_floating_point()), x.dtype)
        with sdpa_kernel(SDPBackend.MATH):  # fused attention cannot be differentiated twice
            return self.wrapped_network(x.to(own) if x.is_floating_point() else x)

    @property
    def chooses(self) -> bool:
        """Whether it was said where the logits are in what the network returns."""
        return self._logits is not None

    def behind(self, normalize: Normalize) -> "AdaptedNetwork":
        """The same network with a normalisation of its inputs, which was stated beside it; in place."""
        super().__setattr__("normalize", normalize)
        self._normalizes = True
        return self

    def representation(self, x: Tensor) -> Tensor:
        """The input of the layer that computes the logits, (B, D)."""
        if not self.head_name:
            raise Inapplicable(
                _subject(self.wrapped_network),
                needs="a linear layer that computes the outputs, whose input is the representation",
                got="none",
                fix="choose metrics and attacks that need no representation",
            )
        layer_inputs: list[Tensor] = []
        layer = self.get_submodule(self.head_name)
        with layer.register_forward_pre_hook(lambda _module, inputs: layer_inputs.append(inputs[0])):
            self(x)
        return layer_inputs[-1].flatten(1)

    def train(self, mode: bool = True) -> "AdaptedNetwork":
        """As for any module, by the network's own method, which may keep layers in another mode."""
        super().train(mode)
        self.wrapped_network.train(mode)
        return self


def adapt(
    net: nn.Module,
    *,
    head: str | None = None,
    normalize: tuple[float | Sequence[float], float | Sequence[float]] | None = None,
    logits: Logits | None = None,
) -> AdaptedNetwork:
    """Make ``net`` a model that Glasshouse can audit. Tensor names are kept; ``net`` is changed in place.

    Args:
        net: a network.
        head: name of the linear layer that computes the logits; None: the one whose outputs a pass returns,
            else the one that runs last, if there is one.
        normalize: (mean, standard deviation) of the pixel normalisation that ``net`` expects, a number or one
            per channel; None: it takes pixels in [0, 1], or normalises them in a sub-module ``normalize``.
        logits: extracts the logits from the output of ``net`` if that is a tuple or dictionary.

    Returns:
        The module to return from ``my_file:my_factory``.

    Raises:
        BadValue: no network, ``head`` is no linear layer, or ``normalize`` is no pair or given twice.

    Examples:
        >>> import torch
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(inplace=True), nn.Linear(32, 10))
        >>> model = adapt(net, normalize=(0.5, 0.5))
        >>> model.head_name, tuple(model(torch.zeros(2, 1, 8, 8)).shape)
        ('3', (2, 10))
        >>> tuple(model.representation(torch.zeros(2, 1, 8, 8)).shape), list(model.state_dict())[:2]
        ((2, 32), ['1.weight', '1.bias'])
    """
    check_module(net)
    layers = dict(net.named_modules())
    stated: Any = normalize
    if stated is not None and (not isinstance(stated, tuple | list) or len(stated) != 2):
        raise BadValue(
            _subject(net),
            needs="normalize = (mean, standard deviation), each a number or one per channel",
            got=repr(normalize),
            fix="say both: normalize=((0.49, 0.48, 0.45), (0.25, 0.24, 0.26))",
        )
    if logits is not None and not callable(logits):
        raise BadValue(
            _subject(net),
            needs="logits as a function of what the network returns",
            got=repr(logits),
            fix=f"glasshouse.adapt(net, logits=lambda output: output[{logits!r}])",
        )
    if normalize is not None and "normalize" in layers:
        raise BadValue(
            _subject(net),
            needs="normalize given once: to adapt, or as a sub-module of the network",
            got="both",
            fix="leave one of them out",
        )
    # Adapted once, a network keeps its head: only a normalisation may come before it.
    before = None if normalize is None else Normalize(mean=normalize[0], std=normalize[1])
    if isinstance(net, AdaptedNetwork):
        return net if before is None else net.behind(before)
    layer = _find_head(net, head)
    # Second derivatives need the activations that an operation in place would overwrite.
    for module in layers.values():
        if "inplace" in vars(module):
            module.inplace = False
    return AdaptedNetwork(net, head=layer, told=head is not None, normalize=before, logits=logits)


def _outputs_of(output: Any, net: nn.Module) -> Tensor:
    """The outputs of a network that returns a tensor, or them in an entry ``logits`` or at the first place.

    Raises:
        BadValue: something else.
    """
    if isinstance(output, Tensor):
        return output
    got, fix = f"a {type(output).__name__}", "output['scores']"
    named = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(named, Tensor):
        return named
    if isinstance(output, Mapping):
        got = f"a dictionary of {', '.join(repr(key) for key in output)}"
    elif isinstance(output, tuple | list) and output:
        if isinstance(output[0], Tensor):
            return output[0]
        got += f" of {', '.join(type(one).__name__ for one in output)}"
        fix = "output[1]"
    raise BadValue(
        _subject(net),
        needs="outputs as a tensor, or in an entry 'logits', or first in a tuple",
        got=got,
        fix=f"say where they are: glasshouse.adapt(net, logits=lambda output: {fix})",
    )


def check_place(net: nn.Module, example: Tensor) -> None:
    """Refuse a tuple whose first tensor is only a step on the way to another, as features before logits.

    Raises:
        BadValue: which of them the logits are must be said.
    """
    if not isinstance(net, AdaptedNetwork) or net.chooses:
        return
    with torch.no_grad():
        output = net.returned(example)
    if not isinstance(output, tuple | list) or isinstance(getattr(output, "logits", None), Tensor):
        return
    with torch.enable_grad():
        output = net.returned(example)
        parameters = [p for p in net.parameters() if p.requires_grad]
        reached = [_reached(one, parameters) for one in output]
    if later := [place for place, names in enumerate(reached) if place and names > reached[0]]:
        entry = f"output[{later[0]}]"
        raise BadValue(
            _subject(net.wrapped_network),
            needs="its logits first in the tuple that it returns",
            got=f"first a tensor from which number {later[0] + 1} of the tuple is computed",
            fix=f"say where they are: glasshouse.adapt(net, logits=lambda output: {entry}), or output[0]",
        )


def check_modes(net: nn.Module, examples: Tensor) -> None:
    """Refuse a network that returns more in training than in evaluation, as the outputs of auxiliary heads.

    Args:
        net: in the mode in which clients train it.
        examples: (B, ...), B > 1.

    Raises:
        BadValue: what the clients' loss takes of it must be said.
    """
    if not isinstance(net, AdaptedNetwork) or net.chooses:
        return
    other = copy.deepcopy(net).eval()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        trained, judged = copy.deepcopy(net).returned(examples), other.returned(examples)
    if (got := _form(trained)) != (usual := _form(judged)):
        first = "output[0]" if isinstance(trained, tuple | list) else "output['logits']"
        choice = f"{first} if isinstance(output, {type(trained).__name__}) else output"
        raise BadValue(
            _subject(net.wrapped_network),
            needs=f"in training mode, in which clients train it, {usual} as in evaluation",
            got=got,
            fix="leave auxiliary outputs out (aux_logits=False), or train in mode evaluation; where the loss "
            f"takes one of them: glasshouse.adapt(net, logits=lambda output: {choice})",
        )


def _form(output: Any) -> str:
    """What a network returned, in words, without sizes."""
    if isinstance(output, Tensor):
        return "one tensor"
    if isinstance(output, Mapping):
        return f"a {type(output).__name__} of {', '.join(map(repr, output))}"
    if isinstance(output, tuple | list):
        return f"a {type(output).__name__} of {len(output)}"
    return f"a {type(output).__name__}"


def _reached(output: Any, parameters: Sequence[nn.Parameter]) -> set[int]:
    """Places of the parameters on which a tensor depends."""
    if not isinstance(output, Tensor) or not output.requires_grad:
        return set()
    slopes: Sequence[Any] = torch.autograd.grad(
        output.sum(), parameters, retain_graph=True, allow_unused=True
    )
    return {i for i, slope in enumerate(slopes) if slope is not None}


def find_head(net: nn.Module, examples: Tensor) -> str:
    """Name of the linear layer whose outputs are the network's, else of the last that runs; empty: none runs.

    Layers are registered in any order, and some are never used.

    Args:
        net: in evaluation mode.
        examples: (B, ...), different from each other.
    """
    ran: dict[str, Tensor] = {}

    def keep(name: str, output: Tensor) -> None:
        ran.pop(name, None)
        ran[name] = output  # the last call's, and at the end

    handles = [
        module.register_forward_hook(lambda _module, _inputs, output, name=name: keep(name, output))
        for name, module in net.named_modules()
        if isinstance(module, nn.Linear)
    ]
    try:
        with torch.no_grad():
            outputs = net(examples)
    finally:
        for handle in handles:
            handle.remove()
    same = [
        name
        for name, t in ran.items()
        if t.numel() == outputs.numel() and torch.equal(t.flatten().to(outputs.dtype), outputs.flatten())
    ]
    return (same or list(ran) or [""])[-1]


def _find_head(net: nn.Module, head: str | None) -> str:
    """Name of the last linear layer; ``head`` if given; empty: there is none."""
    layers = dict(net.named_modules())
    linear = [name for name, module in layers.items() if isinstance(module, nn.Linear)]
    if head is not None and head not in linear:
        raise BadValue(
            _subject(net),
            needs=f"head: the name of a linear layer, one of {', '.join(linear) or 'none'}",
            got=f"'{head}'",
            fix="leave head out to take the last one",
        )
    last = linear[-1] if linear else ""
    return head or ("head" if "head" in linear else last)


def _subject(net: nn.Module) -> str:
    return f"own model '{type(net).__name__}'"
