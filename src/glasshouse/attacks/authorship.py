"""What attacks claim about who wrote the messages of a round that came without names.

Shape letters: T rounds, N messages of a round.
"""

from dataclasses import dataclass
from typing import ClassVar, Final, final

import torch
from torch import Tensor

from glasshouse.attacks.base import About, Claim, Paired
from glasshouse.registry import Card
from glasshouse.wire import Terms

__all__ = ["UNNAMED", "Authors"]

UNNAMED: Final = -1
"""In place of an author: no claim."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Authors(Claim):
    """Asserts: These messages were written by the authors of those of the federation's first round.

    Nobody has a name among clients; what links messages of one author is the place of its first one.

    Attributes:
        authors: (T, N) int64: of each message, in the order in which the messages of a round came, the place
            of its author's message in the first round; ``UNNAMED``: no claim. Its row of the first round
            itself, where the claim is about it, is not scored.
    """

    card: ClassVar[Card] = Card(
        summary="these messages were written by the authors of those of the first round"
    )
    kind: ClassVar[str] = "authors"
    metrics: ClassVar[tuple[str, ...]] = ("authors_named",)
    grows: ClassVar[bool] = True
    paired: ClassVar[Paired] = "authors"

    authors: Tensor

    @property
    def says_nothing(self) -> bool:
        """No author is claimed."""
        return bool((self.authors == UNNAMED).all())

    @classmethod
    def silence(cls, about: About, terms: Terms) -> "Authors":
        return cls(about=about, authors=torch.full((len(about.rounds), terms.clients), UNNAMED))
