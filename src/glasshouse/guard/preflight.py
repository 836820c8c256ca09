"""What of a client's own examples stands in its update, looked up before the update is sent.

A server reads inputs of linear layers off rows of an update, or off differences of two rows, and must guess
which rows those are (attacks.parts.readout). The client need not guess: it has the examples. It compares the
rows of the very tensors that it is about to send, after clipping, noise or pruning, with what entered the
layer. An example stands in the update if one of these comes so near to it, at the best scale, that less than
``RECOGNISED`` of its contrast is missing:

- a row of the weight to which it contributed most;
- the rows in which it stands alone, added up so that noise averages out;
- the difference of two rows that most other examples enter alike.

Rows are compared as they are; which rows belong together is taken from a pass of the examples through the
model (:mod:`glasshouse.guard.behaviour`), as the server that crafted the model knows it. What
comes as near by chance does not count: an example must come out clearer than any comes out of rows that it
hardly entered.

It does not search: what gradient inversion, or a network trained for the purpose, would read is not covered.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glasshouse.errors import BadValue
from glasshouse.guard.behaviour.measures import OWNED, differences
from glasshouse.guard.behaviour.trace import LayerTrace, trace
from glasshouse.wire import Kind

__all__ = ["RECOGNISED", "Leak", "Preflight", "preflight"]

RECOGNISED: Final = 0.5
"""Share of an example's contrast that may be missing; 18 dB of PSNR for an image of ordinary contrast."""
_SAME_AS_INPUT: Final = 0.999
"""Correlation from which on what enters a layer is the input itself, normalised or not."""

_PART: Final = 256  # examples passed at a time
_TINY: Final = torch.finfo(torch.double).tiny
MOST: Final = 0.5
"""Share of a row, or of a difference, from which on it may show an example."""
HARDLY: Final = 0.01
"""Share below which it is luck that it comes near to one."""
APART: Final = 1.5
"""A row so many times as near to one example as to any other shows it whatever its share:
in several steps of training an example may have had a row to itself that it shares before and after."""
ALIKE: Final = 0.9
"""Cosine of what two examples differ by from the mean from which on they are one picture."""

What = Literal["input", "features"]
By = Literal["a row", "several rows", "a difference of two rows"]


@final
@dataclass(frozen=True, kw_only=True)
class Leak:
    """One example that stands in the update.

    Attributes:
        example: its number among the client's.
        what: the input itself, or what the layers in front made of it.
        layer: name of the layer.
        by: where in the layer's weight.
        missing: share of its contrast that is not there, below ``RECOGNISED``.
        rows: all rows of the weight that show it, alone, together or two by two.
    """

    example: int
    what: What
    layer: str
    by: By
    missing: float
    rows: tuple[int, ...]


@final
@dataclass(frozen=True, kw_only=True)
class Preflight:
    """What stands in one update.

    Attributes:
        examples: behind it.
        leaks: one for each example and kind that stands there, the clearest.
        labels: numbers of the examples whose class the head's signs name; none where all classes are held,
            or named: which are, is no secret then.
        wrong_classes: classes that they name and nobody has.
        controlled: in an update of one example of these it was found, and no other.
        unseen: weights that are no linear layer's on vectors: nothing was looked for there.
    """

    examples: int
    leaks: tuple[Leak, ...]
    labels: tuple[int, ...]
    wrong_classes: int
    controlled: bool
    unseen: tuple[str, ...]

    def standing(self, what: What) -> tuple[int, ...]:
        """Numbers of the examples whose inputs, or features, stand in the update."""
        return tuple(leak.example for leak in self.leaks if leak.what == what)

    @property
    def summary(self) -> str:
        """One sentence."""
        if not self.controlled:
            return "Nothing can be said: an update of one of your examples did not show it, or showed others."
        inputs, features = (self._count(len(self.standing(what))) for what in ("input", "features"))
        return (
            f"inputs of {inputs} of your {self.examples} examples, features of {features}, "
            f"labels of {self._count(len(self.labels))} stand in this update (by chance: none)"
        )

    def _count(self, number: int) -> str:
        return {0: "none", self.examples: "all"}.get(number, str(number))


