"""Isolate the calls of plug-ins from each other: global state, exceptions, memory.

Plug-ins are trusted code: nothing here stops a malicious one. It keeps mistakes of one plug-in from
changing the results of another, and logs which plug-in made them.
"""

import logging
import os
import random
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import torch

from glasshouse.audit.attacking.needs import refusal_of
from glasshouse.errors import DiskFull, GlasshouseError, Interrupted
from glasshouse.wire import Refusal

T = TypeVar("T")

_LOG: Final = logging.getLogger(__name__)
_NO_MEMORY: Final = ("out of memory", "can't allocate memory", "cannot allocate memory")


def call_plugin(work: Callable[[], T], *, subject: str) -> T | Refusal:
    """Return the result of ``work``; turn an exception into a refusal and log its traceback.

    Args:
        work: calls the plug-in.
        subject: names the plug-in and what it was called for, for the refusal.

    Raises:
        DiskFull: no space left, which is not the plug-in's fault.
        Interrupted: the user stopped the run.
    """
    try:
        with restored_state():
            return work()
    except (DiskFull, Interrupted):
        raise
    except GlasshouseError as error:
        return refusal_of(error)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the one place where foreign code is called
        _LOG.warning("%s", "".join(traceback.format_exception(error)).rstrip())
        return _refusal_of_foreign(error, subject)


def _refusal_of_foreign(error: BaseException, subject: str) -> Refusal:
    words = f"{type(error).__name__}: {error}"
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or any(w in words.lower() for w in _NO_MEMORY):
        return Refusal(
            subject=subject,
            needs="less memory than is free",
            got=words.splitlines()[0],
            fix="use --jobs 1, a smaller batch or a smaller model",
        )
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return Refusal(
        subject=subject,
        needs="a plug-in that runs through",
        got=words.splitlines()[0][:300] + where,
        fix="report it to the plug-in's author; the traceback is in log.jsonl",
    )


@contextmanager
def restored_state() -> Iterator[None]:
    """Restore the process's global state after the block, and log what changed."""
    before = _global_state()
    generators = _generators()
    try:
        yield
    finally:
        after = _global_state()
        changed = sorted(name for name in before if before[name] != after[name])
        was_used = not all(_same(a, b) for a, b in zip(generators, _generators(), strict=True))
        _restore(before, changed)
        if was_used:
            _set_generators(generators)
            changed.append("global random generators")
        if changed:
            _LOG.info("changed %s; set back", ", ".join(changed))


def _global_state() -> dict[str, Any]:
    return {
        "torch threads": torch.get_num_threads(),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "deterministic algorithms": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        "gradient mode": torch.is_grad_enabled(),
        "working folder": str(Path.cwd()),
        "environment": dict(os.environ),
    }


def _restore(before: dict[str, Any], changed: list[str]) -> None:
    setters: dict[str, Callable[[Any], object]] = {
        "torch threads": torch.set_num_threads,
        "default dtype": torch.set_default_dtype,
        "default device": lambda device: torch.set_default_device(None if device.type == "cpu" else device),
        "deterministic algorithms": lambda pair: torch.use_deterministic_algorithms(
            pair[0], warn_only=pair[1]
        ),
        "gradient mode": torch.set_grad_enabled,
        "working folder": os.chdir,
        "environment": _restore_environment,
    }
    for name in changed:
        setters[name](before[name])


def _restore_environment(variables: dict[str, str]) -> None:
    for name in set(os.environ) - set(variables):
        del os.environ[name]
    os.environ.update(variables)


def _generators() -> tuple[Any, Any, Any]:
    return torch.get_rng_state(), np.random.get_state(legacy=False), random.getstate()  # noqa: NPY002 - to set it back


def _set_generators(states: tuple[Any, Any, Any]) -> None:
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])  # noqa: NPY002 - set back
    random.setstate(states[2])


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return all(_same(one[name], other[name]) for name in one)
    return bool(np.array_equal(one, other)) if isinstance(one, np.ndarray) else bool(one == other)
