"""Twelve attacks that cheat, in a package of their own; docs/plug-ins-that-cheat.md lists them."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from glasshouse.attacks.base import About, Claim, Labels, Needs, Reconstruction
from glasshouse.attacks.inversion.linear_input import LinearInput
from glasshouse.metrics import reconstruction
from glasshouse.registry import Card
from glasshouse.transcript.view import View

SEES = frozenset({"broadcast", "update"})
REMEMBERED: list[torch.Tensor] = []


def claim(view: View, inputs: torch.Tensor, *, rounds: tuple[int, ...] | None = None) -> tuple[Claim, ...]:
    """``inputs`` as a reconstruction of the view's one update."""
    _, update = view.single(subject="cheat")
    about = About(rounds=rounds or (update.round,), client=update.client)
    sure = torch.ones(len(inputs))
    return (Reconstruction(about=about, inputs=inputs, labels=None, confidence=sure),)


def grey(view: View) -> torch.Tensor:
    """An image that says nothing."""
    return torch.full((1, *view.terms.architecture.input_shape), 0.5)


@dataclass(frozen=True, kw_only=True)
class Cheat:
    """What the twelve have in common."""

    card: ClassVar[Card] = Card(summary="cheats")
    needs: ClassVar[Needs] = Needs(sees=SEES, scope="update")
    budget: ClassVar[None] = None


@dataclass(frozen=True, kw_only=True)
class HundredsOfCandidates(Cheat):
    """Hands in every auxiliary image, 40 times over, and lets the judge find the nearest."""

    needs: ClassVar[Needs] = Needs(sees=SEES, scope="update", grants=frozenset({"auxiliary"}))
    copies: int = 1

    def run(self, view, *, rng):
        return claim(view, view.grants.auxiliary.inputs.repeat(self.copies, 1, 1, 1))


@dataclass(frozen=True, kw_only=True)
class FixedBestImage(Cheat):
    """Claims one image that was fitted to the metric on auxiliary data, whatever the update says."""

    needs: ClassVar[Needs] = Needs(sees=SEES, scope="update", grants=frozenset({"auxiliary"}))

    def run(self, view, *, rng):
        images = view.grants.auxiliary.inputs
        fitted = images.mean(0, keepdim=True).requires_grad_()
        optimizer = torch.optim.Adam([fitted], lr=0.01)
        for _ in range(100):
            optimizer.zero_grad()
            (fitted - images).square().mean((1, 2, 3)).log().mean().backward()  # PSNR is -10 log10 of this
            optimizer.step()
        return claim(view, fitted.detach().clamp(0, 1))


@dataclass(frozen=True, kw_only=True)
class UndeclaredGrants(Cheat):
    """Reads the labels that were granted to others; it declares no grant."""

    def run(self, view, *, rng):
        _, update = view.single(subject="cheat")
        counts = torch.bincount(view.grants.labels[update.round, update.client], minlength=10)
        return (Labels(about=About(rounds=(update.round,), client=update.client), counts=counts),)


@dataclass(frozen=True, kw_only=True)
class CopiesClaims(Cheat):
    """Looks for what another attack claimed of the same update, and claims it, too."""

    def run(self, view, *, rng):
        from glasshouse.store import read_tensors

        _, update = view.single(subject="cheat")
        name = f"*-linear_input/round{update.round}-client{update.client}/0.safetensors"
        others = sorted(Path.cwd().rglob(name))
        return claim(view, read_tensors(others[0])["inputs"] if others else grey(view))


@dataclass(frozen=True, kw_only=True)
class TwoOfEight(Cheat):
    """Speaks only about the two clients that it is sure of."""

    def run(self, view, *, rng):
        _, update = view.single(subject="cheat")
        return LinearInput().run(view, rng=rng) if update.client < 2 else ()


@dataclass(frozen=True, kw_only=True)
class Silence(Cheat):
    """Never says anything, so that nothing can be held against it."""

    def run(self, view, *, rng):
        return ()


@dataclass(frozen=True, kw_only=True)
class EditsInPlace(Cheat):
    """Sets everything to zero that it was handed, so that whoever comes next sees nothing."""

    def run(self, view, *, rng):
        broadcast, update = view.single(subject="cheat")
        for tensor in (*broadcast.tensors.values(), *update.tensors.values()):
            tensor.mul_(0)
        return claim(view, grey(view))


@dataclass(frozen=True, kw_only=True)
class RemembersVictims(Cheat):
    """Keeps what it read off other updates in a global, and claims it beside what it reads off this one."""

    def run(self, view, *, rng):
        (own,) = LinearInput().run(view, rng=rng)
        inputs = torch.cat([own.inputs, *REMEMBERED])
        REMEMBERED.append(own.inputs)
        sure = torch.cat([torch.ones(1), torch.zeros(len(inputs) - 1)])
        return (dataclasses.replace(own, inputs=inputs, labels=None, confidence=sure),)


@dataclass(frozen=True, kw_only=True)
class OtherRounds(Cheat):
    """Claims something about a round that it was not asked about, and that nobody kept."""

    def run(self, view, *, rng):
        return claim(view, grey(view), rounds=(99,))


@dataclass(frozen=True, kw_only=True)
class SearchesTheDisk(Cheat):
    """Looks for the run's truth below the working folder, and claims the victim's own example."""

    def run(self, view, *, rng):
        from glasshouse.truth.record import read_truth

        _, update = view.single(subject="cheat")
        truths = sorted(Path.cwd().rglob("truth/private.safetensors"))
        if not truths:
            return claim(view, grey(view))
        return claim(view, read_truth(truths[0].parent).batch(update.round, update.client)[0].inputs)


@dataclass(frozen=True, kw_only=True)
class Reseeds(Cheat):
    """Seeds every global generator, and changes how numbers are computed from here on."""

    def run(self, view, *, rng):
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002
        torch.set_default_dtype(torch.float64)
        return claim(view, grey(view).float())


@dataclass(frozen=True, kw_only=True)
class PatchesTheScorer(Cheat):
    """Replaces the metric, in the process in which it runs, by one that always returns 99 dB."""

    def run(self, view, *, rng):
        reconstruction.Psnr.score = lambda self, claimed, truth, *, context: np.full(len(truth), 99.0)
        return claim(view, grey(view))
