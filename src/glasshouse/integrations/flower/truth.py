"""Ground truth of a captured federation: a test client records what it trains on, in its own folder.

An audit is scored against the ground truth, which only the client knows. A client that is run for the audit,
on the auditor's data, records its batches in training order, and sends none of them: :func:`truth_mod`
observes the inputs of the network and of the loss, in training mode. A training loop whose loss is neither
cross-entropy nor one of torch's modules reports its batches by calling ``used``. ``glasshouse collect``
fetches the folders.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import torch
from flwr.app import Context, Message
from torch import Tensor, nn

from glasshouse.errors import BadValue
from glasshouse.integrations.flower.records import Mod, Next, arrays_of, round_of, stage_of, tensors_of
from glasshouse.integrations.flower.watching import watching
from glasshouse.truth.recorded import Recorded, write_recorded
from glasshouse.wire import Batch


def truth_mod(folder: str | Path) -> Mod:
    """A client mod that records the batches of every round of training below ``folder``.

    It goes last in ``mods``, so that it is the innermost. Images are recorded as they enter the network:
    augmented and normalised.

    Args:
        folder: of the clients on this machine; each node has its own subfolder.
    """

    def mod(message: Message, context: Context, call_next: Next) -> Message:
        if stage_of(message) != "train" or not message.has_content() or not message.content.array_records:
            return call_next(message, context)
        number = round_of(message)
        if number is None:
            raise BadValue(
                "truth_mod",
                needs="the number of the round in the message: 'server-round' in its config",
                got="none",
                fix="use a strategy of Flower, or set it where the server makes its messages",
            )
        steps = _Steps()
        with watching(steps):
            answer = call_next(message, context)
        arrays = arrays_of(answer.content) if answer.has_content() else None
        recorded = Recorded(
            node=context.node_id,
            round=number,
            steps=tuple(steps.said or steps.seen),
            pixels=steps.pixels,
            sent={} if arrays is None else tensors_of(arrays),
        )
        if recorded.steps:
            write_recorded(recorded, Path(folder).expanduser())
        return answer

    return mod


@final
@dataclass(kw_only=True)
class _Steps:
    """The batches of one round.

    Attributes:
        seen: observed by hooks.
        said: reported by :func:`~glasshouse.integrations.flower.used`; if there are any, only these count.
        pending: inputs of the network whose labels are not known yet.
        pixels: the network normalises its images itself.
    """

    seen: list[Batch] = field(default_factory=list)
    said: list[Batch] = field(default_factory=list)
    pending: Tensor | None = None
    pixels: bool = False

    def enter(self, module: nn.Module, inputs: tuple[Any, ...], *, depth: int) -> None:
        """Store the inputs of the outermost trained module."""
        trained = module.training and torch.is_grad_enabled() and any(True for _ in module.parameters())
        if depth == 0 and trained and inputs and isinstance(inputs[0], Tensor) and inputs[0].ndim == 4:
            self.pending = inputs[0]
            self.pixels = "normalize" in dict(module.named_children())

    def loss(self, labels: Tensor) -> None:
        """Record the network's last inputs with the labels of the loss."""
        if self.pending is not None:
            self.seen.append(_batch(self.pending, labels))
            self.pending = None

    def told(self, inputs: Tensor, labels: Tensor) -> None:
        """Record a batch that the training loop reports."""
        self.said.append(_batch(inputs, labels))


def _batch(inputs: Tensor, labels: Tensor) -> Batch:
    return Batch(inputs=inputs.detach().cpu().float().clone(), labels=labels.detach().cpu().long().clone())
