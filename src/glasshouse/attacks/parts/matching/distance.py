"""How far a candidate's update is from the received one, for R candidates at once.

Shape letters: R restarts, B images, C channels, H and W pixels, K classes, P parameter tensors.

Three readings of an update: one gradient (fedsgd, or one local step); the change after several local
steps, repeated by training the replica on the candidate, differentiably (Geiping et al. 2020,
arXiv:2003.14053, section 6); or that change as if it came from one step, the cheap approximation.
The attacker knows the learning rate, the batch size, the epochs and the number of examples. It does not
know which images met in a step: candidates train in their own order, and claims have no order either.
"""

import logging
from collections.abc import Mapping
from typing import Literal, Protocol, final

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from glasshouse.attacks.parts.matching import ghost_layers, transforms
from glasshouse.attacks.parts.matching.ghost import Ghost, Moments, moments, supports
from glasshouse.attacks.parts.matching.ghost_layers import Form
from glasshouse.attacks.parts.matching.transforms import Adaptation
from glasshouse.attacks.parts.replica import Replica
from glasshouse.errors import Inapplicable

LOG = logging.getLogger("glasshouse")

Distance = Literal["cosine", "squared"]
Steps = Literal["simulate", "one_step"]

ROUNDING = 1e-6
"""What float32 leaves of a distance that is 0, as a share of the received (squared) norm. bfloat16
leaves up to 1e-2, so searches in it are judged in float32."""


class Engine(Protocol):
    """Computes moments of candidates; ``ghost.Ghost`` is the fast one."""

    def __call__(self, inputs: Tensor, targets: Tensor, *, create_graph: bool = True) -> Moments: ...


@final
class Plain:
    """Moments by forming each candidate's update, one candidate after the other; works for any model.

    Args:
        model: in ``eval()`` mode.
        received: parameters before training, by name.
        target: the update to match, of the same names.
        masks: entries that count; see ``Ghost``.
        schedule: for each local step the rows of the B images that it uses; None: one gradient of all.
        learning_rate: of the local steps.
        momentum: of the local steps.
    """

    def __init__(
        self,
        model: nn.Module,
        received: Mapping[str, Tensor],
        target: Mapping[str, Tensor],
        *,
        masks: Mapping[str, Tensor] | None = None,
        schedule: tuple[Tensor, ...] | None = None,
        learning_rate: float = 0.0,
        momentum: float = 0.0,
    ) -> None:
        self._model, self._target, self._masks = model, dict(target), dict(masks or {})
        self._start = {name: received[name].detach().clone().requires_grad_() for name in target}
        self._schedule, self._rate, self._momentum = schedule, learning_rate, momentum

    def __call__(self, inputs: Tensor, targets: Tensor, *, create_graph: bool = True) -> Moments:
        """Moments of R candidate batches; see ``Ghost.__call__``."""
        each = [self._one(x, y, create_graph) for x, y in zip(inputs, targets, strict=True)]
        return Moments(
            dot=torch.cat([m.dot for m in each], 1),
            square=torch.cat([m.square for m in each], 1),
            gap=torch.cat([m.gap for m in each if m.gap is not None], 1),
        )

    def _one(self, inputs: Tensor, targets: Tensor, create_graph: bool) -> Moments:
        update = self.update(inputs, targets, create_graph=create_graph)
        return moments(
            [
                ghost_layers.explicit(update[name][None], target, self._mask(name), exact=True)
                for name, target in self._target.items()
            ]
        )

    def _mask(self, name: str) -> Tensor | None:
        mask = self._masks.get(name)
        return None if mask is None else mask.expand_as(self._target[name])

    def update(self, inputs: Tensor, targets: Tensor, *, create_graph: bool = True) -> dict[str, Tensor]:
        """What a client with these B images would send: its gradient, or its change of parameters."""
        if self._schedule is None:
            return self._gradient(self._start, inputs, targets, create_graph)
        now = self._start
        velocity: dict[str, Tensor] = {}
        for rows in self._schedule:
            step = self._gradient(now, inputs[rows], targets[rows], create_graph)
            if self._momentum:
                step = {n: g + self._momentum * velocity[n] if velocity else g for n, g in step.items()}
                velocity = step
            now = {name: p - self._rate * step[name] for name, p in now.items()}
            if not create_graph:
                now = {name: p.detach().requires_grad_() for name, p in now.items()}
        change = {name: now[name] - self._start[name] for name in now}
        return change if create_graph else {name: t.detach() for name, t in change.items()}

    def _gradient(
        self, parameters: Mapping[str, Tensor], inputs: Tensor, targets: Tensor, create_graph: bool
    ) -> dict[str, Tensor]:
        with torch.enable_grad():
            loss = F.cross_entropy(functional_call(self._model, dict(parameters), (inputs,)), targets)
            gradients = torch.autograd.grad(loss, list(parameters.values()), create_graph=create_graph)
        return dict(zip(parameters, gradients, strict=True))


