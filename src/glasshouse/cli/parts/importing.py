"""Imports of a command that runs: they take seconds, and ``--help`` must not wait for them."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module


@contextmanager
def importing() -> Iterator[None]:
    """Import what a command needs in this block; prepare this process if that brought torch.

    The garbage collector skips what is imported and lives to the end: that saves a quarter of a CPU second.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
    if "torch" in sys.modules:
        import_module("glasshouse.process").prepare_process()
