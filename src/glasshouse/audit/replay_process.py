"""The process in which a replay runs its attacks: ``python -m glasshouse.audit.replay_process ORDERS``.

It confines itself before it imports torch and the plug-ins. ORDERS is a file that ``replay`` wrote.

Folders are hidden in a mount namespace of its own, where Linux allows it. Such a namespace belongs to one
process and its children: a mount over a folder hides that folder from them only, and ends with them, even
after a crash. Only the standard library is imported at first: a process with threads cannot enter one.
"""

import ctypes
import os
import pickle
import sys
from pathlib import Path
from typing import Any

_NEW_MOUNTS, _NEW_USER = 0x00020000, 0x10000000  # unshare(2)
_BIND, _RECURSIVE, _PRIVATE = 4096, 16384, 1 << 18  # mount(2)
NO_NAMESPACE = 75


def enter_namespace() -> None:
    """Give this process its own mount namespace. It must be single-threaded.

    Raises:
        OSError: the system does not allow it.
    """
    if sys.platform != "linux":
        raise OSError("mount namespaces exist on Linux alone")
    user, group = os.getuid(), os.getgid()
    _call_system("unshare", _NEW_USER | _NEW_MOUNTS)
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")
    _call_system("mount", b"none", b"/", None, _RECURSIVE | _PRIVATE, None)


def _call_system(name: str, *arguments: object) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def main(orders: Path) -> int:
    """Run the tasks of ``orders`` one after another; return the exit status.

    An error of this package is written beside the orders, for the process that started this one.
    """
    raw = pickle.loads(orders.read_bytes())  # noqa: S301 - written by the process that started this one
    if not _confine(raw):
        return NO_NAMESPACE
    # Imported late: these modules may start threads.
    from glasshouse.audit.attacking.call import run_piece  # noqa: PLC0415
    from glasshouse.errors import GlasshouseError  # noqa: PLC0415
    from glasshouse.process import prepare_process  # noqa: PLC0415

    prepare_process()
    try:
        for piece in pickle.loads(raw["pieces"]):  # noqa: S301 - as above
            run_piece(piece)
    except GlasshouseError as error:
        orders.with_suffix(".error").write_bytes(pickle.dumps(error))
        return 1
    return 0


def _confine(orders: dict[str, Any]) -> bool:
    """Put an empty folder or another one in place of those to hide or replace; False: not allowed here."""
    if orders["hide"] or orders["replace"]:
        try:
            enter_namespace()
            for folder in orders["hide"]:
                _call_system("mount", b"tmpfs", os.fsencode(folder), b"tmpfs", 0, b"size=64k")
            for folder, other in orders["replace"]:
                places = os.fsencode(other), os.fsencode(folder)
                _call_system("mount", *places, None, _BIND | _RECURSIVE, None)
        except OSError:
            return False
    os.chdir(orders["working_folder"])
    return True


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
