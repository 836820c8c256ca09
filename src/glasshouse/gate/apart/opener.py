"""The process that forks one process per message: without threads, keys, or a connection but the gate's.

``python -m glasshouse.gate.apart.opener DESCRIPTOR MODULE ...`` reads requests from a socket: eight bytes of
length and files' descriptors, then a pickled call. The call is made in a fork, under limits, and its answer
(JSON) goes to the first of the descriptors. The process ends when the gate's end of the socket is closed.
"""

import ctypes
import gc
import importlib
import json
import os
import pickle
import signal
import socket
import sys
import time
from typing import Any, Final

DESCRIPTORS: Final = 4
LENGTH: Final = 8
"""Bytes that say how long a request is."""
_MMAP_THRESHOLD: Final = -3  # M_MMAP_THRESHOLD of malloc.h
LARGE_BLOCK: Final = 2**18
LARGE_MESSAGE: Final = 2**30
"""Limit of the file from which memory is scarce: messages of 256 MB and more."""
_DIE_WITH_PARENT: Final = 1  # PR_SET_PDEATHSIG of prctl.h


def return_freed_memory() -> None:
    """Let the C library return every large block when it is freed.

    By default glibc raises its limit to the size of the blocks that it sees, and keeps freed chunks in its
    heap. Elsewhere nothing is done.
    """
    library = ctypes.CDLL(None)
    if sys.platform == "linux" and hasattr(library, "mallopt"):
        library.mallopt(_MMAP_THRESHOLD, LARGE_BLOCK)


def main(descriptor: int, modules: list[str]) -> None:
    """Answer requests until the gate is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the gate's to answer
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended forks leave nothing to collect
    for module in modules:
        importlib.import_module(module)
    gc.freeze()  # a collection in a fork would copy the pages of all that was imported
    with socket.socket(fileno=descriptor) as gate:
        while True:
            head, files, _, _ = socket.recv_fds(gate, LENGTH, DESCRIPTORS)
            if not head:
                return
            request = _receive(gate, int.from_bytes(head, "big"))
            if os.fork() == 0:
                gate.close()
                _work(request, files)
            for file in files:
                os.close(file)


def _receive(gate: socket.socket, length: int) -> bytes:
    request = bytearray()
    while len(request) < length:
        part = gate.recv(min(length - len(request), 2**20))
        if not part:
            sys.exit(0)
        request += part
    return bytes(request)


def _work(request: bytes, files: list[int]) -> None:
    """Make the call and leave; what goes wrong is told as one word, or not at all if the process is ended."""
    reply, *others = files
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        call, limits, arguments = pickle.loads(request)  # noqa: S301 - sent by the gate itself
        limits.take()
        if limits.file > LARGE_MESSAGE:  # it costs small ones time, and spares large ones memory
            return_freed_memory()
        answer = {"answer": call(*arguments, *others), "processor": time.process_time()}
    except Exception as error:  # noqa: BLE001 - fails closed: no answer is a refusal
        answer = {"fault": type(error).__name__}
    try:
        _send(reply, json.dumps(answer).encode())
    finally:
        os._exit(0)


def _send(descriptor: int, content: bytes) -> None:
    view: Any = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
