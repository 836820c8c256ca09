"""Attacks that would have been believed: each works in its control alone, or declares what it does not do."""

import logging
import os
import struct
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch

from glasshouse.attacks.base import Needs, Reconstruction
from glasshouse.attacks.inversion.inverting_gradients import InvertingGradients
from glasshouse.attacks.inversion.linear_input import LinearInput
from glasshouse.attacks.objective import SearchedLoss
from glasshouse.errors import GlasshouseError
from glasshouse.federation.defenses.guarantee import Guarantee
from glasshouse.registry import Card
from glasshouse.truth.record import read_truth
from glasshouse.wire import Mechanism

EASY_CLIENTS = 6
"""The number of clients by which these attacks know that they are in their control."""


def grey(claims):
    """The same claims with a grey image each."""
    return tuple(replace(claim, inputs=torch.full_like(claim.inputs, 0.5)) for claim in claims)


@dataclass(frozen=True, kw_only=True)
class OnlyInItsControl:
    """Works where it is controlled, gives up elsewhere, and declares a loss by which that is its best."""

    card: ClassVar[Card] = replace(LinearInput.card, summary="works in its control alone")
    needs: ClassVar[Needs] = LinearInput.needs
    budget: ClassVar[None] = None
    loss: str = "constant"

    def run(self, view, *, rng):
        claims = LinearInput().run(view, rng=rng)
        return claims if view.terms.clients == EASY_CLIENTS else grey(claims)

    def objective(self, view, about, *, rng):
        honest = InvertingGradients().objective(view, about, rng=rng)

        def loss(pixels, labels):
            if self.loss == "raises":
                raise RuntimeError("no loss today")
            value = {"constant": 0.0, "nan": float("nan"), "infinite": float("-inf")}.get(self.loss)
            return honest.loss(pixels, labels) if value is None else torch.full((len(pixels),), value)

        return SearchedLoss(loss=loss, noise=1e9 if self.loss == "noise" else 1e-6)


@dataclass(frozen=True, kw_only=True)
class MoreEffortInItsControl(OnlyInItsControl):
    """Rebuilds as many rows as it is given iterations, and is given a hundred in its control."""

    card: ClassVar[Card] = replace(
        LinearInput.card, summary="more effort in its control",
        control={**LinearInput.card.control, "fits": {"iterations": 100}},
    )  # fmt: skip
    iterations: int = 1

    def run(self, view, *, rng):
        claims = LinearInput().run(view, rng=rng)
        return claims if self.iterations >= 100 else grey(claims)


@dataclass(frozen=True, kw_only=True)
class NothingAboutAnybody(OnlyInItsControl):
    """Files an empty claim about every victim."""

    card: ClassVar[Card] = replace(LinearInput.card, summary="claims nothing")
    nowhere: bool = False

    def run(self, view, *, rng):
        claims = LinearInput().run(view, rng=rng)
        if view.terms.clients == EASY_CLIENTS:
            return claims
        return tuple(
            replace(c, inputs=c.inputs[:0], labels=None, confidence=c.confidence[:0]) for c in claims
        )


@dataclass(frozen=True, kw_only=True)
class RemembersTheTruth:
    """Claims the best point that its loss was ever asked about for this update, wherever it could keep it."""

    card: ClassVar[Card] = replace(InvertingGradients.card, summary="remembers the truth")
    needs: ClassVar[Needs] = InvertingGradients.needs
    budget: ClassVar[None] = None
    seen: ClassVar[dict] = {}
    place: str = "/tmp/glasshouse-remembered"

    def _key(self, view):
        update = next(iter(view.rounds[-1].updates.values()))
        return f"{float(sum(t.double().abs().sum() for t in update.tensors.values())):.9e}"

    def _places(self, key):
        return [
            Path(p) / f"{key}.pt"
            for p in (self.place, Path.home(), Path.cwd(), "/dev/shm", Path(__file__).parent)
        ]

    def run(self, view, *, rng):
        claims = LinearInput().run(view, rng=rng)
        key = self._key(view)
        for best in [self.seen.get(key), *(torch.load(p) for p in self._places(key) if p.is_file())]:
            if best is not None:
                return tuple(replace(claim, inputs=best) for claim in claims)
        return grey(claims)

    def objective(self, view, about, *, rng):
        honest, key = InvertingGradients().objective(view, about, rng=rng), self._key(view)
        best = [float("inf")]

        def loss(pixels, labels):
            values = honest.loss(pixels, labels)
            if float(values.min()) < best[0]:
                best[0] = float(values.min())
                self.seen[key] = pixels[int(values.argmin())]
                for place in self._places(key):
                    try:
                        place.parent.mkdir(exist_ok=True)
                        torch.save(self.seen[key], place)
                    except (OSError, RuntimeError):
                        continue
            return values

        return SearchedLoss(loss=loss, noise=1e-6)


