"""Compare the gradients of many candidates with a target without forming them: ghost norms.

Shape letters: R restarts, B images of one restart, K classes, P parameter tensors; L output positions,
O and I output and input channels, D = I times kernel area; V victims, each with a target of its own.

To match the gradient g(x) of a candidate x with the received g*, attacks need <g(x), g*> and |g(x)|², per
parameter tensor, not g(x) itself. All candidates go through the shared weights in one batch; one backward
pass gives delta = d loss / d output of every layer; with the layer's input a,

- linear: <g, g*> = sum of delta * (a g*ᵀ), |g|² = sum of (delta deltaᵀ) * (a aᵀ) over pairs of rows;
- convolution: the same on unfolded patches. Pairs of positions cost L² (O + D), the gradient itself
  L O D: the cheaper one is taken, layer by layer;
- eval-mode batch norm, group norm, layer norm and biases: their gradients are small and are formed.

Source: Goodfellow 2015, "Efficient per-example gradient computations", arXiv:1510.01799 (linear layers);
Bu et al. 2022, arXiv:2205.10683 (convolutions, and the choice between the two forms).
Where we differ: they clip, we match; the sums stay differentiable in x, and B images share one gradient.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glasshouse.attacks.parts.matching import ghost_layers
from glasshouse.attacks.parts.matching.ghost_layers import Form, Triple
from glasshouse.tensors import widen


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Moments:
    """What matching needs to know about R candidate gradients, per parameter tensor.

    Attributes:
        dot: <g_p(x_r), g*_p>, (P, R), float64 (float32 on MPS), as all of them.
        square: |g_p(x_r)|², (P, R), after the target's masks.
        gap: |g_p(x_r) - g*_p|², (P, R), or None: only where gradients were formed it is known
            exactly; ``square - 2 dot + |g*|²`` cancels near convergence.
    """

    dot: Tensor
    square: Tensor
    gap: Tensor | None = None


def moments(triples: list[Triple]) -> Moments:
    """Stack what was found for each parameter tensor; the gap only if all of them have one."""
    dots, squares, gaps = zip(*triples, strict=True)
    known = [widen(gap) for gap in gaps if gap is not None]
    return Moments(
        dot=torch.stack([widen(d) for d in dots]),
        square=torch.stack([widen(s) for s in squares]),
        gap=torch.stack(known) if len(known) == len(gaps) else None,
    )


def supports(model: nn.Module, target: Mapping[str, Tensor], shape: tuple[int, ...]) -> str | None:
    """Why ghost norms do not apply to ``model``, in words; None: they do.

    Args:
        model: in the mode in which it will run.
        target: by parameter name; layers without a tensor in it are not looked at.
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

    handles = [module.register_forward_hook(count(name)) for name, module in layers]
    try:
        with torch.no_grad():
            model(next(model.parameters()).new_zeros(1, *shape))
    finally:
        for handle in handles:
            handle.remove()
    odd = [f"'{name}' runs {calls.get(name, 0)} times" for name, _ in layers if calls.get(name, 0) != 1]
    return f"{', '.join(odd)} per forward pass instead of once" if odd else None


def _blocks(victims: Sequence[int] | None, *, every: int) -> slice | list[int] | None:
    """The victims whose targets are looked at, each for equally many candidates; None: all, as they lie.

    Examples:
        >>> _blocks((0, 0, 1, 1), every=2), _blocks((1, 1), every=2), _blocks((0, 1, 1), every=2)
        (None, slice(1, 2, None), [0, 1, 1])
    """
    if victims is None:
        return None
    present = sorted(set(victims))
    even = len(victims) % len(present) == 0
    blocks = present if even and list(victims) == _repeat(present, len(victims)) else list(victims)
    if blocks == list(range(every)):
        return None
    straight = blocks == list(range(blocks[0], blocks[0] + len(blocks)))
    return slice(blocks[0], blocks[0] + len(blocks)) if straight else blocks


