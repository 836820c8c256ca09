"""What one process computes once for all cells that it scores, by the content of what that depends on.

Null adversaries see no update. So cells that differ in a defence, and attacks on the same victims, ask for
the same numbers of them.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

from glasshouse.cache import digest

T = TypeVar("T")

MOST: Final = 4096
"""Entries at most, of a few numbers each; with one more all are forgotten."""
_KEPT: Final[dict[str, Any]] = {}


def once(key: object, make: Callable[[], T]) -> T:
    """What ``make`` returns, made only where this process has nothing under ``key``.

    Args:
        key: everything that the answer depends on, as :func:`glasshouse.cache.digest` takes it; None: that
            cannot be said, and the answer is made anew.
        make: must not return what its caller will change.

    Examples:
        >>> once(["example", 1], lambda: 5), once(["example", 1], lambda: 7)
        (5, 5)
    """
    if key is None:
        return make()
    name = digest(key)
    if name not in _KEPT:
        value = make()
        if len(_KEPT) >= MOST:
            _KEPT.clear()
        _KEPT[name] = value
    return cast("T", _KEPT[name])
