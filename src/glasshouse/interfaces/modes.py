"""The mode in which clients train a network, and its draws, which nobody knows who repeats their training.

A mode is set as a training loop sets it: by the network's own method ``train``, which may keep layers in
evaluation. Then the layers that are said to be frozen are put back.

What a network draws at random, in a layer of torch's or in code of its own, is put off where somebody repeats
a training whose draws are unknown: dropout keeps everything, noise is its mean, and a layer that draws even
then is in evaluation. What is left draws the same in every pass.
"""

import copy
import pickle
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.overrides import TorchFunctionMode

from glasshouse.errors import BadValue
from glasshouse.settings import Training, covers

__all__ = [
    "Draws",
    "answer_of",
    "differs_by_mode",
    "drawing_layers",
    "draws_at_random",
    "find_draws",
    "joins_examples",
    "mode_of",
    "moved_buffers",
    "put_off",
    "seeded",
    "set_alone",
    "set_mode",
]

FAULTS: Final = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError,
                 ArithmeticError, ImportError, OSError)  # fmt: skip
"""What a network raises on examples that it cannot take: said by whoever runs it for its outputs."""
APART: Final = 1e-4
"""Share of the largest output above which two answers differ by more than by rounding."""
_QUIET: Final = ("torch.nn.modules.", "glasshouse.models.base", "glasshouse.models.zoo.")
"""Where layers are defined that draw in no way of their own."""
_RANDOM = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout,
           nn.RReLU, nn.MultiheadAttention)  # fmt: skip
"""Layers that draw at random in training mode."""
_SWITCHES: Final[Mapping[Callable[..., Any], tuple[int, str, object]]] = {
    **dict.fromkeys(
        (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout),
        (2, "training", False),
    ),
    **dict.fromkeys(
        (torch.dropout, torch.dropout_, torch.native_dropout, torch.feature_dropout,
         torch.feature_dropout_, torch.alpha_dropout, torch.alpha_dropout_, torch.feature_alpha_dropout,
         torch.feature_alpha_dropout_),
        (2, "train", False),
    ),
    F.rrelu: (3, "training", False),
    F.multi_head_attention_forward: (13, "training", False),
    F.scaled_dot_product_attention: (4, "dropout_p", 0.0),
}  # fmt: skip
"""Functions that draw, with the place, the name and the value of the argument that stops them."""
_MEANS: Final[Mapping[Callable[..., Any], tuple[int, str, float | None]]] = {
    torch.randn: (-1, "", 0.0),
    torch.randn_like: (-1, "", 0.0),
    torch.normal: (0, "mean", None),
    torch.Tensor.normal_: (1, "mean", 0.0),
    torch.bernoulli: (0, "input", None),
    torch.Tensor.bernoulli: (0, "input", None),
    torch.Tensor.bernoulli_: (1, "p", 0.5),
}
"""Draws with a mean that they are used with: the place and the name of the argument, and its default."""
_Hooked = Callable[..., None]


@final
@dataclass(frozen=True, kw_only=True)
class Draws:
    """How the draws of a network are put off.

    Attributes:
        own: its code draws by functions of torch, which are exchanged.
        resting: names of layers that are in evaluation for it, each without its parts.
        fixed: something draws even then: the same in every pass.
    """

    own: bool = False
    resting: tuple[str, ...] = ()
    fixed: bool = False


def _is_random(module: nn.Module) -> bool:
    return isinstance(module, _RANDOM) or (isinstance(module, nn.RNNBase) and module.dropout > 0)


def _may_differ(module: nn.Module) -> bool:
    """Whether a layer may do something else in training: it is known to, or its code is not torch's."""
    ordinary = type(module).__module__.startswith("torch.nn.modules.")
    keeps = isinstance(module, _NormBase) and module.track_running_stats
    return not ordinary or keeps or isinstance(module, _BatchNorm) or _is_random(module)


def mode_of(model: nn.Module) -> Training:
    """The mode in which a network stands: in training if any layer is that may behave so; others are frozen.

    Raises:
        BadValue: a layer of its own code is in evaluation and a part of it in training, which no name says.

    Examples:
        >>> net = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2)).train()
        >>> net[0] = net[0].eval()
        >>> mode_of(net).mode, mode_of(net).frozen
        ('training', ('0',))
    """
    layers = {name: module for name, module in model.named_modules() if _may_differ(module)}
    if not any(layer.training for layer in layers.values()):
        return Training()
    resting = tuple(name for name, layer in layers.items() if not layer.training)
    for name, layer in layers.items():
        if layer.training and covers(resting, name):
            whole = next(one for one in resting if covers((one,), name))
            raise BadValue(
                f"network '{type(model).__name__}'",
                needs="layers in evaluation with all their parts, or a statement of the mode",
                got=f"'{whole}' in evaluation and '{name}' in training",
                fix="put both in one mode, or say training=Training(mode=..., frozen=(...))",
            )
    return Training(mode="training", frozen=resting)


