"""A sealed process for code of a plug-in that meets the truth: what it learns there ends with it.

The process is a fork that confines itself (:mod:`glasshouse.audit.namespace`) before it runs a line of the
plug-in: no network, nothing to write to, its own home, caches and temporary folders, none of the run's files
but those that are shown. It answers questions over a pipe with JSON and tensors, so that no answer can carry
code.
"""

import builtins
import gc
import json
import logging
import os
import pickle
import socket
import struct
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import safetensors.torch
import torch
from torch import Tensor

from glasshouse import errors
from glasshouse.audit.namespace import confine, needed_places
from glasshouse.errors import BadFile, Inapplicable
from glasshouse.process import worker_killed

__all__ = ["WITHHELD", "Answered", "Sealed", "foreign_package", "is_foreign", "sealed", "told"]

Answered = tuple[Any, Mapping[str, Tensor]]
"""What a served question is answered with: something that JSON can hold, and tensors by name."""
_LENGTHS: Final = struct.Struct("<QQ")
_LOG: Final = logging.getLogger(__name__)
_PACKAGE: Final = __name__.partition(".")[0]
_RAISED: Final = "raised in the sealed process"
WITHHELD: Final = "what it said is withheld"
_WORDS: Final = 500
"""Characters of an error that are kept."""


def is_foreign(plugin: object) -> bool:
    """Whether a plug-in, or its class, is of another package, so that nobody here has read its code.

    A class says itself where it is from: it is ours only if it is found there.

    Examples:
        >>> is_foreign(Path())
        True
    """
    kind = plugin if isinstance(plugin, type) else type(plugin)
    found: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return kind.__module__.partition(".")[0] != _PACKAGE or found is not kind


def foreign_package(kind: Callable[..., Any]) -> str:
    """The package that a plug-in's class is of; empty: it is ours."""
    return kind.__module__.partition(".")[0] if is_foreign(kind) else ""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Sealed:
    """A process that answers questions.

    Attributes:
        why_open: why it is not confined, in words; empty: it is sealed.
        ask: a question, anything that can be pickled → its answer. Raises :class:`Inapplicable` with the
            words of what was raised there, :class:`WorkerKilled` if the process was killed, and
            :class:`BadFile` if the answer is no answer.
    """

    why_open: str
    ask: Callable[[Any], Answered]


@contextmanager
def sealed(
    serve: Callable[[Any], Answered],
    *,
    hide: Sequence[Path],
    show: Sequence[Path] = (),
    foreign: bool,
    subject: str,
) -> Iterator[Sealed]:
    """Serve questions in a sealed process until the block ends.

    The process sees the memory of this one as it is now: read the truth only inside the block.

    Args:
        serve: called with each question, in the process, where it may keep something between them.
        hide: folders that it must not see, such as the run's.
        show: files and folders below hidden ones that it needs, read-only.
        foreign: it runs code of another package, which must not run unsealed.
        subject: what runs, for errors.

    Raises:
        Inapplicable: the system cannot seal a process, and ``foreign``.
        WorkerKilled: the process ended before it was ready.
    """
    if not hasattr(os, "fork"):
        why = f"{sys.platform} has no namespaces"
        _refuse_open(foreign, why, subject)
        yield Sealed(why_open=why, ask=serve)
        return
    gc.collect()  # what this process read before must not be found in the memory of the next
    here, there = socket.socketpair()
    stage = Path(tempfile.mkdtemp(prefix="glasshouse-"))
    with warnings.catch_warnings():
        # The child never takes a lock of another thread: it runs one thread and ends with os._exit.
        warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*fork.*")
        process = os.fork()
    if process == 0:
        here.close()
        _run(serve, there, places=(stage, hide, show), foreign=foreign)
    there.close()
    try:
        with here.makefile("rwb") as pipe:
            (why, *_), _ = _receive(pipe, subject)
            _refuse_open(foreign, why, subject)

            def ask(question: Any) -> Answered:
                _send_bytes(pipe, pickle.dumps(question))
                answer, tensors = _receive(pipe, subject)
                lines = answer[1:] if not foreign else [f"{subject}: {WITHHELD}"] if answer[1:] else []
                for line in lines:
                    _LOG.warning("%s", line)
                if isinstance(answer[0], dict) and _RAISED in answer[0]:
                    raise _raised(subject, told(str(answer[0][_RAISED]), foreign=foreign))
                return answer[0], tensors

            yield Sealed(why_open=why, ask=ask)
    finally:
        here.close()
        with suppress(ChildProcessError):
            os.waitpid(process, 0)
        stage.rmdir()


