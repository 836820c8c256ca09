"""How a process of Glasshouse computes: one thread, and memory that it frees is kept for the next step."""

import ctypes
import sys

import torch

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt(3)
_BLOCK, _KEPT = 2**28, 2**29


def settle() -> None:
    """What every process does before it computes; harmless twice.

    One torch thread: two in one process were measured up to ten times slower than one when anything else ran.
    Blocks up to 256 MiB come from the heap, and up to 512 MiB of free heap stay: glibc otherwise hands larger
    activations back and has their pages zeroed again in the next step (1.1 to 1.7 times the time of a small
    convolutional network). Other C libraries are left as they are. No result depends on either.
    """
    torch.set_num_threads(1)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _BLOCK)
        mallopt(_TRIM_THRESHOLD, _KEPT)
