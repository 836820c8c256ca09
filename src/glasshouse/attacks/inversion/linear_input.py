"""Recover a single input from the gradient of a first linear layer with a bias.

Source: Geiping et al. 2020, "Inverting Gradients", arXiv:2003.14053, Proposition 3.1.

For ``z = W x + b`` and one example, the chain rule gives ``dL/dW = d xᵀ`` and ``dL/db = d`` with
``d = dL/dz``, so every row of ``dL/dW`` is a multiple of ``x``. We take the least-squares ``x`` over all
rows: exact on a clean gradient, where it equals the paper's quotient of one row by its bias entry; under
noise it averages out the noise of ``dL/dW``, but not that of ``dL/db``. The model's fixed normalisation, the
only layer allowed before that one besides flattening, is undone.

Breaks when: the layer has no bias; anything but normalisation and flattening comes before it; more than
one example is in the batch; every ``d`` is zero (dead ReLUs, an example that is fitted already).
"""

import math
from collections.abc import Set
from dataclasses import dataclass
from typing import ClassVar, final

from torch import nn

from glasshouse.attacks.base import Claim, Needs
from glasshouse.attacks.parts.labels import known_labels
from glasshouse.attacks.parts.local_steps import LINEAR, ON_MLP, update_needs
from glasshouse.attacks.parts.matching.exact import claim_images
from glasshouse.attacks.parts.replica import ALONE, Replica, replica
from glasshouse.errors import Inapplicable
from glasshouse.models.build import build
from glasshouse.registry import Card, Offer
from glasshouse.rng import Rng
from glasshouse.transcript.view import View
from glasshouse.wire import Architecture

SUBJECT = "attack 'linear_input'"
FIX = "use inverting_gradients, or audit a model whose first layer is linear with a bias (mlp)"
PASSIVE = (nn.Flatten, nn.Identity, nn.Dropout)


@final
@dataclass(frozen=True, kw_only=True)
class LinearInput:
    """Closed-form input recovery. No iterations, no randomness, no prior."""

    card: ClassVar[Card] = Card(
        title="Linear-layer read-out",
        summary="one input in closed form from a first linear layer with a bias",
        source="Geiping et al. 2020, arXiv:2003.14053, Proposition 3.1",
        claims=("reconstruction",),
        threat="server, sees single updates",
        control=ON_MLP,
        offers=(Offer(strength=0.95),),
    )
    needs: ClassVar[Needs] = update_needs(LINEAR, repeats=False, alone=True)
    budget: ClassVar[None] = None

    def check_model(self, architecture: Architecture) -> None:
        """Refuse models whose first layer is not linear with a bias."""
        find_first_linear(build(architecture), architecture.input_shape)

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """Recover one input; confidence is ``|d|``, in units of the gradient.

        Raises:
            Inapplicable: several examples behind the update, an unsupported first layer, or ``d = 0``.
        """
        client = replica(view, subject=SUBJECT)
        where = f"round {client.update.round}, client {client.update.client}"
        if client.images != 1:
            raise Inapplicable(
                SUBJECT,
                needs="an update computed from exactly 1 example",
                got=f"{where}: {client.images} examples",
                fix="set federation.batch_size = 1, or use inverting_gradients",
            )
        name = first_linear(client)
        gradient = client.gradient()
        weight, d = gradient[f"{name}.weight"].double(), gradient[f"{name}.bias"].double()  # (O, D), (O,)
        if not bool(d.any()):
            raise Inapplicable(
                SUBJECT,
                needs=f"a bias gradient of '{name}' that is not zero",
                got=f"{where}: all zeros",
                fix="attack an earlier round, before this example is fitted",
            )
        x = d @ weight / d.dot(d)  # argmin over x of |weight - d xᵀ|²: (D,)
        inputs = client.to_image(x.reshape(1, *client.shape))
        labels = None
        if view.grants.labels or view.terms.architecture.task.one_label:
            labels = known_labels(view, client, rng=rng.child("labels"))
        return (claim_images(client, inputs, labels, loss=-float(d.norm())),)


def first_linear(client: Replica, *, subject: str = SUBJECT) -> str:
    """Name of the linear layer whose input is the pixels, normalised and flattened.

    Raises:
        Inapplicable: the first layer is not linear, has no bias, or is not in the update.
    """
    return find_first_linear(client.model, client.shape, client.update.tensors.keys(), subject=subject)


def find_first_linear(
    model: nn.Module, shape: tuple[int, ...], tensors: Set[str] | None = None, *, subject: str = SUBJECT
) -> str:
    """As :func:`first_linear`, for a model of which clients send ``tensors``; None: all parameters."""
    tensors = dict(model.named_parameters()).keys() if tensors is None else tensors
    for name, module in model.named_modules():
        if list(module.children()) or name == "normalize" or isinstance(module, PASSIVE):
            continue
        sent = {f"{name}.weight", f"{name}.bias"} <= tensors
        fits = isinstance(module, nn.Linear) and module.in_features == math.prod(shape)
        if sent and fits:
            return str(name)
        raise Inapplicable(
            subject,
            needs="a first layer that is linear, sees all pixels, and sends weight and bias",
            got=f"'{name}', a {type(module).__name__}"
            + ("" if sent else ", not sent with both weight and bias"),
            fix=FIX if name else ALONE,
        )
    raise Inapplicable(subject, needs="a model with layers", got="none", fix=FIX)
