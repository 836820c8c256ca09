"""SEER: recover one example of a large batch with a secret decoder, trained jointly with the model.

Source: Garov et al. 2024, "Hiding in Plain Sight: Disguising Data Stealing Attacks in Federated Learning",
ICLR, arXiv:2306.03013. The server trains the shared model so that a secret linear projection of the gradient
suppresses all examples but the brightest (or darkest), and a reader decodes the result to an image.

Where we differ: only the last layer's gradient is projected (:mod:`training`), and the read-out is blind. It
takes the strongest direction of the projection, with either sign, and keeps the image whose own code agrees
better. It claims that image unless the agreement is as low as in most auxiliary sums without their brightest
images.

This small version does not reach the paper's stealth: all features of ordinary images are suppressed, so that
D-SNR and the guard's trial on a client's own examples reveal the model.

Breaks when: no example of the sum has the property, or several have it to the same degree (of many examples
exactly one is above the threshold with probability 37 %); the clients' images are of another kind than the
auxiliary ones; the model mixes examples (batch norm). Shape letters: B images, E features, D entries of a
code, K classes.
"""

from dataclasses import asdict, dataclass, field, replace
from typing import ClassVar, final

import torch

from glasshouse.attacks.base import About, Claim, Needs, Reconstruction
from glasshouse.attacks.budget import Budget
from glasshouse.attacks.linear.seer.chosen import Property
from glasshouse.attacks.linear.seer.secret import SUBJECT, fresh, last_layer, read_out
from glasshouse.attacks.linear.seer.training import SecretTraining, train_secret
from glasshouse.attacks.parts.readout.summed import crafting_control, crafting_needs, sum_of_round
from glasshouse.limits import check_ranges
from glasshouse.models.build import load, state
from glasshouse.registry import Card, Offer
from glasshouse.rng import Rng
from glasshouse.tensors import take_prefix, with_prefix
from glasshouse.transcript.view import View
from glasshouse.wire import Architecture, Crafted


@final
@dataclass(frozen=True, kw_only=True)
class Seer:
    """The attack and its settings.

    Args:
        training: of the model and the reader.
        looks_for: the example to recover: ``brightest`` or ``darkest``.
    """

    card: ClassVar[Card] = Card(
        title="SEER",
        summary="a model and a secret decoder trained together: the brightest of a large batch comes out",
        source="Garov et al. 2024, arXiv:2306.03013",
        claims=("reconstruction",),
        threat="malicious server: sets parameters, keeps the architecture, sees only the sum",
        grants=("auxiliary",),
        details={"attribution": "none: it cannot say whose image it is", "structure": "unchanged"},
        control=crafting_control(
            "parameters", batch=1, rounds=60, auxiliary=800, model={"name": "mlp", "hidden": "256,256"}
        ),
        offers=(
            Offer(strength=0.3, settings={"training": {"steps": 300}}),
            Offer(strength=0.5),
        ),
    )
    needs: ClassVar[Needs] = replace(crafting_needs("parameters"), protocols=frozenset({"fedsgd", "fedavg"}))

    training: SecretTraining = field(default_factory=SecretTraining)
    looks_for: Property = "brightest"

    def __post_init__(self) -> None:
        check_ranges(self, SUBJECT)

    @property
    def budget(self) -> Budget:
        """Training, once per model, size of the sum and auxiliary images; the read-out is in closed form."""
        return Budget(
            unit="steps",
            amount=0,
            training=self.training.steps,
            trained="the model and its secret decoder",
            recipe={"looks_for": self.looks_for, **asdict(self.training)},
            behind=frozenset({"model", "sum"}),
        )

    def check_model(self, architecture: Architecture) -> None:
        """Refuse models that mix examples, or do not end in a linear layer behind others."""
        last_layer(architecture)

    def craft(self, view: View, *, rng: Rng) -> Crafted | None:
        """The trained model; the reader and the projection are stored in the memory."""
        del rng  # one training serves all rounds, whatever the seed
        auxiliary, one, terms = view.grants.auxiliary, view.rounds[-1], view.terms
        assert auxiliary is not None  # needs.grants
        low, high = terms.architecture.inputs.range
        secret, floor = train_secret(
            terms.architecture,
            (auxiliary.inputs - low) / (high - low),
            examples=terms.cohort * terms.batch_size,
            looks_for=self.looks_for,
            recipe=self.training,
        )
        memory = {
            **with_prefix("reader.", state(secret.reader)),
            "projection": secret.projection,
            f"floor.{one.round}": torch.tensor(floor),
        }
        return Crafted(default=replace(one.broadcast, tensors=state(secret.model)), memory=memory)

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """At most one image per crafted round; confidence is the agreement with the image's own code."""
        del rng  # deterministic
        memory = view.memory
        low, high = view.terms.architecture.inputs.range
        claims: list[Claim] = []
        for one in view.rounds:
            if f"floor.{one.round}" not in memory:
                continue
            secret = fresh(view.terms.architecture, code=len(memory["projection"]))
            name = f"{secret.last}.weight"
            total = sum_of_round(one, terms=view.terms, names=(name,), subject=SUBJECT)
            load(secret.model, one.broadcast.tensors)
            secret.reader.load_state_dict(take_prefix(memory, "reader."))
            for module in (secret.model, secret.reader):
                module.to(memory["projection"].device).eval()
            reading = read_out(replace(secret, projection=memory["projection"]), total.gradient[name])
            kept = reading.agreement > float(memory[f"floor.{one.round}"])
            claims.append(
                Reconstruction(
                    about=About(rounds=(one.round,)),
                    inputs=low + (high - low) * reading.image[kept],
                    labels=reading.label[kept],
                    confidence=reading.agreement[kept],
                )
            )
        return tuple(claims)
