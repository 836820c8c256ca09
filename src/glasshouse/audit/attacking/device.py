"""Where work is done: on the device asked for, or with a word on the CPU."""

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
"""What torch says of an operation that a device lacks, or of tensors that lie on two of them."""


def run_on(device: str, work: Callable[[str], T], *, subject: str) -> T:
    """``work(device)``; what cannot be done there is done on the CPU, and a note says so.

    Args:
        device: as ``--device`` names it.
        work: given the device; may be called twice.
        subject: who runs, for the note.
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
    """The one of several GPUs that this worker process uses: they take turns.

    Examples:
        >>> own_device("cpu")
        'cpu'
    """
    count = torch.cuda.device_count() if device == "cuda" else 0
    if count < 2:
        return device
    identity = getattr(multiprocessing.current_process(), "_identity", ()) or (1,)
    return f"cuda:{(identity[0] - 1) % count}"
