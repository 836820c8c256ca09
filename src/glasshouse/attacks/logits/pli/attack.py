"""PLI: a network per client that inverts pairs of predictions, asked for the confidence gap.

Source: Takahashi et al. 2023, "Breaching FedMD: Image Recovery via Paired-Logits Inversion Attack", CVPR,
Algorithm 1. Where we differ: distances are mean squares (as in the authors' code; the paper writes norms),
the server's half of a query is raised in the class's own column (the code: in the whole batch's), and the
attack reads what was uploaded instead of querying live models.

Shape letters: K clients, L private classes, J classes, n public images of the private domain (D_0).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from glasshouse.attacks.base import About, Claim, ClassRepresentatives, Needs, PriorSamples
from glasshouse.attacks.budget import Budget
from glasshouse.attacks.logits.invert import Task, Training, each
from glasshouse.attacks.logits.material import Material, material
from glasshouse.attacks.logits.pli.prior import Prior, prior_images
from glasshouse.attacks.logits.queries import chosen, one_hot, surest, unsure_server
from glasshouse.errors import BadValue
from glasshouse.limits import Count, NotNegative, Positive, Share
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.transcript.view import View

Reads = Literal["paired", "client", "none"]
Choice = Literal["images", "predictions"]
EASY: Mapping[str, Any] = {
    "data": {"domains": {"targets": 7, "per_class": 60, "shifts": ["box_blur"]}},
    "model": {"name": "shallow_cnn"},
    "federation": {
        "protocol": "fedgems",
        "clients": 1,
        "rounds": 3,
        "batch_size": 16,
        "learning_rate": 3e-3,
    },
    "audit": {"rounds": [-1]},
}


@final
@dataclass(frozen=True, kw_only=True)
class Pli:
    """Class representatives from pairs of predictions on the public images of the private domain.

    Args:
        temperature: of the softmax over logits, τ > 0. confidence: of the server's half of a query, α > 0.
        prior: ``none``; ``mean``: of D_0 (Eq. 8); a translation of the class's images of the other domain
            (Eq. 9): ``ridge``, ``paired`` (encoder and decoder) or ``cyclegan``. Without public labels the
            learned ones cannot be.
        prior_weight: γ >= 0. roughness: β of the choice among clients (Eq. 11).
        choice: of the client whose image is claimed: by its ``images`` (Eq. 11), or by its ``predictions``
            (ours: who gives the class the most probability on D_0, over the uploads so far).
        tuning: fine-tune on the queries after each epoch (Eq. 10).
        reads: ``paired``; ``client``: the client's half alone (ablation); ``none``: the server's own logits
            in the place of every upload, which is what the attack finds without the clients.
        epochs, batch_size, learning_rate, weight_decay, width, bfloat16: see
            :class:`glasshouse.attacks.logits.invert`.
        translator_epochs: of a learned translation.
        networks: per client, whose images are averaged. shrink: share of the prior in the image, in [0, 1).
            Both are ours: an average differs less from the truth than a sharp guess does; 1 and 0: the paper.
        processes: networks that are trained at a time, each in a process of its own; the result is the same.
    """

    card: ClassVar[Card] = Card(
        title="PLI",
        summary="inversion networks on paired server and client logits, asked for the confidence gap (PLI)",
        source="Takahashi et al. 2023, Breaching FedMD, CVPR",
        threat="server, sees single uploads of logits",
        control={
            "setting": "seven of ten digits private, one client, FedGEMS, the public domain is blurred",
            "scenario": EASY,
            # The published rate is for a hundred times more images; so few steps of it change nothing.
            "fits": {"learning_rate": 1e-3},
            "metric": "ssim_private",
        },
    )
    needs: ClassVar[Needs] = Needs(
        sees=frozenset({"update", "own"}), scope="run", protocols=frozenset({"fedmd", "fedgems", "dsfl"})
    )

    temperature: Positive = 3.0
    confidence: Positive = 5.0
    prior: Prior = "mean"
    prior_weight: NotNegative = 0.03
    roughness: NotNegative = 0.1
    choice: Choice = "images"
    tuning: bool = True
    reads: Reads = "paired"
    epochs: Count = 3
    batch_size: Count = 8
    learning_rate: Positive = 3e-5
    weight_decay: NotNegative = 1e-4
    width: Count = 1024
    bfloat16: bool = False
    translator_epochs: Count = 60
    networks: Count = 1
    shrink: Share = 0.0
    processes: Count = 1

    def __post_init__(self) -> None:
        positive = self.temperature > 0 and self.confidence > 0 and self.networks >= 1
        if not (positive and self.prior_weight >= 0 and 0 <= self.shrink < 1):
            raise BadValue(
                "attack 'pli'",
                needs="temperature > 0, confidence > 0, prior_weight >= 0, networks >= 1, shrink in [0, 1)",
                got=f"{self.temperature}, {self.confidence}, {self.prior_weight}, {self.networks}, "
                f"{self.shrink}",
                fix="the paper has 3, 5, 0.03, 1 and 0",
            )
        if self.choice not in get_args(Choice):
            raise BadValue(
                "attack 'pli'", needs="choice = images or predictions", got=self.choice, fix="correct it"
            )
        if self.shrink and self.prior == "none":
            raise BadValue(
                "attack 'pli'",
                needs="a prior to shrink to",
                got='prior = "none"',
                fix="set prior or shrink = 0",
            )

    @property
    def budget(self) -> Budget:
        """Epochs of all of one client's inversion networks."""
        return Budget(unit="epochs", amount=self.epochs * self.networks)

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """One claim per round with uploads, each image attributed to a client; and the prior images."""
        held = material(view, subject="attack 'pli'")
        priors, wanted = prior_images(
            self.prior, held, epochs=self.translator_epochs, rng=rng.child("translator")
        )
        clients = sorted(held.clients[0])
        tasks = [
            self._task(held, k, priors, wanted, rng.child(f"client/{k}/{i}"))
            for k in clients
            for i in range(self.networks)
        ]
        every = torch.stack(each(tasks, processes=self.processes, label="inversion networks"))
        made = every.view(len(clients), self.networks, *every.shape[1:]).mean(1)  # (K, rounds, L, ...)
        if wanted is not None:
            made = (1 - self.shrink) * made + self.shrink * wanted
        labels = torch.arange(held.targets)
        claims: list[Claim] = []
        for i in range(len(held.rounds)):
            images = held.pixels(made[:, i])  # (K, L, C, H, W)
            picked = self._picked(held, images, upto=i + 1)
            claims.append(
                ClassRepresentatives(
                    about=About(rounds=held.rounds[: i + 1]),
                    inputs=images[picked, labels.to(picked.device)].cpu(),
                    labels=labels,
                    source=torch.tensor(clients)[picked.cpu()],
                )
            )
        if wanted is not None:
            shown = wanted.expand(held.targets, -1, -1, -1) if len(wanted) == 1 else wanted
            about = About(rounds=held.rounds)
            claims.append(
                PriorSamples(about=about, inputs=held.pixels(shown).cpu().contiguous(), labels=labels)
            )
        return tuple(claims)

    def _picked(self, held: Material, images: Tensor, *, upto: int) -> Tensor:
        """The position of a client for every class, (L,), from the first ``upto`` rounds."""
        if self.choice == "images":
            return chosen(images, roughness=self.roughness)
        uploads = [torch.stack([t[k] for k in sorted(t)]) for t in held.clients[:upto]]
        return surest([u[:, : held.sensitive] for u in uploads], held.targets)

    def _task(
        self, held: Material, client: int, priors: Tensor | None, wanted: Tensor | None, rng: Rng
    ) -> Task:
        how = Training(
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            prior_weight=self.prior_weight,
            tuning=self.tuning,
            width=self.width,
            bfloat16=self.bfloat16,
        )
        return Task(
            how=how,
            images=held.scaled(held.known.inputs),
            vectors=tuple(
                self._pairs(own[: held.sensitive], table[client][: held.sensitive])
                for own, table in zip(held.server, held.clients, strict=True)
            ),
            queries=self._queries(held).to(held.public.inputs.device),
            priors=priors,
            wanted=wanted,
            key=rng.key,
        )

    def _pairs(self, server: Tensor, client: Tensor) -> Tensor:
        """(n, J) and (n, J) → (n, 2 J), or (n, J) where the client's half stands alone."""
        own = F.softmax(server / self.temperature, 1)
        other = own if self.reads == "none" else F.softmax(client / self.temperature, 1)
        return other if self.reads == "client" else torch.cat([own, other], 1)

    def _queries(self, held: Material) -> Tensor:
        classes = held.server[0].shape[1]
        certain = one_hot(held.targets, classes)
        if self.reads == "client":
            return certain
        return torch.cat([unsure_server(held.targets, classes, confidence=self.confidence), certain], 1)
