"""NEX: representations that a head leaks by itself, inverted with a deep image prior.

Source: Pan, Zhang, Yan, Zhu & Yang 2022, "Exploring the Security Boundary of Data Reconstruction via Neuron
Exclusivity Analysis", USENIX Security, as Dabholkar et al. 2025 (Maui, section 7) run it on a head: an
ordinarily trained head over ordinarily trained features. A unit of the head's first layer that exactly one
example of the batch activates gives that example's features. The server changes nothing.

Where we differ: candidates are judged blind (``parts.readout.columns``), and the original's
search for exclusive units with the labels at hand is left out.

Breaks when: units fire for many examples (large batches, ordinary heads), or the features have many
preimages.
"""

from dataclasses import dataclass
from typing import ClassVar, final

from glasshouse.attacks.base import Claim, Needs
from glasshouse.attacks.budget import Budget
from glasshouse.attacks.parts.readout.columns import Readout
from glasshouse.attacks.parts.readout.frozen import check_tail
from glasshouse.attacks.parts.readout.head_gradient import Inversion, Invert, recovered
from glasshouse.attacks.parts.search.features import Distance
from glasshouse.limits import Count, Natural, NotNegative, Positive
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.transcript.view import View
from glasshouse.wire import Architecture


@final
@dataclass(frozen=True, kw_only=True)
class Nex:
    """The attack with its settings.

    Args:
        readout: which candidates are kept; see :data:`glasshouse.attacks.parts.readout.columns.Readout`.
        invert: ``generator`` (a deep image prior, as published), ``pixels``, ``pixels+generator``, ``none``.
        iterations: of the inversion; 0: 600 of the generator, 500 of pixels.
        images: representations of one update inverted at most.
        alpha, tv: weights of the KL term and of total variation. step: of the pixels, in units of the range.
        bf16: compute features and generators in bfloat16.
    """

    card: ClassVar[Card] = Card(
        title="NEX",
        summary="representations out of an honest head's gradient, inverted with a deep image prior",
        source="Pan et al. 2022 (USENIX Security)",
        threat="honest server that sees what clients send of the head",
        control={
            "setting": "6 clients with 1 digit each, untrained features, no defence",
            "scenario": {
                "model": {"name": "maui_cnn", "width": 16, "hidden": 64, "poolings": 0},
                "federation": {"protocol": "transfer"},
            },
            "metric": "leakage",
        },
    )
    needs: ClassVar[Needs] = Needs(
        sees=frozenset({"broadcast"}),
        any_of=frozenset({"update", "aggregate"}),
        scope="round",
        protocols=frozenset({"fedsgd", "fedavg", "transfer"}),
    )

    readout: Readout = "unexplained"
    invert: Invert = "generator"
    iterations: Natural = 0
    images: Count = 64
    alpha: NotNegative = 0.1
    tv: NotNegative = 0.5
    step: Positive = 0.8
    bf16: bool = True

    def __post_init__(self) -> None:
        _ = self.inversion  # its settings are checked

    @property
    def inversion(self) -> Inversion:
        """How representations become images."""
        distance = Distance(alpha=self.alpha, tv=self.tv, bfloat16=self.bf16)
        return Inversion(
            invert=self.invert,
            iterations=self.iterations,
            images=self.images,
            distance=distance,
            step=self.step,
        )

    @property
    def budget(self) -> Budget:
        """Steps of the inversion of every image that is read."""
        return self.inversion.budget

    def check_model(self, architecture: Architecture) -> None:
        """Refuse models that do not end in two linear layers with biases."""
        check_tail(architecture, subject="attack 'nex'")

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """Representations, and images where ``invert`` asks for them.

        Raises:
            Inapplicable: the model does not end in two linear layers, or nothing that clients send is seen.
        """
        return tuple(
            claim
            for one in view.rounds
            for claim in recovered(
                one,
                terms=view.terms,
                readout=self.readout,
                inversion=self.inversion,
                subject="attack 'nex'",
                rng=rng,
            )
        )
