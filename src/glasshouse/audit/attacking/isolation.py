"""Call plug-ins: on a device, and isolated from each other in global state, exceptions, memory and output.

Plug-ins are trusted code: nothing here stops a malicious one. It keeps mistakes of one plug-in from
changing the results of another, and logs which plug-in made them.
"""

import logging
import multiprocessing
import os
import random
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final, TypeVar

import numpy as np
import torch

from glasshouse.audit.attacking.needs import refusal_of
from glasshouse.errors import DiskFull, GlasshouseError, Interrupted
from glasshouse.outside.text import visible
from glasshouse.wire import Refusal

T = TypeVar("T")

_LOG: Final = logging.getLogger(__name__)
_NO_MEMORY: Final = ("out of memory", "can't allocate memory", "cannot allocate memory")
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
SHOWN: Final = 4000
"""Bytes of what a plug-in prints in one call that are shown."""


def call_plugin(work: Callable[[], T], *, subject: str) -> T | Refusal:
    """Return the result of ``work``; turn an exception into a refusal and log its traceback.

    Args:
        work: calls the plug-in.
        subject: names the plug-in and what it was called for, for the refusal.

    Raises:
        DiskFull: no space left, which is not the plug-in's fault.
        Interrupted: the user stopped the run.
        KeyboardInterrupt: the same, where the plug-in runs in the user's own process.
    """
    try:
        with held_output(subject), restored_state():
            return work()
    except (DiskFull, Interrupted):
        raise
    except GlasshouseError as error:
        return refusal_of(error)
    except BaseException as error:  # the one place where foreign code is called
        # A worker is deaf to Ctrl-C: there the plug-in raised it, and the audit must not end.
        if isinstance(error, KeyboardInterrupt) and multiprocessing.parent_process() is None:
            raise
        _LOG.warning("%s", "".join(traceback.format_exception(error)).rstrip())
        return _refusal_of_foreign(error, subject)


def call_on(device: str, work: Callable[[str], T], *, subject: str) -> T | Refusal:
    """:func:`call_plugin` with work that takes a device, as :func:`run_on` runs it."""
    return call_plugin(lambda: run_on(device, work, subject=subject), subject=subject)


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
        _LOG.warning("%s runs on the CPU: %s", subject, words.splitlines()[0])
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


@contextmanager
def held_output(subject: str) -> Iterator[None]:
    """Keep what is printed in this block, in Python or below it, from the streams of a worker.

    Its first ``SHOWN`` bytes follow on stderr, harmless to a terminal: stdout may hold the result. In the
    user's own process nothing is held.
    """
    if multiprocessing.parent_process() is None:
        yield
        return
    names, numbers = ("stdout", "stderr"), (1, 2)
    streams, copies = [getattr(sys, name) for name in names], [os.dup(number) for number in numbers]
    with tempfile.TemporaryFile() as held:
        for number in numbers:
            os.dup2(held.fileno(), number)
        try:
            yield
        finally:
            for name, number, stream, copy in zip(names, numbers, streams, copies, strict=True):
                for one in {id(one): one for one in (getattr(sys, name), stream)}.values():
                    with suppress(AttributeError, OSError, ValueError):  # replaced or closed
                        one.flush()
                os.dup2(copy, number)
                os.close(copy)
                closed = getattr(stream, "closed", False)
                setattr(sys, name, os.fdopen(number, "w", closefd=False) if closed else stream)
            _show(held, subject)


def _show(held: IO[bytes], subject: str) -> None:
    size = os.fstat(held.fileno()).st_size
    if not size:
        return
    held.seek(0)
    said = visible(held.read(SHOWN).decode(errors="backslashreplace"), several_lines=True).rstrip("\n")
    more = f"\n({size - SHOWN} further bytes are not shown)" if size > SHOWN else ""
    with suppress(OSError):
        os.write(2, f"{subject} printed:\n{said}{more}\n".encode())


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
    before = {name: get() for name, (get, _) in _STATE.items()}
    try:
        yield
    finally:
        changed = [name for name, (get, _) in _STATE.items() if not _same(before[name], get())]
        for name in changed:
            _STATE[name][1](before[name])
        if changed:
            _LOG.info("changed %s; set back", ", ".join(changed))


def _determinism() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _working_folder() -> str:
    """The working folder; empty: it is gone."""
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return ""


def _return_to(folder: str) -> None:
    with suppress(FileNotFoundError):  # somebody took it away: that is not the plug-in that is called next
        os.chdir(folder)


def _raising_warnings() -> tuple[Any, ...]:
    """The filters that turn warnings into errors; others may come with what is imported, and stay."""
    return tuple(one for one in warnings.filters if one[0] == "error")


def _let_raise(filters: tuple[Any, ...]) -> None:
    kept = [one for one in warnings.filters if one[0] != "error" or one in filters]
    warnings.filters[:] = kept  # type: ignore[index]  # a list, declared as a sequence
    warnings._filters_mutated()  # type: ignore[attr-defined]  # else its cache answers


def _restore_environment(variables: dict[str, str]) -> None:
    for name in set(os.environ) - set(variables):
        del os.environ[name]
    os.environ.update(variables)


def _generators() -> list[Any]:
    return [torch.get_rng_state(), np.random.get_state(legacy=False), random.getstate()]  # noqa: NPY002 - to set it back


def _set_generators(states: list[Any]) -> None:
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])  # noqa: NPY002 - set back
    random.setstate(states[2])


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, list):
        return all(map(_same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    return bool(np.array_equal(one, other) if isinstance(one, torch.Tensor | np.ndarray) else one == other)


_STATE: Final[Mapping[str, tuple[Callable[[], Any], Callable[[Any], object]]]] = {
    "default device": (
        torch.get_default_device,
        lambda device: torch.set_default_device(None if device.type == "cpu" else device),
    ),
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "deterministic algorithms": (
        _determinism,
        lambda pair: torch.use_deterministic_algorithms(pair[0], warn_only=pair[1]),
    ),
    "environment": (lambda: dict(os.environ), _restore_environment),
    "gradient mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "gradients' checks": (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    "NumPy's warnings": (np.geterr, lambda kinds: np.seterr(**kinds)),
    "warnings that raise": (_raising_warnings, _let_raise),
    "switched-off logs": (lambda: logging.root.manager.disable, logging.disable),
    "torch threads": (torch.get_num_threads, torch.set_num_threads),
    "working folder": (_working_folder, _return_to),
    "global random generators": (_generators, _set_generators),
}
"""How to read and to set each part of the global state, in the order in which they are set back."""
