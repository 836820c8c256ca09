"""LOKI: one imprint module per client, so that the sum can be separated by client.

Source: Zhao et al. 2024, "LOKI", IEEE S&P, arXiv:2303.12233. Client j's convolution copies its images into
channel group j and writes zeros elsewhere; the linear layer behind it has columns for every group, so the sum
of its weight gradients contains client j's images only in columns j. Bias gradients are summed over clients
and carry no information; an image is read from differences of weight rows, up to scale.

Where we differ: the scale makes the largest pixel 1 (as theirs), then is clamped to the brightness range of
the image's bin; and besides scaling the convolution up we scale down the layer that maps back. With both,
several local steps hardly change the convolution (1 / scale²) or the thresholds (scale² · factor of the layer
back).

Breaks when: a client inspects the model it is asked to run (an added module, convolutions of zeros), or
compares it with another client's; two of one client's examples share a bin. Shape letters: B images, C, H, W,
R bins, G groups = clients, E = C · H · W.
"""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from glasshouse.attacks.base import Claim, Needs
from glasshouse.attacks.linear.robbing_the_fed import PREFIX, Imprinting
from glasshouse.attacks.parts.readout import summed
from glasshouse.limits import Count, Natural
from glasshouse.registry import Card, Offer
from glasshouse.rng import Rng
from glasshouse.transcript.view import RoundView, View
from glasshouse.wire import Architecture, Broadcast, Crafted

EMPTY_BIN = 1e-3
"""A bin below this share of its client's strongest one counts as empty."""
SCALE, QUIET = 3.0, 0.1
"""Factors on the convolution (undone by the linear layer), and on the layer that maps back to images."""


@final
@dataclass(frozen=True, kw_only=True)
class Loki(Imprinting):
    """The attack and its settings.

    Args:
        width: bins per example of a client; the paper uses 4 in most experiments.
        local_steps: different batches that each client trains on in a round, which share its bins; 0: one.
    """

    card: ClassVar[Card] = Card(
        title="LOKI",
        summary="per-client convolutions in front of an imprint module: the sum falls apart by client",
        source="Zhao et al. 2024, arXiv:2303.12233",
        claims=("reconstruction",),
        threat="malicious server: changes the architecture, addresses each client, sees only the sum",
        grants=("auxiliary",),
        details={"attribution": "by channel group", "structure": "changed: a client can see it"},
        control=summed.crafting_control("addressing", "architecture", "parameters"),
        offers=(Offer(strength=0.8, seconds=1),),
    )

    needs: ClassVar[Needs] = summed.crafting_needs("architecture", "addressing")
    name: ClassVar[str] = "loki"
    module: ClassVar[str] = "loki"

    width: Count = 4
    local_steps: Natural = 0

    def craft(self, view: View, *, rng: Rng) -> Crafted | None:
        """One broadcast per client, identical except for the convolution."""
        terms, number = view.terms, view.rounds[-1].round
        bins = max(self.width * terms.batch_size * max(self.local_steps, 1), 2)
        settings = {"bins": bins, "groups": terms.clients}
        architecture, tensors, memory = self.imprint(view, bins, settings, rng=rng)
        weight = tensors[f"{PREFIX}.measure.weight"].repeat(1, terms.clients) / SCALE
        back = tensors[f"{PREFIX}.back.weight"] * QUIET
        tensors |= {f"{PREFIX}.measure.weight": weight, f"{PREFIX}.back.weight": back}

        def addressed(client: int | None) -> Broadcast:
            every = {**tensors, **_spread(architecture, client, terms.clients)}
            return Broadcast(round=number, architecture=architecture, tensors=every, client=client)

        return Crafted(
            default=addressed(None),
            addressed={client: addressed(client) for client in range(terms.clients)},
            memory=memory,
        )

    def read(self, one: RoundView, view: View) -> Claim:
        name = f"{PREFIX}.measure.weight"
        total = summed.sum_of_round(one, terms=view.terms, names=(name,), subject="attack 'loki'")
        clients = tuple(one.updates)
        if one.aggregate:
            answering = {*one.aggregate.selected} - {*one.aggregate.dropped}
            clients = tuple(sorted(answering & {*range(view.terms.clients)}))
        limit = -(-total.examples // len(clients))
        blocks = total.gradient[name].chunk(view.terms.clients, dim=1)
        readings = {c: read_group(blocks[c], view.memory["thresholds"], limit=limit) for c in clients}
        inputs, confidence = (torch.cat(parts) for parts in zip(*readings.values(), strict=True))
        source = torch.tensor([c for c, (found, _) in readings.items() for _ in found]).long()
        return summed.claim_of_round(one, inputs, terms=view.terms, confidence=confidence, source=source)


def _spread(architecture: Architecture, client: int | None, clients: int) -> dict[str, Tensor]:
    """The convolution of one client: identity kernels in its own group, zeros in all others."""
    channels = architecture.input_shape[0]
    weight = torch.zeros(clients * channels, channels, 3, 3)
    if client is not None:
        every = torch.arange(channels)
        weight[client * channels + every, every, 1, 1] = SCALE
    return {f"{PREFIX}.spread.weight": weight, f"{PREFIX}.spread.bias": torch.zeros(clients * channels)}


def read_group(block: Tensor, thresholds: Tensor, *, limit: int) -> tuple[Tensor, Tensor]:
    """Images of one client from its columns, without bias gradients.

    Args:
        block: (R, E) float64, gradient of the rows' weights in the client's columns.
        thresholds: (R,), of the mean.
        limit: maximum number of images, the strongest.

    Returns:
        Images (L, E), before clipping; strength (L,), in the units of ``block``.
    """
    inside = torch.cat((block[:-1] - block[1:], block[-1:]))
    mean = inside.mean(1)
    order = mean.abs().argsort(descending=True, stable=True)[:limit]
    rows = order[mean[order].abs() > EMPTY_BIN * float(mean.abs().max())]
    shapes = inside[rows] / mean[rows, None]  # of mean 1
    upper = torch.cat((thresholds[1:], thresholds.new_ones(1)))
    brightest = 1 / shapes.amax(1).clamp_min(1.0)  # the mean at which the largest pixel is 1
    brightness = brightest.clamp(min=thresholds[rows].clamp_min(0), max=upper[rows])
    return shapes * brightness[:, None], mean[rows].abs()
