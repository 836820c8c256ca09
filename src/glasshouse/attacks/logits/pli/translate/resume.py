"""Checkpoints of a translator's training, from which an interrupted training resumes."""

from collections.abc import Mapping
from typing import Final

from torch import Tensor, nn
from torch.optim import Optimizer

from glasshouse.cache import Checkpoint
from glasshouse.tensors import optimizer_tensors, restore_optimizer, take_prefix, with_prefix

EVERY: Final = 5
"""Epochs between two checkpoints."""


def keep(
    checkpoint: Checkpoint, epoch: int, nets: Mapping[str, nn.Module], optimizers: Mapping[str, Optimizer]
) -> None:
    """Save the state after ``epoch`` epochs, every ``EVERY`` epochs.

    Raises:
        DiskFull: no space; the previous checkpoint remains.
    """
    if epoch % EVERY:
        return
    tensors: dict[str, Tensor] = {}
    for name, net in nets.items():
        tensors |= with_prefix(f"net/{name}/", net.state_dict())
    for name, optimizer in optimizers.items():
        tensors |= with_prefix(f"optimiser/{name}/", optimizer_tensors(optimizer, sep="/"))
    checkpoint.save({name: t.detach().cpu().clone() for name, t in tensors.items()}, epoch)


def load_checkpoint(
    checkpoint: Checkpoint, nets: Mapping[str, nn.Module], optimizers: Mapping[str, Optimizer]
) -> int:
    """Load the last checkpoint, if any, into networks and optimizers; return its number of epochs."""
    saved = checkpoint.load()
    if saved is None:
        return 0
    tensors, epoch = saved
    for name, net in nets.items():
        net.load_state_dict(take_prefix(tensors, f"net/{name}/"))
    for name, optimizer in optimizers.items():
        restore_optimizer(optimizer, take_prefix(tensors, f"optimiser/{name}/"), sep="/")
    return epoch
