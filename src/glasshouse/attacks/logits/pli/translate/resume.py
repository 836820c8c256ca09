"""Checkpoints of a translator's training, from which an interrupted training resumes."""

from collections.abc import Mapping
from typing import Final

from torch import Tensor, nn
from torch.optim import Optimizer

from glasshouse.cache import Checkpoint

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
    tensors = {f"net/{name}/{key}": t for name, net in nets.items() for key, t in net.state_dict().items()}
    for name, optimizer in optimizers.items():
        for number, slots in optimizer.state_dict()["state"].items():
            tensors |= {f"optimiser/{name}/{number}/{slot}": t for slot, t in slots.items()}
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
        net.load_state_dict(_below(tensors, f"net/{name}/"))
    for name, optimizer in optimizers.items():
        slots: dict[int, dict[str, Tensor]] = {}
        for key, t in _below(tensors, f"optimiser/{name}/").items():
            number, slot = key.split("/")
            slots.setdefault(int(number), {})[slot] = t
        optimizer.load_state_dict({**optimizer.state_dict(), "state": slots})
    return epoch


def _below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
