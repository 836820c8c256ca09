"""Honest models of an architecture: initialised by it alone, so that nothing of a received model is in them.

Modules that cannot initialise themselves again get ordinary values of their shape, and are named.
"""

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from glasshouse.guard.pursuit.examples import Own, train_loss
from glasshouse.guard.pursuit.gradients import ODD

BATCH: Final = 64
"""Examples of a step."""
_BOUND: Final = 10.0  # of the buffers that are kept: statistics and constants of normalisation are below it
_APART: Final = 2**20  # between seeds of weights and of buffers
_SETTLED: Final = 15  # passes, as torch takes when a spectral norm is set up
_FLAT: Final = 2**13  # numbers that no bias, scale or positional vector has


@final
@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How an honest model is trained.

    Attributes:
        optimizer: of its parameters.
        every: train only on every ``every``-th class; 1: on all.
    """

    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    every: int = 1


RECIPES: Final = (
    Recipe(optimizer=torch.optim.Adam),
    Recipe(optimizer=partial(torch.optim.SGD, lr=0.05, momentum=0.9)),
    Recipe(optimizer=torch.optim.Adam, every=3),
)


def initialise_again(model: nn.Module, *, seed: int) -> tuple[nn.Module, tuple[str, ...]]:
    """A copy of ``model`` with values drawn anew, and the modules that had to be helped.

    Modules with ``reset_parameters`` (torch's own) do it themselves, buffers included. What that leaves, and
    parameters of other modules, get zeros (vectors), ones (vectors that are called a weight or a scale), or
    normal numbers of variance 1 / fan-in; other sent buffers are bounded. Vectors of more numbers than
    biases have hold matrices, and get what a square one of as many numbers would. Parametrised tensors get
    what the module would have without their parametrisation, which is then set up on it as torch does.
    """
    fresh = copy.deepcopy(model)
    return fresh, _initialise(fresh, seed).helped


def kept_buffers(model: nn.Module) -> tuple[str, ...]:
    """Names of the sent buffers that modules cannot initialise themselves."""
    return _initialise(copy.deepcopy(model), 0).kept


class _Helped(NamedTuple):
    """Names of the modules that could not initialise themselves, and of the buffers that were kept."""

    helped: tuple[str, ...]
    kept: tuple[str, ...]


def _initialise(model: nn.Module, seed: int) -> _Helped:
    helped: dict[str, None] = {}
    kept: list[str] = []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(seed)
        behind: set[nn.Module] = set()
        for name, part in model.named_modules():
            if part in behind:
                continue
            if parametrize.is_parametrized(part):
                behind |= set(part.get_submodule("parametrizations").modules())
                every = _parametrise_again(name, part)
            else:
                every = [(name, part, _reset(part))]
            for where, one, left in every:
                if left.parameters or left.buffers:
                    helped[where or type(one).__name__] = None
                kept += [f"{where}.{key}".removeprefix(".") for key in left.buffers]
    return _Helped(tuple(helped), tuple(kept))


class _Left(NamedTuple):
    """What a module's own initialisation leaves as it was: names of its parameters and sent buffers."""

    parameters: tuple[str, ...]
    buffers: tuple[str, ...]


def _reset(part: nn.Module) -> _Left:
    """Initialise one module, without those in it, so that only bounded buffers are left of what it had."""
    bounded = {key: _bounded(t) for key, t in _sent_buffers(part).items()}
    # What a module forgets to initialise is as it came: marks tell it.
    marks = _mark({**dict(part.named_parameters(recurse=False)), **_sent_buffers(part)})
    reset = getattr(part, "reset_parameters", None)
    if callable(reset):
        reset()  # a module knows best how it is initialised; who had to be helped is told
    own = dict(part.named_parameters(recurse=False))
    left = _Left(_unchanged(own, marks), _unchanged(_sent_buffers(part), marks))
    for key in left.parameters:
        own[key].copy_(_ordinary(key, own[key]))
    for key in left.buffers:
        part.get_buffer(key).copy_(bounded[key])
    return left


def _parametrise_again(name: str, part: nn.Module) -> list[tuple[str, nn.Module, _Left]]:
    """Initialise a module with parametrised tensors; what was left of each of its modules, with its name."""
    # The class that it had before knows nothing of parametrisations, and initialises what they start from.
    kind: type[nn.Module] = parametrize.type_before_parametrizations(part)
    chains = dict(part.get_submodule("parametrizations").named_children())
    values = {key: nn.Parameter(torch.empty_like(getattr(part, key))) for key in chains}
    plain = object.__new__(kind)
    plain.__dict__.update(part.__dict__)
    plain.__dict__["_parameters"] = {**part._parameters, **values}
    found = [(name, plain, _reset(plain))]
    for key, chain in chains.items():
        where = f"{name}.parametrizations.{key}".removeprefix(".")
        found += [
            (f"{where}.{at}".removesuffix("."), one, left)
            for at, one, left in _set_again(chain, values[key], training=part.training)
        ]
    return found


def _set_again(chain: nn.Module, value: Tensor, *, training: bool) -> list[tuple[str, nn.Module, _Left]]:
    """Initialise the parametrisations of one tensor so that it has ``value``, or what they make of it."""
    inner = [(at, one) for at, one in chain.named_modules() if one is not chain]
    bounded = [{key: _bounded(t) for key, t in _sent_buffers(one).items()} for _, one in inner]
    own = [_reset(one).parameters for _, one in inner]
    marks = [_mark(_sent_buffers(one)) for _, one in inner]
    was_set = _set_originals(chain, value)
    # Estimates that follow a tensor are as good as new after some passes: spectral norms.
    chain.train()
    for _ in range(_SETTLED):
        chain()
    chain.train(training)
    left = [_unchanged(_sent_buffers(one), marked) for (_, one), marked in zip(inner, marks, strict=True)]
    for (_, one), keys, before in zip(inner, left, bounded, strict=True):
        for key in keys:
            one.get_buffer(key).copy_(before[key])
    if any(left):
        was_set = _set_originals(chain, value)
    starts = () if was_set else tuple(key for key, _ in chain.named_parameters(recurse=False))
    each = zip(inner, own, left, strict=True)
    return [("", chain, _Left(starts, ())), *((at, one, _Left(p, b)) for (at, one), p, b in each)]


def _set_originals(chain: nn.Module, value: Tensor) -> bool:
    """Set what lies behind a parametrised tensor as torch does when it is registered; whether that worked."""
    starts: Any = value.detach().clone()
    try:
        for one in reversed(list(chain.children())):
            inverse = getattr(one, "right_inverse", lambda t: t)
            with contextlib.suppress(NotImplementedError):
                starts = inverse(starts)
    except ODD:
        starts = ()
    new = [starts] if isinstance(starts, Tensor) else list(starts)
    own = dict(chain.named_parameters(recurse=False))
    fits = [p.shape for p in own.values()] == [t.shape for t in new]
    if fits and all(bool(t.isfinite().all()) for t in new):
        for p, t in zip(own.values(), new, strict=True):
            p.copy_(t)
        return True
    for key, p in own.items():
        p.copy_(_ordinary("weight" if p.ndim > 1 else key, p))
    return False


def _mark(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Fill tensors with noise; with what, by name."""
    generator = torch.Generator().manual_seed(1)
    for t in tensors.values():
        if t.is_floating_point() or t.is_complex():
            noise = torch.randn(t.shape, generator=generator)
            # Of a single number a unit vector is 1, as which scales and variances start.
            t.copy_(F.normalize(noise, dim=-1) if t.ndim and t.shape[-1] > 1 else noise)
        else:
            t.fill_(1)
    return {key: t.detach().clone() for key, t in tensors.items()}


def _unchanged(tensors: Mapping[str, Tensor], marks: Mapping[str, Tensor]) -> tuple[str, ...]:
    return tuple(key for key, t in tensors.items() if key in marks and torch.equal(t, marks[key]))


def _sent_buffers(part: nn.Module) -> dict[str, Tensor]:
    """Those of one module that a server sets."""
    hidden = part._non_persistent_buffers_set
    return {key: t for key, t in part.named_buffers(recurse=False) if key not in hidden}


def _bounded(t: Tensor) -> Tensor:
    """A copy of a buffer in which no number is large; whole numbers may be places, and are as they were."""
    if not (t.is_floating_point() or t.is_complex()):
        return t.clone()
    real = torch.view_as_real(t) if t.is_complex() else t
    real = real.nan_to_num(0, _BOUND, -_BOUND).clamp(-_BOUND, _BOUND)
    return torch.view_as_complex(real) if t.is_complex() else real


def draw_buffers(model: nn.Module, names: Sequence[str], seed: int) -> None:
    """Draw these buffers anew: floating ones as large, and without order; whole numbers all alike."""
    # Not the stream from which the weights came: products with a mask would all have one sign.
    generator = torch.Generator().manual_seed(_APART + seed)
    for name in names:
        t = model.get_buffer(name)
        if not (t.is_floating_point() or t.is_complex()):
            # An order of places stays one; of all else, a design may be in how often each value comes.
            flat = t.flatten()
            is_order = torch.equal(flat.sort().values, torch.arange(len(flat)).to(flat))
            mixed = flat[torch.randperm(len(flat), generator=generator)]
            t.copy_(mixed.view_as(t) if is_order else flat.mode().values)
        elif t.ndim < 2:
            t.copy_(_ordinary(name.rpartition(".")[2], t))
        else:  # as large as it is, and without order
            spread = t.std(unbiased=False).nan_to_num(0)
            t.copy_(spread * torch.randn(t.shape, generator=generator).to(t))


def _ordinary(name: str, p: Tensor) -> Tensor:
    if p.ndim < 2 and p.numel() > _FLAT:
        return torch.randn_like(p) / math.sqrt(math.sqrt(p.numel()))
    if p.ndim < 2:
        scales = any(word in name for word in ("weight", "scale", "gamma", "std", "var"))
        return torch.full_like(p, float(scales))
    return torch.randn_like(p) / math.sqrt(max(1, p[0].numel()))


def train(model: nn.Module, own: Own, *, recipe: Recipe | None, steps: Sequence[int]) -> Iterator[nn.Module]:
    """Yield ``model`` after each of ``steps``; stop if training diverges. Without a recipe: as it is."""
    if recipe is None:
        yield model
        return
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = recipe.optimizer(weights)
    generator = torch.Generator().manual_seed(0)
    known = own.classes(recipe.every)
    for step in range(max(steps) + 1):
        if not all(bool(p.isfinite().all()) for p in weights):
            return
        if step in steps:
            yield model
        rows = known[torch.randint(len(known), (BATCH,), generator=generator)]
        optimizer.zero_grad()
        torch.autograd.backward(train_loss(model, own[rows]))
        optimizer.step()
