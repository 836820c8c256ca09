"""The model as the client received it, rebuilt from a view, with the client's update.

Shape letters: R restarts, B images behind the update, C channels, H and W pixels, K classes.

Attacks search in the units of the first layer after normalisation ("model input"): the audited models contain
their normalisation as a first layer named ``normalize``, and step sizes in the literature assume normalised
images. A model without such a layer takes raw pixels.
"""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from glasshouse.attacks.base import About
from glasshouse.attacks.parts.local_steps import check_linear, known_decay
from glasshouse.errors import BadValue, Inapplicable
from glasshouse.interfaces.modes import Draws, find_draws, joins_examples, put_off, set_mode
from glasshouse.modalities.base import Modality
from glasshouse.models.build import build, load
from glasshouse.models.text.base import TextModel
from glasshouse.tensors import check_finite, device_of, scale_tensors
from glasshouse.transcript.view import View
from glasshouse.wire import CONTROL, Broadcast, Terms, Update

ALONE: Final = "hand over nn.Sequential(net): a network that is one layer has no layers with names"
LEVEL: Final = 0.1
"""See :meth:`Replica.clamped_gradient`."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Replica:
    """A client's model before local training, and the client's update.

    Attributes:
        model: with the received weights, in ``eval()`` mode, parameters without gradient; like all tensors
            here, on the device of the broadcast.
        update: as received.
        received: the value before training of every tensor in the update, by name.
        terms: of the federation.
        control: SCAFFOLD's correction of every local step, by parameter name; empty: there is none.
        scale: pixel = model input * scale + shift, (1, *shape).
        shift: pixel = model input * scale + shift, (1, *shape).
    """

    model: nn.Module
    update: Update
    received: Mapping[str, Tensor]
    terms: Terms
    scale: Tensor
    shift: Tensor
    control: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def about(self) -> About:
        """The round and the client."""
        return About(rounds=(self.update.round,), client=self.update.client)

    @property
    def images(self) -> int:
        """B, the number of examples behind the update: without those that its only pass left out."""
        every, terms = self.update.examples, self.terms
        if self.update.kind == "gradient" or terms.local_epochs > 1:
            return every
        return terms.training.used(every, terms.batch_size) or every

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example: (C, H, W) of a picture."""
        return self.terms.architecture.input_shape

    @property
    def inputs(self) -> Modality:
        """What examples look like."""
        return self.terms.architecture.inputs

    @cached_property
    def trained(self) -> nn.Module:
        """The model in the mode in which the client trained it, without its draws, which are unknown.

        The model itself in evaluation mode, if it draws nothing there; else a copy, whose batch norms in
        training mode use the statistics of the batch. Several runs of one model overwrite its running
        statistics, so callers hand in their own.
        """
        how, probes = self.terms.training, self.inputs.probes(4, torch.Generator().manual_seed(0))
        if how.mode != "training" and find_draws(self.model, probes) == Draws():
            return self.model
        copied = copy.deepcopy(self.model)
        set_mode(copied, how, dropout=False)
        put_off(copied, find_draws(copied, probes))
        return copied

    @cached_property
    def uses_batch_statistics(self) -> bool:
        """Whether :attr:`trained` uses statistics of the batch, by batch norm or by code of its own."""
        norms = (m for m in self.trained.modules() if isinstance(m, _BatchNorm))
        if any(norm.training for norm in norms):
            return True
        probes = self.inputs.probes(4, torch.Generator().manual_seed(0))
        return joins_examples(self.trained, probes.to(self.device))

    def batch_statistics(self) -> dict[str, Tensor]:
        """What the update's running statistics tell of the client's batches, by ``LAYER.mean`` and ``.var``.

        A batch norm moves its running mean by ``momentum`` of the way to the mean of each batch, so one step
        gives that mean exactly, and several an average in which later batches count more. Variances are
        torch's unbiased ones. Empty where none were sent, or a layer keeps a plain average.
        """
        if not self.uses_batch_statistics or not self.update.buffers:
            return {}
        found: dict[str, Tensor] = {}
        for name, module in self.trained.named_modules():
            keys = f"{name}.running_mean", f"{name}.running_var"
            if not isinstance(module, _BatchNorm) or not module.training or module.momentum is None:
                continue
            if any(key not in self.update.buffers for key in keys):
                return {}
            stays = (1 - module.momentum) ** self.update.steps
            mean, var = (
                (self.update.buffers[key].to(self.device) - stays * before) / (1 - stays)
                for key, before in zip(keys, (module.running_mean, module.running_var), strict=True)
                if before is not None
            )
            found |= {f"{name}.mean": mean, f"{name}.var": var.clamp_min(0)}
        return found

    @property
    def device(self) -> torch.device:
        """The device of the model and the update."""
        return self.scale.device

    @property
    def classes(self) -> int:
        """K."""
        return self.terms.architecture.classes

    def to_pixels(self, inputs: Tensor) -> Tensor:
        """Model input (..., *shape) in the units of examples; not clipped."""
        return inputs * self.scale + self.shift

    def to_image(self, inputs: Tensor) -> Tensor:
        """:meth:`to_pixels`, the nearest valid examples."""
        flat = self.to_pixels(inputs).reshape(-1, *self.shape)
        return self.inputs.project(flat).reshape(inputs.shape)

    def to_inputs(self, pixels: Tensor) -> Tensor:
        """Numbers of examples (..., *shape) as model input: the inverse of :meth:`to_pixels`."""
        return (pixels - self.shift) / self.scale

    def box(self) -> tuple[Tensor, Tensor]:
        """The declared range as smallest and largest model input, each (1, *shape)."""
        low, high = self.inputs.range
        return (low - self.shift) / self.scale, (high - self.shift) / self.scale

    def onto(self) -> Callable[[Tensor], Tensor]:
        """A function that moves model input (..., *shape) to the nearest points where a search may stand."""
        if self.inputs.boxed:
            low, high = self.box()
            return lambda points: points.clamp(low, high)

        def move(points: Tensor) -> Tensor:
            flat = self.to_pixels(points).reshape(-1, *self.shape)
            return self.to_inputs(self.inputs.relax(flat).reshape(points.shape))

        return move

    def delta(self) -> dict[str, Tensor]:
        """New parameters minus received ones.

        Raises:
            Inapplicable: the update is a gradient.
        """
        if self.update.kind == "gradient":
            raise Inapplicable(
                f"the change of parameters of client {self.update.client}",
                needs="an update of kind delta",
                got="a gradient",
                fix="match the gradient itself",
            )
        return self.sent()

    def gradient(self) -> dict[str, Tensor]:
        """The update as one gradient of the mean loss over the B images, also where clients sum losses.

        Exact for a gradient and for a single local step. After several steps it is the mean of their
        gradients, treated as if all had been taken at the received weights.

        Raises:
            Inapplicable: clients use Adam or AdamW, whose steps do not determine the gradient.
        """
        share = 1.0 / self._summed()
        if self.update.kind == "gradient":
            return self.sent() if share == 1.0 else scale_tensors(self.sent(), share)
        check_linear(self.terms, subject=f"the gradient behind the update of client {self.update.client}")
        weight = self.terms.optimizer.weight(round=self.update.round, steps=self.update.steps)
        factor = -share / (self.terms.learning_rate * weight)
        # What control variates added to every step is known: it is no part of the loss's gradient.
        gradient = {name: t * factor for name, t in self.moved().items()}
        return {n: g - self.control[n] * share if n in self.control else g for n, g in gradient.items()}

    def _summed(self) -> float:
        """How many losses a step adds up where it does not average them; 1 where it does."""
        if self.terms.training.reduction == "mean":
            return 1.0
        if self.update.kind == "gradient":
            return float(self.images)
        return float(min(self.terms.batch_size, self.images))

    def clamped_gradient(self) -> tuple[dict[str, Tensor], dict[str, float]]:
        """The gradient behind one step of Adam, softly clamped, and the levels: as high as rounding allows.

        With ``u = g / (|g| + eps)`` and any level s, ``g s / (|g| + s) = u s eps / (eps |u| + s (1 - |u|))``.
        An error r in ``u`` causes a relative error of at most s r / eps, so s is ``LEVEL`` times eps / r. An
        excess of ``|u|`` over 1 is noise and counts towards r: with enough of it the level falls to ``eps``,
        which leaves only signs.
        """
        eps, rate = self.terms.optimizer.eps, self.terms.rate(self.update.round)
        precision = max(torch.finfo(t.dtype).eps for t in self.update.tensors.values())
        clamped, levels = {}, {}
        for name, t in self.moved().items():
            u = t.double() / -rate
            size = u.abs()
            reach = 1 + float((self.received[name] + t).abs().max()) / rate
            error = max(precision * reach, float(size.max()) - 1)
            levels[name] = level = max(eps, LEVEL * eps / error)
            below = eps * size + level * (1 - size).clamp_min(0)
            clamped[name] = (u * level * eps / below.clamp_min(1e-300)).to(t.dtype)
        return clamped, levels

    def moved(self) -> dict[str, Tensor]:
        """:meth:`delta` without the known effect of weight decay on the received parameters."""
        decay = self.decay()
        return {name: t + decay[name] if decay else t for name, t in self.delta().items()}

    def decay(self) -> dict[str, Tensor]:
        """The known effect of weight decay, by name; empty if there is none, or it cannot be separated."""
        return known_decay(self.received, self.terms, round=self.update.round, steps=self.update.steps)

    @property
    def adaptive(self) -> bool:
        """Whether the update consists of steps of Adam or AdamW, which are no gradient."""
        return self.update.kind in ("delta", "parameters") and self.terms.optimizer.name != "sgd"

    def sent(self) -> dict[str, Tensor]:
        """The update in the precision of the model; it may have been sent in another."""
        return {name: t.to(self.received[name].dtype) for name, t in self.update.tensors.items()}

    def last_linear(self) -> str:
        """Name of the linear layer that computes the logits.

        Raises:
            Inapplicable: there is none.
        """
        if isinstance(self.model, TextModel):
            fitting = [] if self.model.predicts_tokens else ["head"]
        else:
            linear = {name: m for name, m in self.model.named_modules() if isinstance(m, nn.Linear)}
            outputs = math.prod(self.terms.architecture.task.outputs)
            fitting = [name for name, m in linear.items() if m.out_features == outputs]
            # Of the user's own network a pass told it; the others' layers are registered in their order.
            fitting.sort(key=lambda name: name == getattr(self.model, "head_name", ""))
            if not fitting and outputs == self.classes == 2:  # one logit decides, and the other one is 0
                fitting = [name for name, m in linear.items() if m.out_features == 1]
        if not fitting:
            raise Inapplicable(
                f"the last layer of '{self.terms.architecture.name}'",
                needs="a linear layer that computes the outputs",
                got="none",
                fix=ALONE
                if "weight" in self.received
                else "use an attack that needs no label inference, or another model",
            )
        return fitting[-1]


