"""Ghost norms: compare the gradients of many candidates with a target without forming the gradients.

Shape letters: R restarts, B images of one restart, K classes, P parameter tensors; L output positions,
O and I output and input channels, D = I times kernel area; V victims, each with a target of its own.

To match the gradient g(x) of a candidate x with the received g*, attacks need <g(x), g*> and |g(x)|², per
parameter tensor, not g(x) itself. All candidates go through the shared weights in one batch; one backward
pass gives delta = d loss / d output of every layer; with the layer's input a,

- linear: <g, g*> = sum of delta * (a g*ᵀ), |g|² = sum of (delta deltaᵀ) * (a aᵀ) over pairs of rows;
- convolution: the same on unfolded patches. Pairs of positions cost L² (O + D), the gradient itself
  L O D: the cheaper one is taken, layer by layer;
- eval-mode batch norm, group norm, layer norm and biases: their gradients are small and are formed; a batch
  norm behind a convolution is folded into it (:mod:`folding`).

Source: Goodfellow 2015, "Efficient per-example gradient computations", arXiv:1510.01799 (linear layers);
Bu et al. 2022, arXiv:2205.10683 (convolutions, and the choice between the two forms).
Where we differ: they clip, we match; the sums stay differentiable in x, and B images share one gradient.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glasshouse.attacks.parts.matching import ghost_layers
from glasshouse.attacks.parts.matching.fixed import fix_convolutions
from glasshouse.attacks.parts.matching.folding import fold_norms
from glasshouse.attacks.parts.matching.ghost_layers import Form, Triple
from glasshouse.tensors import widen

SMALL: Final = 2**14
"""Gradients of up to this many entries are compared in one piece, as the call overhead dominates."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Moments:
    """Inner products and norms of R candidate gradients, per parameter tensor, as matching needs them.

    Attributes:
        dot: <g_p(x_r), g*_p>, (P, R); like the others, float64 (float32 on MPS).
        square: |g_p(x_r)|², (P, R), after the target's masks.
        gap: |g_p(x_r) - g*_p|², (P, R), or None: exact only where gradients were formed, as
            ``square - 2 dot + |g*|²`` suffers from cancellation near convergence.
    """

    dot: Tensor
    square: Tensor
    gap: Tensor | None = None


def moments(triples: list[Triple]) -> Moments:
    """Stack the moments of all parameter tensors; the gap only if all of them have one."""
    dots, squares, gaps = zip(*triples, strict=True)
    gaps_present = [widen(gap) for gap in gaps if gap is not None]
    return Moments(
        dot=torch.stack([widen(d) for d in dots]),
        square=torch.stack([widen(s) for s in squares]),
        gap=torch.stack(gaps_present) if len(gaps_present) == len(gaps) else None,
    )


def supports(model: nn.Module, target: Mapping[str, Tensor], shape: tuple[int, ...]) -> str | None:
    """The reason why ghost norms do not apply to ``model``, in words; None: they do.

    Args:
        model: in the mode in which it will run.
        target: by parameter name; layers without a tensor in it are ignored.
        shape: of one input, without the batch.
    """
    calls: dict[str, int] = {}
    for name, module in model.named_modules():
        reason = ghost_layers.refusal(module) if _owns(name, module, target) else None
        if getattr(module, "inplace", False):
            reason = "overwrites its input (inplace=True)"
        if reason:
            return f"'{name}' ({type(module).__name__}) {reason}"
    layers = [(name, module) for name, module in model.named_modules() if _owns(name, module, target)]

    def count(name: str) -> Callable[..., None]:
        def called(*_: object) -> None:
            calls[name] = calls.get(name, 0) + 1

        return called

    with ExitStack() as hooks, torch.no_grad():
        for name, module in layers:
            hooks.enter_context(module.register_forward_hook(count(name)))
        model(next(model.parameters()).new_zeros(1, *shape))
    odd = [f"'{name}' runs {calls.get(name, 0)} times" for name, _ in layers if calls.get(name, 0) != 1]
    return f"{', '.join(odd)} per forward pass instead of once" if odd else None


def _blocks(victims: Sequence[int] | None, *, every: int) -> slice | list[int] | None:
    """The victims whose targets are needed, each for equally many candidates; None: all, in order.

    Examples:
        >>> _blocks((0, 0, 1, 1), every=2), _blocks((1, 1), every=2), _blocks((0, 1, 1), every=2)
        (None, slice(1, 2, None), [0, 1, 1])
    """
    if victims is None:
        return None
    distinct = sorted(set(victims))
    even = len(victims) % len(distinct) == 0
    blocks = distinct if even and list(victims) == _repeat(distinct, len(victims)) else list(victims)
    if blocks == list(range(every)):
        return None
    contiguous = blocks == list(range(blocks[0], blocks[0] + len(blocks)))
    return slice(blocks[0], blocks[0] + len(blocks)) if contiguous else blocks


