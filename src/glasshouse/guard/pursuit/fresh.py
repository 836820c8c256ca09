"""Honest models of an architecture: initialised by it alone, so that nothing of a received model is in them.

Modules that cannot initialise themselves again get ordinary values of their shape, and are named.
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, final

import torch
from torch import Tensor, nn

from glasshouse.guard.pursuit.examples import Own, train_loss

BATCH: Final = 64
"""Examples of a step."""
_BOUND: Final = 10.0  # of the buffers that are kept: statistics and constants of normalisation are below it
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

    Modules with ``reset_parameters`` (torch's own) do it themselves, buffers included. Other parameters get
    zeros (vectors), ones (vectors that are called a weight or a scale), or normal numbers of variance
    1 / fan-in; other sent buffers are bounded. Vectors of more numbers than biases have hold
    matrices, and get what a square one of as many numbers would.
    """
    fresh = copy.deepcopy(model)
    helped = []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(seed)
        _undo_parametrizations(fresh)
        for name, part in fresh.named_modules():
            # A module knows best how it is initialised; who had to be helped is told.
            reset = getattr(part, "reset_parameters", None)
            if callable(reset):
                reset()
                continue
            own = dict(part.named_parameters(recurse=False))
            kept = list(_sent_buffers(part).values())
            if own or kept:
                helped.append(name or type(part).__name__)
            for key, p in own.items():
                p.copy_(_ordinary(key, p))
            for t in kept:
                t.nan_to_num_(0, _BOUND, -_BOUND).clamp_(-_BOUND, _BOUND)
    return fresh, tuple(helped)


def _sent_buffers(part: nn.Module) -> dict[str, Tensor]:
    """Those of one module that a server sets."""
    return {
        key: t
        for key, t in part.named_buffers(recurse=False)
        if t.is_floating_point() and key not in part._non_persistent_buffers_set
    }


def kept_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Sent buffers of modules that cannot initialise themselves, by name."""
    return {
        f"{name}.{key}".removeprefix("."): t
        for name, part in model.named_modules()
        if not callable(getattr(part, "reset_parameters", None))
        for key, t in _sent_buffers(part).items()
    }


def draw_buffers(model: nn.Module, seed: int) -> None:
    """Draw the buffers anew that modules cannot initialise themselves: as large, and without order."""
    generator = torch.Generator().manual_seed(seed)
    for name, t in kept_buffers(model).items():
        if t.ndim < 2:
            t.copy_(_ordinary(name.rpartition(".")[2], t))
        else:  # as large as it is, and without order
            spread = t.std(unbiased=False).nan_to_num(0)
            t.copy_(spread * torch.randn(t.shape, generator=generator).to(t))


def _undo_parametrizations(model: nn.Module) -> None:
    """Initialise what lies behind a parametrised weight: the layer's own initialisation, then set."""
    for part in model.modules():
        if not nn.utils.parametrize.is_parametrized(part):
            continue
        chains = part.get_submodule("parametrizations")
        for name, chain in list(chains.named_children()):
            for p in chain.parameters():
                p.copy_(_ordinary(name if p.ndim > 1 else "scale", p))


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
