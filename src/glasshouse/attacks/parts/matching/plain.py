"""The slow way to compare updates: form each candidate's update, as a gradient or by simulated training.

Shape letters: R restarts, B images, C channels, H and W pixels, K classes, P parameter tensors.

Simple enough to verify by reading, and applicable to every model and to several local steps; the reference
in the tests of :mod:`ghost`.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import final

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import CheckpointError

from glasshouse.attacks.parts.local_steps import LocalSteps, clamp_softly
from glasshouse.attacks.parts.matching.ghost_layers import explicit
from glasshouse.attacks.parts.matching.targets import Moments, moments
from glasshouse.errors import Inapplicable
from glasshouse.interfaces import task_of
from glasshouse.settings import covers
from glasshouse.tasks.base import Reduction


@final
class Plain:
    """Moments by forming each candidate's update, one candidate after the other; any model, one victim.

    Args:
        model: in the mode in which clients train it, without dropout.
        received: parameters before training, by name.
        target: the update to match, under the same names.
        masks: entries that count; see ``Ghost``.
        steps: the local steps behind the target; None: it is one gradient of all B images.
        levels: the target is a gradient clamped at these levels; see ``Replica.clamped_gradient``.
        known: terms added to a candidate's change, or to its gradient before clamping, by name: weight decay
            that was removed from the target, or that is part of it.
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
        wide = {name: masks[name].expand_as(t) for name, t in target.items() if masks and name in masks}
        # A pass may leave something behind, which no copy of a shared model could be made of.
        self._task, self._model = task_of(model), copy.deepcopy(model)
        self._against = {name: (t[None], wide.get(name)) for name, t in target.items()}
        self._start = {name: received[name].detach().clone().requires_grad_() for name in target}
        # In local steps the client's personal layers move too; from the start that everybody agreed on.
        personal = steps.training.personal if steps is not None else ()
        self._unsent = {
            name: p.detach().clone().requires_grad_()
            for name, p in model.named_parameters()
            if covers(personal, name) and name not in target
        }
        self._steps, self._levels, self._known = steps, levels, dict(known or {})
        self._reduction: Reduction = "mean" if steps is None else steps.training.reduction

    def __call__(
        self,
        inputs: Tensor,
        targets: Tensor,
        *,
        create_graph: bool = True,
        victims: Sequence[int] | None = None,
    ) -> Moments:
        """Moments of R candidate batches; see ``Ghost.__call__``."""
        assert not victims or set(victims) == {0}  # never called with several victims
        updates = (self.update(x, y, create_graph=create_graph) for x, y in zip(inputs, targets, strict=True))
        each = [
            moments([explicit(update[n][None], *one, exact=True) for n, one in self._against.items()])
            for update in updates
        ]
        return Moments(
            dot=torch.cat([m.dot for m in each], 1),
            square=torch.cat([m.square for m in each], 1),
            gap=torch.cat([m.gap for m in each if m.gap is not None], 1),
        )

    def update(self, inputs: Tensor, targets: Tensor, *, create_graph: bool = True) -> dict[str, Tensor]:
        """What a client with these B images would send: its gradient, or its change of parameters."""
        if self._levels is not None:
            slope = self._gradient(self._start, inputs, targets, create_graph)
            pulled = {name: g + self._known.get(name, 0.0) for name, g in slope.items()}
            return clamp_softly(pulled, self._levels)
        if self._steps is None:
            return self._gradient(self._start, inputs, targets, create_graph)
        buffers = self._buffers()  # what a layer keeps of a step, the next one uses

        def gradient(parameters: Mapping[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
            return self._gradient(parameters, inputs[rows], targets[rows], create_graph, buffers)

        after = self._steps.repeat({**self._start, **self._unsent}, gradient, through=create_graph)
        change = {n: after[n] - start + self._known.get(n, 0.0) for n, start in self._start.items()}
        return change if create_graph else {name: t.detach() for name, t in change.items()}

    def _buffers(self) -> dict[str, Tensor]:
        """Copies of the buffers: in training mode the forward pass would overwrite the model's."""
        return {name: t.clone() for name, t in self._model.named_buffers()}

    def _gradient(
        self,
        parameters: Mapping[str, Tensor],
        inputs: Tensor,
        targets: Tensor,
        create_graph: bool,
        buffers: dict[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """The gradient of the loss; ``buffers`` are afterwards as the forward pass left them."""
        buffers = self._buffers() if buffers is None else buffers
        with torch.enable_grad():
            # Of what was kept of the last step nobody takes a slope, and this graph needs it as it is now.
            state = {**{name: t.detach().clone() for name, t in buffers.items()}, **parameters}
            outputs = functional_call(self._model, state, (inputs,))
            buffers.update({name: state[name] for name in buffers})
            loss = self._task.loss(outputs, targets, inputs, reduction=self._reduction)
            try:
                gradients = torch.autograd.grad(
                    loss,
                    list(parameters.values()),
                    create_graph=create_graph,
                    allow_unused=True,
                    materialize_grads=True,
                )
            except CheckpointError as error:
                raise Inapplicable(
                    f"network '{type(self._model).__name__}'",
                    needs="a pass whose values are kept until its gradient is taken",
                    got="torch.utils.checkpoint, which runs parts of it again, with other weights",
                    fix="hand over the network without checkpointing; it computes the same",
                ) from error
        return dict(zip(parameters, gradients, strict=True))
