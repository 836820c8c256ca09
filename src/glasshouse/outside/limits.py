"""Limits on the sizes stated in untrusted files; checked before anything is allocated.

The limits are far above what an honest federation needs, and low enough that a file cannot exhaust the
machine: no single allocation within them exceeds 1 GiB. docs/transcript.md lists them.
"""

from typing import Final

FILE_BYTES: Final = 2**30
"""Bytes of one file with a model's weights."""
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
VALUES: Final = 2**28
"""Numbers (1 GiB as float32) in one model, one of its activations, or the examples behind one message."""
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
