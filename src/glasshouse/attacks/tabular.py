"""What attacks on tables claim: rows with a certificate, boxes with counts, and facts about columns.

Shape letters: R claims, F entries of an encoded row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, Final, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.attacks.base import About, Claim
from glasshouse.registry import Card
from glasshouse.wire import Terms

__all__ = [
    "ANY",
    "Certainty",
    "CertifiedRows",
    "Fact",
    "Facts",
    "Leaves",
    "RowLabels",
    "What",
    "facts_of",
    "leaves_of",
]

ANY: Final = -1
"""In place of a column or a label: whichever."""


class Certainty(IntEnum):
    """What stands behind a claim."""

    GUESSED = 0
    """It fits best."""
    UNIQUE = 1
    """No other data set fits what was sent, within its rounding."""
    PROVED = 2
    """It follows from what was sent by algebra."""


class What(IntEnum):
    """What a fact is about."""

    COUNT = 0
    """So many rows have the column's entry in [low, high] and the label."""
    OCCURS = 1
    """At least one row has the column's entry in [low, high]."""
    SUM = 2
    """The column's entries add up to the value."""


@final
@dataclass(frozen=True, kw_only=True)
class Fact:
    """One fact about the rows of a client, in entries of encoded rows.

    Attributes:
        what: kind of fact.
        value: the number; unused where a value occurs.
        column: position of an entry, or ``ANY``.
        low: smallest entry that counts.
        high: largest entry that counts.
        label: of the rows that count, or ``ANY``.
        error: largest distance from the truth at which the fact is right.
        certainty: what stands behind it.
    """

    what: What
    value: float = 0.0
    column: int = ANY
    low: float = 0.0
    high: float = 0.0
    label: int = ANY
    error: float = 0.0
    certainty: Certainty = Certainty.PROVED


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class CertifiedRows(Claim):
    """Asserts: These were private rows, and a certificate says so. None: it could prove nothing.

    Attributes:
        inputs: (R, F), encoded rows.
        certainty: (R,), as in :class:`Certainty`.
    """

    card: ClassVar[Card] = Card(summary="these were private rows, with a certificate")
    kind: ClassVar[str] = "certified_rows"
    proofs: ClassVar[str] = "certificates_right"
    guessed: ClassVar[bool] = True
    may_be_empty: ClassVar[bool] = True

    inputs: Tensor
    certainty: Tensor

    @classmethod
    def proved(cls, about: About, rows: Tensor) -> "CertifiedRows":
        """These rows (R, F), all proved."""
        return cls(about=about, inputs=rows, certainty=torch.full((len(rows),), float(Certainty.PROVED)))

    @classmethod
    def silence(cls, about: About, terms: Terms) -> "CertifiedRows":
        nothing = torch.zeros(0, *terms.architecture.input_shape)
        return cls(about=about, inputs=nothing, certainty=torch.zeros(0))


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Leaves(Claim):
    """Asserts: So many rows of this client lie in each of these boxes and have this label.

    Attributes:
        boxes: (R, 2 F + 3) float64: lower ends, upper ends (``lower <= x < upper``), label, count, certainty.
    """

    card: ClassVar[Card] = Card(summary="so many rows of this client lie in these boxes")
    kind: ClassVar[str] = "leaves"
    proofs: ClassVar[str] = "leaves_proved"
    may_be_empty: ClassVar[bool] = True

    boxes: Tensor

    @classmethod
    def silence(cls, about: About, terms: Terms) -> "Leaves":
        width = 2 * terms.architecture.input_shape[0] + 3
        return cls(about=about, boxes=torch.zeros(0, width, dtype=torch.float64))


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class RowLabels(Claim):
    """Asserts: The private rows, which the adversary has, carry these labels, in their order.

    Attributes:
        labels: (B,) int64.
    """

    card: ClassVar[Card] = Card(summary="the private rows, which are known, carry these labels")
    kind: ClassVar[str] = "row_labels"
    metrics: ClassVar[tuple[str, ...]] = ("row_labels_right",)

    labels: Tensor


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Facts(Claim):
    """Asserts: These numbers are true of the client's rows.

    Attributes:
        facts: (R, 8) float64, the attributes of :class:`Fact` in order.
    """

    card: ClassVar[Card] = Card(summary="these numbers are true of the client's rows")
    kind: ClassVar[str] = "facts"
    proofs: ClassVar[str] = "facts_proved"
    may_be_empty: ClassVar[bool] = True

    facts: Tensor

    @classmethod
    def silence(cls, about: About, terms: Terms) -> "Facts":
        del terms
        return cls(about=about, facts=torch.zeros(0, 8, dtype=torch.float64))


def facts_of(about: About, facts: Sequence[Fact]) -> Facts:
    """A claim of these facts."""
    rows = [(f.what, f.value, f.column, f.low, f.high, f.label, f.error, f.certainty) for f in facts]
    return Facts(about=about, facts=torch.tensor(rows, dtype=torch.float64).reshape(-1, 8))


def leaves_of(
    about: About,
    lower: NDArray[np.float64],
    upper: NDArray[np.float64],
    counts: NDArray[np.int64],
    certain: NDArray[np.int64],
    *,
    within: tuple[float, float],
) -> Leaves:
    """A claim of boxes, without those that hold nobody.

    Args:
        about: its subject.
        lower: ends of the boxes, (C, F); may be infinite.
        upper: as ``lower``.
        counts: rows of label 0 and 1 in each box, (C, 2).
        certain: certainty of each count, (C, 2).
        within: smallest and largest entry of a row.
    """
    box, label = np.nonzero(counts)
    ends = [np.clip(side[box], within[0] - 1, within[1] + 1) for side in (lower, upper)]
    tail = np.stack([label, counts[box, label], certain[box, label]], 1).astype(np.float64)
    return Leaves(about=about, boxes=torch.from_numpy(np.concatenate([*ends, tail], 1)))
