"""Infer the classes in a client's batch from the gradient of the last layer alone.

Source: Zhao et al. 2020 (iDLG), arXiv:2001.02610, section 3, for one example; for batches Wainakh et al.
2022 (LLG), arXiv:2105.09369, and Yin et al. 2021 (GradInversion), arXiv:2104.07586, equation 6.
The derivation, and where we differ, are in ``attacks.parts.labels``.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch

from glasshouse.attacks.base import Claim, Labels, Needs
from glasshouse.attacks.parts.labels import Rule, infer_labels
from glasshouse.attacks.parts.local_steps import ANY, LINEAR, ON_LENET, update_needs
from glasshouse.attacks.parts.replica import replica
from glasshouse.registry import Card, Offer
from glasshouse.rng import Rng
from glasshouse.transcript.view import View


@final
@dataclass(frozen=True, kw_only=True)
class LabelInference:
    """Class counts of the private batch.

    Args:
        rule: ``sums`` estimates counts from the bias gradient or row sums; ``minima`` takes the B classes
            with the smallest row minima (no class twice).
    """

    card: ClassVar[Card] = Card(
        title="Label inference",
        summary="class counts of the batch from the last layer's gradient",
        source="Zhao et al. 2020, arXiv:2001.02610; Wainakh et al. 2022, arXiv:2105.09369",
        claims=("labels",),
        threat="server, sees single updates",
        control={**ON_LENET, "metric": "label_accuracy"},
        offers=(Offer(strength=0.8),),
    )
    budget: ClassVar[None] = None

    rule: Rule = "sums"

    @property
    def needs(self) -> Needs:
        return replace(update_needs(ANY if self.rule == "sums" else LINEAR, one_label=True), continuous=False)

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """Counts (K,) that add up to the number of examples behind the update.

        Raises:
            Inapplicable: not exactly one update, the last layer is not in it, or ``minima`` does not apply.
        """
        client = replica(view, subject="attack 'label_inference'")
        labels = infer_labels(client, rng=rng, rule=self.rule)
        return (Labels(about=client.about, counts=torch.bincount(labels, minlength=client.classes)),)
