"""A toy federation under a malicious server: craft, play, read. Shared by the tests of linear leakage."""

from dataclasses import replace

import torch

from glasshouse.testing.toys import AUXILIARY, play_attacked

__all__ = ["AUXILIARY", "attacked", "errors", "silenced"]


def attacked(attack, **settings):
    """(crafted, view of round 0, the federation), all clients under ``attack``."""
    played = play_attacked(attack, **settings)
    return played.crafted, played.view, played.toy


def errors(claim, private):
    """(B,) mean squared error of the best candidate for each private image."""
    apart = claim.inputs.flatten(1)[None] - private.inputs.flatten(1)[:, None]
    return apart.square().mean(2).min(1).values


def silenced(view):
    """The same view with a sum of zeros, as a defence that prunes everything leaves it."""
    (one,) = view.rounds
    nothing = {name: torch.zeros_like(t) for name, t in one.aggregate.tensors.items()}
    return replace(view, rounds=(replace(one, aggregate=replace(one.aggregate, tensors=nothing)),))