def set_mode(model: nn.Module, training: Training, *, dropout: bool) -> None:
    """Put ``model`` into the mode in which clients train it.

    Args:
        model: changed in place.
        training: whether layers behave as in training, and which ones do not.
        dropout: also torch's layers that are random; see :func:`put_off` for what else draws.
    """
    model.eval()
    if training.mode != "training":
        return
    model.train()  # its own method, which may keep layers in evaluation
    for name, module in model.named_modules():
        if covers(training.frozen, name) or (not dropout and _is_random(module)):
            module.training = False


def set_alone(model: nn.Module, name: str, *, training: bool) -> None:
    """Set the mode of one layer, whose own parts keep theirs."""
    layer = model.get_submodule(name)
    modes = {part: part.training for part in layer.modules() if part is not layer}
    layer.train(training)  # its own method: a network that wraps another passes the mode on
    layer.training = training  # where that method keeps another mode
    for part, mode in modes.items():
        part.training = mode


def draws_at_random(model: nn.Module, inputs: Tensor, training: Training) -> bool:
    """Whether a network answers the same examples differently from pass to pass, as with dropout.

    Asked of the network itself, so that what its code draws counts like what a layer does.

    Args:
        model: is left in the mode in which clients train it.
        inputs: some examples, (B, ...), B > 0.
        training: the mode.
    """
    set_mode(model, training, dropout=True)
    answers = [answer_of(model, inputs, seed=seed) for seed in range(2)]
    return not torch.equal(answers[0], answers[1])


def differs_by_mode(model: nn.Module, inputs: Tensor, training: Training) -> bool:
    """Whether outputs or their gradients are others in training than in evaluation, draws aside.

    Args:
        model: left as it is.
        inputs: some examples, (B, ...), B > 0.
        training: whose frozen layers stay in evaluation.
    """
    found = []
    for mode in ("evaluation", "training"):
        work = copy.deepcopy(model)
        set_mode(work, training.model_copy(update={"mode": mode}), dropout=True)
        found.append(_slopes(work, inputs))
    return not torch.equal(found[0], found[1])


def moved_buffers(model: nn.Module, inputs: Tensor, training: Training) -> tuple[str, ...]:
    """Names of the persistent buffers of floats that a pass in the clients' mode changes.

    Args:
        model: left as it is.
        inputs: some examples, (B, ...), B > 0.
        training: the mode.
    """
    work = copy.deepcopy(model)
    set_mode(work, training, dropout=True)
    before = {name: t.clone() for name, t in work.named_buffers() if t.is_floating_point()}
    answer_of(work, inputs, seed=0, kept=False)
    state = work.state_dict()
    return tuple(name for name, t in before.items() if name in state and not torch.equal(t, state[name]))


