"""A document as it travels in a message: one tensor of bytes, zeros behind its end.

The tensor has a fixed size, as every tensor of a federation has, so that transcripts, replays and checks of
shape treat it like any other.
"""

from typing import Final

import torch
from torch import Tensor

from glasshouse.errors import BadValue

CAPACITY: Final = 2**20
"""Bytes of a document, unless the model says otherwise: some 2,000 trees of depth 3 as JSON."""
NAME: Final = "features.document"
"""The tensor that holds the document in messages and states."""


def tensor_of(document: bytes, capacity: int = CAPACITY) -> Tensor:
    """A document as it travels: bytes, then zeros, (capacity,) uint8.

    Raises:
        BadValue: it is longer.

    Examples:
        >>> bytes_of(tensor_of(b"{}", 8))
        b'{}'
    """
    if len(document) > capacity:
        raise BadValue(
            "a document as a message",
            needs=f"at most {capacity:,} bytes",
            got=f"{len(document):,}",
            fix="raise capacity in the arguments of model 'boosted_trees', or lower rounds or depth",
        )
    return torch.frombuffer(bytearray(document.ljust(capacity, b"\0")), dtype=torch.uint8).clone()


def bytes_of(tensor: Tensor) -> bytes:
    """The document in a tensor, without the zeros behind it."""
    return tensor.cpu().numpy().tobytes().rstrip(b"\0")
