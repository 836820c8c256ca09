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
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import Final, final

import torch
from torch import Tensor, nn

from glasshouse.attacks.parts.matching import ghost_layers
from glasshouse.attacks.parts.matching.fixed import FixedConv2d, fix_convolutions
from glasshouse.attacks.parts.matching.folding import fold_norms
from glasshouse.attacks.parts.matching.ghost_layers import Form, Triple
from glasshouse.attacks.parts.matching.targets import Chosen, Moments, Targets, chosen_victims
from glasshouse.errors import Inapplicable
from glasshouse.interfaces import task_of
from glasshouse.interfaces.modes import joins_examples

_AGAIN: Final = "again "
"""Before the name of a layer that ran before in the same pass."""


def supports(model: nn.Module, target: Container[str], shape: tuple[int, ...]) -> str | None:
    """The reason why ghost norms do not apply to ``model``, in words; None: they do.

    Args:
        model: in the mode in which it will run.
        target: names of the received tensors; layers without one are ignored.
        shape: of one input, without the batch.
    """
    calls, model = Counter[str](), copy.deepcopy(model)  # a pass may leave something behind
    for name, module in model.named_modules():
        reason = ghost_layers.refusal(module) if _owns(name, module, target) else None
        others = {own for own, _ in module.named_parameters(recurse=False)} - {"weight", "bias"}
        if reason is None and any(_join(name, own) in target for own in others):
            reason = "computes its weight from another parameter"
        if getattr(module, "inplace", False):
            reason = "overwrites its input (inplace=True)"
        if reason:
            return f"'{name}' ({type(module).__name__}) {reason}"
    layers = [(name, module) for name, module in model.named_modules() if _owns(name, module, target)]

    def count(name: str, *_: object) -> None:
        calls[name] += 1

    like = next(model.parameters())
    examples = torch.rand(4, *shape, generator=torch.Generator().manual_seed(0)).to(like)
    if joins_examples(model, examples):  # candidates would influence each other
        return "what it answers for one example depends on the others of a batch, or on earlier ones"
    with ExitStack() as hooks, torch.no_grad():
        for name, module in layers:
            hooks.enter_context(module.register_forward_hook(partial(count, name)))
        model(examples)
        several = Counter(calls)  # a network may take a larger batch in parts
        model(like.new_zeros(1, *shape))
    counts = {name: (several[name], calls[name] - several[name]) for name, _ in layers}
    if odd := [f"'{name}' runs {max(count)} times" for name, count in counts.items() if count != (1, 1)]:
        return f"{', '.join(odd)} per forward pass instead of once"
    return _unlike(model, target, layers, shape)


def _unlike(
    model: nn.Module, target: Container[str], layers: Sequence[tuple[str, nn.Module]], shape: tuple[int, ...]
) -> str | None:
    """The parameter whose gradient does not follow from its layer's input and output, in words; None: none.

    A weight that two layers share, or that a function uses as well, has more; an operation that overwrites
    what a layer returned leaves another output behind.
    """
    tape: dict[str, tuple[Tensor, Tensor]] = {}
    leaves = {name: p for name, p in model.named_parameters() if name in target}
    wanted = {name: p.requires_grad for name, p in leaves.items()}
    like = next(model.parameters())
    example = torch.rand(1, *shape, generator=torch.Generator().manual_seed(0)).to(like)
    with ExitStack() as hooks, torch.enable_grad():
        for name, module in layers:
            hooks.enter_context(module.register_forward_hook(partial(_record, tape, name)))
        for p in leaves.values():
            p.requires_grad_(True)
        try:
            outputs: Tensor = model(example.requires_grad_())
            loss = (outputs.float() * _weights(outputs)).sum()
            if cut := [name for name, _ in layers if not tape[name][1].requires_grad]:
                return f"no gradient reaches what '{cut[0]}' returns"
            every = [*(tape[name][1] for name, _ in layers), *leaves.values()]
            slopes = _slopes(loss, every)
            truth = dict(zip(leaves, slopes[len(layers) :], strict=True))
            for (name, module), delta in zip(layers, slopes, strict=False):
                own = {n: p for n, p in module.named_parameters(recurse=False) if _join(name, n) in leaves}
                seen = tape[name][0].detach()
                # What a hook of the network's own does to it is none of the layer's.
                formed = _slopes(module.forward(seen), list(own.values()), by=delta)
                for short, gradient in zip(own, formed, strict=True):
                    if not _alike(truth[_join(name, short)], gradient):
                        return f"'{_join(name, short)}' has a gradient that its layer alone does not explain"
        finally:
            for name, p in leaves.items():
                p.requires_grad_(wanted[name])
    return None


def _weights(outputs: Tensor) -> Tensor:
    """Unequal slopes of all outputs, so that nothing cancels out."""
    return torch.linspace(1, 2, outputs.numel(), device=outputs.device).view_as(outputs)


