"""What a command prints as plain text or JSON; tables and colours: ``outside/screen``."""

import sys
from typing import Any

from glasshouse.outside.text import as_json, encodable, visible


def say(text: object, *, error: bool = False) -> None:
    """Print a text of any number of lines, sanitised, whatever the encoding of the stream.

    Args:
        text: what ``str`` makes of it is printed.
        error: to standard error.
    """
    stream = sys.stderr if error else sys.stdout
    shown = visible(str(text), several_lines=True)
    print(encodable(shown, getattr(stream, "encoding", None) or "utf-8"), file=stream, flush=error)


def say_json(value: Any, *, indent: int | None = None, error: bool = False) -> None:
    """Print ``value`` as JSON in ASCII; what JSON does not know is printed as its text."""
    print(as_json(value, indent=indent), file=sys.stderr if error else sys.stdout)
