"""What examples add to the buffers that a pass moves: running statistics travel with the parameters.

The running mean of a normalisation is a sum over the batch of what each example lets through to each channel:
behind layers that gate their inputs it shows whoever enters a channel alone, without any gradient.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from glasshouse.guard.layers.trace import left_as_it_was

_UNKNOWN: Final = "the examples move this buffer in a way that is not followed"


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Moved:
    """The sent buffers that examples move.

    Attributes:
        tensors: by name.
        added: what each of N examples adds, (N, n), by name, where that is known.
        unseen: why it is not, by name.
    """

    tensors: Mapping[str, Tensor]
    added: Mapping[str, Tensor]
    unseen: Mapping[str, str]


def moved_by(model: nn.Module, inputs: Sequence[Tensor]) -> Moved:
    """What examples add to the buffers of ``model`` in its mode; it is not modified.

    Args:
        model: in the mode in which it is trained.
        inputs: of at least one part of the examples, each of which is one batch, (b, ...).
    """
    names = _moved_names(model, inputs[0])
    parts: dict[str, list[Tensor]] = {}
    handles = []

    def record(name: str, _: nn.Module, given: tuple[Tensor, ...]) -> None:
        of_each = given[0].detach().flatten(2) if given[0].ndim > 2 else given[0].detach()[:, :, None]
        parts.setdefault(f"{name}.running_mean".removeprefix("."), []).append(of_each.mean(2))
        # The server knows the mean, so that it has the sum of squares from the variance.
        parts.setdefault(f"{name}.running_var".removeprefix("."), []).append(of_each.square().mean(2))

    for name, part in model.named_modules() if names else ():
        if isinstance(part, _NormBase) and f"{name}.running_mean".removeprefix(".") in names:
            handles.append(part.register_forward_pre_hook(partial(record, name)))
    try:
        with left_as_it_was(model), torch.no_grad():
            for some in inputs if handles else ():
                model(some)
    finally:
        for handle in handles:
            handle.remove()
    count = sum(map(len, inputs))
    added = {name: torch.cat(t) for name, t in parts.items() if name in names}
    added = {name: t for name, t in added.items() if len(t) == count}  # else it is used several times
    unseen = {name: _UNKNOWN for name in names if name not in added}
    return Moved(tensors={name: model.get_buffer(name) for name in names}, added=added, unseen=unseen)


def _moved_names(model: nn.Module, inputs: Tensor) -> list[str]:
    """Names of the sent buffers that depend on which examples pass: a count of passes does not."""
    if not any(True for _ in model.buffers()):
        return []
    half = max(1, len(inputs) // 2)
    work = copy.deepcopy(model)
    sent = set(work.state_dict())
    states = []
    for some in (inputs[:half], inputs[-half:]):
        with left_as_it_was(work), torch.no_grad():
            work(some)
            states.append({name: t.clone() for name, t in work.named_buffers() if name in sent})
    first, second = states
    return [name for name, t in first.items() if not torch.equal(t, second[name])]
