"""FedMD: clients distil from the mean of all logits on public data, then train on their own data.

Source: Li & Wang 2019, arXiv:1910.03581; Takahashi et al. 2023, Algorithm S-1 (with a server model trained on
the labelled public data, which FedMD itself does not have).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from glasshouse.federation.learner import Learner, loss_on
from glasshouse.federation.logit_rounds import Scheme
from glasshouse.interfaces import Traits
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.wire import Batch


@final
@dataclass(frozen=True, kw_only=True)
class FedMd(Scheme):
    """Mean of raw logits; clients minimise the L1 distance to it.

    The fields are the protocol's public settings, read from ``Terms.options``.

    Args:
        transfer_epochs: on public data, then on private data, before the first upload.
        consensus_epochs: on the consensus, per round.
        revisit_epochs: on private data afterwards.
        server_epochs: of the server's model on public labels, per round.
        weight_decay: of every Adam.
        private_rate: of SGD where a defence acts inside private training.
        variant: ``authors`` skips the consensus when there is one client, as the paper's code does; then that
            client never sees public data again.
    """

    card: ClassVar[Card] = Card(
        summary="clients exchange logits on public data and learn their mean",
        source="Li & Wang 2019, arXiv:1910.03581",
    )
    traits: ClassVar[Traits] = Traits(sends="logits")

    transfer_epochs: int = 5
    consensus_epochs: int = 1
    revisit_epochs: int = 1
    server_epochs: int = 1
    weight_decay: float = 1e-4
    private_rate: float = 0.05
    variant: Literal["paper", "authors"] = "paper"

    def passes(self, rounds: int) -> int:
        """Number of passes over a client's private data in a run."""
        return self.transfer_epochs + rounds * self.revisit_epochs

    def prepare(self, client: Learner, public: Batch, *, rng: Rng) -> int:
        """Transfer learning: first on the public data, then on the private data."""
        client.fit(public.inputs, loss_on(public.labels), epochs=self.transfer_epochs, rng=rng)
        return self.transfer_epochs

    def consensus(self, uploads: Sequence[Tensor], server: Learner, public: Batch, *, rng: Rng) -> Tensor:
        """The mean of the uploads."""
        del server, public, rng
        return torch.stack(list(uploads)).mean(0)

    def learn(self, client: Learner, public: Batch, consensus: Tensor, *, clients: int, rng: Rng) -> int:
        """Minimise the mean absolute difference to the consensus."""
        if clients > 1 or self.variant == "paper":

            def distance(logits: Tensor, rows: Tensor) -> Tensor:
                return (logits - consensus[rows]).abs().mean()

            client.fit(public.inputs, distance, epochs=self.consensus_epochs, rng=rng)
        return self.revisit_epochs

    def serve(self, server: Learner, public: Batch, consensus: Tensor, *, rng: Rng) -> None:
        """Train the server's model on public labels only."""
        del consensus
        server.fit(public.inputs, loss_on(public.labels), epochs=self.server_epochs, rng=rng)