def preflight(
    update: Mapping[str, Tensor],
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    kind: Kind = "delta",
) -> Preflight:
    """Look for a client's examples in the update that it is about to send.

    Args:
        update: by name of the parameter, after all defences: a gradient, or what the parameters changed by.
        model: as received, in the mode in which it is trained; it is left as it was.
        inputs: all examples that the update was computed from, (B, ...), as they enter the model.
        labels: their classes, (B,).
        kind: ``gradient`` or ``delta``.

    Raises:
        BadValue: another kind, no weight of ``model`` in the update, or inputs that do not fit it.

    Examples:
        >>> model = nn.Linear(4, 2)
        >>> image, label = torch.tensor([[0.0, 1.0, 0.5, 0.2]]), torch.tensor([1])
        >>> names, weights = zip(*model.named_parameters())
        >>> gradient = torch.autograd.grad(F.cross_entropy(model(image), label), weights)
        >>> seen = preflight(dict(zip(names, gradient)), model, image, label, kind="gradient")
        >>> seen.standing("input"), seen.standing("features"), seen.labels
        ((0,), (), (0,))
    """
    parameters = dict(model.named_parameters())
    if kind not in ("gradient", "delta") or not any(name in update for name in parameters):
        raise BadValue(
            "check of an update before it is sent",
            needs="a gradient or a change of the model's parameters, by their names",
            got=f"'{kind}' of {', '.join(list(update)[:3]) or 'nothing'}",
            fix="subtract what was received from the parameters that are sent",
        )
    models = [model] if kind == "gradient" else [model, _moved(model, update)]
    traces = [_trace_linear(one, inputs, labels, kind) for one in models]
    leaks: dict[tuple[int, What], Leak] = {}
    layers = [layer for t in traces for layer in t]
    for one in layers:
        rows = update.get(one.named("weight"))
        if not one.is_flat or rows is None:
            continue
        what: What = "input" if _is_input(one.inputs, inputs) else "features"
        for leak in _look(rows, one, what, passes=[layer for layer in layers if layer.name == one.name]):
            key = leak.example, what
            leaks[key] = min(leaks.get(key, leak), leak, key=lambda known: known.missing)
    named = _named_classes(update, traces[0][-1], labels, kind)
    looked_at = {one.named("weight") for one in traces[0] if one.is_flat}
    return Preflight(
        examples=len(labels),
        leaks=tuple(sorted(leaks.values(), key=lambda leak: (leak.example, leak.what))),
        labels=tuple(i for i, label in enumerate(labels.tolist()) if label in named),
        wrong_classes=len(named - set(labels.tolist())),
        controlled=_control(inputs),
        unseen=tuple(n for n, p in parameters.items() if p.ndim > 1 and n in update and n not in looked_at),
    )


def _trace_linear(model: nn.Module, inputs: Tensor, labels: Tensor, kind: Kind) -> list[LayerTrace]:
    """Traces of the linear layers alone, if there are any: nothing is kept of what lies in front of them.

    Examples behind several steps were never one batch, and are passed in parts.
    """
    work = copy.deepcopy(model)
    linear = [layer for layer in work.modules() if isinstance(layer, nn.Linear)]
    for p in work.parameters() if linear else ():
        p.requires_grad = False
    for layer in linear:
        layer.requires_grad_()
    parts = 1 if kind == "gradient" else math.ceil(len(labels) / _PART)
    split = zip(inputs.tensor_split(parts), labels.tensor_split(parts), strict=True)
    traces = [trace(work, *some).layers for some in split]
    sizes = [len(layers[0].inputs) / len(labels) for layers in traces]
    return [
        LayerTrace(
            name=calls[0].name,
            layer=calls[0].layer,
            inputs=torch.cat([one.inputs for one in calls]),
            pulls=torch.cat([one.pulls * size for one, size in zip(calls, sizes, strict=True)]),
        )
        for calls in zip(*traces, strict=True)
    ]


def _look(rows: Tensor, one: LayerTrace, what: What, *, passes: Sequence[LayerTrace]) -> list[Leak]:
    """The examples that stand in ``rows``, (m, n).

    ``passes``: of the model before and after training; what entered a row in neither is there by chance.
    """
    rows, goal = rows.detach().double(), one.inputs.double()
    signed = torch.where(rows.any(1, keepdim=True), _signed(one), 0.0)  # rows of zeros show nobody
    shares = _shares(signed)
    pairs = differences(signed.T)
    of_two = _shares(signed[pairs.rows] - pairs.multiples[:, None] * signed[pairs.others])
    all_signed = [_signed(each) for each in passes]
    strange = torch.stack([_shares(each) for each in all_signed]).amax(0) < HARDLY
    of_pairs = [each[pairs.rows] - pairs.multiples[:, None] * each[pairs.others] for each in all_signed]
    strange_pair = torch.stack([_shares(each) for each in of_pairs]).amax(0) < HARDLY
    together = torch.where(shares >= OWNED, signed, 0.0).T @ rows
    products, squares = rows @ goal.T, rows.square().sum(1)[:, None]  # (m, B), (m, 1)
    factor = pairs.multiples[:, None]
    cross = (rows[pairs.rows] * rows[pairs.others]).sum(1, keepdim=True)
    pair_squares = squares[pairs.rows] - 2 * factor * cross + factor.square() * squares[pairs.others]
    row = products.square() / squares.clamp_min(_TINY)
    pair = (products[pairs.rows] - factor * products[pairs.others]).square() / pair_squares.clamp_min(_TINY)
    whole, spread = goal.square().sum(1), _contrast(goal)

    def missing(energy: Tensor) -> Tensor:
        return (whole - energy).clamp_min(0).sqrt() / spread

    by: dict[By, Tensor] = {
        "a row": missing(_most(row, shares >= MOST)),
        "several rows": missing((F.normalize(together, dim=1, eps=_TINY) * goal).sum(1).square()),
        "a difference of two rows": missing(_most(pair, of_two >= MOST)),
    }
    luck = missing(torch.maximum(_most(row, strange), _most(pair, strange_pair)))
    near = min(RECOGNISED, float(luck.min()))
    clear = _clearly_nearest(missing(row), goal, counted=what == "input")
    by["a row"] = torch.minimum(by["a row"], missing(_most(row, clear)))
    in_row = clear | ((shares >= MOST) & (missing(row) < near))
    in_pair = (of_two >= MOST) & (missing(pair) < near)
    leaks = []
    for example in range(len(goal)):
        nearest = min(by, key=lambda name: float(by[name][example]))
        least = float(by[nearest][example])
        if least < near or clear[:, example].any():
            shown = in_row[:, example] | ((shares[:, example] >= OWNED) & (nearest == "several rows"))
            two = in_pair[:, example]
            of_all = torch.cat([shown.nonzero()[:, 0], pairs.rows[two], pairs.others[two]])
            where = tuple(torch.unique(of_all).tolist())
            leaks.append(
                Leak(example=example, what=what, layer=one.name, by=nearest, missing=least, rows=where)
            )
    return leaks


