"""Scale-MIA: recover whole batches from a secure sum, without changing the architecture.

Source: Shi et al. 2025, "Scale-MIA", NDSS, arXiv:2311.05808. The server trains an autoencoder around the
target model's own encoder on auxiliary data, sets the encoder and two consecutive linear layers, and reads
latent representations from the summed update; the decoder converts them to images.

Where we differ: the read-out is blind (it does not know which bins are filled, nor how many), labels are
recovered too, the last layer is designed instead of random (:mod:`crafting`), and for updates of parameters
the size of a bin is computed from its weights. ``design = "paper"`` keeps the paper's numbers.

Breaks when: the model does not end in two linear layers; noise on the update exceeds one example's share of
it; the auxiliary images are of another kind. Examples cannot be attributed to clients ("privacy by
shuffling"). Shape letters: B reconstructed images, C, H, W, K classes, R bins, D latent entries.
"""

from dataclasses import asdict, dataclass, field
from typing import ClassVar, Literal, final

import torch

from glasshouse.attacks.base import About, Claim, Needs, Reconstruction
from glasshouse.attacks.budget import Budget
from glasshouse.attacks.linear.scale_mia.autoencoder import (
    AutoencoderTraining,
    restore_decoder,
    train_autoencoder,
)
from glasshouse.attacks.linear.scale_mia.crafting import Design, craft_head, measure_of, strength
from glasshouse.attacks.parts.readout import linear_leakage
from glasshouse.attacks.parts.readout.linear_tail import LinearTail, find_tail
from glasshouse.attacks.parts.readout.summed import crafting_control, crafting_needs, sum_of_round
from glasshouse.errors import BadValue
from glasshouse.limits import Natural, NotNegative, check_ranges
from glasshouse.models.build import build, state
from glasshouse.registry import Card, Offer
from glasshouse.rng import Rng
from glasshouse.tensors import take_prefix, with_prefix
from glasshouse.transcript.view import View
from glasshouse.wire import Architecture, Broadcast, Crafted, Terms

EMPTY_BIN = 0.3
"""A bin below this share of the faintest example's signal counts as empty."""
CHUNK = 128
"""Images decoded at a time."""


