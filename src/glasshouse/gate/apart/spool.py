"""Objects of a message in a file without a name: memory holds none of them, a kill leaves nothing behind."""

import os
import tempfile
import threading
import weakref
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import final


@final
class Spool(MutableMapping[str, bytes]):
    """Objects by name, each read from the file when it is asked for; several threads may add to it.

    Args:
        descriptor: of the file, which is closed with the spool.
        places: start and length of what stands in it already.

    Examples:
        >>> spool = Spool.inside(Path(tempfile.gettempdir()))
        >>> spool["a"], spool["b"] = b"row", b""
        >>> spool["a"], spool["b"], len(spool)
        (b'row', b'', 2)
        >>> spool.clear()
        >>> "a" in spool
        False
    """

    def __init__(self, descriptor: int, places: dict[str, tuple[int, int]] | None = None) -> None:
        self.descriptor, self.places = descriptor, dict(places or {})
        self._end = os.fstat(descriptor).st_size  # what others wrote stays
        self._lock = threading.Lock()
        self._close = weakref.finalize(self, os.close, descriptor)

    @classmethod
    def inside(cls, folder: Path) -> "Spool":
        """An empty spool whose file lies in ``folder``.

        Raises:
            OSError: no file can be made there.
        """
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            return cls(os.dup(file.fileno()))

    def at(self, places: dict[str, tuple[int, int]]) -> "Spool":
        """The same file with other places, as another process wrote them."""
        return Spool(os.dup(self.descriptor), places)

    def __getitem__(self, name: str) -> bytes:
        start, length = self.places[name]
        parts: list[bytes] = []
        while length:  # the system hands out at most 2 GiB at a time
            parts.append(os.pread(self.descriptor, length, start))
            start, length = start + len(parts[-1]), length - len(parts[-1])
            if not parts[-1]:
                raise OSError("a spooled object was cut")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def __setitem__(self, name: str, content: bytes | memoryview) -> None:
        self.add(name, content)

    def add(self, name: str, *parts: bytes | memoryview) -> None:
        """Add an object in parts, without joining them."""
        views = [memoryview(part) for part in parts if len(part)]
        length = sum(map(len, views))
        with self._lock:  # each writer has a place of its own, and none waits for another's disk
            start, self._end = self._end, self._end + length
        place = start
        while views:
            done = os.pwritev(self.descriptor, views, place)
            place += done
            while views and done >= len(views[0]):
                done -= len(views.pop(0))
            if done:
                views[0] = views[0][done:]
        self.places[name] = (start, length)

    def __delitem__(self, name: str) -> None:
        del self.places[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)

    def __contains__(self, name: object) -> bool:
        return name in self.places

    def copy_into(self, name: str, start: int, target: memoryview) -> None:
        """Fill ``target`` with an object's bytes from ``start`` on.

        Raises:
            OSError: there are not as many.
        """
        place, length = self.places[name]
        if start + len(target) > length:
            raise OSError("a spooled object was cut")
        place += start
        while target:
            done = os.preadv(self.descriptor, [target], place)
            if not done:
                raise OSError("a spooled object was cut")
            place, target = place + done, target[done:]

    def clear(self) -> None:
        """Forget everything, and give its room on the disk back.

        What comes later has other places: at an old one nothing else can ever stand.
        """
        with self._lock:
            self.places.clear()
            os.ftruncate(self.descriptor, 0)


def size_of(contents: Mapping[str, bytes], name: str) -> int:
    """Bytes of an object; a spooled one is not read for it."""
    return contents.places[name][1] if isinstance(contents, Spool) else len(contents[name])


def copy_into(contents: Mapping[str, bytes], name: str, start: int, target: memoryview) -> None:
    """Fill ``target`` with an object's bytes from ``start`` on; of a spooled one no others are read."""
    if isinstance(contents, Spool):
        contents.copy_into(name, start, target)
    else:
        target[:] = memoryview(contents[name])[start : start + len(target)]
