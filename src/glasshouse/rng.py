"""Random streams passed as arguments: named and derived from one root; the global generators are never used.

A stream is a 256-bit key. ``child(name)`` hashes the key with the name, so the same name under the
same root always gives the same numbers, whatever was drawn before and in whichever process.
The hash is one-way: code that has a child stream (as an attack has its own) can reconstruct neither the
root nor a sibling. ``salt`` mixes in content that only the simulation has (the checksum of the private
data), so that guessing a small seed is not enough to rebuild its streams.
"""

import hashlib
from dataclasses import dataclass
from typing import final

import numpy as np
import torch

__all__ = ["Rng"]


@final
@dataclass(frozen=True)
class Rng:
    """A named random stream. Create one with :meth:`root`.

    Examples:
        >>> root = Rng.root(7)
        >>> noise = root.child("client/3/round/7/noise")
        >>> a = torch.randn(2, generator=noise.torch())
        >>> torch.equal(a, torch.randn(2, generator=noise.torch()))
        True
    """

    key: bytes

    @classmethod
    def root(cls, seed: int, *, salt: str = "") -> "Rng":
        """The root stream of ``seed``; different salts give unrelated roots."""
        return cls(hashlib.sha256(f"glasshouse/{seed}/{salt}".encode()).digest())

    def child(self, name: str) -> "Rng":
        """The stream called ``name`` below this one."""
        return Rng(hashlib.sha256(self.key + name.encode()).digest())

    def seed(self) -> int:
        """A 63-bit integer seed, for libraries that need one."""
        return int.from_bytes(self.key[:8], "little") >> 1

    def torch(self, device: torch.device | str = "cpu") -> torch.Generator:
        """A fresh generator at the start of this stream, on ``device``."""
        return torch.Generator(device=device).manual_seed(self.seed())

    def numpy(self) -> np.random.Generator:
        """A fresh numpy generator at the start of this stream."""
        return np.random.default_rng(self.seed())
