"""One pass of a batch through a model: each layer's inputs, and the gradients at its outputs ("pulls")."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from glasshouse.errors import BadValue

Layer = nn.Linear | nn.Conv1d | nn.Conv2d

CHUNK = 8
"""Examples whose gradients are in memory at a time."""
_TINY = torch.finfo(torch.float).tiny
_EXPLAINED = 1e-3
_NUMBERS = 2**18  # numbers of small patches that are copied at a time


@final
@dataclass(frozen=True, kw_only=True)
class LayerTrace:
    """The inputs and output gradients of one layer for a batch of B examples.

    The gradient of its weight is the sum over examples of contributions, pulls times inputs.

    Attributes:
        name: of the layer in the model.
        layer: the layer itself.
        inputs: of the layer, (B, ...).
        pulls: gradients of the loss with respect to the outputs, (B, ...).
        gradient: of the same with respect to the weight; None: it was not asked for.
        starts: names in the model of what a parametrised weight is computed from, if nothing else is.
    """

    name: str
    layer: Layer
    inputs: Tensor
    pulls: Tensor
    gradient: Tensor | None = None
    starts: tuple[str, ...] = ()

    @property
    def is_explained(self) -> bool:
        """Whether pulls times inputs add up to the weight's gradient.

        They do not where the class of a layer does something else in its forward pass, or where its weight is
        also used elsewhere.
        """
        if self.gradient is None:
            return False
        groups = getattr(self.layer, "groups", 1)
        along = torch.randn(self.layer.weight[:1].shape, generator=torch.Generator().manual_seed(2))
        along = along.to(self.inputs)
        if isinstance(self.layer, nn.Linear):
            terms = self.pulls * (self.inputs @ along[0])[..., None]
            terms = terms.flatten(0, -2)
        elif (each := self._each) is not None:
            terms = (each @ along.flatten().to(each)).flatten(1)
        else:
            answers = self.layer._conv_forward(self.inputs, along.repeat_interleave(groups, 0), None)
            pulled = self.pulls.reshape(len(self.pulls), groups, -1, *self.pulls.shape[2:])
            terms = (pulled * answers[:, :, None]).flatten(3).sum(3).flatten(1)
        found = self.gradient.flatten(1) @ along.flatten()
        bound = terms.abs().sum(0).amax() + found.abs().amax()
        return bool(((terms.sum(0) - found).abs() <= _EXPLAINED * bound).all())

    @property
    def is_reached(self) -> bool:
        """Whether any example has both a nonzero input and a nonzero output gradient."""
        entered, pulled = self.inputs.flatten(1).any(1), self.pulls.flatten(1).any(1)
        return bool((entered & pulled).any())

    @property
    def is_flat(self) -> bool:
        """Whether each unit is evaluated once per example: a linear layer on vectors."""
        return self.inputs.ndim == 2

    def named(self, part: str) -> str:
        """The name of the layer's ``weight`` or ``bias`` in the model."""
        return f"{self.name}.{part}".removeprefix(".")

    def projected(self, along: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Pulls (B, g, m) along one direction per example, and these unit directions, (B, g, n).

        There are g groups of m units with inputs of their own, mostly one. A unit that is evaluated once per
        example pulls along its input alone. Elsewhere the direction is the one along which a fixed mixture of
        all units pulls, or ``along``, (B, g, n), that of a layer with the same inputs.
        """
        # A unit that is evaluated once pulls along its input, whatever the server does.
        if self.is_flat:
            lengths = torch.linalg.vector_norm(self.inputs, dim=1, keepdim=True, dtype=torch.double)
            along = F.normalize(self.inputs, dim=1, eps=_TINY)
            return (self.pulls * lengths.to(self.pulls))[:, None], along[:, None]
        # Small layers keep each example's whole gradient; large ones form it position by position.
        if (each := self._each) is not None:
            if along is None:
                mixture = torch.randn(each.shape[1:3], generator=torch.Generator().manual_seed(0)).to(each)
                along = F.normalize(torch.einsum("bgmn,gm->bgn", each, mixture), dim=2, eps=_TINY)
            pulled = (each @ along.to(each)[..., None])[..., 0]
            return pulled.to(self.pulls), along.to(self.pulls)
        pulls, directions = [], []
        given = None if along is None else iter(torch.split(along, CHUNK))
        for seen, pulled in self._positions():
            mixture = torch.randn(pulled.shape[1:3], generator=torch.Generator().manual_seed(0)).to(pulled)
            mixed = torch.einsum("bgmp,gm->bgp", pulled, mixture)
            own = (
                next(given)
                if given
                else F.normalize(torch.einsum("bgnp,bgp->bgn", seen, mixed), dim=2, eps=_TINY)
            )
            answers = torch.einsum("bgnp,bgn->bgp", seen, own)
            pulls.append(torch.einsum("bgmp,bgp->bgm", pulled, answers))
            directions.append(own)
        return torch.cat(pulls), torch.cat(directions)

    @cached_property
    def sizes(self) -> Tensor:
        """Norm of each example's contribution to the gradient of each unit, (B, m).

        In float64: squares of values that a server scaled down in one layer underflow in float32.
        """
        if self.is_flat:
            return self.signed_sizes.abs()
        if (each := self._each) is not None:
            lengths: Tensor = torch.linalg.vector_norm(each, dim=3)
            return lengths.flatten(1)
        return torch.cat([_lengths(seen, pulls) for seen, pulls in self._positions()])

    @cached_property
    def _each(self) -> Tensor | None:
        """Each example's contribution, (B, g, m, n) in float64, where it has few numbers; None: elsewhere."""
        if not isinstance(self.layer, nn.Conv2d):
            return None
        units, positions = len(self.layer.weight) // self.layer.groups, self.pulls[0, 0].numel()
        if _is_cheaper_by_positions(positions, self.layer.weight[0].numel(), units):
            return None
        return _conv_gradients(self.layer, self.inputs, self.pulls)

    @property
    def signed_sizes(self) -> Tensor:
        """The same with the sign of the pull, (B, m), for layers that are ``is_flat``."""
        lengths = torch.linalg.vector_norm(self.inputs, dim=1, keepdim=True, dtype=torch.double)
        signed: Tensor = self.pulls.double() * lengths
        return signed

    def _positions(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and output gradients of each group of units, in chunks of examples: (b, g, n or m, P)."""
        for seen, pulls in zip(torch.split(self.inputs, CHUNK), torch.split(self.pulls, CHUNK), strict=True):
            if isinstance(self.layer, nn.Linear):
                yield _tokens(seen).mT[:, None], _tokens(pulls).mT[:, None]
            else:
                patches = _patches(self.layer, seen)
                grouped = (len(seen), self.layer.groups, -1, patches.shape[2])
                yield patches.reshape(grouped), pulls.reshape(grouped)


def trace(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    goals: Callable[[nn.Module], Tensor] | None = None,
) -> tuple[LayerTrace, ...]:
    """Pass a batch through ``model`` forward and backward, as a step of training would.

    Args:
        model: in the mode (train or eval) in which clients use it; not modified.
        inputs: (B, ...).
        labels: classes, (B,).
        goals: computes what is differentiated, one number per example, (B,); None: the mean cross-entropy.

    Returns:
        The linear and convolutional layers that were used, in their order.

    Raises:
        BadValue: the batch is empty, the logits are not one row of finite numbers per example, a layer's
            inputs or output gradients are not finite, or there is no linear or convolutional layer.
    """
    with _recording(model) as calls, left_as_it_was(model), torch.enable_grad(), parametrize.cached():
        if goals is None:
            logits = model(inputs)
            _check(logits, labels)
            goal = F.cross_entropy(logits, labels)
        else:
            goal = goals(model).sum()
        outputs = [call.output for call in calls]
        # A weight that somebody computed has a gradient only if it is the tensor that was used.
        used = [_weight(call.layer) for call in calls] if goals else []
        weights = list({id(w): w for w in used if w is not None}.values())
        starts = {id(w): _starts(one) for one, w in zip(calls, used, strict=False) if w is not None}
        behind = [p for some in starts.values() for p in some.values()]
        found: tuple[Tensor | None, ...] = (
            torch.autograd.grad(
                goal, [*outputs, *weights, *behind], allow_unused=True, retain_graph=bool(behind)
            )
            if outputs
            else ()
        )
        pulls, rest = found[: len(outputs)], iter(found[len(outputs) :])
        of_weight = {id(w): next(rest) for w in weights}
        total = {id(p): g for p, g in zip(behind, rest, strict=True)}
        explained = {id(w): _explained(w, of_weight[id(w)], starts[id(w)], total) for w in weights}
    gradients = [None if w is None else of_weight[id(w)] for w in used] or [None] * len(calls)
    names = [() if w is None else explained[id(w)] for w in used] or [()] * len(calls)
    _check_finite(calls, pulls)
    layers = tuple(
        # Under autocast they are of 16 bits, and the weight's gradient is not.
        LayerTrace(
            name=one.name,
            layer=one.layer,
            inputs=one.inputs.to(next(one.layer.parameters(), pull)),
            pulls=pull.to(next(one.layer.parameters(), pull)),
            gradient=gradient,
            starts=own,
        )
        for one, pull, gradient, own in zip(calls, pulls, gradients, names, strict=True)
        if pull is not None
    )
    if not layers and goals is None:
        raise BadValue(
            "inspection of a model's behaviour",
            needs="a linear or convolutional layer that the output depends on",
            got=type(model).__name__,
            fix="inspect its tensors alone",
        )
    return layers


def _weight(layer: Layer) -> Tensor | None:
    """The weight as it was used: a parameter, or what parametrisations make."""
    weight = layer.weight
    own = isinstance(weight, nn.Parameter) or parametrize.is_parametrized(layer, "weight")
    return weight if own and weight.requires_grad else None


def _starts(call: "_Call") -> dict[str, Tensor]:
    """What a parametrised weight is computed from and trained, by name."""
    if not parametrize.is_parametrized(call.layer, "weight"):
        return {}
    chain = call.layer.get_submodule("parametrizations.weight")
    own = {name: p for name, p in chain.named_parameters() if p.requires_grad}
    return {f"{call.name}.parametrizations.weight.{name}".removeprefix("."): p for name, p in own.items()}


def _explained(
    weight: Tensor, gradient: Tensor | None, starts: Mapping[str, Tensor], total: Mapping[int, Tensor | None]
) -> tuple[str, ...]:
    """The names of ``starts`` if their gradients come from the weight's and from nowhere else."""
    if gradient is None or not starts:
        return ()
    through: Sequence[Tensor | None] = torch.autograd.grad(
        weight, list(starts.values()), gradient, allow_unused=True, retain_graph=True
    )
    for found, p in zip(through, starts.values(), strict=True):
        whole = total[id(p)]
        if found is None or whole is None:
            return ()
        if float((found - whole).abs().max()) > _EXPLAINED * float(whole.abs().max().clamp_min(_TINY)):
            return ()
    return tuple(starts)


class _Call(NamedTuple):
    """One use of a layer."""

    name: str
    layer: Layer
    inputs: Tensor
    output: Tensor  # differentiated with respect to


@contextmanager
def _recording(model: nn.Module) -> Iterator[list[_Call]]:
    calls: list[_Call] = []

    def remember(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def hook(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            assert isinstance(layer, Layer)
            if output.requires_grad:
                calls.append(_Call(name, layer, inputs[0].detach(), output))

        return hook

    handles = [
        layer.register_forward_hook(remember(name))
        for name, layer in model.named_modules()
        if isinstance(layer, Layer)
    ]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def left_as_it_was(model: nn.Module) -> Iterator[None]:
    """Restore running statistics and the random state afterwards."""
    parts = [part._buffers for part in model.modules()]
    before = [(own, key, t, t.clone()) for own in parts for key, t in own.items() if t is not None]
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            yield
    finally:
        for own, key, t, value in before:
            t.copy_(value)
            own[key] = t  # a pass may have put another tensor in its place


def _check(logits: Tensor, labels: Tensor) -> None:
    if not len(labels) or logits.ndim != 2 or len(logits) != len(labels) or not logits.isfinite().all():
        raise BadValue(
            "inspection of a model's behaviour",
            needs="a batch of examples, and for each of them one row of finite logits",
            got=f"{len(labels)} labels, logits of shape {tuple(logits.shape)}"
            + ("" if logits.isfinite().all() else ", some not finite"),
            fix="give examples in the form that the model takes; do not train on a model that overflows",
        )


def _check_finite(calls: Sequence[_Call], pulls: Sequence[Tensor | None]) -> None:
    for one, pull in zip(calls, pulls, strict=True):
        if pull is not None and not all(
            end.isfinite()
            for t in (one.inputs, pull)
            for end in t.aminmax()  # one pass over memory each
        ):
            raise BadValue(
                "inspection of a model's behaviour",
                needs="finite numbers in every layer, forward and backward",
                got=f"infinite ones, or none, at {one.name or 'its only layer'}",
                fix="do not train on a model that overflows",
            )


def _lengths(seen: Tensor, pulls: Tensor) -> Tensor:
    """Norms, (b, g · m), of the products of (b, g, n, P) and (b, g, m, P) over P.

    Where it is cheaper, from inner products of positions, without forming gradients (Goodfellow 2015,
    arXiv:1510.01799).
    """
    (n, positions), units = seen.shape[2:], pulls.shape[2]
    seen, pulls = seen.double(), pulls.double()
    if _is_cheaper_by_positions(positions, n, units):
        squared: Tensor = ((pulls @ (seen.mT @ seen)) * pulls).sum(3)
        return squared.clamp_min(0).sqrt().flatten(1)
    lengths: Tensor = (pulls @ seen.mT).norm(dim=3)
    return lengths.flatten(1)


def _is_cheaper_by_positions(positions: int, n: int, units: int) -> bool:
    """Whether inner products of positions need fewer operations than gradients of ``units`` rows of n."""
    return positions * (n + units) < n * units


def _conv_gradients(layer: nn.Conv2d, inputs: Tensor, pulls: Tensor) -> Tensor:
    """Those of a convolution, (B, g, m, n), one kernel row at a time, which copies smaller patches.

    Args:
        layer: the convolution.
        inputs: (B, C, H, W).
        pulls: (B, m, high, wide).
    """
    (high, wide), kernel = pulls.shape[2:], layer.kernel_size[0]
    numbers = layer.kernel_size[1] * inputs.shape[1] * inputs.shape[2] * wide  # of an example
    chunk = max(CHUNK, _NUMBERS // numbers)
    found = []
    for seen, some in zip(torch.split(inputs, chunk), torch.split(pulls, chunk), strict=True):
        bands = _bands(layer, seen.double())
        each = some.double().reshape(len(some), layer.groups, -1, high * wide)
        starts = [divmod(row * layer.dilation[0], layer.stride[0]) for row in range(kernel)]
        gradients = [
            each @ bands[:, :, :, phase, skipped * wide : (skipped + high) * wide].mT
            for skipped, phase in starts
        ]
        by_row = torch.stack(gradients, dim=3)  # (b, g, m, kernel's height, C / g · its width)
        by_row = by_row.reshape(*by_row.shape[:4], -1, layer.kernel_size[1])
        found.append(by_row.transpose(3, 4).flatten(3))
    return torch.cat(found)


def _bands(layer: nn.Conv2d, inputs: Tensor) -> Tensor:
    """(b, C, H, W) → (b, g, C / g · kernel's width, stride, rows · wide): every row as wide as the output.

    With a vertical stride s, rows 0, s, 2 s... come first, then rows 1, s + 1, and so on.
    """
    inputs, stride = _pad(layer, inputs), layer.stride[0]
    if lacking := -inputs.shape[2] % stride:
        inputs = F.pad(inputs, (0, 0, 0, lacking))
    reach = inputs.shape[3] - (layer.kernel_size[1] - 1) * layer.dilation[1]
    windows = inputs.unfold(3, reach, layer.dilation[1])[..., :: layer.stride[1]]  # (b, C, H, kernel, wide)
    apart = windows.unfold(2, stride, stride)  # (b, C, rows, kernel, wide, stride)
    rows = apart.permute(0, 1, 3, 5, 2, 4).flatten(4)
    return rows.reshape(len(inputs), layer.groups, -1, stride, rows.shape[4])


def _tokens(t: Tensor) -> Tensor:
    """(b, ..., n) → (b, P, n)."""
    return t.reshape(len(t), -1, t.shape[-1])


def _patches(layer: nn.Conv1d | nn.Conv2d, inputs: Tensor) -> Tensor:
    """(b, C, ...) → (b, C · kernel, P)."""
    inputs = _pad(layer, inputs)
    windows = inputs
    geometry = zip(layer.kernel_size, layer.stride, layer.dilation, strict=True)
    for dim, (kernel, stride, dilation) in enumerate(geometry, start=2):
        reach = windows.shape[dim] - (kernel - 1) * dilation  # places where a kernel may begin
        windows = windows.unfold(dim, reach, dilation)[..., ::stride]
    return windows.flatten(windows.ndim // 2 + 1).flatten(1, windows.ndim // 2)


def _pad(layer: nn.Conv1d | nn.Conv2d, inputs: Tensor) -> Tensor:
    if not isinstance(layer.padding, str) and not any(layer.padding):
        return inputs
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    return F.pad(inputs, layer._reversed_padding_repeated_twice, mode=mode)