def told(words: str, *, foreign: bool) -> str:
    """The words of an error in a sealed process as they may leave it: of foreign code its kind alone.

    Code that met the truth can say it in the text of an error, which goes into the run's log and result.

    Examples:
        >>> told("ValueError: 0.1 0.7 0.3", foreign=True), told("ValueError: too few", foreign=False)
        ('ValueError; what it said is withheld', 'ValueError: too few')
    """
    if not foreign:
        return words
    name = words.partition(":")[0]
    kind = getattr(builtins, name, getattr(errors, name, None))
    known = isinstance(kind, type) and issubclass(kind, BaseException)
    return f"{name if known else 'an error'}; {WITHHELD}"


def _raised(subject: str, words: str) -> Inapplicable:
    return Inapplicable(
        subject,
        needs="code that runs through in a sealed process, without network and without a place to write to",
        got=words,
        fix="report it to the plug-in's author",
    )


def _refuse_open(foreign: bool, why: str, subject: str) -> None:
    if foreign and why:
        raise Inapplicable(
            subject,
            needs="a sealed process for code that meets the truth: Linux with user namespaces",
            got=why,
            fix="run the audit on Linux, outside a container that forbids user namespaces (unshare --user)",
        )


def _run(
    serve: Callable[[Any], Answered],
    there: socket.socket,
    *,
    places: tuple[Path, Sequence[Path], Sequence[Path]],
    foreign: bool,
) -> None:
    """Confine this process, then answer until the other side hangs up; never returns."""
    status = 1
    try:
        torch.set_num_threads(1)  # a fork has none of its parent's threads
        _close_others(there.fileno())
        why = _confine(*places)
        notes = _Notes()
        logging.getLogger().handlers[:] = [notes]
        with there.makefile("rwb") as pipe:
            _send(pipe, [why], {})
            while (why == "" or not foreign) and (question := _read(pipe)) is not None:
                try:
                    answer, tensors = serve(pickle.loads(question))  # noqa: S301 - sent by our own process
                except Exception as error:
                    # Its words are all that is left of it: the other side cannot tell it from a kill.
                    words = " ".join(f"{type(error).__name__}: {error}".split())[:_WORDS]
                    _send(pipe, [{_RAISED: words}, *notes.drain()], {})
                    raise
                _send(pipe, [answer, *notes.drain()], tensors)
        status = 0
    finally:
        os._exit(status)


def _confine(stage: Path, hide: Sequence[Path], show: Sequence[Path]) -> str:
    """Confine this process; why that failed, in words, or an empty text."""
    try:
        confine(stage=stage, hide=hide, show=[*show, *needed_places()])
    except OSError as error:
        return f"the system does not allow it ({error.strerror or error})"
    return ""


def _close_others(kept: int) -> None:
    """Close what this process inherited, such as a worker's pipes, and silence its streams."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.closerange(3, kept)
    os.closerange(kept + 1, 65536)


@final
class _Notes(logging.Handler):
    """Keeps warnings until they are sent with the next answer."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one."""
        self._lines.append(record.getMessage())

    def drain(self) -> list[str]:
        """Those since the last call."""
        lines, self._lines = self._lines, []
        return lines


def _send(pipe: Any, answer: Any, tensors: Mapping[str, Tensor]) -> None:
    packed = safetensors.torch.save({n: t.detach().cpu().contiguous() for n, t in tensors.items()})
    text = json.dumps(answer).encode()
    pipe.write(_LENGTHS.pack(len(text), len(packed)) + text + packed)
    pipe.flush()


def _send_bytes(pipe: Any, raw: bytes) -> None:
    with suppress(BrokenPipeError):  # the next answer is missing, and says so
        pipe.write(_LENGTHS.pack(len(raw), 0) + raw)
        pipe.flush()


def _read(pipe: Any) -> bytes | None:
    """The next question; None: there will be none."""
    head = pipe.read(_LENGTHS.size)
    if len(head) < _LENGTHS.size:
        return None
    return bytes(pipe.read(_LENGTHS.unpack(head)[0]))


def _receive(pipe: Any, subject: str) -> tuple[list[Any], Mapping[str, Tensor]]:
    """The next answer. JSON and safetensors: whatever the other side writes, none of it is run."""
    try:
        head = pipe.read(_LENGTHS.size)
    except ConnectionError:
        head = b""
    if len(head) < _LENGTHS.size:
        raise worker_killed(subject)
    try:
        text, packed = (pipe.read(size) for size in _LENGTHS.unpack(head))
        answer, tensors = json.loads(text), safetensors.torch.load(packed)
    except (ValueError, OverflowError, MemoryError, ConnectionError, safetensors.SafetensorError) as error:
        raise _no_answer(subject) from error
    if not isinstance(answer, list) or not answer:
        raise _no_answer(subject)
    return answer, tensors


def _no_answer(subject: str) -> BadFile:
    return BadFile(
        subject,
        needs="an answer in JSON and safetensors",
        got="something else",
        fix="report it to the plug-in's author: its code wrote to a pipe that is not its own",
    )
