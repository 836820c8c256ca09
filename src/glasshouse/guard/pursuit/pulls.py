"""What each example adds to every trainable tensor of a model, along the rows that a server may combine.

The update of a tensor is a sum of one matrix G_i per example. Where a layer is evaluated once per example,
G_i = p_i x_i^T: its pulls p_i on the rows, times what it reads. In general p_i = G_i v_i with
v_i = G_i^T w / |G_i^T w| for one fixed random w, which is the same up to length and sign. Linear layers and
convolutions are recorded in one pass; all other tensors are differentiated example by example
(``torch.func``), and both of their sides are taken for rows, because nobody says which one reads.

Tensors that read the same input form a group: a server may combine rows of all of them.

Shape letters: N examples, R rows, n columns.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from glasshouse.errors import BadValue
from glasshouse.guard.layers.statistics import moved_by
from glasshouse.guard.layers.trace import LayerTrace, trace
from glasshouse.guard.layers.views import uses_of
from glasshouse.guard.pursuit.examples import Own, goals
from glasshouse.guard.pursuit.gates import Gate, gates_of
from glasshouse.guard.pursuit.gradients import (
    ODD,
    TOGETHER,
    Goal,
    each_gradient,
    project,
    with_batch_statistics,
)
from glasshouse.guard.pursuit.rows import Piece, Rows, Side, divisions
from glasshouse.guard.pursuit.search import NEVER_ZERO

_NUMBERS: Final = 2**24  # of per-example gradients in memory at a time
_PICTURE: Final = 16  # columns of which Gram matrices say something
_TINY: Final = torch.finfo(torch.float).tiny
_SAME: Final = 1 - 1e-4  # cosine from which on directions are the examples' own
_FEW: Final = 4  # examples at a time where parametrisations keep much more than their numbers
_WHOLE: Final = 2**14  # numbers of a tensor that may be one row of many


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Pulls:
    """What N examples add to the tensors of a model.

    Attributes:
        sides: of the tensors, and of units behind fixed mixtures.
        lengths: of what each example adds to each tensor, (N,), by name.
        unseen: why a tensor was not looked at, by name.
        seen: share of the numbers that was looked at.
        total: number of trainable tensors, and of buffers that examples move.
        statistics: names of these buffers.
    """

    sides: tuple[Side, ...]
    lengths: Mapping[str, Tensor]
    unseen: Mapping[str, str]
    seen: float
    total: int
    statistics: frozenset[str] = frozenset()

    @property
    def coverage(self) -> str:
        """In words."""
        count = self.total - len(self.unseen)
        return f"looked at {count} of {self.total} tensors, {math.floor(1000 * self.seen) / 10:g} %"


def pulls_of(model: nn.Module, own: Own, *, balanced: bool = True, as_sent: bool = False) -> Pulls:
    """What ``own`` examples add to each tensor that ``model`` sends in its mode; it is not modified.

    A parametrised weight is taken for what its parametrisations make: nobody gets more from the update of
    what they start from, which depends linearly on the weight's.

    Args:
        model: in the mode in which it is trained.
        own: the examples.
        balanced: as in :func:`~glasshouse.guard.pursuit.examples.goals`.
        as_sent: rows are those of the tensors that are sent, behind parametrised weights too.

    Raises:
        BadValue: the model does not run on the examples, or overflows.
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    recorded = _record(model, own, trained, balanced=balanced, as_sent=as_sent)
    sides: list[Side] = []
    lengths: dict[str, Tensor] = {}
    along: list[Tensor] = []
    for number, one in enumerate(recorded):
        # Layers that read the same inputs are combined by a server: they pull along the same direction.
        twin = next((at for at in range(number) if _read_alike(recorded[at], one)), None)
        pulls, directions = one.projected(None if twin is None else along[twin])
        along.append(directions)
        own_sides = _of_layer(one, pulls, directions)
        sides += own_sides
        whole = torch.cat([side.sizes for side in own_sides], dim=1)
        for name in one.starts or (one.named("weight"),):
            lengths[name] = torch.linalg.vector_norm(whole, dim=1)
        if one.named("bias") in trained:
            lengths[one.named("bias")] = torch.linalg.vector_norm(_summed(one.pulls, one), dim=1)
    # Whatever no layer accounts for is differentiated example by example, or named as unseen.
    others = [name for name in trained if name not in lengths]
    unseen = _differentiate(Goal(model, balanced), own, others, sides, lengths) if others else {}
    sides += _behind_mixtures(model, own, balanced=balanced)
    # Statistics that follow the examples travel with the parameters.
    moved = moved_by(model, [some.inputs for some in own.parts(TOGETHER)])
    sides += [_of_statistic(name, t) for name, t in moved.added.items()]
    unseen |= moved.unseen
    tensors = {**trained, **moved.tensors}
    numbers = sum(t.numel() for t in tensors.values())
    missed = sum(tensors[name].numel() for name in unseen)
    _check_finite(lengths)
    return Pulls(
        sides=tuple(side for side in sides if side.pulls.shape[1]),
        lengths=lengths,
        unseen=unseen,
        seen=1 - missed / max(1, numbers),
        total=len(tensors),
        statistics=frozenset(moved.tensors),
    )


