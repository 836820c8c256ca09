"""FedGEMS: a server model learns selectively from labels, its own past and the clients; they learn from it.

Source: Cheng et al. 2021, arXiv:2110.11027; Takahashi et al. 2023, Algorithm S-2. Clients train on private
data once before the first upload, because Algorithm S-2 needs uploads in its first line.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, final

import torch
from torch import Tensor
from torch.nn import functional as F

from glasshouse.federation.learner import Learner, authors_divergence, divergence
from glasshouse.federation.logit_rounds import Scheme
from glasshouse.interfaces import Traits
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.wire import Batch

LARGEST = 100.0
"""Cap on an expert's weight before the softmax: 1 / entropy is unbounded."""


@final
@dataclass(frozen=True, kw_only=True)
class FedGems(Scheme):
    """Selective knowledge fusion.

    The fields are the protocol's public settings, read from ``Terms.options``.

    Args:
        private_epochs: of each client per round.
        public_epochs: of each client per round.
        server_epochs: of the server per round.
        hard: weight of true labels relative to the teacher's predictions, the paper's ε, in [0, 1].
        weight_decay: of every Adam.
        private_rate: of SGD where a defence acts inside private training.
        variant: ``authors`` exchanges the roles in the divergence and divides it by B·K, adds the means of
            the three groups instead of averaging over examples, and sends the logits computed in each step
            of the server's training instead of those of the trained model.
    """

    card: ClassVar[Card] = Card(
        summary="a server model learns selectively from clients' logits, and clients from the server's",
        source="Cheng et al. 2021, arXiv:2110.11027",
    )
    traits: ClassVar[Traits] = Traits(sends="logits")

    private_epochs: int = 2
    public_epochs: int = 2
    server_epochs: int = 1
    hard: float = 0.75
    weight_decay: float = 1e-4
    private_rate: float = 0.05
    variant: Literal["paper", "authors"] = "paper"
    _pool: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Logits by public example that the server once got right; empty in the copy that ``play`` makes."""

    def passes(self, rounds: int) -> int:
        """Number of passes over a client's private data in a run."""
        return (rounds + 1) * self.private_epochs

    @property
    def kl(self) -> Callable[[Tensor, Tensor], Tensor]:
        """Divergence of a student's logits from a teacher's."""
        return divergence if self.variant == "paper" else authors_divergence

    def prepare(self, client: Learner, public: Batch, *, rng: Rng) -> int:
        """No public training: clients first train on private data only."""
        del client, public, rng
        return self.private_epochs

    def consensus(self, uploads: Sequence[Tensor], server: Learner, public: Batch, *, rng: Rng) -> Tensor:
        """The server's logits after its selective training."""
        ensemble = experts(uploads, public.labels)
        stale = torch.zeros_like(ensemble)

        def loss(logits: Tensor, rows: Tensor) -> Tensor:
            stale[rows] = logits.detach()
            return self._selective(logits, rows, public.labels, ensemble)

        server.fit(public.inputs, loss, epochs=self.server_epochs, rng=rng)
        return stale if self.variant == "authors" else server.logits(public.inputs)

    def _selective(self, logits: Tensor, rows: Tensor, labels: Tensor, ensemble: Tensor) -> Tensor:
        hard, kl, y = self.hard, self.kl, labels[rows]
        right = logits.argmax(1) == y
        for row, logit in zip(rows[right].tolist(), logits.detach()[right], strict=True):
            self._pool[row] = logit
        # Right ones teach by label, once-right ones by what they said then, the others by the ensemble.
        pooled = torch.tensor([row in self._pool for row in rows.tolist()]) & ~right
        losses, sizes = [logits.new_zeros(())], [0]
        for group, weight in ((right, 1.0), (pooled, hard), (~right & ~pooled, 0.0)):
            if not group.any():
                continue
            value = weight * F.cross_entropy(logits[group], y[group]) if weight else logits.new_zeros(())
            if weight < 1:
                teacher = ensemble[rows[group]]
                if weight:
                    teacher = torch.stack([self._pool[row] for row in rows[group].tolist()])
                value = value + (1 - weight) * kl(logits[group], teacher)
            losses.append(value)
            sizes.append(int(group.sum()))
        # The authors' code adds up means of the groups; the paper weighs them by size.
        shares = [1.0 if self.variant == "authors" else size / len(rows) for size in sizes]
        return torch.stack([share * value for share, value in zip(shares, losses, strict=True)]).sum()

    def learn(self, client: Learner, public: Batch, consensus: Tensor, *, clients: int, rng: Rng) -> int:
        """Train on true labels with weight ε and on the server's logits with weight 1 - ε."""
        del clients
        hard, kl = self.hard, self.kl

        def loss(logits: Tensor, rows: Tensor) -> Tensor:
            own = hard * F.cross_entropy(logits, public.labels[rows])
            return own + (1 - hard) * kl(logits, consensus[rows])

        client.fit(public.inputs, loss, epochs=self.public_epochs, rng=rng)
        return self.private_epochs

    def serve(self, server: Learner, public: Batch, consensus: Tensor, *, rng: Rng) -> None:
        """No further training: the server trained before the broadcast."""
        del server, public, consensus, rng


def experts(uploads: Sequence[Tensor], labels: Tensor) -> Tensor:
    """Weighted sum of the clients' logits (P, K): softmax over clients of 1/entropy if right, else of 0.

    Examples:
        >>> sure, wrong = torch.tensor([[9.0, 0.0]]), torch.tensor([[0.0, 1.0]])
        >>> experts([sure, wrong], torch.tensor([0])).round(decimals=2).tolist()
        [[9.0, 0.0]]
    """
    logits = torch.stack(list(uploads))
    log = F.log_softmax(logits, 2)
    entropy = -(log.exp() * log).sum(2)
    weight = torch.where(logits.argmax(2) == labels, 1 / entropy.clamp_min(1 / LARGEST), 0.0)
    return (torch.softmax(weight, 0)[:, :, None] * logits).sum(0)
