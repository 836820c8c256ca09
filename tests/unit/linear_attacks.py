"""A toy federation under a malicious server: craft, play, read. Shared by the tests of linear leakage."""

from dataclasses import replace

import torch

from glasshouse.rng import Rng
from glasshouse.testing.toys import CLASSES, SHAPE, toy
from glasshouse.transcript.grants import Grants
from glasshouse.transcript.threat import Threat
from glasshouse.transcript.view import RoundView, View
from glasshouse.wire import Batch, Broadcast

AUXILIARY = Batch(
    inputs=torch.rand((600, *SHAPE), generator=torch.Generator().manual_seed(5)),
    labels=torch.randint(CLASSES, (600,), generator=torch.Generator().manual_seed(6)),
)


def attacked(attack, **settings):
    """(crafted, view of round 0, the federation), all clients under ``attack``."""
    settings = {"secure_sum": True, "weighting": "size", **settings}
    honest = toy(**settings)
    terms = honest.setting.terms
    grants = Grants(auxiliary=AUXILIARY)
    before = View(
        terms=terms,
        threat=Threat(),
        rounds=(
            RoundView(
                round=0,
                broadcast=Broadcast(round=0, architecture=terms.architecture, tensors=honest.setting.start),
            ),
        ),
        grants=grants,
    )
    crafted = attack.craft(before, rng=Rng.root(1))
    played = toy(**settings, tamper=lambda number: crafted if number == 0 else None)
    view = replace(played.view(client=None), memory=crafted.memory, grants=grants)
    return crafted, view, played


def errors(claim, private):
    """(B,) mean squared error of the best candidate for each private image."""
    apart = claim.inputs.flatten(1)[None] - private.inputs.flatten(1)[:, None]
    return apart.square().mean(2).min(1).values


def silenced(view):
    """The same view with a sum of zeros, as a defence that prunes everything leaves it."""
    (one,) = view.rounds
    nothing = {name: torch.zeros_like(t) for name, t in one.aggregate.tensors.items()}
    return replace(view, rounds=(replace(one, aggregate=replace(one.aggregate, tensors=nothing)),))
