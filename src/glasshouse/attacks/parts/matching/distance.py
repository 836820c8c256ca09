"""Distance of candidates' updates from the received one, for R candidates at once.

Shape letters: R restarts, B images, C channels, H and W pixels, K classes, P parameter tensors.

An update is read in one of three ways: as one gradient (fedsgd, or one local step); as the change after
several local steps, simulated by training the replica on the candidate, differentiably (Geiping et al. 2020,
arXiv:2003.14053, section 6); or as if that change came from one step, the cheap approximation. One step of
Adam is read as a clamped gradient, several are simulated.
The attacker knows the optimizer, its rate, the batch size, the epochs and the number of examples. It does not
know which images shared a step: candidates are trained in their own order, and claims have no order either.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor, nn

from glasshouse.attacks.parts.local_steps import LocalSteps
from glasshouse.attacks.parts.matching import transforms
from glasshouse.attacks.parts.matching.ghost import Ghost, supports
from glasshouse.attacks.parts.matching.ghost_layers import Form
from glasshouse.attacks.parts.matching.plain import Plain
from glasshouse.attacks.parts.matching.split import ROOM, Pieces, Split, mixed_by
from glasshouse.attacks.parts.matching.targets import Moments
from glasshouse.attacks.parts.matching.transforms import Adaptation
from glasshouse.attacks.parts.replica import Replica
from glasshouse.attacks.parts.search.rows import LARGE, room
from glasshouse.errors import Inapplicable
from glasshouse.tensors import norm, scale_tensors

LOG = logging.getLogger("glasshouse")

Distance = Literal["cosine", "squared"]
Steps = Literal["simulate", "one_step"]

ROUNDING = 1e-6
"""Rounding error of a zero distance in float32, as a share of the received (squared) norm. In bfloat16 it
is up to 1e-2, so searches in bfloat16 are judged in float32."""
SOFTEN = 0.01
"""See ``LocalSteps.soften``."""


Engine = Ghost | Plain
"""Computes moments of candidates; ``Ghost`` is the fast one."""


def schedule(replica: Replica) -> tuple[Tensor, ...]:
    """For each local step the indices of its images among the candidate's B, in the candidate's order.

    Example: 5 images, batches of 2 and 6 steps give 0 1 | 2 3 | 4 | 0 1 | 2 3 | 4.
    """
    batches = epoch(replica)
    return tuple(batches[step % len(batches)] for step in range(replica.update.steps))


def epoch(replica: Replica) -> tuple[Tensor, ...]:
    """:func:`schedule` of one pass over the images."""
    terms = replica.terms
    # Which images a pass leaves out is not known.
    used = terms.training.used(replica.images, terms.batch_size) or replica.images
    return torch.split(torch.arange(used), terms.batch_size * terms.training.accumulate)


@final
class Objective:
    """Distance between the received updates and each candidate's; 0 is a perfect match.

    ``cosine``: 1 - cos of the angle over all tensors jointly, in [0, 2]. ``squared``: squared L2 distance
    over all entries, in squared units of the update; with ``share``, of the victim's received squared norm.

    Args:
        engine: computes the moments, for all victims.
        targets: the update of each, by parameter name.
        distance: see above.
        adaptations: the transformation of candidates, for each victim.
    """

    def __init__(
        self,
        engine: "Engine | Fitting",
        targets: Sequence[Mapping[str, Tensor]],
        *,
        distance: Distance,
        adaptations: Sequence[Adaptation],
    ) -> None:
        self._engine, self._distance, self._adaptations = engine, distance, adaptations
        self.target_squares = tuple(norm(target) ** 2 for target in targets)
        self._by_rows: dict[tuple[int, ...], Tensor] = {}

    @property
    def target_square(self) -> float:
        """The squared norm of the one victim's update."""
        (square,) = self.target_squares
        return square

    def __call__(
        self,
        inputs: Tensor,
        targets: Tensor,
        *,
        create_graph: bool = True,
        victims: Sequence[int] | None = None,
        share: bool = False,
    ) -> Tensor:
        """(R,) float64 distances of candidates (R, B, C, H, W); other arguments as in ``Ghost.__call__``."""
        products = self._engine(inputs, targets, create_graph=create_graph, victims=victims)
        wanted = self._squares(products.dot, victims)
        dot, square, gap = products.dot, products.square, products.gap
        if any(one.scales for one in self._adaptations):
            scale, gap = self._scale(square, dot, victims), None
            dot, square = scale * dot, scale.square() * square
        if self._distance == "cosine":
            return 1 - dot.sum(0) / (square.sum(0).clamp_min(1e-30) * wanted).sqrt()
        squared = square.sum(0) - 2 * dot.sum(0) + wanted if gap is None else gap.sum(0)
        return squared / wanted if share else squared

    def _squares(self, like: Tensor, victims: Sequence[int] | None) -> Tensor | float:
        """The squared norm of every candidate's target."""
        if len(set(self.target_squares)) == 1:
            return self.target_squares[0]
        whose = tuple(victims or self._evenly(like))
        if whose not in self._by_rows:  # cached: a transfer to the GPU synchronises it
            squares = torch.tensor([self.target_squares[victim] for victim in whose], dtype=like.dtype)
            self._by_rows = {whose: squares.to(like.device)}
        return self._by_rows[whose]

    def _scale(self, square: Tensor, dot: Tensor, victims: Sequence[int] | None) -> Tensor:
        """Factors on every candidate's gradient, (P, R) or (1, R)."""
        if len(self._adaptations) == 1:
            return self._adaptations[0].scale(square, dot)
        whose = tuple(victims or self._evenly(dot))
        parts = []
        for victim, adaptation in enumerate(self._adaptations):
            if count := whose.count(victim):
                own = slice(whose.index(victim), whose.index(victim) + count)
                parts.append(adaptation.scale(square[:, own], dot[:, own]).expand(len(square), count))
        return torch.cat(parts, 1)

    def _evenly(self, like: Tensor) -> tuple[int, ...]:
        count = len(self.target_squares)
        return tuple(v for v in range(count) for _ in range(like.shape[1] // count))


@final
class Fitting:
    """An engine that takes a candidate whole where its graph fits into memory, and in pieces where not.

    Small batches are never measured, and a graph that fits is the one that ``whole`` makes.

    Args:
        whole: for candidates that fit.
        model: as of :class:`Split`, like the rest.
        received: parameters before training, by name.
        targets: g* of every victim.
        masks: for every victim the entries that count.
    """

    def __init__(
        self,
        whole: Engine,
        model: nn.Module,
        received: Mapping[str, Tensor],
        targets: Sequence[Mapping[str, Tensor]],
        masks: Sequence[Mapping[str, Tensor]],
    ) -> None:
        self._whole, self._model, self._received = whole, model, received
        self._targets, self._masks = targets, masks
        self._chosen: dict[torch.Size, Engine | Split] = {}

    def __call__(
        self,
        inputs: Tensor,
        targets: Tensor,
        *,
        create_graph: bool = True,
        victims: Sequence[int] | None = None,
    ) -> Moments:
        """Moments of R candidate batches; see ``Ghost.__call__``."""
        if inputs[0].numel() <= LARGE:
            return self._whole(inputs, targets, create_graph=create_graph, victims=victims)
        if (shape := inputs.shape[1:]) not in self._chosen:
            self._chosen[shape] = self._fitting(inputs[0], targets[0])
        return self._chosen[shape](inputs, targets, create_graph=create_graph, victims=victims)

    def _fitting(self, inputs: Tensor, targets: Tensor) -> "Engine | Split":
        """The engine for one candidate (B, ...), from the bytes that one of its images takes."""
        if reason := mixed_by(self._model, inputs, targets):
            LOG.info("a candidate is matched whole, whatever memory it takes: %s", reason)
            return self._whole
        received = {name: self._received[name] for name in self._targets[0]}
        one = Pieces(self._model, received, size=1).bytes_of_one(inputs, targets)
        most = room(inputs.device)
        if one * len(inputs) <= most:
            return self._whole
        needs = f"{one * len(inputs) / 2**30:.1f} GiB for {len(inputs)} examples"
        size = max(1, int(ROOM * most / max(1, one)))
        LOG.info("a candidate takes some %s: matched %d at a time", needs, size)
        return Split(self._model, self._received, self._targets, self._masks, size=size)


def local_steps(replica: Replica, steps: Steps, *, soften: float = 0.0) -> LocalSteps | None:
    """The local steps to simulate on candidates; None: the update is read as one gradient."""
    update, terms = replica.update, replica.terms
    several = update.kind != "gradient" and update.steps > 1 and steps == "simulate"
    several = several or (steps == "simulate" and _is_divided(replica))
    if not several and not replica.adaptive:
        return None
    rows = schedule(replica) if several else (torch.arange(replica.images),)
    shares = [terms.optimizer.share(round=update.round, step=step) for step in range(len(rows))]
    rates = tuple(terms.learning_rate * share for share in shares)
    return LocalSteps(
        rows=rows,
        rates=rates,
        how=terms.optimizer,
        training=terms.training,
        batch=terms.batch_size,
        control=replica.control,
        soften=soften,
    )


def _is_divided(replica: Replica) -> bool:
    """Whether one step has several batches whose mean gradient is not that of all its images together."""
    size, how, task = replica.terms.batch_size, replica.terms.training, replica.terms.architecture.task
    if replica.update.kind == "gradient" or how.accumulate == 1 or replica.images <= size:
        return False
    return (
        bool(replica.images % size)
        or how.leftover != "mean"
        or replica.uses_batch_statistics
        or not task.separable
    )


def target_of(replica: Replica, steps: LocalSteps | None) -> dict[str, Tensor]:
    """The target of matching: a gradient, or the change after ``steps`` without known weight decay."""
    if steps is None:
        return replica.gradient()
    return scale_tensors(replica.moved(), len(steps.rows) / replica.update.steps)


def objective(
    *clients: Replica,
    distance: Distance,
    steps: Steps = "simulate",
    adaptive: bool | Adaptation | Sequence[bool | Adaptation] = False,
    form: Form = "auto",
    bf16: bool = False,
) -> Objective:
    """The objective for the updates of ``clients``, on the fastest engine that applies.

    Args:
        clients: the client's model and the update to match; several only where :func:`can_share` says so.
        distance: see :class:`Objective`.
        steps: how several local steps are read; for one gradient or one step both are exact.
        adaptive: estimate the defence's transformation from the update and apply it to candidates, or apply
            a given one; for all clients, or for each.
        form: see ``Ghost``.
        bf16: see ``Ghost``.

    Raises:
        Inapplicable: an update is zero everywhere.
    """
    each = [adaptive] * len(clients) if isinstance(adaptive, bool | Adaptation) else adaptive
    readings = [_read(client, steps, how) for client, how in zip(clients, each, strict=True)]
    return _compare(_engine(readings, form=form, bf16=bf16), readings, distance)


def objectives(
    clients: Sequence[Replica],
    *,
    distance: Distance,
    adaptive: Sequence[bool | Adaptation],
    steps: Steps = "simulate",
    form: Form = "auto",
) -> list[Objective]:
    """:func:`objective` of each client, in float32; a shared model is prepared once.

    Raises:
        Inapplicable: an update is zero everywhere.
    """
    every, ready = list[Objective](), dict[object, Ghost]()
    for client, how in zip(clients, adaptive, strict=True):
        one = _read(client, steps, how)
        same = client.model, client.terms.training, tuple(one.target)
        engine: Engine
        if one.steps is None and same in ready:
            engine = ready[same].beside(one.target, one.adaptation.masks, apart=one.apart)
        else:
            engine = _engine([one], form=form, bf16=False)
        if isinstance(engine, Ghost):
            ready[same] = engine
        every.append(_compare(engine, [one], distance))
    return every


def _compare(engine: Engine, readings: "Sequence[_Reading]", distance: Distance) -> Objective:
    adaptations, targets = [one.adaptation for one in readings], [one.target for one in readings]
    compared: Engine | Fitting = engine
    if all(one.steps is None for one in readings):
        client, masks = readings[0].client, [one.masks for one in adaptations]
        compared = Fitting(engine, client.trained, client.received, targets, masks)
    return Objective(compared, targets, distance=distance, adaptations=adaptations)


def can_share(clients: Sequence[Replica], steps: Steps = "simulate") -> bool:
    """Whether the updates can be matched in one batch.

    True if they answer the same broadcast, with equally many images, and are read as one gradient of a model
    that supports ghost norms. Always true for a single update.
    """
    first = clients[0]
    return len(clients) == 1 or (
        all(
            one.images == first.images
            and local_steps(one, steps) is None
            and one.received.keys() == first.received.keys()
            and all(torch.equal(t, first.received[name]) for name, t in one.received.items())
            for one in clients
        )
        and supports(first.trained, first.received, first.shape) is None
    )


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Reading:
    """An update, prepared for matching.

    Attributes:
        client: that sent it.
        target: by parameter name.
        steps: to simulate on candidates; None: the target is a gradient.
        levels: the levels at which the target was clamped; None: it was not.
        adaptation: the transformation of candidates.
    """

    client: Replica
    target: Mapping[str, Tensor]
    steps: LocalSteps | None
    levels: Mapping[str, float] | None
    adaptation: Adaptation

    @property
    def apart(self) -> bool:
        """Whether moments of small tensors are needed one by one."""
        return self.adaptation.layer_clip is not None


def _read(client: Replica, steps: Steps, adaptive: bool | Adaptation) -> _Reading:
    task, how = client.terms.architecture.task, client.terms.training
    if how.reduction == "sum" and not task.separable:
        raise Inapplicable(
            f"matching the update of client {client.update.client} in round {client.update.round}",
            needs="a mean of weighted losses, or a sum of losses that have no weights",
            got=f"a sum of losses of {task!r}",
            fix="use linear_input, or another attack that repeats no loss",
        )
    repeated = local_steps(client, steps, soften=SOFTEN)
    target, levels = target_of(client, repeated), None
    if client.adaptive and client.update.steps == 1:
        target, levels = client.clamped_gradient()
    if not any(bool(t.any()) for t in target.values()):
        raise Inapplicable(
            f"matching the update of client {client.update.client} in round {client.update.round}",
            needs="an update that is not zero everywhere",
            got="all zeros",
            fix="attack an earlier round, or a weaker defence",
        )
    if isinstance(adaptive, Adaptation):
        adaptation = adaptive
    elif adaptive and not client.adaptive:
        adaptation = transforms.estimate(target, last=client.last_linear())
    else:
        adaptation = Adaptation()  # steps by Adam have equal norms and scattered zeros of their own
    target = {**target, **adaptation.restored}
    return _Reading(client=client, target=target, steps=repeated, levels=levels, adaptation=adaptation)


def _engine(readings: Sequence[_Reading], *, form: Form, bf16: bool) -> Engine:
    one, client, masks = readings[0], readings[0].client, readings[0].adaptation.masks
    model, received, steps = client.trained, client.received, one.steps
    if one.levels is not None and steps is not None:
        LOG.info("matching a clamped gradient, one restart after the other")
        known = scale_tensors(received, steps.how.weight_decay if steps.how.name == "adam" else 0.0)
        return Plain(model, received, one.target, masks=masks, steps=steps, levels=one.levels, known=known)
    if steps is not None:
        LOG.info("matching %d local steps by simulation, one restart after the other", len(steps.rows))
        return Plain(model, received, one.target, masks=masks, steps=steps, known=client.decay())
    reason = supports(model, one.target, client.shape)
    if reason is None:
        targets, every = [r.target for r in readings], [r.adaptation.masks for r in readings]
        apart = any(r.apart for r in readings)
        return Ghost(model, targets, masks=every, form=form, bf16=bf16, shape=client.shape, apart=apart)
    LOG.warning("restarts run one after the other, without ghost norms: %s", reason)
    return Plain(model, received, one.target, masks=masks)
