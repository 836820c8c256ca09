"""TBI: one inversion network for all clients' logits on all public images, queried with one-hot vectors.

Source: Yang et al. 2019, CCS, arXiv:1902.08552; its use as a baseline: Takahashi et al. 2023, section 4.2.
Where we differ from the latter's code: every client is paired with its own logits (there a late-binding
lambda makes all K entries call the last client).
"""

from dataclasses import dataclass, field
from typing import ClassVar, final

import torch
from torch.nn import functional as F

from glasshouse.attacks.base import About, Claim, ClassRepresentatives, Needs
from glasshouse.attacks.budget import Budget
from glasshouse.attacks.logits.invert import InversionTraining, Task, each
from glasshouse.attacks.logits.material import material
from glasshouse.attacks.logits.queries import one_hot
from glasshouse.attacks.parts.local_steps import PICTURES
from glasshouse.limits import Positive, check_ranges
from glasshouse.registry import Card, Offer
from glasshouse.rng import Rng
from glasshouse.transcript.view import View


@final
@dataclass(frozen=True, kw_only=True)
class Tbi:
    """Class representatives from clients' logits alone; no prior, no server model.

    Args:
        temperature: of the softmax over logits, the paper's τ, > 0.
        training: of the inversion networks.
    """

    card: ClassVar[Card] = Card(
        title="TBI",
        summary="an inversion network on clients' public logits, asked for each private class (TBI)",
        source="Yang et al. 2019, arXiv:1902.08552",
        claims=("class_representatives",),
        threat="server, sees single uploads of logits",
        offers=(
            Offer(
                strength=0.17,
                settings={"training": {"width": 64, "epochs": 2, "batch_size": 16, "learning_rate": 1e-3}},
                seconds=1,
            ),
        ),
    )
    needs: ClassVar[Needs] = Needs(
        modalities=PICTURES,
        sees=frozenset({"update", "own"}),
        scope="run",
        protocols=frozenset({"fedmd", "fedgems", "dsfl"}),
    )

    temperature: Positive = 3.0
    training: InversionTraining = field(default_factory=InversionTraining)

    def __post_init__(self) -> None:
        check_ranges(self, "attack 'tbi'")

    @property
    def budget(self) -> Budget:
        """Epochs of the inversion network."""
        return Budget(unit="epochs", amount=self.training.epochs)

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """One claim per round with uploads, for all private classes, not attributed to clients."""
        evidence = material(view, subject="attack 'tbi'")
        classes = evidence.server[0].shape[1]
        task = Task(
            how=self.training,
            images=evidence.scaled(evidence.public.inputs),
            vectors=tuple(
                torch.cat([F.softmax(t / self.temperature, 1) for t in table.values()])
                for table in evidence.clients
            ),
            queries=one_hot(evidence.targets, classes).to(evidence.public.inputs.device),
            key=rng.child("network").key,
        )
        (images_by_round,) = each([task], processes=1, label="inversion network")
        labels = torch.arange(evidence.targets)
        return tuple(
            ClassRepresentatives(
                about=About(rounds=evidence.rounds[: i + 1]),
                inputs=evidence.pixels(images).cpu(),
                labels=labels,
                source=torch.full_like(labels, -1),
            )
            for i, images in enumerate(images_by_round)
        )
