"""The gate's own Gaussian mechanism: clip the change, add noise, round to a grid, account for it.

The uploaded code may be hostile and may collude with the server, so it knows its update exactly and sees the
noise that was added. Therefore the noise comes from a stream cipher with a fresh key per message, not from a
simulation generator whose state can be computed from its outputs. The sum is rounded to a grid relative to
the noise before it is stored, so that the low bits of floating-point sums carry nothing (Mironov 2012,
"On significance of the least significant bits for differential privacy", CCS 2012). Where we differ from a
proof: noise is a rounded float64 Gaussian, not an exact discrete one; per number its distribution differs
from that by about 2^-52 relative, and its tail ends at 8.5 standard deviations.
"""

import math
import secrets
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from glasshouse.errors import not_installed
from glasshouse.gate.message import Arrays
from glasshouse.gate.policy import Mechanism
from glasshouse.gate.shelf import let_go
from glasshouse.privacy.gaussian import LARGEST_MU, gaussian_delta

try:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
except ImportError as error:
    raise not_installed("the gate", "cryptography", error, extra="gate") from error

BLOCK: Final = 2**15
"""Numbers treated at a time: bounds memory, and stays in the processor's cache."""
LET_GO: Final = 128
"""Blocks of a model on the shelf after which their memory is given back: some 16 MB."""
GRID: Final = 256
"""Steps of the grid per standard deviation of the noise."""

Flat = NDArray[np.float64]


class Noise:
    """A stream of standard normal numbers from ChaCha20 with a random key.

    Examples:
        >>> draws = Noise().draw(1000)
        >>> bool(abs(draws.mean()) < 0.2), bool(0.8 < draws.std() < 1.2)
        (True, True)
    """

    def __init__(self) -> None:
        # The first four bytes count blocks: from 0 they last for 256 GiB, from a random number perhaps not
        # for one message.
        nonce = bytes(4) + secrets.token_bytes(12)
        cipher = Cipher(algorithms.ChaCha20(secrets.token_bytes(32), nonce), mode=None)
        self._stream = cipher.encryptor()

    def draw(self, count: int) -> Flat:
        """``count`` independent standard normal numbers, by Box and Muller's method."""
        half = (count + 1) // 2
        bits = np.frombuffer(self._stream.update(bytes(16 * half)), dtype="<u8") >> np.uint64(11)
        # in (0, 1]: the logarithm of zero is never taken
        radius = np.sqrt(-2 * np.log((bits[:half] + 1) * 2.0**-53))
        angle = bits[half:] * (2 * math.pi * 2.0**-53)
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


def blocks(sent: NDArray[Any], received: NDArray[Any]) -> Iterator[tuple[NDArray[Any], Flat, Flat]]:
    """Blocks of ``sent``, in place, with what was received there and the change, both in float64.

    The two stand in buffers that the next block takes.
    """
    flat, base = sent.reshape(-1), received.reshape(-1)
    before, change = np.empty((2, min(BLOCK, flat.size)))
    for number, start in enumerate(range(0, flat.size, BLOCK)):
        part = flat[start : start + BLOCK]
        old, new = before[: part.size], change[: part.size]
        # two copies and a subtraction: numpy is four times slower at subtracting in a wider type by itself
        np.copyto(old, base[start : start + BLOCK])
        np.copyto(new, part)
        yield part, old, np.subtract(new, old, out=new)
        if number % LET_GO == LET_GO - 1:
            let_go(received)
    let_go(received)