def _record(
    model: nn.Module, own: Own, trained: Mapping[str, Tensor], *, balanced: bool, as_sent: bool
) -> list[LayerTrace]:
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
        if one.starts:
            is_its_own = not as_sent and all(call.starts == one.starts for call in calls)
        else:
            is_its_own = trained.get(one.named("weight")) is one.layer.weight
        if is_its_own and names.count(one.name) == 1 and _are_whole(calls, len(own)):
            gradients = [call.gradient for call in calls if call.gradient is not None]
            whole = replace(
                one,
                inputs=torch.cat([c.inputs for c in calls]),
                pulls=torch.cat([c.pulls for c in calls]),
                gradient=torch.stack(gradients).sum(0) if len(gradients) == len(calls) else None,
            )
            if whole.is_explained:  # else the layer does something else in its forward pass
                joined.append(whole)
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
    def passed(examples: Own) -> list[Gate]:
        parts = [(len(some), _goals_on(some, balanced=balanced)) for some in examples.parts(TOGETHER)]
        return gates_of(model, parts)

    # Most models have none, and two examples tell it.
    gates = passed(own) if passed(own[:2]) else []
    return [
        Side(
            name=f"units {number + 1} behind a fixed mixture",
            pulls=gate.passed,
            sizes=gate.passed.abs(),
            directions=None,
            numbers=torch.arange(gate.passed.shape[1]),
            mixed=gate.mixed,
        )
        for number, gate in enumerate(gates)
    ]


def _of_statistic(name: str, added: Tensor) -> Side:
    """A running statistic is a single row, to which each example adds itself, (N, n)."""
    lengths = torch.linalg.vector_norm(added, dim=1, keepdim=True)
    along = F.normalize(added, dim=1, eps=_TINY)
    return Side(name=name, pulls=lengths, sizes=lengths, directions=along, numbers=torch.arange(1), axes=())


def _of_layer(one: LayerTrace, pulls: Tensor, directions: Tensor) -> list[Side]:
    """One side per group of units that read the same, where that is more than a few numbers."""
    groups, units = pulls.shape[1:3]
    whole = Side(
        name=one.named("weight"),
        pulls=pulls.flatten(1).float(),
        sizes=(pulls.flatten(1).abs() if one.is_flat else one.sizes).float(),
        directions=directions[:, 0] if groups == 1 else None,
        numbers=torch.arange(groups * units),
        reach=_reach(one, pulls),
        fires=_sides(one, pulls),
    )
    # Groups read channels of their own; of very few numbers each, they are judged together.
    if groups == 1 or directions.shape[2] < _PICTURE:
        return [whole]
    places = torch.split(torch.arange(groups * units), units)
    return [
        replace(
            whole,
            pulls=whole.pulls[:, p],
            sizes=whole.sizes[:, p],
            fires=None if whole.fires is None else whole.fires[:, p],
            numbers=p,
            directions=directions[:, number],
        )
        for number, p in enumerate(places)
    ]


def _reach(one: LayerTrace, pulls: Tensor) -> Tensor | None:
    """What examples' pulls on a unit are multiplied by, (N,), if it is evaluated once: its input's length.

    Its sign is that of the direction along which the pulls are taken.
    """
    if one.is_flat:
        lengths: Tensor = torch.linalg.vector_norm(one.inputs, dim=1)
        return lengths
    passed, along = one.pulls.flatten(1), pulls.flatten(1)
    if passed.shape != along.shape or pulls.shape[1] > 1:
        return None
    reach: Tensor = (along * passed).sum(1) / passed.square().sum(1).clamp_min(_TINY)
    return reach