def joins_examples(model: nn.Module, inputs: Tensor) -> bool:
    """Whether what a network answers for examples depends on the others of their batch, or on earlier ones.

    Args:
        model: in the mode in which it is asked; its buffers are as before.
        inputs: at least four different examples, (B, ...), B > 3.
    """
    half = max(1, len(inputs) // 2)
    with _buffers_kept(model), seeded(0), torch.no_grad():
        try:
            answers = [model(some)[:half] for some in (inputs[:half], inputs, inputs[:half])]
        except FAULTS:
            return True  # of half as many it answers nothing
    largest = max(float(answer.abs().max()) for answer in answers)
    return any(float((answer - answers[0]).abs().max()) > APART * largest for answer in answers[1:])


def answer_of(model: nn.Module, inputs: Tensor, *, seed: int, kept: bool = True) -> Tensor:
    """The outputs of one pass, with all draws from a seed.

    Args:
        model: in any mode.
        inputs: examples, (B, ...); a single one is given twice.
        seed: of the draws.
        kept: set the buffers back afterwards.
    """
    with _buffers_kept(model) if kept else nullcontext(), seeded(seed), torch.no_grad():
        outputs: Tensor = model(_several(inputs))
    return outputs


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from a seed inside, by torch, by numpy's global generator or by Python's; set back afterwards."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002  # as networks draw
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002


def find_draws(model: nn.Module, inputs: Tensor) -> Draws:
    """How to put off what ``model`` draws in the mode in which it is.

    Args:
        model: left as it is.
        inputs: some examples, (B, ...), B > 0.
    """
    if all(
        type(m).__module__.startswith(_QUIET) and not (_is_random(m) and m.training) for m in model.modules()
    ):
        return Draws()  # known without a pass, as most networks are looked at once per client
    work, inputs = copy.deepcopy(model).cpu(), _several(inputs).cpu()
    if not drawing_layers(work, inputs):
        return Draws()
    put_off(work, Draws(own=True))
    resting: list[str] = []
    while drawing := drawing_layers(work, inputs):
        awake = [name for name in drawing if work.get_submodule(name).training]
        for name in awake:
            set_alone(work, name, training=False)
        resting += awake
        if not awake:
            break
    return Draws(own=True, resting=tuple(resting), fixed=bool(drawing))


def put_off(model: nn.Module, draws: Draws) -> None:
    """Let ``model`` draw nothing, or the same in every pass, as :func:`find_draws` found; in place."""
    for name in draws.resting:
        set_alone(model, name, training=False)
    if draws.own:
        quiet = _Quiet(fixed=draws.fixed)
        model.register_forward_pre_hook(quiet.begin)
        model.register_forward_hook(quiet.end, always_call=True)


def drawing_layers(model: nn.Module, inputs: Tensor) -> tuple[str, ...]:
    """The layers that draw from a global generator themselves, not by their parts.

    Args:
        model: in any mode; its buffers are as before.
        inputs: examples on which it is tried.
    """
    states: dict[str, bytes] = {}
    drawing: list[str] = []

    def before(name: str, *_: Any) -> None:
        states[name] = _generators()

    def after(name: str, *_: Any) -> None:
        inner = any(name == "" or one.startswith(f"{name}.") for one in drawing)
        if not inner and states[name] != _generators():
            drawing.append(name)

    with ExitStack() as hooks, _buffers_kept(model), seeded(0), torch.no_grad():
        for name, layer in model.named_modules():
            hooks.enter_context(layer.register_forward_pre_hook(partial(before, name)))
            hooks.enter_context(layer.register_forward_hook(partial(after, name)))
        try:
            model(inputs)
        except FAULTS:
            return ()
    return tuple(drawing)


def _generators() -> bytes:
    """The states of the global generators of torch, numpy and Python."""
    numpys = np.random.get_state()  # noqa: NPY002
    return pickle.dumps((torch.get_rng_state().numpy(), numpys, random.getstate()))


@final
class _Still(TorchFunctionMode):
    """Functions of torch that draw return what they do without their draw."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in _SWITCHES:
            place, name, off = _SWITCHES[func]
            if len(args) > place:
                args = (*args[:place], off, *args[place + 1 :])
            else:
                kwargs[name] = off
        if func not in _MEANS:
            return func(*args, **kwargs)
        place, name, default = _MEANS[func]
        if func in (torch.bernoulli, torch.Tensor.bernoulli) and (len(args) > 1 or "p" in kwargs):
            place, name = 1, "p"
        mean = args[place] if 0 <= place < len(args) else kwargs.get(name, default)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            drawn = func(*args, **kwargs)
            return drawn.copy_(mean) if isinstance(mean, Tensor) else drawn.fill_(mean)


@final
class _Quiet:
    """Hooks around a forward pass, in which nothing draws, or only the same; no closure, to be copied."""

    def __init__(self, *, fixed: bool) -> None:
        self._fixed = fixed
        self._open: list[ExitStack] = []

    def begin(self, _module: nn.Module, inputs: Sequence[Any]) -> None:
        """Before the pass."""
        stack = ExitStack()
        if self._fixed:
            devices = {t.device for t in inputs if isinstance(t, Tensor) and t.is_cuda}
            stack.enter_context(torch.random.fork_rng(devices=devices))
            stack.enter_context(seeded(0))
        stack.enter_context(_Still())
        self._open.append(stack)

    def end(self, *_: Any) -> None:
        """After it, also where it failed."""
        self._open.pop().close()


@contextmanager
def _buffers_kept(model: nn.Module) -> Iterator[None]:
    """A running statistic that is moved inside is set back."""
    buffers = {name: t.clone() for name, t in model.named_buffers()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, t in model.named_buffers():
                t.copy_(buffers[name])


def _several(inputs: Tensor) -> Tensor:
    """The examples, one of them twice: a batch norm in training mode refuses a batch of one."""
    return inputs if len(inputs) > 1 else torch.cat([inputs, inputs])


def _slopes(model: nn.Module, inputs: Tensor) -> Tensor:
    """The outputs of one pass and the gradient of a mixture of them, flat."""
    with _buffers_kept(model), seeded(0), torch.enable_grad():
        outputs: Tensor = model(_several(inputs))
        mixed = (outputs * torch.linspace(1, 2, outputs.numel()).view_as(outputs).to(outputs)).sum()
        leaves = [p for p in model.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(mixed, leaves, allow_unused=True, materialize_grads=True)
    return torch.cat([part.detach().float().flatten() for part in (outputs, *gradients)])
