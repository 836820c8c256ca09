"""Limits on the sizes stated in untrusted files; checked before anything is allocated.

Most are constants, far above what an honest federation needs. How large a model, a file of weights, an index
or a capture may be depends on the machine: these are settings, by environment variable, with a default from
its memory or disk. docs/transcript.md lists them.
"""

import os
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, final

from glasshouse.errors import BadValue

FILE_BYTES: Final = 2**30
"""Bytes of one text or table."""
JSON_BYTES: Final = 2**24
"""Bytes of one JSON file."""
TOML_BYTES: Final = 2**20
"""Bytes of a scenario."""
JSONL_BYTES: Final = 2**26
"""Bytes of one file of JSON lines, or of one batch of CIFAR-10."""
LINE_BYTES: Final = 2**20
"""Bytes of one line of such a file."""
RESULT_BYTES: Final = 2**28
"""Bytes of a ``result.json``, which holds the points of every chart."""
DIGITS: Final = 30
"""Digits of an integer in JSON."""
SHARDS: Final = 1000
"""Files of one model or message."""
FILES: Final = 2**20
"""Files below one run."""
TEXT: Final = 256
"""Characters of a name."""
CHANNELS: Final = 2**10
SIDE: Final = 2**12
"""Side of an image in pixels."""
IMAGE_VALUES: Final = 2**22
"""Numbers in one image: 1,182 × 1,182 pixels of three colours."""
CLASSES: Final = 2**17
TOKENS: Final = 2**14
"""Tokens of one sentence."""
VOCABULARY: Final = 2**20
"""Tokens of one vocabulary."""
CLIENTS: Final = 2**20
ROUNDS: Final = 2**24
EXAMPLES: Final = 2**24
"""Examples of a batch, of a client, or behind one message."""
ENTRIES: Final = 2**40
"""Largest index of a number in one tensor."""
OPERATIONS: Final = 2**15
"""Torch operations that building one model may take."""
ARGUMENTS: Final = 64
"""Arguments of one plug-in."""
PICTURE_PIXELS: Final = 2**26
"""Pixels of one image file."""
UNPACKED_BYTES: Final = 2**30
"""Unpacked size that is always allowed; above it, at most ``UNPACKED_RATIO`` times the packed size."""
UNPACKED_RATIO: Final = 64
"""Largest compression ratio above ``UNPACKED_BYTES``; a higher one indicates a decompression bomb."""


@final
@dataclass(frozen=True, kw_only=True)
class Setting:
    """A limit that the user may set.

    Attributes:
        variable: the environment variable.
        least: the default on a small machine.
        per: bytes of memory that stand behind each of what is counted.
    """

    variable: str
    least: int
    per: int

    def __call__(self) -> int:
        """The limit: as set, else a share of the machine's memory.

        Raises:
            BadValue: the variable is no whole number of at least 1.
        """
        return stated(self.variable, max(self.least, memory_bytes() // self.per))

    @property
    def advice(self) -> str:
        """What to do where an honest file is above the limit."""
        return f"set {self.variable} higher if this machine can hold it; docs/transcript.md lists the limits"


NUMBERS: Final = Setting(variable="GLASSHOUSE_MOST_NUMBERS", least=2**28, per=16)
"""Numbers in one model, one of its activations, or the examples behind one message: as float32 a quarter of
the memory."""
WEIGHT_BYTES: Final = Setting(variable="GLASSHOUSE_MOST_FILE_BYTES", least=2**30, per=2)
"""Bytes of a model's weights on disk, in all their files."""
INDEX_BYTES: Final = Setting(variable="GLASSHOUSE_MOST_INDEX_BYTES", least=2**26, per=64)
"""Bytes of ``rounds.jsonl``, which takes some ten times as many in memory."""
CAPTURE: Final = "GLASSHOUSE_MOST_CAPTURE_BYTES"
"""Environment variable for the size of a capture."""


def capture_bytes(folder: Path) -> int:
    """Bytes of tensors that a capture may store: as set, else half of what is free where ``folder`` lies.

    Raises:
        BadValue: the variable is no whole number of at least 1.
    """
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    return stated(CAPTURE, max(1, shutil.disk_usage(place).free // 2))


def stated(variable: str, default: int) -> int:
    """The whole number in an environment variable, or ``default``.

    Raises:
        BadValue: something else is in it.

    Examples:
        >>> stated("GLASSHOUSE_MOST_OF_NOTHING", 7)
        7
    """
    text = os.environ.get(variable, "")
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and int(text[:DIGITS]) > 0 and len(text) <= DIGITS):
        needs = "a whole number of at least 1"
        raise BadValue(
            f"environment variable {variable}", needs=needs, got=f"'{text[:TEXT]}'", fix="correct or unset it"
        )
    return int(text)


@cache
def memory_bytes() -> int:
    """Memory of the machine, or of the container that this process runs in; 2 GiB where nobody says."""
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 2**31
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(name).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdecimal():
            physical = min(physical, int(text))
    return physical
