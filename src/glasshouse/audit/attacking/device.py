"""Run work on the requested device, or fall back to the CPU with a warning."""

import logging
import multiprocessing
from collections.abc import Callable
from typing import Final, TypeVar

import torch

T = TypeVar("T")

LOG: Final = logging.getLogger("glasshouse")

_CANNOT: Final = (
    "same device",
    "other device",
    "device type",
    "expected to be on",
    "not implemented for",
    "not currently implemented for",
    "support float64",
    "of supported devices",
    "no kernel image",
    "for tensor subclasses",
)
"""Parts of torch's errors for an operation that a device lacks, or for tensors on different devices."""


def run_on(device: str, work: Callable[[str], T], *, subject: str) -> T:
    """Return ``work(device)``; if the device cannot do it, warn and run it on the CPU.

    Args:
        device: as named by ``--device``.
        work: takes the device; may be called twice.
        subject: what runs, for the warning.
    """
    place = own_device(device)
    try:
        return work(place)
    except (RuntimeError, TypeError) as error:
        words = str(error)
        memory = isinstance(error, torch.OutOfMemoryError)
        if place == "cpu" or memory or not any(one in words for one in _CANNOT):
            raise
        LOG.warning("%s runs on the CPU: %s", subject, words.splitlines()[0])
    return work("cpu")


def own_device(device: str) -> str:
    """The device of this worker process; several GPUs are assigned in turn.

    Examples:
        >>> own_device("cpu")
        'cpu'
    """
    count = torch.cuda.device_count() if device == "cuda" else 0
    if count < 2:
        return device
    identity = getattr(multiprocessing.current_process(), "_identity", ()) or (1,)
    return f"cuda:{(identity[0] - 1) % count}"
