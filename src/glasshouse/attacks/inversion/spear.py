"""SPEAR: recover a whole batch exactly from the gradient of a first linear layer followed by a ReLU.

Source: Dimitrov et al. 2024, "SPEAR: Exact Gradient Inversion of Batches in Federated Learning", NeurIPS,
arXiv:2403.03945; the search by descents follows Bakarsky et al. 2025 (SPEAR++), arXiv:2510.24200.

The server is honest. The layer's gradient is G = D X with D sparse (:mod:`..parts.readout.sparse_columns`).
The columns of D are found up to scale; the bias gradient, D times ones, gives the scale; least squares gives
X. The server can verify an image: the layer must be active for it exactly where its column is not zero. The
search continues until this holds for all images. ``search = {iterations = 0, draws = ...}`` is the sampling
of the first paper, exponential in the batch size.

Where we differ: candidates are selected by their zeros, and agreement with the forward pass decides when to
stop. Several local steps are read as one gradient: every step is a sum over the same images, and a row that
is inactive in every step stays zero.

Breaks when: no ReLU follows, or the layer has no bias; the batch is as large as the layer is wide; noise on
the update hides zeros; an image occurs twice (it is recovered once).

Shape letters: B images, R rows, D pixels.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from glasshouse.attacks.base import Claim, Needs, Reconstruction
from glasshouse.attacks.budget import Budget
from glasshouse.attacks.inversion.linear_input import find_first_linear, first_linear
from glasshouse.attacks.parts.local_steps import LINEAR, update_needs
from glasshouse.attacks.parts.readout.sparse_columns import ColumnSearch, factorize, find_columns
from glasshouse.attacks.parts.replica import Replica, replica
from glasshouse.errors import Inapplicable
from glasshouse.models.build import build
from glasshouse.registry import Card, Offer
from glasshouse.rng import Rng
from glasshouse.transcript.view import View
from glasshouse.wire import Architecture

SUBJECT = "attack 'spear'"
AGREES = 0.98
"""An image counts as correct if at least this share of rows is active as its column predicts."""


@final
@dataclass(frozen=True, kw_only=True)
class Spear:
    """The attack and its settings.

    Args:
        search: for sparse columns.
    """

    card: ClassVar[Card] = Card(
        title="SPEAR",
        summary="a whole batch exactly, from a first linear layer with a ReLU: an honest server's read-out",
        source="Dimitrov et al. 2024, arXiv:2403.03945; Bakarsky et al. 2025, arXiv:2510.24200",
        claims=("reconstruction",),
        threat="server, sees single updates",
        control={
            "setting": "a network of three linear layers, batches of 4 digits, no defence",
            "scenario": {
                "model": {"name": "mlp"},
                "data": {"examples": 4},
                "federation": {"batch_size": 4},
            },
            "metric": "rate_blind",
        },
        offers=(Offer(strength=0.9, seconds=5),),
    )
    needs: ClassVar[Needs] = update_needs(LINEAR, repeats=False)

    search: ColumnSearch = field(default_factory=ColumnSearch)

    @property
    def budget(self) -> Budget:
        """Maximum number of sweeps; the search ends as soon as the batch is found."""
        return Budget(unit="sweeps", amount=self.search.sweeps)

    def check_model(self, architecture: Architecture) -> None:
        """Refuse models whose first layer is not linear with a bias, or without a ReLU behind it."""
        model = build(architecture)
        name = find_first_linear(model, architecture.input_shape, subject=SUBJECT)
        layers = [(n, m) for n, m in model.named_modules() if not list(m.children())]
        after = next((m for (n, _), (_, m) in pairwise(layers) if n == name), None)
        if not isinstance(after, nn.ReLU):
            raise Inapplicable(
                SUBJECT,
                needs=f"a ReLU behind '{name}'",
                got="nothing" if after is None else f"a {type(after).__name__}",
                fix="audit a model of linear layers with ReLUs (mlp)",
            )

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """Recover the batch; confidence is the share of rows that are active as predicted.

        Raises:
            Inapplicable: the first layer is unsupported, or the batch is as large as its smaller side.
        """
        client = replica(view, subject=SUBJECT)
        name = first_linear(client, subject=SUBJECT)
        gradient = client.gradient()
        weight, bias = (gradient[f"{name}.{part}"].double().cpu() for part in ("weight", "bias"))
        where = f"round {client.update.round}, client {client.update.client}"
        if client.images >= min(weight.shape):
            raise Inapplicable(
                SUBJECT,
                needs=f"fewer examples than '{name}' has rows and inputs, {min(weight.shape)}",
                got=f"{where}: {client.images}",
                fix="audit a smaller batch, or a wider layer",
            )
        inputs, agreement = self._read(client, name, weight, bias, rng=rng)
        pixels = client.to_image(inputs.reshape(-1, *client.shape).to(client.scale)).float()
        return (Reconstruction(about=client.about, inputs=pixels, labels=None, confidence=agreement),)

    def _read(
        self, client: Replica, name: str, weight: Tensor, bias: Tensor, *, rng: Rng
    ) -> tuple[Tensor, Tensor]:
        """Inputs (B', D) of the layer, and agreement (B',); B' = 0: not all columns were found."""
        if not bool(weight.any()):
            return weight[:0], bias[:0]
        factors = factorize(weight, client.images)
        before = [client.received[f"{name}.{part}"].double().cpu() for part in ("weight", "bias")]

        def solve(directions: Tensor) -> tuple[Tensor, Tensor]:
            columns = factors.columns(directions)
            scale = torch.linalg.lstsq(columns, bias[:, None]).solution[:, 0]
            inputs = torch.linalg.lstsq(columns * scale, weight).solution
            fires = before[0] @ inputs.T + before[1][:, None] > 0
            return inputs, (fires == (columns != 0))[factors.alive].double().mean(0)

        # Columns that are right make every input fire exactly where its column is not zero.
        def accept(directions: Tensor) -> bool:
            return bool((solve(directions)[1] > AGREES).all())

        directions = find_columns(factors, self.search, accept=accept, rng=rng.child("columns"))
        if directions.shape[1] < len(directions):
            return weight[:0], bias[:0]
        inputs, agreement = solve(directions)
        finite = inputs.isfinite().all(1)
        return inputs[finite], agreement[finite]