def _signed(one: LayerTrace) -> Tensor:
    """(m, B), how much each example adds to the gradient of each row, with its sign."""
    signed: Tensor = one.pulls.double().T * one.inputs.double().norm(dim=1)
    return signed


def _shares(signed: Tensor) -> Tensor:
    """Of each row of (k, B): whose it is."""
    return F.normalize(signed.abs(), p=1, dim=1, eps=_TINY)


def _most(energies: Tensor, counted: Tensor) -> Tensor:
    """(B,), the largest of (k, B) that counts; 0 if none does."""
    if not len(energies):
        return energies.new_zeros(energies.shape[1])
    return torch.where(counted, energies, 0.0).amax(0)


def _clearly_nearest(missing: Tensor, goals: Tensor, *, counted: bool) -> Tensor:
    """(m, B), of bool: which row shows which example and no other nearly as well.

    ``counted``: False for features, where few of them make rows come near to one by chance.
    """
    if not counted:
        return torch.zeros_like(missing, dtype=torch.bool)
    centred = F.normalize(goals - goals.mean(0), dim=1)
    first, who = missing.min(1)
    others = centred[who] @ centred.T <= ALIKE
    second = torch.where(others, missing, torch.inf).amin(1)
    shown = (first < RECOGNISED) & (second > APART * first) & (len(goals) > 1)
    clear = torch.zeros_like(missing, dtype=torch.bool)
    clear[shown, who[shown]] = True
    return clear


def _contrast(goals: Tensor) -> Tensor:
    """(B,), how far each is from a flat one, or from the mean of all, whichever is nearer."""
    flat = (goals - goals.mean(1, keepdim=True)).norm(dim=1)
    mean = (goals - goals.mean(0)).norm(dim=1) if len(goals) > 1 else flat
    return torch.minimum(flat, mean).clamp_min(1e-12)


def _is_input(seen: Tensor, inputs: Tensor) -> bool:
    """Whether what enters a layer, (B, n), is the input itself up to scale and shift."""
    flat = inputs.flatten(1)
    if seen.shape != flat.shape:
        return False
    both = torch.stack([seen.flatten(), flat.flatten().to(seen)])
    return bool(torch.corrcoef(both)[0, 1].abs() >= _SAME_AS_INPUT)


def _named_classes(update: Mapping[str, Tensor], head: LayerTrace, labels: Tensor, kind: Kind) -> set[int]:
    """The classes that the signs of the head's bias, or of its rows, call present; none if all are."""
    for part in ("bias", "weight"):
        sums = update.get(head.named(part))
        if sums is not None and bool(sums.any()) and len(sums) > int(labels.max()):
            falling = sums.flatten(1).sum(1) if sums.ndim > 1 else sums
            named = (falling < 0) if kind == "gradient" else (falling > 0)
            known = bool(named.all()) or len(set(labels.tolist())) == len(named)
            return set() if known else set(named.nonzero()[:, 0].tolist())
    return set()


def _moved(model: nn.Module, update: Mapping[str, Tensor]) -> nn.Module:
    """A copy of ``model`` after the update."""
    after = copy.deepcopy(model)
    with torch.no_grad():
        for name, p in after.named_parameters():
            if name in update:
                p.add_(update[name].to(p))
    return after


def _control(inputs: Tensor) -> bool:
    """In the gradient of the first example alone it is found, and none of the others is."""
    seen = inputs.flatten(1)[:8].detach().float()
    pulls = torch.zeros(len(seen), 2)
    pulls[0] = torch.tensor([1.0, -0.5])
    layer = nn.Linear(seen.shape[1], 2, device="meta")  # draws no random numbers
    one = LayerTrace(name="control", layer=layer, inputs=seen.cpu(), pulls=pulls)
    leaks = _look(torch.outer(pulls[0], seen[0].cpu()), one, "input", passes=[one])
    return [leak.example for leak in leaks] == [0]