def _slopes(outputs: Tensor, leaves: Sequence[Tensor], *, by: Tensor | None = None) -> tuple[Tensor, ...]:
    """Gradients, zero where a leaf is not used."""
    return torch.autograd.grad(
        outputs, list(leaves), by, retain_graph=True, allow_unused=True, materialize_grads=True
    )


def _alike(left: Tensor, right: Tensor) -> bool:
    """Equal up to what rounding explains, in half precision several thousandths."""
    tolerance = 1e-3 if left.dtype in (torch.float32, torch.float64) else 5e-2
    return float((left - right).abs().max()) <= tolerance * max(float(left.abs().max()), 1e-12)


def _owns(name: str, module: nn.Module, target: Container[str]) -> bool:
    return any(_join(name, own) in target for own, _ in module.named_parameters(recurse=False))


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _record(
    tape: dict[str, tuple[Tensor, Tensor]], name: str, _: nn.Module, seen: tuple[Tensor, ...], output: Tensor
) -> None:
    """A forward hook that records a layer's input and output; no closure, so that models can be pickled.

    A second run does not replace the first: what is checkpointed runs again when its gradient is taken.
    """
    tape[name if name not in tape else _AGAIN + name] = (seen[0], output)


def _halve(_: nn.Module, activations: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """A forward pre-hook of layers whose weights are in bfloat16."""
    return tuple(x.to(torch.bfloat16) for x in activations)


@final
class Ghost:
    """Moments of candidates against fixed targets; build once, call in every iteration.

    It runs a copy of the model, in which batch norms are folded into convolutions (:mod:`folding`). Under
    ``bf16``, if only linear layers and convolutions remain, the weights themselves are cast to bfloat16. The
    weight gradients of a single candidate are formed by autograd, together with its inputs' (:mod:`fixed`).

    Args:
        model: accepted by :func:`supports`; its parameters need no gradient.
        targets: g* of every victim, by parameter name.
        masks: for every victim the entries of the candidate's gradient that count, by parameter name, of the
            target's shape or (1, ...) for whole columns; missing names: all entries. The target should be
            zero elsewhere.
        form: ``auto`` by cost; ``explicit`` forms every gradient (and fills ``gap``); ``pairs`` forms none of
            the large ones.
        bf16: run the model and the large products in bfloat16; sums stay in the target's precision.
        shape: of one input, without the batch; (): unknown, so that nothing is folded, and a
            single candidate is treated like several.
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
        self._form, self._bf16, self._task = form, bf16, task_of(model)
        self._targets = Targets(targets, masks, apart=apart)
        self._model, self._folded = fold_norms(model, shape, self._targets)
        self._model.requires_grad_(False)
        self._autocast = bf16 and not all(isinstance(m, (nn.Conv2d, nn.Linear)) for _, m in self._owners())
        if not self._autocast:
            fix_convolutions(self._model)
        self._layers, self._tape = self._owners(), dict[str, tuple[Tensor, Tensor]]()
        for name, module in self._layers:
            module.register_forward_hook(partial(_record, self._tape, name))
            if bf16 and not self._autocast:
                module.to(torch.bfloat16)
                module.register_forward_pre_hook(_halve)
        self._sizes = self._sizes_of_convolutions(next(model.parameters()), shape) if shape else {}

    def beside(self, target: Mapping[str, Tensor], mask: Mapping[str, Tensor], *, apart: bool) -> "Ghost":
        """A copy that shares the prepared model, with the target of another victim."""
        other = copy.copy(self)
        other._targets = Targets([target], [mask], apart=apart)
        return other

    def _owners(self) -> list[tuple[str, nn.Module]]:
        return [(n, m) for n, m in self._model.named_modules() if _owns(n, m, self._targets)]

    def _sizes_of_convolutions(self, like: Tensor, shape: tuple[int, ...]) -> dict[str, int]:
        """Outputs of one input, in every convolution but the first, whose input needs no gradient."""
        with torch.no_grad(), self._casting(like.device):
            self._model(like.new_zeros(1, *shape))
        fixed = [name for name, module in self._layers[1:] if isinstance(module, FixedConv2d)]
        matched = [name for name in fixed if _join(name, "weight") in self._targets]
        sizes = {name: self._tape[name][1].numel() for name in matched}
        self._tape.clear()
        return sizes

    def _formed_by_autograd(self, restarts: int, images: int, of: Chosen) -> dict[str, Tensor]:
        """Weights, by layer, whose gradients autograd forms: of one candidate, as it sums over a batch."""
        chosen = dict[str, Tensor]()
        for name, size in self._sizes.items():
            weight = self._model.get_parameter(_join(name, "weight"))
            target, mask = self._targets.of(_join(name, "weight"), of)
            formed = ghost_layers.forms(target, mask, size * images, form=self._form)
            if weight.requires_grad_(restarts == 1 and formed).requires_grad:
                chosen[name] = weight
        return chosen

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
        chosen = chosen_victims(victims, every=self._targets.victims)
        restarts, images = inputs.shape[:2]
        flat = inputs.flatten(0, 1)
        # The gradients of outputs are asked for even where the images are fixed.
        if not flat.requires_grad:
            flat = flat.detach().requires_grad_()
        weights = self._formed_by_autograd(restarts, images, chosen)
        with self._casting(flat.device):
            self._tape.clear()
            with torch.enable_grad():
                logits: Tensor = self._model(flat)
            tape = dict(self._tape)
            if again := [name for name in tape if name.startswith(_AGAIN)]:
                raise Inapplicable(
                    f"layer '{again[0].removeprefix(_AGAIN)}' of a network",
                    needs="one run per forward pass, whatever the size of the batch",
                    got=f"two, for a batch of {len(flat)}",
                    fix="match fewer restarts at once, or hand over a network that takes a batch whole",
                )
            logits = logits.to(self._targets.precision)
            loss = self._loss(logits, targets, flat)
            # One backward pass gives the gradient of every layer's output; those of weights follow from it
            # layer by layer.
            outputs = [tape[name][1] for name, _ in self._layers]
            slopes = torch.autograd.grad(
                loss,
                [*outputs, *weights.values()],
                create_graph=create_graph,
                allow_unused=True,  # a head whose outputs are not the answer
                materialize_grads=True,
            )
            deltas, known = slopes[: len(outputs)], dict(zip(weights, slopes[len(outputs) :], strict=True))
            formed: dict[str, Tensor] = {}
            triples: dict[str, Triple] = {}
            with torch.set_grad_enabled(create_graph):
                for (name, module), delta in zip(self._layers, deltas, strict=True):
                    seen = *tape[name], delta, known.get(name)
                    gradients, pairs = self._layer(name, module, seen, restarts=restarts, of=chosen)
                    formed, triples = formed | gradients, triples | pairs
                return self._targets.compare(formed, triples, chosen, exact=self._form == "explicit")

    def _loss(self, logits: Tensor, targets: Tensor, flat: Tensor) -> Tensor:
        """The sum over the restarts of the mean losses of their images."""
        images = targets.shape[1]
        if self._task.separable:
            return self._task.loss(logits, targets.flatten(0, 1), flat, reduction="sum") / images
        outputs = logits.reshape(-1, images, *logits.shape[1:])
        examples = flat.reshape(-1, images, *flat.shape[1:])
        parts = zip(outputs, targets, examples, strict=True)
        return torch.stack([self._task.loss(z, y, x) for z, y, x in parts]).sum()

    def _layer(
        self,
        name: str,
        module: nn.Module,
        seen: tuple[Tensor, Tensor, Tensor, Tensor | None],
        *,
        restarts: int,
        of: Chosen,
    ) -> tuple[dict[str, Tensor], dict[str, Triple]]:
        """Gradients (R, ...) of one layer's parameters, or moments where a gradient is not formed.

        ``seen``: its input, output, gradient of the output, and of the weight where autograd formed it.
        """
        activations, output, delta, known = seen
        weight, bias, fold = _join(name, "weight"), _join(name, "bias"), self._folded.get(name)
        formed: dict[str, Tensor] = {}
        pairs: dict[str, Triple] = {}
        precision = self._targets.precision
        total = ghost_layers.bias(module, delta, restarts, dtype=precision)
        if bias in self._targets:
            formed[bias] = total if fold is None else fold.unfold(total)
        if weight not in self._targets:
            return formed, pairs
        # A gain multiplies its input entry by entry: its gradient is as small as itself.
        if not isinstance(module, (nn.Linear, nn.Conv2d)):
            formed[weight] = ghost_layers.gain(module, activations, delta, restarts)
            return formed, pairs
        target, mask = self._targets.of(weight, of)
        # Where the gradient is larger than what it is made of, only its products with itself and the target
        # are formed.
        if ghost_layers.forms(target, mask, delta.numel() // restarts, form=self._form):
            if known is None:
                gradient = ghost_layers.weight_gradient(module, activations, delta, restarts).to(precision)
            else:
                gradient = known[None].to(precision)
            formed[weight] = gradient if fold is None else fold.unfold(gradient)
        else:
            gradient, own = None, delta if fold is None else fold.unfold(delta)
            wanted = self._targets.half(weight, of) if self._bf16 else target
            pairs[weight] = ghost_layers.pairs(
                module, activations, own, restarts=restarts, target=wanted, mask=mask
            )
        # A norm in evaluation mode was folded into the weight: its own gradients follow from the products
        # with it.
        if fold is not None:
            if gradient is not None and (self._form == "explicit" or gradient.numel() <= delta.numel()):
                product = fold.product(gradient)
            else:
                reached = ghost_layers.bias(module, delta.to(precision) * output, restarts)
                product = fold.product_of(reached, total)
            formed |= fold.of_norm(total, product)
        return formed, pairs