def replica(view: View, *, subject: str) -> Replica:
    """Rebuild the client's model from the one broadcast and update of ``view``.

    Raises:
        Inapplicable: not exactly one update, or it holds no parameters, or was computed from no example.
        BadValue: the update is not finite, or does not fit the model.
    """
    (one,) = replicas((view,), subject=subject)
    return one


def replicas(views: Sequence[View], *, subject: str) -> list[Replica]:
    """:func:`replica` for every view. Views of one broadcast share the model, which must not be changed.

    Raises:
        Inapplicable: as :func:`replica`, for any of them.
        BadValue: as :func:`replica`, for any of them.
    """
    every: list[tuple[Broadcast, Replica]] = []
    for view in views:
        broadcast, update = view.single(subject=subject)
        terms = view.terms.of_client(update.client)
        where = f"round {update.round}, client {update.client}"
        if update.kind == "logits" or update.examples < 1:
            raise Inapplicable(
                subject,
                needs="an update of parameters or their gradient, computed from at least 1 example",
                got=f"{where}: kind '{update.kind}' from {update.examples} examples",
                fix="choose an attack on logits, or a protocol that sends parameters",
            )
        check_finite(update.tensors, subject=f"{subject}: update of {where}")
        # Clients of one round were sent one model: it is built once for all of them.
        model = next((one.model for other, one in every if _is_same(broadcast, other)), None)
        model = rebuild(broadcast) if model is None else model
        parameters = dict(model.named_parameters())
        shapes = {name: p.shape for name, p in parameters.items()}
        if wrong := sorted(name for name, t in update.tensors.items() if shapes.get(name) != t.shape):
            raise BadValue(
                subject,
                needs=f"an update of the parameters of '{broadcast.architecture.name}'",
                got=f"{where}: unknown or of another shape: {', '.join(wrong)}",
                fix="pair every update with the broadcast that it answers",
            )
        device = device_of(broadcast.tensors)
        # How the model normalises its inputs says where the images lie in pixels.
        scale, shift = normalization(model, broadcast.architecture.input_shape, device=device)
        received = {name: parameters[name].detach() for name in update.tensors}
        one = Replica(
            model=model,
            update=update,
            received=received,
            terms=terms,
            scale=scale,
            shift=shift,
            control=control_of(view, broadcast, update),
        )
        every.append((broadcast, one))
    return [one for _, one in every]


