"""Hide folders from this process in a mount namespace of its own, where Linux allows it.

A mount namespace belongs to one process and its children. A mount over a folder hides that folder from them
only; it ends with them, even after a crash.
Only the standard library is imported here: a process with threads cannot enter a user namespace.
"""

import ctypes
import os
import sys
from pathlib import Path

_NEW_MOUNTS, _NEW_USER = 0x00020000, 0x10000000  # unshare(2)
_BIND, _RECURSIVE, _PRIVATE = 4096, 16384, 1 << 18  # mount(2)


def enter_namespace() -> None:
    """Give this process its own mount namespace. It must be single-threaded.

    Raises:
        OSError: the system does not allow it.
    """
    if sys.platform != "linux":
        raise OSError("mount namespaces exist on Linux alone")
    user, group = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(_NEW_USER | _NEW_MOUNTS), "unshare")
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")
    _check(libc.mount(b"none", b"/", None, _RECURSIVE | _PRIVATE, None), "mount")


def hide(folder: Path) -> None:
    """Replace ``folder`` by an empty folder in this process's namespace.

    Raises:
        OSError: the system does not allow it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, b"size=64k"), f"mount over {folder}")


def replace_by(folder: Path, other: Path) -> None:
    """Replace ``folder`` by ``other`` in this process's namespace.

    Raises:
        OSError: the system does not allow it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    mounted = libc.mount(os.fsencode(other), os.fsencode(folder), None, _BIND | _RECURSIVE, None)
    _check(mounted, f"mount over {folder}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