def schedule(replica: Replica) -> tuple[Tensor, ...]:
    """Rows of the candidate's B images for each local step, in the order of the candidate.

    Example: 5 images, batches of 2 and 6 steps give 0 1 | 2 3 | 4 | 0 1 | 2 3 | 4.
    """
    batches = torch.split(torch.arange(replica.images), replica.terms.batch_size)
    return tuple(batches[step % len(batches)] for step in range(replica.update.steps))


@final
class Objective:
    """Distance between the received update and each candidate's; 0 is a perfect match.

    ``cosine``: 1 - cos of the angle over all tensors jointly, in [0, 2]. ``squared``: squared L2 distance
    over all entries, in squared units of the update.
    """

    def __init__(
        self, engine: Engine, target: Mapping[str, Tensor], *, distance: Distance, adaptation: Adaptation
    ) -> None:
        self._engine, self._distance, self._adaptation = engine, distance, adaptation
        self.target_square = float(sum(float(t.double().square().sum()) for t in target.values()))

    def __call__(self, inputs: Tensor, targets: Tensor, *, create_graph: bool = True) -> Tensor:
        """(R,) float64 distances of candidates (R, B, C, H, W); targets as in ``Ghost.__call__``."""
        products = self._engine(inputs, targets, create_graph=create_graph)
        adaptation = self._adaptation
        if self._distance == "squared" and not adaptation.scales:
            if products.gap is not None:
                return products.gap.sum(0)
            return products.square.sum(0) - 2 * products.dot.sum(0) + self.target_square
        scale = adaptation.scale(products.square, products.dot)
        dot, square = (scale * products.dot).sum(0), (scale.square() * products.square).sum(0)
        if self._distance == "squared":
            return square - 2 * dot + self.target_square
        return 1 - dot / (square.clamp_min(1e-30) * self.target_square).sqrt()


def repeats_steps(replica: Replica, steps: Steps) -> bool:
    """Whether the change after several local steps is matched, and not one gradient."""
    return replica.update.kind != "gradient" and replica.update.steps > 1 and steps == "simulate"


def objective(
    replica: Replica,
    *,
    distance: Distance,
    steps: Steps = "simulate",
    adaptive: bool | Adaptation = False,
    form: Form = "auto",
    bf16: bool = False,
) -> Objective:
    """The objective for the update in ``replica``, on the fastest engine that applies.

    Args:
        distance: see :class:`Objective`.
        steps: how several local steps are read; one gradient or one step is exact either way.
        adaptive: estimate the defence's transformation from the update and apply it to candidates, or apply
            one that was estimated before.
        form: see ``Ghost``.
        bf16: see ``Ghost``.
        replica: the client's model and the update to match.

    Raises:
        Inapplicable: the update is zero everywhere.
    """
    simulated = repeats_steps(replica, steps)
    target = replica.delta() if simulated else replica.gradient()
    if not any(bool(t.any()) for t in target.values()):
        raise Inapplicable(
            f"matching the update of client {replica.update.client} in round {replica.update.round}",
            needs="an update that is not zero everywhere",
            got="all zeros",
            fix="attack an earlier round, or a weaker defence",
        )
    if isinstance(adaptive, Adaptation):
        adaptation = adaptive
    else:
        adaptation = transforms.estimate(target, last=replica.last_linear()) if adaptive else Adaptation()
    engine = _engine(replica, target, adaptation, simulated=simulated, form=form, bf16=bf16)
    return Objective(engine, target, distance=distance, adaptation=adaptation)


def _engine(
    replica: Replica,
    target: Mapping[str, Tensor],
    adaptation: Adaptation,
    *,
    simulated: bool,
    form: Form,
    bf16: bool,
) -> Engine:
    model, received, masks = replica.model, replica.received, adaptation.masks
    if simulated:
        LOG.info("matching %d local steps by simulation, one restart after the other", replica.update.steps)
        terms = replica.terms
        return Plain(
            model,
            received,
            target,
            masks=masks,
            schedule=schedule(replica),
            learning_rate=terms.learning_rate,
            momentum=terms.momentum,
        )
    reason = supports(model, target, replica.shape)
    if reason is None:
        return Ghost(model, target, masks=masks, form=form, bf16=bf16)
    LOG.warning("restarts run one after the other, without ghost norms: %s", reason)
    return Plain(model, received, target, masks=masks)