def _repeat(present: list[int], length: int) -> list[int]:
    return [victim for victim in present for _ in range(length // len(present))]


def _owns(name: str, module: nn.Module, target: Mapping[str, Tensor]) -> bool:
    return any(_join(name, own) in target for own, _ in module.named_parameters(recurse=False))


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


@final
class _Recorder:
    """A forward hook that records a layer's input and output; a class, so that the model can be pickled."""

    def __init__(self, tape: dict[str, tuple[Tensor, Tensor]], name: str) -> None:
        self.tape, self.name = tape, name

    def __call__(self, _: nn.Module, activations: tuple[Tensor, ...], output: Tensor) -> None:
        self.tape[self.name] = (activations[0], output)


def _halve(_: nn.Module, activations: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """A forward pre-hook of layers whose weights are in bfloat16."""
    return tuple(x.to(torch.bfloat16) for x in activations)


@final
class Ghost:
    """Moments of candidates against fixed targets; build once, call in every iteration.

    It runs a copy of the model, in which batch norms are folded into convolutions (:mod:`folding`). Under
    ``bf16``, if only linear layers and convolutions remain, the weights themselves are cast to bfloat16.

    Args:
        model: accepted by :func:`supports`; its parameters need no gradient.
        targets: g* of every victim, by parameter name.
        masks: for every victim the entries of the candidate's gradient that count, by parameter name, of the
            target's shape or (1, ...) for whole columns; missing names: all entries. The target should be
            zero elsewhere.
        form: ``auto`` by cost; ``explicit`` forms every gradient (and fills ``gap``); ``pairs`` forms none of
            the large ones.
        bf16: run the model and the large products in bfloat16; sums stay in the target's precision.
        shape: of one input, without the batch; (): nothing is folded.
        apart: return separate moments for small tensors, too; else they are joined into one.
    """

    def __init__(
        self,
        model: nn.Module,
        targets: Sequence[Mapping[str, Tensor]],
        *,
        masks: Sequence[Mapping[str, Tensor]] = (),
        form: Form = "auto",
        bf16: bool = False,
        shape: tuple[int, ...] = (),
        apart: bool = True,
    ) -> None:
        self._form, self._bf16 = form, bf16
        self._aim(targets, masks, apart=apart)
        self._model, self._folded = fold_norms(model, shape, self._target)
        self._autocast = bf16 and not all(isinstance(m, (nn.Conv2d, nn.Linear)) for _, m in self._owners())
        if not self._autocast:
            fix_convolutions(self._model)
        self._layers, self._tape = self._owners(), dict[str, tuple[Tensor, Tensor]]()
        for name, module in self._layers:
            module.register_forward_hook(_Recorder(self._tape, name))
            if bf16 and not self._autocast:
                module.to(torch.bfloat16)
                module.register_forward_pre_hook(_halve)

    def _aim(
        self, targets: Sequence[Mapping[str, Tensor]], masks: Sequence[Mapping[str, Tensor]], *, apart: bool
    ) -> None:
        self._apart = apart
        self._target = {name: torch.stack([t[name] for t in targets]) for name in targets[0]}  # (V, ...)
        self._masks = {name: self._stacked(name, masks) for name in sorted({n for m in masks for n in m})}
        self._precision = next(iter(self._target.values())).dtype
        self._joined: dict[tuple[str, ...], tuple[Tensor, Tensor | None]] = {}
        self._halves: dict[str, Tensor] = {}

    def beside(
        self,
        targets: Sequence[Mapping[str, Tensor]],
        *,
        masks: Sequence[Mapping[str, Tensor]] = (),
        apart: bool = True,
    ) -> "Ghost":
        """A copy that shares the prepared model, with other targets for the same parameters."""
        other = copy.copy(self)
        other._aim(targets, masks, apart=apart)
        return other

    def _owners(self) -> list[tuple[str, nn.Module]]:
        return [(n, m) for n, m in self._model.named_modules() if _owns(n, m, self._target)]

    def _stacked(self, name: str, masks: Sequence[Mapping[str, Tensor]]) -> Tensor:
        """(V, 1, ...) where all victims' masks are of whole columns, else (V, ...)."""
        shape = self._target[name].shape[1:]
        columns = all(name not in m or m[name].shape[0] == 1 for m in masks)
        shape = torch.Size((1, *shape[1:])) if columns else shape
        every = torch.ones(shape, dtype=torch.bool, device=self._target[name].device)
        return torch.stack([m[name].expand(shape) if name in m else every for m in masks])

    def _casting(self, device: torch.device) -> AbstractContextManager[object]:
        return torch.autocast(device.type, dtype=torch.bfloat16) if self._autocast else nullcontext()

    def __call__(
        self,
        inputs: Tensor,
        targets: Tensor,
        *,
        create_graph: bool = True,
        victims: Sequence[int] | None = None,
    ) -> Moments:
        """Moments of R candidate batches.

        Args:
            inputs: (R, B, C, H, W), input of ``model``.
            targets: classes (R, B), or class probabilities (R, B, K).
            create_graph: keep the result differentiable in ``inputs`` and ``targets``.
            victims: of every candidate, in ascending order; None: equally many of each.
        """
        chosen = _blocks(victims, every=len(next(iter(self._target.values()))))
        restarts, images = inputs.shape[:2]
        flat = inputs.flatten(0, 1)
        if not flat.requires_grad:
            flat = flat.detach().requires_grad_()
        with self._casting(flat.device):
            with torch.enable_grad():
                logits: Tensor = self._model(flat)
            tape = dict(self._tape)
            self._tape.clear()
            loss = (
                F.cross_entropy(logits.to(self._precision), targets.flatten(0, 1), reduction="sum") / images
            )
            outputs = [tape[name][1] for name, _ in self._layers]
            deltas = torch.autograd.grad(loss, outputs, create_graph=create_graph)
            formed: dict[str, Tensor] = {}
            triples: dict[str, Triple] = {}
            with torch.set_grad_enabled(create_graph):
                for (name, module), delta in zip(self._layers, deltas, strict=True):
                    gradients, pairs = self._layer(
                        name, module, tape[name], delta, restarts=restarts, of=chosen
                    )
                    formed, triples = formed | gradients, triples | pairs
                triples |= self._compare(formed, chosen)
                return moments([triples[name] for name in (self._target if self._apart else triples)])

    def _of(self, name: str, of: slice | list[int] | None) -> tuple[Tensor, Tensor | None]:
        """Target and mask of a parameter, of the victims ``of``."""
        target, mask = self._target[name], self._masks.get(name)
        return (target, mask) if of is None else (target[of], None if mask is None else mask[of])

    def _half(self, name: str, of: slice | list[int] | None) -> Tensor:
        """The target of a parameter in bfloat16, cast once, of the victims ``of``."""
        if name not in self._halves:
            self._halves[name] = self._target[name].to(torch.bfloat16)
        return self._halves[name] if of is None else self._halves[name][of]

    def _layer(
        self,
        name: str,
        module: nn.Module,
        tape: tuple[Tensor, Tensor],
        delta: Tensor,
        *,
        restarts: int,
        of: slice | list[int] | None,
    ) -> tuple[dict[str, Tensor], dict[str, Triple]]:
        """Gradients (R, ...) of one layer's parameters, or moments where a gradient is not formed."""
        weight, bias, fold = _join(name, "weight"), _join(name, "bias"), self._folded.get(name)
        formed: dict[str, Tensor] = {}
        pairs: dict[str, Triple] = {}
        total = ghost_layers.bias(module, delta, restarts, dtype=self._precision)
        if bias in self._target:
            formed[bias] = total if fold is None else fold.unfold(total)
        if weight not in self._target:
            return formed, pairs
        if not isinstance(module, (nn.Linear, nn.Conv2d)):
            formed[weight] = ghost_layers.gain(module, tape[0], delta, restarts)
            return formed, pairs
        target, mask = self._of(weight, of)
        if ghost_layers.forms(target, delta, restarts, mask=mask, form=self._form):
            gradient = ghost_layers.weight_gradient(module, tape[0], delta, restarts).to(self._precision)
            formed[weight] = gradient if fold is None else fold.unfold(gradient)
        else:
            gradient, own = None, delta if fold is None else fold.unfold(delta)
            wanted = self._half(weight, of) if self._bf16 else target
            pairs[weight] = ghost_layers.pairs(
                module, tape[0], own, restarts=restarts, target=wanted, mask=mask
            )
        if fold is not None:
            if gradient is not None and (self._form == "explicit" or gradient.numel() <= delta.numel()):
                product = fold.product(gradient)
            else:
                reached = ghost_layers.bias(module, delta.to(self._precision) * tape[1], restarts)
                product = fold.product_of(reached, total)
            formed |= fold.of_norm(total, product)
        return formed, pairs

    def _compare(self, formed: Mapping[str, Tensor], of: slice | list[int] | None) -> dict[str, Triple]:
        """Moments of the formed gradients; small ones are joined unless ``apart``."""
        exact = self._form == "explicit"
        small = [] if self._apart else [name for name, g in formed.items() if g[0].numel() <= SMALL]
        moments = {
            name: ghost_layers.explicit(gradient, *self._of(name, of), exact=exact)
            for name, gradient in formed.items()
            if name not in small
        }
        if small:
            joined = torch.cat([formed[name].flatten(1).to(self._precision) for name in small], 1)
            target, mask = self._join(tuple(small))
            if of is not None:
                target, mask = target[of], None if mask is None else mask[of]
            moments[", ".join(small)] = ghost_layers.explicit(joined, target, mask, exact=exact)
        return moments

    def _join(self, names: tuple[str, ...]) -> tuple[Tensor, Tensor | None]:
        """Targets and masks of several parameters as one, (V, entries)."""
        if names not in self._joined:
            masks = None
            if any(name in self._masks for name in names):
                every = [
                    self._masks.get(n, torch.ones_like(self._target[n], dtype=torch.bool)) for n in names
                ]
                wide = [m.expand_as(self._target[n]) for n, m in zip(names, every, strict=True)]
                masks = torch.cat([m.flatten(1) for m in wide], 1)
            targets = torch.cat([self._target[name].flatten(1) for name in names], 1)
            self._joined[names] = (targets, masks)
        return self._joined[names]