def _sides(one: LayerTrace, pulls: Tensor) -> Tensor | None:
    """Whether each unit answers above zero, (N, R), if it is evaluated once and its pulls never vanish."""
    if one.pulls[0].numel() != pulls[0].numel() or float((pulls != 0).double().mean()) <= NEVER_ZERO:
        return None
    with torch.no_grad():
        answers: Tensor = one.layer(one.inputs)
    return answers.flatten(1) > 0


def reads_examples(own: Own, directions: Tensor) -> bool:
    """Whether rows read the examples as they are, up to sign and length."""
    return _reach_of_inputs(own, directions) is not None


def _reach_of_inputs(own: Own, directions: Tensor) -> Tensor | None:
    """The same of rows that read the examples as they are; None: they read something else."""
    flat = own.inputs.flatten(1).to(directions)
    if flat.shape[1] != directions.shape[1]:
        return None
    reached = directions.any(1)
    reach: Tensor = (flat * directions).sum(1)
    lengths = torch.linalg.vector_norm(flat, dim=1)
    return reach if bool((reach.abs() >= _SAME * lengths)[reached].all()) else None


def _summed(pulls: Tensor, one: LayerTrace) -> Tensor:
    """What each example adds to the bias, (N, m)."""
    if one.is_flat:
        return pulls
    return pulls.flatten(1, -2).sum(1) if isinstance(one.layer, nn.Linear) else pulls.flatten(2).sum(2)


def _differentiate(
    goal: Goal, own: Own, names: Sequence[str], sides: list[Side], lengths: dict[str, Tensor]
) -> dict[str, str]:
    """Add what examples add to the tensors ``names``; returns why some could not be looked at."""
    model = with_batch_statistics(goal.model, own)
    work = Goal(model, goal.balanced)
    few = own[:2]
    # What a tensor is taken for decides how its numbers are rows; where that cannot be followed, it was not
    # looked at.
    uses = uses_of(lambda: goals(model, few, balanced=goal.balanced), model, names, (few.inputs, few.targets))
    unclear = {name: one.unclear for name, one in uses.items() if one.unclear}
    names = [name for name in names if name not in unclear]
    parts: dict[str, list[tuple[Tensor, ...]]] = {name: [] for name in names}
    trained = {name: p for name, p in model.named_parameters() if name in parts}
    numbers = sum(p.numel() for p in trained.values())
    counts = Counter(p.numel() for p in trained.values())
    ways: dict[str, list[Rows]] = {
        name: [*divisions(p.shape, whole=counts[p.numel()] > 1 and p.numel() <= _WHOLE)]
        for name, p in trained.items()
    }
    for name in ways.keys() & uses.keys():
        if not uses[name].is_own:
            ways[name] = []
        for places in uses[name].pieces:
            of_piece = divisions(places.shape, whole=False)
            ways[name] += [Piece(places=places, axes=axes) for axes in of_piece]
    try:
        # Gradients of single examples are large: as many at a time as the numbers allow, kept as lengths
        # along a direction.
        most = _FEW if any(parametrize.is_parametrized(part) for part in model.modules()) else TOGETHER
        for some in own.parts(max(1, min(most, _NUMBERS // max(1, numbers)))):
            for name, gradients in each_gradient(work, some, names).items():
                parts[name].append(project(gradients, ways[name]))
    except ODD as error:
        return unclear | dict.fromkeys(names, f"{type(error).__name__}: {error}".splitlines()[0])
    for name, chunks in parts.items():
        lengths[name] = torch.cat([chunk[0] for chunk in chunks])
        for number, axes in enumerate(ways[name]):
            place = 1 + 3 * number
            pulls, sizes, along = (torch.cat([chunk[place + k] for chunk in chunks]) for k in range(3))
            # Rows that no example reaches are left out; their numbers stay known.
            alive = sizes.any(0)
            sides.append(
                Side(
                    name=name,
                    pulls=pulls[:, alive],
                    sizes=sizes[:, alive],
                    directions=along,
                    numbers=alive.nonzero()[:, 0],
                    axes=axes,
                    reach=_reach_of_inputs(own, along),
                )
            )
    return unclear


def _check_finite(lengths: Mapping[str, Tensor]) -> None:
    broken = next((name for name, t in lengths.items() if not t.isfinite().all()), None)
    if broken is not None:
        raise BadValue(
            "inspection of a model's behaviour",
            needs="contributions of finite length to every tensor's update",
            got=f"infinite ones, or none, at {broken}",
            fix="do not train on a model that overflows",
        )
