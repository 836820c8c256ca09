"""Who wrote a message that came without a name: messages of one client, linked over rounds.

Shape letters: T messages of a client, N places of the first round.
"""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor

from glasshouse.errors import BadValue
from glasshouse.metrics.base import Hits, ScoreContext, Scores, rate_wording
from glasshouse.registry import Card


@final
@dataclass(frozen=True, kw_only=True)
class AuthorsNamed(Hits):
    """1 for every message after the first round that is linked to its author's first one, else 0."""

    card = Card(summary="share of the messages of later rounds that are linked to their author's first one")
    wording = rate_wording(
        label="authors named",
        sentence="linked {} of the nameless messages of later rounds to the first one of their author",
        explanation="How often the attack knew which client wrote a message that came without a name: higher "
        "is worse. Guessing is right for 1 in as many as there are other clients.",
        severity="other",
        order=405,
        chance="1 / the other clients; or the same place as in the first round, if that is right more often",
    )
    claim: ClassVar[str] = "authors"
    reads: ClassVar[str] = "authors"

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> Scores:
        """The weight that a claim (T, N) puts on each true place (T,); one place claimed has weight 1.

        Raises:
            BadValue: another number of claims than of messages.

        Examples:
            >>> claimed = torch.tensor([[0.0, 1.0], [0.5, 0.5]])
            >>> AuthorsNamed().score(claimed, torch.tensor([1, 0]), context=ScoreContext())
            array([1. , 0.5])
        """
        del context
        if claimed.ndim != 2 or truth.shape != claimed.shape[:1]:
            raise BadValue(
                "metric 'authors_named'",
                needs="a row of weights (T, N) for each message (T,)",
                got=f"{tuple(claimed.shape)} and {tuple(truth.shape)}",
                fix="claim an author, or none, for every message of a round",
            )
        return np.asarray(claimed.double()[torch.arange(len(truth)), truth].numpy(), dtype=np.float64)
