"""Confine this process: no network, no writing, and folders out of its sight, by Linux namespaces.

Only the standard library is imported: a process with several threads cannot enter a namespace, and a process
that confines itself must do so before it imports what may start threads, or right after a fork.

What a confined process is left with: the files of the system, read-only and without the folders that are
hidden; an empty folder for temporary files and an empty home folder, which vanish with it; null, zero and
random devices, and those of an accelerator; no other process, no network, no shared memory, no key of the
session and no capability to change any of it.
"""

import ctypes
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

__all__ = ["confine", "needed_places"]

_NEW: Final = {"mount": 0x20000, "uts": 0x4000000, "ipc": 0x8000000, "user": 0x10000000, "pid": 0x20000000}
_NEW_NETWORK: Final = 0x40000000  # unshare(2)
_BIND, _RECURSIVE, _MOVE, _PRIVATE = 4096, 16384, 8192, 1 << 18  # mount(2)
_SET_ATTRIBUTES, _BELOW, _READ_ONLY = (
    442,
    0x8000,
    1,
)  # mount_setattr(2), the same number on all machines but alpha
_HERE: Final = -100
_KEYCTL: Final = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "ppc64le": 271, "s390x": 280}
"""keyctl(2) by machine; elsewhere a confined process keeps its session's keys."""
_JOIN_SESSION: Final = 1
_DIE_WITH_PARENT, _NO_NEW_RIGHTS, _KILL = 1, 38, 9  # prctl(2)
_CAPABILITIES_3: Final = 0x20080522
_DEVICES: Final = ("null", "zero", "full", "random", "urandom")
_SIZE: Final = b"size=512m"
_SHARED: Final = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - to hide them, never to write there


class _Attributes(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("set", "clear", "spread", "user"))


def confine(
    *, stage: Path, hide: Iterable[Path], show: Iterable[Path] = (), write: Iterable[Path] = ()
) -> None:
    """Confine this process for good. It goes on in a child; what called it waits, and ends with the child.

    Args:
        stage: an empty folder to work in, which the caller removes afterwards.
        hide: folders in whose place an empty one is put. Those for temporary files and the home folder always
            are.
        show: files and folders below hidden ones that stay visible, read-only.
        write: folders that stay writable.

    Raises:
        OSError: the system does not allow it. Nothing was confined, or only in part: the process must end.
    """
    if sys.platform != "linux":
        raise OSError("namespaces exist on Linux alone")
    user, group, stage = os.getuid(), os.getgid(), stage.resolve()
    fresh = _outermost_last([*map(Path, _fresh_folders()), *hide], stage)
    _call("unshare", sum(_NEW.values()) | _NEW_NETWORK)
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")
    _call("mount", b"none", b"/", None, _RECURSIVE | _PRIVATE, None)
    _go_on_in_child()
    _call("mount", b"proc", b"/proc", b"proc", 0, None)  # else other processes could be reached through it
    kept = [path.resolve() for path in (*show, *write) if path.exists()]
    for folder in fresh:
        if folder.is_dir():
            _replace(folder, [path for path in kept if folder in path.parents], stage)
    devices = [Path("/dev") / name for name in _DEVICES] + sorted(Path("/dev").glob("nvidia*"))
    _replace(Path("/dev"), devices, stage)
    _set_attributes(Path("/"), set_=_READ_ONLY, below=True)
    for folder in (*map(Path, _fresh_folders()), *write):
        if folder.is_dir():
            _set_attributes(folder.resolve(), clear=_READ_ONLY)
    _leave_keys()
    _drop_rights()


def needed_places() -> list[Path]:
    """Where Python and its packages lie, which must stay visible."""
    places = [Path(p) for p in (sys.prefix, sys.base_prefix, *sys.path) if p and Path(p).exists()]
    return [place.resolve() for place in places]


def _fresh_folders() -> list[str]:
    """Folders in which programs leave something for themselves; each confined one gets its own."""
    home = str(Path.home()) if Path.home() != Path("/") else ""
    named = [tempfile.gettempdir(), *_SHARED, home, os.environ.get("XDG_CACHE_HOME", "")]
    return [str(Path(name).resolve()) for name in dict.fromkeys(named) if name and Path(name).is_dir()]


def _outermost_last(folders: Sequence[Path], stage: Path) -> list[Path]:
    """Inner folders first, so that what is hidden in a folder stays so where part of it is shown again."""
    each = {folder.resolve() for folder in folders if folder.is_dir()}
    return sorted(each, key=lambda folder: (folder in stage.parents, -len(folder.parts), str(folder)))


def _replace(folder: Path, kept: Sequence[Path], stage: Path) -> None:
    """Put an empty file system in the place of ``folder``, with those of its contents that are kept."""
    stage.mkdir(parents=True, exist_ok=True)
    _call("mount", b"tmpfs", os.fsencode(stage), b"tmpfs", 0, _SIZE)
    for path in sorted(kept):
        place = stage / path.relative_to(folder)
        if place.exists():
            continue  # it lies in one that is kept as a whole
        if path.is_dir():
            place.mkdir(parents=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
        _call("mount", os.fsencode(path), os.fsencode(place), None, _BIND | _RECURSIVE, None)
    _call("mount", os.fsencode(stage), os.fsencode(folder), None, _MOVE, None)


def _go_on_in_child() -> None:
    """Return in a child, the first process of its namespace; wait for it here, and end as it does."""
    child = os.fork()
    _call("prctl", _DIE_WITH_PARENT, _KILL, 0, 0, 0)
    if child == 0:
        return
    _, status = os.waitpid(child, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _set_attributes(folder: Path, *, set_: int = 0, clear: int = 0, below: bool = False) -> None:
    attributes = _Attributes(set_, clear, 0, 0)
    flags = _BELOW if below else 0
    size = ctypes.sizeof(attributes)
    _call("syscall", _SET_ATTRIBUTES, _HERE, os.fsencode(folder), flags, ctypes.byref(attributes), size)


def _leave_keys() -> None:
    """Join an empty keyring: no namespace is around that of the session, which outlives this process."""
    number = _KEYCTL.get(os.uname().machine)
    if number is not None and ctypes.CDLL(None).syscall(number, _JOIN_SESSION, None) < 0:
        return  # forbidden or not there, for whatever runs in this process, too


def _drop_rights() -> None:
    """Give up the capabilities that the namespace brought, so that none of its mounts can be changed."""
    header, data = (ctypes.c_uint32 * 2)(_CAPABILITIES_3, 0), (ctypes.c_uint32 * 6)()
    _call("prctl", _NO_NEW_RIGHTS, 1, 0, 0, 0)
    _call("capset", ctypes.byref(header), ctypes.byref(data))


def _call(name: str, *arguments: object) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
