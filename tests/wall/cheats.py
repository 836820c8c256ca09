"""Three attacks that cheat. Each works when it is handed what the wall keeps from it."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from glasshouse.attacks.base import About, Claim, Needs, Reconstruction
from glasshouse.attacks.inversion.linear_input import LinearInput
from glasshouse.attacks.sequences import Sequences
from glasshouse.attacks.text.dager import Dager
from glasshouse.data.sources import load
from glasshouse.data.splits import RoleRequest, deal
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.transcript.view import RoundView, View
from glasshouse.truth.record import read_truth
from glasshouse.wire import Update

CARD = Card(summary="cheats")
NEEDS = Needs(sees=frozenset({"broadcast", "update"}), scope="update")


def claim(view: View, inputs: Tensor) -> tuple[Claim, ...]:
    """One claim about the view's update: images, or tokens where the model reads them."""
    _, update = view.single(subject="cheat")
    about = About(rounds=(update.round,), client=update.client)
    if reads_sentences(view):
        return (Sequences(about=about, tokens=inputs, confidence=torch.ones(len(inputs))),)
    return (Reconstruction(about=about, inputs=inputs, labels=None, confidence=torch.ones(len(inputs))),)


def reads_sentences(view: View) -> bool:
    return view.terms.architecture.inputs.name == "sentence"


@dataclass(frozen=True, kw_only=True)
class RebuildsTheData:
    """Deals the data ``source`` again from a seed; ``root`` is the stream it believes was used."""

    card: ClassVar[Card] = CARD
    needs: ClassVar[Needs] = NEEDS
    budget: ClassVar[None] = None
    source: str
    root: Rng | None = None

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """All private examples that its guesses of the root lead to."""
        source = load(self.source)
        wants = {
            "private": RoleRequest(size=12),
            "auxiliary": RoleRequest(size=60),
            "heldout": RoleRequest(size=60),
        }
        roots = [self.root] if self.root else [rng, Rng.root(rng.seed()), *(Rng.root(s) for s in range(20))]
        dealt = [deal(source, wants, rng=root.child("roles")).private for root in roots]
        return claim(view, torch.cat([part.inputs for part in dealt if part is not None]))


@dataclass(frozen=True, kw_only=True)
class RegeneratesTheNoise:
    """Draws the noise of ``std`` again and subtracts it; ``root`` is the stream it believes was used."""

    card: ClassVar[Card] = CARD
    needs: ClassVar[Needs] = NEEDS
    budget: ClassVar[None] = None
    std: float
    root: Rng | None = None

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """What the closed form reads off the cleaned update."""
        broadcast, update = view.single(subject="cheat")
        stream = (self.root or rng).child("federation").child(f"round/{update.round}")
        noise = stream.child(f"client/{update.client}").child("defense/0")
        draws = {n: torch.randn(t.shape, generator=noise.child(n).torch()) for n, t in update.tensors.items()}
        clean = {n: t - self.std * draws[n] for n, t in update.tensors.items()}
        cleaned = Update(round=update.round, client=update.client, kind="gradient", tensors=clean, examples=1)
        rounds = (RoundView(round=update.round, broadcast=broadcast, updates={update.client: cleaned}),)
        honest = View(terms=view.terms, threat=view.threat, rounds=rounds)
        return (Dager() if reads_sentences(view) else LinearInput()).run(honest, rng=rng)


@dataclass(frozen=True, kw_only=True)
class ReadsTheTruth:
    """Looks for a folder called ``truth`` below and just above where it stands."""

    card: ClassVar[Card] = CARD
    needs: ClassVar[Needs] = NEEDS
    budget: ClassVar[None] = None

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """The private examples if it finds any, else grey, or the first token."""
        here = Path.cwd()
        items = [*here.rglob("truth/private.safetensors"), *here.parent.glob("*/truth/private.safetensors")]
        if items:
            return claim(view, read_truth(items[0].parent).private.inputs)
        shape = (1, *view.terms.architecture.input_shape)
        return claim(view, torch.zeros(shape).long() if reads_sentences(view) else torch.full(shape, 0.5))
