"""How far a candidate's update is from the received one, for R candidates at once.

Shape letters: R restarts, B images, C channels, H and W pixels, K classes, P parameter tensors.

Three readings of an update: one gradient (fedsgd, or one local step); the change after several local
steps, repeated by training the replica on the candidate, differentiably (Geiping et al. 2020,
arXiv:2003.14053, section 6); or that change as if it came from one step, the cheap approximation. One step
of Adam is read as a clamped gradient, several are repeated.
The attacker knows the optimizer, its rate, the batch size, the epochs and the number of examples. It does not
know which images met in a step: candidates train in their own order, and claims have no order either.
"""

import logging
from collections.abc import Mapping
from typing import Literal, Protocol, final

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from glasshouse.attacks.parts.local_steps import LocalSteps, clamp_softly
from glasshouse.attacks.parts.matching import ghost_layers, transforms
from glasshouse.attacks.parts.matching.ghost import Ghost, Moments, moments, supports
from glasshouse.attacks.parts.matching.ghost_layers import Form
from glasshouse.attacks.parts.matching.transforms import Adaptation
from glasshouse.attacks.parts.replica import Replica
from glasshouse.errors import Inapplicable
from glasshouse.tensors import scale_tensors

LOG = logging.getLogger("glasshouse")

Distance = Literal["cosine", "squared"]
Steps = Literal["simulate", "one_step"]

ROUNDING = 1e-6
"""What float32 leaves of a distance that is 0, as a share of the received (squared) norm. bfloat16
leaves up to 1e-2, so searches in it are judged in float32."""
SOFTEN = 0.01
"""See ``LocalSteps.soften``."""


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
        steps: the local steps behind the target; None: it is one gradient of all B images.
        levels: the target is a gradient clamped at these; see ``local_steps.clamped_gradient``.
        known: what is added by name to a candidate's change, or to its gradient before it is clamped: weight
            decay that the target was freed of, or that is in it.
    """

    def __init__(
        self,
        model: nn.Module,
        received: Mapping[str, Tensor],
        target: Mapping[str, Tensor],
        *,
        masks: Mapping[str, Tensor] | None = None,
        steps: LocalSteps | None = None,
        levels: Mapping[str, float] | None = None,
        known: Mapping[str, Tensor] | None = None,
    ) -> None:
        self._model, self._target, self._masks = model, dict(target), dict(masks or {})
        self._start = {name: received[name].detach().clone().requires_grad_() for name in target}
        self._steps, self._levels, self._known = steps, levels, dict(known or {})

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
        if self._levels is not None:
            slope = self._gradient(self._start, inputs, targets, create_graph)
            pulled = {name: g + self._known.get(name, 0.0) for name, g in slope.items()}
            return clamp_softly(pulled, self._levels)
        if self._steps is None:
            return self._gradient(self._start, inputs, targets, create_graph)

        def gradient(parameters: Mapping[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
            return self._gradient(parameters, inputs[rows], targets[rows], create_graph)

        after = self._steps.repeat(self._start, gradient, through=create_graph)
        change = {name: p - self._start[name] + self._known.get(name, 0.0) for name, p in after.items()}
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


def local_steps(replica: Replica, steps: Steps, *, soften: float = 0.0) -> LocalSteps | None:
    """The steps that candidates repeat; None: the update is read as one gradient."""
    update, terms = replica.update, replica.terms
    several = update.kind != "gradient" and update.steps > 1 and steps == "simulate"
    if not several and not replica.adaptive:
        return None
    rows = schedule(replica) if several else (torch.arange(replica.images),)
    shares = [terms.optimizer.share(round=update.round, step=step) for step in range(len(rows))]
    rates = tuple(terms.learning_rate * share for share in shares)
    return LocalSteps(rows=rows, rates=rates, how=terms.optimizer, soften=soften)


def target_of(replica: Replica, steps: LocalSteps | None) -> dict[str, Tensor]:
    """What candidates are compared with: a gradient, or the change after ``steps``, known decay apart."""
    if steps is None:
        return replica.gradient()
    return scale_tensors(replica.moved(), len(steps.rows) / replica.update.steps)


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
    repeated = local_steps(replica, steps, soften=SOFTEN)
    target, levels = target_of(replica, repeated), None
    if replica.adaptive and replica.update.steps == 1:
        target, levels = replica.clamped_gradient()
    if not any(bool(t.any()) for t in target.values()):
        raise Inapplicable(
            f"matching the update of client {replica.update.client} in round {replica.update.round}",
            needs="an update that is not zero everywhere",
            got="all zeros",
            fix="attack an earlier round, or a weaker defence",
        )
    if isinstance(adaptive, Adaptation):
        adaptation = adaptive
    elif adaptive and not replica.adaptive:
        adaptation = transforms.estimate(target, last=replica.last_linear())
    else:  # steps by Adam have equal norms and scattered zeros of their own
        adaptation = Adaptation()
    engine = _engine(replica, target, adaptation, steps=repeated, levels=levels, form=form, bf16=bf16)
    return Objective(engine, target, distance=distance, adaptation=adaptation)


def _engine(
    replica: Replica,
    target: Mapping[str, Tensor],
    adaptation: Adaptation,
    *,
    steps: LocalSteps | None,
    levels: Mapping[str, float] | None,
    form: Form,
    bf16: bool,
) -> Engine:
    model, received, masks = replica.model, replica.received, adaptation.masks
    if levels is not None and steps is not None:
        LOG.info("matching a clamped gradient, one restart after the other")
        pull = steps.how.weight_decay if steps.how.name == "adam" else 0.0
        known = scale_tensors(received, pull)
        return Plain(model, received, target, masks=masks, levels=levels, known=known)
    if steps is not None:
        LOG.info("matching %d local steps by simulation, one restart after the other", len(steps.rows))
        return Plain(model, received, target, masks=masks, steps=steps, known=replica.decay())
    reason = supports(model, target, replica.shape)
    if reason is None:
        return Ghost(model, target, masks=masks, form=form, bf16=bf16)
    LOG.warning("restarts run one after the other, without ghost norms: %s", reason)
    return Plain(model, received, target, masks=masks)
