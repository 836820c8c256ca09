"""NEX: representations that an honest head leaks, inverted with a deep image prior.

Source: Pan, Zhang, Yan, Zhu & Yang 2022, "Exploring the Security Boundary of Data Reconstruction via Neuron
Exclusivity Analysis", USENIX Security, as Dabholkar et al. 2025 (Maui, section 7) run it on a head: an
ordinarily trained head over ordinarily trained features. A unit of the head's first layer that exactly one
example of the batch activates gives that example's features. The server changes nothing.

Where we differ: candidates are tested blind (``parts.readout.columns``), and the original's search for
exclusive units with known labels is left out.

Breaks when: units are active for many examples (large batches, ordinary heads), or the features have many
preimages.
"""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, final

from glasshouse.attacks.base import Claim, Needs
from glasshouse.attacks.parts.local_steps import PICTURES
from glasshouse.attacks.parts.readout.columns import Readout
from glasshouse.attacks.parts.readout.head_gradient import (
    HeadAttack,
    Inversion,
)
from glasshouse.attacks.parts.readout.summed import READING_NEEDS
from glasshouse.registry import Card, Offer
from glasshouse.rng import Rng
from glasshouse.transcript.view import View


@final
@dataclass(frozen=True, kw_only=True)
class Nex(HeadAttack):
    """The attack and its settings.

    Args:
        readout: the candidates to keep; see :data:`glasshouse.attacks.parts.readout.columns.Readout`.
        inversion: of representations to images; by a ``generator`` (a deep image prior) as published.
    """

    name: ClassVar[str] = "nex"
    card: ClassVar[Card] = Card(
        title="NEX",
        summary="representations out of an honest head's gradient, inverted with a deep image prior",
        source="Pan et al. 2022 (USENIX Security)",
        claims=("reconstruction", "representations"),
        threat="honest server that sees what clients send of the head",
        control={
            "setting": "6 clients with 1 digit each, untrained features, no defence",
            "scenario": {
                "model": {"name": "maui_cnn", "width": 16, "hidden": 64, "poolings": 0},
                "federation": {"protocol": "transfer"},
            },
            "metric": "leakage",
        },
        offers=(
            Offer(
                strength=0.4,
                settings={
                    "inversion": {
                        "invert": "pixels",
                        "iterations": 150,
                        "distance": {"tv": 0.05},
                        "step": 0.2,
                    }
                },
                seconds=5,
            ),
        ),
    )
    needs: ClassVar[Needs] = replace(READING_NEEDS, modalities=PICTURES)

    readout: Readout = "unexplained"
    inversion: Inversion = field(default_factory=partial(Inversion, invert="generator"))

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """Claims about every round; see :meth:`HeadAttack.recover_claims`."""
        return tuple(c for one in view.rounds for c in self.recover_claims(one, terms=view.terms, rng=rng))
