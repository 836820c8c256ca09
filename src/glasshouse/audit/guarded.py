"""The one guard through which plug-ins of every kind are called: what raises is a refusal that names it.

All other results of an audit are kept. Plug-ins are trusted code: nothing here stops a malicious one.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

from glasshouse.audit.attacking.isolation import call_plugin
from glasshouse.wire import Refusal

T = TypeVar("T")
KINDS: Final = frozenset(
    {"attack", "metric", "claim", "defense", "figure", "data set", "modality", "task", "model", "behaviour"}
)
"""What can be called; the word stands first in the refusal's subject."""


def call(kind: str, name: str, work: Callable[[], T], *, about: str = "") -> T | Refusal:
    """The result of ``work``, or a refusal that names the plug-in.

    Args:
        kind: of the plug-in, one of ``KINDS``.
        name: as registered, or its label.
        work: calls the plug-in.
        about: what it was called for, in words: "of attack 'dlg'".

    Raises:
        DiskFull: no space left, which is not the plug-in's fault.
        Interrupted: the user stopped the run.

    Examples:
        >>> call("metric", "broken", lambda: 1 / 0).got.startswith("ZeroDivisionError")
        True
    """
    assert kind in KINDS, kind
    subject = f"{kind} '{name}'" + (f" {about}" if about else "")
    answer = call_plugin(work, subject=subject)
    return replace(answer, subject=subject) if isinstance(answer, Refusal) else answer
