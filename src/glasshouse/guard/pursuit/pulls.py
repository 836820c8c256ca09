"""What each example adds to every trainable tensor of a model, along the rows that a server may combine.

The update of a tensor is a sum of one matrix G_i per example. Where a layer is evaluated once per example,
G_i = p_i x_i^T: its pulls p_i on the rows, times what it reads. In general p_i = G_i v_i with
v_i = G_i^T w / |G_i^T w| for one fixed random w, which is the same up to length and sign. Linear layers and
convolutions are recorded in one pass; all other tensors are differentiated example by example
(``torch.func``), and both of their sides are taken for rows, because nobody says which one reads.

Tensors that read the same input form a group: a server may combine rows of all of them.

Shape letters: N examples, R rows, n columns.
"""

import copy
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, final

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _NormBase

from glasshouse.errors import BadValue
from glasshouse.guard.layers.trace import LayerTrace, trace
from glasshouse.guard.pursuit.examples import Own, goals
from glasshouse.guard.pursuit.gates import gates_of
from glasshouse.guard.pursuit.rows import FIRST, Axes, as_rows, divisions

TOGETHER: Final = 64
"""Examples in one pass: statistics of batch normalisation are those of a batch."""
_NUMBERS: Final = 2**24  # of per-example gradients in memory at a time
_SKETCH: Final = 8  # numbers by which directions are compared
_SAME: Final = 1e-3
_NARROW: Final = 4  # columns below which directions say nothing
_PICTURE: Final = 16  # columns of which Gram matrices say something
_TURNED: Final = 0.98
_WHOLE: Final = 2**14  # numbers of a tensor that may be one row of many
_TINY: Final = torch.finfo(torch.float).tiny


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Side:
    """One side of one tensor: its rows, and what the examples add to them.

    Attributes:
        name: of the tensor.
        pulls: (N, R).
        sizes: length of what each example adds to each row, (N, R): more than the pulls where a row is used
            at several positions.
        directions: unit vectors along which the examples pull, (N, n): what each reads, up to sign; None:
            rows read inputs of their own (groups of a convolution).
        numbers: of the rows in the tensor, (R,): rows that nobody reaches may be left out.
        axes: of the tensor that count rows; none: it is a single row.
        reach: length of what each example's row reads, (N,); None: it is read at several positions.
        ratio: what the pulls were multiplied by, (N, 1), as the group reads the same in other coordinates.
        mixed: names of the tensors whose rows a fixed mixture turns into these, which no tensor has.
    """

    name: str
    pulls: Tensor
    sizes: Tensor
    directions: Tensor | None
    numbers: Tensor
    axes: Axes = FIRST
    reach: Tensor | None = None
    ratio: Tensor | None = None
    mixed: tuple[str, ...] = ()

    @property
    def columns(self) -> int:
        """n; 0: unknown."""
        return 0 if self.directions is None else self.directions.shape[1]

    @cached_property
    def sketch(self) -> Tensor | None:
        """A few numbers of each direction, (N, 8), by which inputs are compared."""
        if self.directions is None:
            return None
        mixtures = torch.randn(self.columns, _SKETCH, generator=torch.Generator().manual_seed(1))
        return self.directions.float() @ mixtures.to(self.directions.device)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Pulls:
    """What N examples add to the tensors of a model.

    Attributes:
        sides: of the tensors, and of units behind fixed mixtures.
        lengths: of what each example adds to each tensor, (N,), by name.
        unseen: why a trainable tensor was not looked at, by name.
        seen: share of the trainable numbers that was looked at.
        total: number of trainable tensors.
    """

    sides: tuple[Side, ...]
    lengths: Mapping[str, Tensor]
    unseen: Mapping[str, str]
    seen: float
    total: int

    @property
    def coverage(self) -> str:
        """In words."""
        count = self.total - len(self.unseen)
        return f"looked at {count} of {self.total} tensors, {math.floor(1000 * self.seen) / 10:g} %"


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Group:
    """Tensors that read the same input: their rows side by side.

    Attributes:
        sides: of its tensors, in the order of the rows, with the signs of the first.
    """

    sides: tuple[Side, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the tensors, once each."""
        return tuple(dict.fromkeys(side.name for side in self.sides))

    @cached_property
    def pulls(self) -> Tensor:
        """(N, R)."""
        return torch.cat([side.pulls for side in self.sides], dim=1)

    @cached_property
    def sizes(self) -> Tensor:
        """(N, R)."""
        return torch.cat([side.sizes for side in self.sides], dim=1)


def pulls_of(model: nn.Module, own: Own, *, balanced: bool = True) -> Pulls:
    """What ``own`` examples add to each trainable tensor of ``model`` in its mode; it is not modified.

    Args:
        model: in the mode in which it is trained.
        own: the examples.
        balanced: as in :func:`~glasshouse.guard.pursuit.examples.goals`.

    Raises:
        BadValue: the model does not run on the examples, or overflows.
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    recorded = _record(model, own, trained, balanced=balanced)
    sides: list[Side] = []
    lengths: dict[str, Tensor] = {}
    along: list[Tensor] = []
    for number, one in enumerate(recorded):
        twin = next((at for at in range(number) if _read_alike(recorded[at], one)), None)
        pulls, directions = one.projected(None if twin is None else along[twin])
        along.append(directions)
        own_sides = _of_layer(one, pulls, directions)
        sides += own_sides
        whole = torch.cat([side.sizes for side in own_sides], dim=1)
        lengths[one.named("weight")] = torch.linalg.vector_norm(whole, dim=1)
        if one.named("bias") in trained:
            lengths[one.named("bias")] = torch.linalg.vector_norm(_summed(one.pulls, one), dim=1)
    others = [name for name in trained if name not in lengths]
    unseen = _differentiate(_Goal(model, balanced), own, others, sides, lengths) if others else {}
    sides += _behind_mixtures(model, own, balanced=balanced)
    numbers = sum(p.numel() for p in trained.values())
    missed = sum(trained[name].numel() for name in unseen)
    _check_finite(lengths)
    return Pulls(
        sides=tuple(side for side in sides if side.pulls.shape[1]),
        lengths=lengths,
        unseen=unseen,
        seen=1 - missed / max(1, numbers),
        total=len(trained),
    )


def groups_of(sides: Iterable[Side]) -> list[Group]:
    """The groups of tensors that read the same input, by the directions of what examples add to them."""
    parts: list[list[Side]] = []
    for side in sides:
        for group in parts:
            if (signs := _same_input(group[0], side)) is not None:
                group.append(replace(side, pulls=side.pulls * signs[:, None]))
                group[0] = _with_directions_of(group[0], side)
                break
        else:
            parts.append([side])
    for place in range(len(parts) - 1, 0, -1):
        for group in parts[:place]:
            if (ratio := _same_picture(group[0], parts[place][0])) is not None:
                group += [replace(s, pulls=s.pulls * ratio, ratio=ratio) for s in parts.pop(place)]
                break
    groups = [Group(sides=tuple(sides)) for sides in parts]
    return [group for group in groups if group.pulls.shape[1] > 1]


def ago(rounds: int) -> str:
    """What is added to the name of a tensor that was sent ``rounds`` rounds before."""
    return " a round ago" if rounds == 1 else f" {rounds} rounds ago"


def is_past(name: str) -> bool:
    """Whether a name is that of an earlier round's tensor."""
    return name.endswith((" round ago", " rounds ago"))


def stacked(before: Pulls, now: Pulls, *, rounds: int = 1) -> list[Group]:
    """Groups of two rounds on the same examples that read the same input in both: mostly the model's own."""
    earlier = [replace(side, name=f"{side.name}{ago(rounds)}") for side in before.sides]
    groups = groups_of([*now.sides, *earlier])
    marked = {side.name for side in earlier}
    return [g for g in groups if marked & set(g.names) and set(g.names) - marked]


def _record(model: nn.Module, own: Own, trained: Mapping[str, Tensor], *, balanced: bool) -> list[LayerTrace]:
    """Traces of the layers whose weight is theirs alone and that are used once, over all examples."""
    parts = [
        trace(model, some.inputs, some.targets, goals=_goals_on(some, balanced=balanced))
        for some in own.parts(TOGETHER)
    ]
    names = [one.name for one in parts[0]]
    if any(names != [one.name for one in other] for other in parts[1:]):
        return []
    joined = []
    for calls in zip(*parts, strict=True):
        one = calls[0]
        is_its_own = trained.get(one.named("weight")) is one.layer.weight
        if is_its_own and names.count(one.name) == 1 and _are_whole(calls, len(own)):
            if not all(call.is_explained for call in calls):
                continue  # the layer does something else in its forward pass
            inputs, pulls = torch.cat([c.inputs for c in calls]), torch.cat([c.pulls for c in calls])
            joined.append(replace(one, inputs=inputs, pulls=pulls))
    return joined


def _are_whole(calls: Sequence[LayerTrace], examples: int) -> bool:
    """Whether a layer's calls have an input and a pull of every example, all of one shape."""
    if any(len(c.inputs) != len(c.pulls) or c.inputs.shape[1:] != calls[0].inputs.shape[1:] for c in calls):
        return False
    return calls[0].pulls.ndim > 1 and sum(len(c.inputs) for c in calls) == examples


def _goals_on(some: Own, *, balanced: bool) -> Callable[[nn.Module], Tensor]:
    return lambda model: goals(model, some, balanced=balanced)


def _read_alike(first: LayerTrace, other: LayerTrace) -> bool:
    """Whether two layers read the same numbers at the same positions."""
    geometry = ("__class__", "kernel_size", "stride", "padding", "dilation", "groups")
    if other.is_flat or first.inputs.shape != other.inputs.shape:
        return False
    if any(getattr(first.layer, g, None) != getattr(other.layer, g, None) for g in geometry):
        return False
    return bool(torch.equal(first.inputs, other.inputs))


def _behind_mixtures(model: nn.Module, own: Own, *, balanced: bool) -> list[Side]:
    parts = [(len(some), _goals_on(some, balanced=balanced)) for some in own.parts(TOGETHER)]
    return [
        Side(
            name=f"units {number + 1} behind a fixed mixture",
            pulls=gate.passed,
            sizes=gate.passed.abs(),
            directions=None,
            numbers=torch.arange(gate.passed.shape[1]),
            mixed=gate.mixed,
        )
        for number, gate in enumerate(gates_of(model, parts))
    ]


def _of_layer(one: LayerTrace, pulls: Tensor, directions: Tensor) -> list[Side]:
    """One side per group of units that read the same, where that is more than a few numbers."""
    groups, units = pulls.shape[1:3]
    whole = Side(
        name=one.named("weight"),
        pulls=pulls.flatten(1).float(),
        sizes=(pulls.flatten(1).abs() if one.is_flat else one.sizes).float(),
        directions=directions[:, 0] if groups == 1 else None,
        numbers=torch.arange(groups * units),
        reach=torch.linalg.vector_norm(one.inputs, dim=1) if one.is_flat else None,
    )
    if groups == 1 or directions.shape[2] < _PICTURE:
        return [whole]
    places = torch.split(torch.arange(groups * units), units)
    return [
        replace(
            whole,
            pulls=whole.pulls[:, p],
            sizes=whole.sizes[:, p],
            numbers=p,
            directions=directions[:, number],
        )
        for number, p in enumerate(places)
    ]


def _summed(pulls: Tensor, one: LayerTrace) -> Tensor:
    """What each example adds to the bias, (N, m)."""
    if one.is_flat:
        return pulls
    return pulls.flatten(1, -2).sum(1) if isinstance(one.layer, nn.Linear) else pulls.flatten(2).sum(2)


def _differentiate(
    goal: "_Goal", own: Own, names: Sequence[str], sides: list[Side], lengths: dict[str, Tensor]
) -> dict[str, str]:
    """Add what examples add to the tensors ``names``; returns why some could not be looked at."""
    model = _with_batch_statistics(goal.model, own)
    work = _Goal(model, goal.balanced)
    parts: dict[str, list[tuple[Tensor, ...]]] = {name: [] for name in names}
    trained = {name: p for name, p in model.named_parameters() if name in parts}
    numbers = sum(p.numel() for p in trained.values())
    counts = Counter(p.numel() for p in trained.values())
    ways = {
        name: divisions(p.shape, whole=counts[p.numel()] > 1 and p.numel() <= _WHOLE)
        for name, p in trained.items()
    }
    try:
        for some in own.parts(max(1, min(TOGETHER, _NUMBERS // max(1, numbers)))):
            for name, gradients in _each(work, some, names).items():
                parts[name].append(_project(gradients, ways[name]))
    except _ODD as error:
        return dict.fromkeys(names, f"{type(error).__name__}: {error}".splitlines()[0])
    for name, chunks in parts.items():
        lengths[name] = torch.cat([chunk[0] for chunk in chunks])
        for number, axes in enumerate(ways[name]):
            place = 1 + 3 * number
            pulls, sizes, along = (torch.cat([chunk[place + k] for chunk in chunks]) for k in range(3))
            alive = sizes.any(0)
            sides.append(
                Side(
                    name=name,
                    pulls=pulls[:, alive],
                    sizes=sizes[:, alive],
                    directions=along,
                    numbers=alive.nonzero()[:, 0],
                    axes=axes,
                )
            )
    return {}


_ODD: Final = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, NotImplementedError)
"""What torch raises where a model cannot be differentiated example by example."""


class _Goal(nn.Module):
    """A model as a function from one example to its goal."""

    def __init__(self, model: nn.Module, balanced: bool) -> None:
        super().__init__()
        self.model, self.balanced = model, balanced

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        one = Own(inputs=inputs[None], targets=targets[None])
        return goals(self.model, one, balanced=self.balanced)[0]


def _each(goal: "_Goal", some: Own, names: Sequence[str]) -> dict[str, Tensor]:
    """The gradient of each example's goal, (b, ...), by name: all at once, or one by one where that fails."""
    work = copy.deepcopy(goal)  # a call that fails leaves shared tensors in disorder
    known = {name: p.detach() for name, p in work.named_parameters()}
    chosen = {f"model.{name}": known[f"model.{name}"] for name in names}
    rest = {name: t for name, t in [*known.items(), *work.named_buffers()] if name not in chosen}

    def of_one(tensors: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        value: Tensor = functional_call(work, {**rest, **tensors}, (inputs, targets))
        return value

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
            gradients = vmap(grad(of_one), in_dims=(None, 0, 0))(chosen, some.inputs, some.targets)
        return {name: gradients[f"model.{name}"].detach() for name in names}
    except _ODD:
        return _one_by_one(goal, some, names)


def _one_by_one(goal: _Goal, some: Own, names: Sequence[str]) -> dict[str, Tensor]:
    weights = [goal.model.get_parameter(name) for name in names]
    rows: list[list[Tensor]] = []
    for inputs, targets in zip(some.inputs, some.targets, strict=True):
        found: Sequence[Tensor | None] = torch.autograd.grad(
            goal(inputs, targets), weights, allow_unused=True
        )
        rows.append([torch.zeros_like(p) if g is None else g for g, p in zip(found, weights, strict=True)])
    return {name: torch.stack(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


def _with_batch_statistics(model: nn.Module, own: Own) -> nn.Module:
    """A copy in which one example passes as in its mode: normalised with a batch's own statistics."""
    work = copy.deepcopy(model)
    norms = [part for part in work.modules() if isinstance(part, _NormBase) and part.training]
    if norms:
        for part in norms:
            part.momentum, part.track_running_stats = 1.0, True
            if getattr(part, "running_mean", None) is None:  # batch statistics alone
                part.running_mean = torch.zeros(part.num_features, device=own.inputs.device)
                part.running_var = torch.ones(part.num_features, device=own.inputs.device)
                part.num_batches_tracked = torch.zeros((), dtype=torch.long)
        with torch.no_grad():
            work(own.inputs[:TOGETHER])
    return work.eval()


def _project(gradients: Tensor, ways: Sequence[Axes]) -> tuple[Tensor, ...]:
    """Lengths (b,), and for each way to count rows pulls (b, R), sizes (b, R), directions (b, n)."""
    parts: list[Tensor] = [torch.linalg.vector_norm(gradients.flatten(1), dim=1)]
    for axes in ways:
        rows = torch.stack([as_rows(one, axes) for one in gradients])
        mixture = torch.randn(rows.shape[1], generator=torch.Generator().manual_seed(0)).to(rows)
        along = F.normalize(mixture @ rows, dim=1, eps=_TINY)
        parts += [
            torch.einsum("bmn,bn->bm", rows, along),
            torch.linalg.vector_norm(rows, dim=2),
            along,
        ]
    return tuple(parts)


def _same_input(first: Side, other: Side) -> Tensor | None:
    """Signs (N,) by which ``other``'s directions equal ``first``'s; None: they read something else."""
    if first.sketch is None or other.sketch is None or first.columns != other.columns:
        return None
    if first.columns < _NARROW:
        return None
    signs = (first.sketch * other.sketch).sum(1).sign()
    signs = torch.where(signs == 0, 1.0, signs)  # where only one of them is reached
    both = first.sketch.any(1) & other.sketch.any(1)
    if not both.any():
        return None
    scale = float(first.sketch[both].abs().max())
    same = bool(((first.sketch - signs[:, None] * other.sketch)[both].abs() <= _SAME * scale).all())
    return signs if same else None


def _with_directions_of(first: Side, other: Side) -> Side:
    """The first side of a group, with ``other``'s directions for examples that do not reach its rows."""
    assert first.directions is not None
    assert other.directions is not None
    lacks = ~first.directions.any(1) & other.directions.any(1)
    if not lacks.any():
        return first
    return replace(first, directions=torch.where(lacks[:, None], other.directions, first.directions))


def _same_picture(first: Side, other: Side) -> Tensor | None:
    """Ratios (N, 1) of what ``first`` reads to what ``other`` does, if one is the other turned or shifted.

    Rows of both are combined after the server has undone that, which it can for each that it knows.
    """
    if first.reach is None or other.reach is None or min(first.columns, other.columns) < _PICTURE:
        return None
    grams = []
    for side in (first, other):
        assert side.directions is not None
        assert side.reach is not None
        read = side.directions.double() * side.reach.double()[:, None]
        read = read - read.mean(0)
        grams.append(read @ read.T)
    if float(F.cosine_similarity(grams[0].flatten(), grams[1].flatten(), dim=0)) < _TURNED:
        return None
    return (first.reach / other.reach.clamp_min(_TINY))[:, None]


def _check_finite(lengths: Mapping[str, Tensor]) -> None:
    broken = next((name for name, t in lengths.items() if not t.isfinite().all()), None)
    if broken is not None:
        raise BadValue(
            "inspection of a model's behaviour",
            needs="contributions of finite length to every tensor's update",
            got=f"infinite ones, or none, at {broken}",
            fix="do not train on a model that overflows",
        )