def _repeat(present: list[int], length: int) -> list[int]:
    return [victim for victim in present for _ in range(length // len(present))]


def _owns(name: str, module: nn.Module, target: Mapping[str, Tensor]) -> bool:
    return any(_join(name, own) in target for own, _ in module.named_parameters(recurse=False))


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


@final
class Ghost:
    """Moments of candidates against fixed targets; build once, call in every iteration.

    Args:
        model: one that :func:`supports`; its parameters need no gradient.
        targets: g* of every victim, by parameter name.
        masks: of every victim the entries of the candidate's gradient that count, by parameter name, of the
            target's shape or (1, ...) for whole columns; missing names: all. The target should be zero
            elsewhere.
        form: ``auto`` by cost; ``explicit`` forms every gradient (and fills ``gap``); ``pairs`` none of the
            large ones.
        bf16: run the model and the large products in bfloat16; sums stay in the target's precision.
    """

    def __init__(
        self,
        model: nn.Module,
        targets: Sequence[Mapping[str, Tensor]],
        *,
        masks: Sequence[Mapping[str, Tensor]] = (),
        form: Form = "auto",
        bf16: bool = False,
    ) -> None:
        self._model, self._form, self._bf16 = model, form, bf16
        self._target = {name: torch.stack([t[name] for t in targets]) for name in targets[0]}  # (V, ...)
        self._masks = {name: self._joined(name, masks) for name in sorted({n for m in masks for n in m})}
        self._layers = [(n, m) for n, m in model.named_modules() if _owns(n, m, self._target)]

    def _joined(self, name: str, masks: Sequence[Mapping[str, Tensor]]) -> Tensor:
        """(V, 1, ...) where all victims' masks are of whole columns, else (V, ...)."""
        shape = self._target[name].shape[1:]
        columns = all(name not in m or m[name].shape[0] == 1 for m in masks)
        shape = torch.Size((1, *shape[1:])) if columns else shape
        every = torch.ones(shape, dtype=torch.bool, device=self._target[name].device)
        return torch.stack([m[name].expand(shape) if name in m else every for m in masks])

    def _casting(self, device: torch.device) -> AbstractContextManager[object]:
        return torch.autocast(device.type, dtype=torch.bfloat16) if self._bf16 else nullcontext()

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
            inputs: (R, B, C, H, W), what ``model`` takes.
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
            tape, logits = self._forward(flat)
            loss = F.cross_entropy(logits, targets.flatten(0, 1), reduction="sum") / images
            outputs = [tape[name][1] for name, _ in self._layers]
            deltas = torch.autograd.grad(loss, outputs, create_graph=create_graph)
            triples: dict[str, Triple] = {}
            with torch.set_grad_enabled(create_graph):
                for (name, module), delta in zip(self._layers, deltas, strict=True):
                    triples |= self._layer(
                        name, module, activations=tape[name][0], delta=delta, restarts=restarts, of=chosen
                    )
        return moments([triples[name] for name in self._target])

    def _forward(self, flat: Tensor) -> tuple[dict[str, tuple[Tensor, Tensor]], Tensor]:
        tape: dict[str, tuple[Tensor, Tensor]] = {}

        def record(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
            def observe(_: nn.Module, activations: tuple[Tensor, ...], output: Tensor) -> None:
                tape[name] = (activations[0], output)

            return observe

        handles = [module.register_forward_hook(record(name)) for name, module in self._layers]
        try:
            with torch.enable_grad():
                logits: Tensor = self._model(flat)
        finally:
            for handle in handles:
                handle.remove()
        return tape, logits

    def _layer(
        self,
        prefix: str,
        module: nn.Module,
        *,
        activations: Tensor,
        delta: Tensor,
        restarts: int,
        of: slice | list[int] | None,
    ) -> dict[str, Triple]:
        """Moments of those parameters of one layer that the targets (of the victims ``of``) hold."""
        triples: dict[str, Triple] = {}
        for own, _ in module.named_parameters(recurse=False):
            name = _join(prefix, own)
            if name not in self._target:
                continue
            target, mask, form = self._target[name], self._masks.get(name), self._form
            if of is not None:
                target, mask = target[of], None if mask is None else mask[of]
            if own == "weight" and isinstance(module, (nn.Linear, nn.Conv2d)):
                triples[name] = ghost_layers.weight(
                    module, activations, delta, restarts=restarts, target=target, mask=mask, form=form
                )
                continue
            if own == "weight":
                gradient = ghost_layers.gain(module, activations, delta, restarts)
            else:
                gradient = ghost_layers.bias(module, delta, restarts)
            triples[name] = ghost_layers.explicit(gradient, target, mask, exact=form == "explicit")
        return triples