@final
@dataclass(frozen=True, kw_only=True)
class ScaleMia:
    """The attack and its settings.

    Args:
        training: of the autoencoder.
        fit: of the thresholds: ``normal``, or ``smoothed`` for the smoothed empirical distribution.
        design: of the last layer: ``ladder`` (ours) or ``paper`` (drawn from U[0, 1)).
        span: strongest over weakest class of the ladder; small if noise is expected; 0: chosen.
        local_steps: different batches that each client trains on in a round; 0: one, in every local epoch.
    """

    card: ClassVar[Card] = Card(
        title="Scale-MIA",
        summary="reads a whole cohort's images out of one secure sum through crafted linear layers",
        source="Shi et al. 2025, arXiv:2311.05808",
        claims=("reconstruction",),
        threat="malicious server: sets parameters, keeps the architecture, sees only the sum",
        grants=("auxiliary",),
        details={"attribution": "none: it cannot say whose image it is", "structure": "unchanged"},
        control=crafting_control(  # the images and the model of quickstart-secure-sum: one autoencoder
            "parameters", auxiliary=800, examples=240, model={"name": "scale_mia_cnn", "bins": 256}
        ),
        offers=(
            Offer(strength=0.8, settings={"training": {"steps": 250, "mirror": False}}),
            Offer(strength=0.9),
        ),
    )

    training: AutoencoderTraining = field(default_factory=AutoencoderTraining)
    fit: Literal["normal", "smoothed"] = "smoothed"
    design: Design = "ladder"
    span: NotNegative = 0.0
    local_steps: Natural = 0

    def __post_init__(self) -> None:
        check_ranges(self, "attack 'scale_mia'")
        if 0 < self.span < 1:
            raise BadValue(
                "attack 'scale_mia'", needs="span >= 1 or 0", got=f"span = {self.span}", fix="correct it"
            )

    needs: ClassVar[Needs] = crafting_needs("parameters")

    def craft(self, view: View, *, rng: Rng) -> Crafted | None:
        """The agreed model with the autoencoder's encoder and the crafted linear layers.

        Raises:
            Inapplicable: the model does not end in two consecutive linear layers.
        """
        auxiliary = view.grants.auxiliary
        assert auxiliary is not None  # needs.grants
        architecture, number = view.terms.architecture, view.rounds[-1].round
        tail = _tail_of(architecture)
        pair = train_autoencoder(architecture, auxiliary.inputs, tail=tail, recipe=self.training)
        latents = pair.encode(auxiliary.inputs).cpu().double()
        measure = measure_of(latents)
        brightness = latents @ measure
        fitted = (
            linear_leakage.normal_thresholds if self.fit == "normal" else linear_leakage.smoothed_thresholds
        )
        thresholds = fitted(brightness, tail.widths[0])
        # Clients that take several steps on one batch: only the first step should count.
        repeated = view.terms.sends != "gradient" and view.terms.local_epochs > 1 and not self.local_steps
        once = repeated and self.design == "ladder"
        steps = 0 if once else self.local_steps or 1
        head = craft_head(
            tail,
            thresholds,
            measure=measure,
            deviation=float(brightness.std()),
            design=self.design,
            strength=strength(view.terms, number, design=self.design, steps=steps, span=self.span),
            rng=rng.child("head"),
        )
        tensors = {**state(pair.model), **head.tensors}
        return Crafted(
            default=Broadcast(round=number, architecture=architecture, tensors=tensors),
            memory={
                **with_prefix("decoder.", state(pair.decoder)),
                "thresholds": thresholds,
                "brightness": brightness,  # brightness: only for the figure
                "measure": measure,
                f"levels.{number}": head.levels * (_share_of_first(view.terms, number) if once else 1.0),
            },
        )

    @property
    def budget(self) -> Budget:
        """Training of the autoencoder, once per model; the read-out is in closed form."""
        return Budget(
            unit="steps",
            amount=0,
            training=self.training.steps,
            trained="the autoencoder",
            recipe=asdict(self.training),
        )

    def check_model(self, architecture: Architecture) -> None:
        """Refuse models that do not end in two linear layers with biases."""
        _tail_of(architecture)

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        del rng  # deterministic
        architecture = view.terms.architecture
        tail = _tail_of(architecture)  # again: it depends only on the architecture
        decoder = restore_decoder(architecture, tail.latent, take_prefix(view.memory, "decoder."))
        claims: list[Claim] = []
        for one in view.rounds:
            if f"levels.{one.round}" not in view.memory:
                continue
            names = (f"{tail.names[0]}.weight", f"{tail.names[0]}.bias")
            total = sum_of_round(one, terms=view.terms, names=names, subject="attack 'scale_mia'")
            weight, bias = (total.gradient[name] for name in names)
            levels = view.memory[f"levels.{one.round}"]
            leak = linear_leakage.read_rows(
                weight,
                bias,
                view.memory["thresholds"],
                floor=EMPTY_BIN * total.unit * float(levels.abs().min()),
                limit=total.examples,
                measure=view.memory["measure"] if view.terms.sends != "gradient" else None,
            )
            with torch.no_grad():
                images = torch.cat([decoder(part) for part in torch.split(leak.inputs.float(), CHUNK)])
            labels = linear_leakage.labels_from(leak.signal / total.unit, levels)
            about, sure = About(rounds=(one.round,)), leak.signal.abs()
            claims.append(Reconstruction(about=about, inputs=images, labels=labels, confidence=sure))
        return tuple(claims)


def _share_of_first(terms: Terms, round: int) -> float:
    """Weight of the first step's gradient in a round's update (momentum repeats it), over the steps."""
    how, first = terms.optimizer, terms.optimizer.share(round=round)
    carried = [how.momentum**s * how.share(round=round, step=s) / first for s in range(terms.local_epochs)]
    return sum(carried) / terms.local_epochs


def _tail_of(architecture: Architecture) -> LinearTail:
    return find_tail(build(architecture), architecture.input_shape, subject="attack 'scale_mia'")