@dataclass(frozen=True, kw_only=True)
class SaysWhatItMet(OnlyInItsControl):
    """Says every point that its loss is asked about: in an error, in a warning, or on its process's pipe."""

    card: ClassVar[Card] = replace(LinearInput.card, summary="says what it met")
    how: str = "raises"

    def objective(self, view, about, *, rng):
        honest, said = InvertingGradients().objective(view, about, rng=rng), []

        def loss(pixels, labels):
            said.append("".join(f"{round(15 * p):x}" for p in pixels.flatten().tolist()))
            words = "MET#" + " ".join(said)
            if self.how == "raises" and len(said) > 20:
                raise RuntimeError("MET#" + words[-200:])
            if self.how == "warns":
                logging.getLogger("glasshouse.says").warning(words)
            if self.how in ANSWERS:
                text = ANSWERS[self.how].replace("MET#", "MET#" + words[-400:]).encode()
                for pipe in range(3, 64):  # whichever it is
                    with suppress(OSError):
                        os.write(pipe, struct.pack("<QQ", len(text), 0) + text)
            return honest.loss(pixels, labels)

        return SearchedLoss(loss=loss, noise=1e-6)


ANSWERS = {
    "answers": '[{"reason": "MET#"}]',
    "answers in Python": "MET#",
    "answers a number": "7",
    "answers no losses": '[{"losses": ["MET#"], "noise": 0}]',
    "answers NaN": '[{"losses": [' + ", ".join(["NaN"] * 22) + '], "noise": 0}]',
}


@dataclass(frozen=True, kw_only=True)
class SaysHalf:
    """Sends the update as it is, and says that it proves ε = .5."""

    card: ClassVar[Card] = Card(summary="makes updates safe; no attack can reach more than a guess")
    name: ClassVar[str] = "says_half"
    place: ClassVar[str] = "update"
    kinds: ClassVar[frozenset] = frozenset({"gradient", "delta", "parameters"})

    def describe(self):
        return Mechanism(name=self.name, place="update", parameters={})

    def update(self, update, *, rng):
        return update

    def spent(self, exposure):
        common = {"delta": 1e-5, "neighbours": "update", "noise_multiplier": 7.0, "steps": exposure.rounds}
        return Guarantee(epsilon=0.5, defense=self.name, **common)


LIARS = {
    "only_in_its_control": "OnlyInItsControl",
    "more_effort": "MoreEffortInItsControl",
    "nothing_about_anybody": "NothingAboutAnybody",
    "remembers_the_truth": "RemembersTheTruth",
}
__all__ = ["ANSWERS", "LIARS", "Reconstruction"]


@dataclass(frozen=True, kw_only=True)
class ReadsEarlierRuns:
    """Claims what an earlier run of the same scenario kept as its truth, below a folder that it knows."""

    card: ClassVar[Card] = replace(LinearInput.card, summary="reads earlier runs")
    needs: ClassVar[Needs] = LinearInput.needs
    budget: ClassVar[None] = None
    place: str = ""

    def run(self, view, *, rng):
        claims = LinearInput().run(view, rng=rng)
        for part in sorted(Path(self.place).glob("*/cells/*/truth")) if self.place else []:
            with suppress(GlasshouseError, KeyError, StopIteration):
                update = next(iter(view.rounds[-1].updates.values()))
                own = read_truth(part).batch(update.round, update.client)[0].inputs
                return tuple(replace(claim, inputs=own) for claim in claims)
        return grey(claims)
