"""DS-FL: distillation on unlabelled public data, with the averaged predictions sharpened.

Source: Itahara et al. 2021, arXiv:2008.06180; Takahashi et al. 2023, Algorithm S-3. Clients upload logits
here and the server takes their softmax, so that defences on logits work the same in all three protocols.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor
from torch.nn import functional as F

from glasshouse.federation.learner import Learner, loss_on
from glasshouse.federation.logit_rounds import Scheme
from glasshouse.interfaces import Traits
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.wire import Batch


@final
@dataclass(frozen=True, kw_only=True)
class DsFl(Scheme):
    """Entropy-reduction aggregation: softmax(mean probability ÷ temperature); all parties distil from it.

    The fields are the protocol's public settings, read from ``Terms.options``. The public data have no
    labels, so the models learn the private classes only.

    Args:
        private_epochs: on private data, before every upload.
        distil_epochs: on the consensus, per round.
        server_epochs: on the consensus, per round, of the server's model.
        temperature: of the sharpening; lower is sharper.
        weight_decay: of every Adam.
        private_rate: of SGD where a defence acts inside private training.
        variant: ``authors`` lets a single client skip the distillation, as the code of Takahashi et al. does.
    """

    card: ClassVar[Card] = Card(
        summary="clients exchange predictions on unlabelled public data and learn their sharpened mean",
        source="Itahara et al. 2021, arXiv:2008.06180",
    )
    traits: ClassVar[Traits] = Traits(sends="logits", labels_public=False)

    private_epochs: int = 2
    distil_epochs: int = 2
    server_epochs: int = 1
    temperature: float = 0.1
    weight_decay: float = 1e-4
    private_rate: float = 0.05
    variant: Literal["paper", "authors"] = "paper"

    def passes(self, rounds: int) -> int:
        """Number of passes over a client's private data in a run."""
        return (rounds + 1) * self.private_epochs

    def prepare(self, client: Learner, public: Batch, *, rng: Rng) -> int:
        """Nothing: the public data have no labels."""
        del client, public, rng
        return self.private_epochs

    def consensus(self, uploads: Sequence[Tensor], server: Learner, public: Batch, *, rng: Rng) -> Tensor:
        """Log-probabilities of the sharpened mean prediction: their softmax is the consensus."""
        del server, public, rng
        mean = torch.stack([F.softmax(upload, 1) for upload in uploads]).mean(0)
        return F.log_softmax(mean / self.temperature, 1)

    def learn(self, client: Learner, public: Batch, consensus: Tensor, *, clients: int, rng: Rng) -> int:
        """Distil from the consensus by cross-entropy."""
        if clients > 1 or self.variant == "paper":
            client.fit(public.inputs, loss_on(F.softmax(consensus, 1)), epochs=self.distil_epochs, rng=rng)
        return self.private_epochs

    def serve(self, server: Learner, public: Batch, consensus: Tensor, *, rng: Rng) -> None:
        """Distil the server's model from the consensus."""
        server.fit(public.inputs, loss_on(F.softmax(consensus, 1)), epochs=self.server_epochs, rng=rng)