def privatize(arrays: Arrays, received: Arrays, *, rule: Mechanism, norm: float) -> float:
    """Clip the change of ``arrays`` and add noise, in place.

    Args:
        arrays: floating tensors to be sent; changed in place.
        received: those that the server sent, by the same names.
        rule: of the policy.
        norm: L2 norm of the change of all ``arrays`` together, finite.

    Returns:
        (sensitivity ÷ standard deviation of the noise)² of this release.

    Examples:
        >>> from glasshouse.gate.policy import Mechanism
        >>> sent = {"w": np.full(4, 5.0, np.float32)}
        >>> rule = Mechanism(clip=1.0, noise_multiplier=1e-6, epsilon=1e5)
        >>> _ = privatize(sent, {"w": np.zeros(4, np.float32)}, rule=rule, norm=10.0)
        >>> sent["w"].round(3).tolist()
        [0.5, 0.5, 0.5, 0.5]
    """
    scale = min(1.0, rule.clip / norm) if norm > 0 else 1.0
    std = rule.noise_multiplier * rule.clip
    noise = Noise()
    for name, array in arrays.items():
        for part, old, change in blocks(array, received[name]):
            step = std / GRID
            noisy = np.rint((change * scale + std * noise.draw(part.size)) / step) * step
            part[:] = (old + noisy).astype(part.dtype)
    return sensitivity_squared(rule)


def round_changes(arrays: Arrays, received: Arrays, *, grid: float) -> None:
    """Round the change of every number to a multiple of ``grid``, in place."""
    for name, array in arrays.items():
        for part, old, change in blocks(array, received[name]):
            part[:] = (old + np.rint(change / grid) * grid).astype(part.dtype)


def sensitivity_squared(rule: Mechanism) -> float:
    """(Sensitivity ÷ standard deviation of the noise)² of one release, in the policy's relation.

    Examples:
        >>> from glasshouse.gate.policy import Mechanism
        >>> sensitivity_squared(Mechanism(clip=3.0, noise_multiplier=2.0, epsilon=1.0))
        1.0
    """
    distance = {"replace": 2.0, "zero": 1.0}[rule.neighbours]  # in units of clip
    return (distance / rule.noise_multiplier) ** 2


def spent_epsilon(mu_squared: float, *, delta: float) -> float:
    """ε at ``delta`` of all releases whose (sensitivity ÷ noise)² sum to ``mu_squared``; 0 for none.

    Gaussian releases compose exactly: each may be chosen after seeing the earlier ones, and together they are
    as private as one with the sum of their squares. No amplification by sampling is taken: the server knows
    who took part.

    Source:
        Dong, Roth & Su 2022, arXiv:1905.02383, Corollary 3.3; Balle & Wang 2018, arXiv:1805.06530, Theorem 8.
        Found by halving, from above: what is told is never below it. Equal to dp-accounting's to 1e-6.

    Examples:
        >>> spent_epsilon(0.0, delta=1e-5), round(spent_epsilon(1.0, delta=0.126937), 3)
        (0.0, 1.0)
    """
    if mu_squared == 0:
        return 0.0
    mu = math.sqrt(mu_squared)
    if mu > LARGEST_MU:
        return math.inf
    if gaussian_delta(0.0, mu=mu) <= delta:
        return 0.0
    low, high = 0.0, mu * mu / 2 + mu * math.sqrt(-2 * math.log(delta))  # the tail bound of a normal number
    while high - low > 1e-9 * max(1.0, high):
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(middle, mu=mu) > delta else (low, middle)
    return high


def capacity_bits(numbers: int, *, rule: Mechanism) -> float:
    """Most bits that one message can carry on average through the gate's noise, whatever the sender does.

    Args:
        numbers: how many numbers of the message are noised.
        rule: of the policy; the receiver knows all but the noise.

    Source:
        Shannon 1948, section 24: ``numbers`` parallel Gaussian channels with total power clip².

    Examples:
        >>> from glasshouse.gate.policy import Mechanism
        >>> round(capacity_bits(10**6, rule=Mechanism(clip=1.0, noise_multiplier=1.0, epsilon=1.0)), 2)
        0.72
    """
    return 0.5 * numbers * math.log1p(1 / (numbers * rule.noise_multiplier**2)) / math.log(2)


def copies(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Writable copies, for frameworks whose own arrays must not be changed."""
    return {name: np.array(array, order="C") for name, array in arrays.items()}