def control_of(view: View, broadcast: Broadcast, update: Update) -> dict[str, Tensor]:
    """The server's control variate minus the client's, as it corrected every step behind ``update``.

    The client's own is the sum of the changes that it sent before, which a server keeps; 0 at first.
    """
    own, control = view.own.get(update.round, {}), {}
    for name in update.tensors:
        if CONTROL + name in broadcast.tensors:
            server, key = broadcast.tensors[CONTROL + name], f"{CONTROL}{update.client}.{name}"
            control[name] = server - own[key].to(server) if key in own else server
    return control


def _is_same(one: Broadcast, other: Broadcast) -> bool:
    """Whether both are the very same tensors."""
    return (
        one.architecture == other.architecture
        and one.tensors.keys() == other.tensors.keys()
        and (one.tensors is other.tensors or all(t is other.tensors[name] for name, t in one.tensors.items()))
    )


def rebuild(broadcast: Broadcast) -> nn.Module:
    """The broadcast model in ``eval()`` mode, its parameters without gradient, on the broadcast's device."""
    model = build(broadcast.architecture)
    load(model, broadcast.tensors)
    return model.to(device_of(broadcast.tensors)).eval().requires_grad_(False)


def normalization(
    model: nn.Module, shape: tuple[int, ...], *, device: torch.device | None = None
) -> tuple[Tensor, Tensor]:
    """Scale and shift (1, *shape), with pixel = model input * scale + shift, by probing the first layer."""
    layer = dict(model.named_children()).get("normalize", nn.Identity())
    with torch.no_grad():
        zero = layer(torch.zeros(1, *shape, device=device))
        slope = layer(torch.ones(1, *shape, device=device)) - zero
    return 1 / slope, -zero / slope


def complete_broadcast(view: View) -> dict[str, Tensor]:
    """The last broadcast value of every tensor of the agreed architecture."""
    tensors: dict[str, Tensor] = {}
    for one in view.rounds:
        if one.broadcast.architecture == view.terms.architecture:
            tensors |= one.broadcast.tensors
    return tensors
