"""A stranger's package for data that the core has never heard of: calls of birds, learnt by their direction.

A modality, a task, an attack, a metric, a figure and a network; imports are those of an author.

Shape letters: B private calls, R claimed ones, S samples of a call, T turns that a call is compared at.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from glasshouse.attacks.parts.replica import replica
from glasshouse.modalities import guesses
from glasshouse.plugins import (
    About,
    Batch,
    Card,
    CellEvidence,
    Display,
    Exhibit,
    Inapplicable,
    Metric,
    Modality,
    Needs,
    Null,
    Reconstruction,
    Rng,
    ScoreContext,
    Task,
    View,
    Wanted,
    Wording,
)
from glasshouse.results.exhibits import line, lines


def turned(calls: Tensor) -> Tensor:
    """Every call begun at each of its samples, scaled to length 1, (R, T, S)."""
    each = torch.stack([calls.roll(shift, 1) for shift in range(calls.shape[1])], 1).double()
    return each / each.norm(dim=2, keepdim=True).clamp_min(1e-12)


@final
@dataclass(frozen=True, kw_only=True)
class Call(Modality):
    """Waves of ``samples`` numbers in [-1, 1]; neither loudness nor the beginning of a recording matters."""

    card: ClassVar[Card] = Card(summary="calls of birds: waves in [-1, 1], from any beginning")
    name: ClassVar[str] = "call"
    noun: ClassVar[str] = "call"
    nouns: ClassVar[str] = "calls"
    metrics: ClassVar[tuple[str, ...]] = ("call_likeness",)
    same: ClassVar[float] = 1e-6
    near: ClassVar[float] = 1e-2

    samples: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.samples,)

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    @property
    def range(self) -> tuple[float, float]:
        return -1.0, 1.0

    def violation(self, inputs: Tensor) -> tuple[str, str] | None:
        loudest = float(inputs.abs().max()) if len(inputs) else 0.0
        return None if loudest <= 1 + 1e-4 else ("waves in [-1, 1]", f"an amplitude of {loudest:.3g}")

    def project(self, inputs: Tensor) -> Tensor:
        return inputs.clamp(-1, 1)

    def distance(self, candidates: Tensor, originals: Tensor) -> Tensor:
        """1 - the largest correlation over all beginnings, (R, B)."""
        unit = originals.double() / originals.double().norm(dim=1, keepdim=True).clamp_min(1e-12)
        best = (
            (turned(candidates) @ unit.T).amax(1) if len(candidates) else candidates.new_zeros(0, len(unit))
        )
        return (1 - best.double()).clamp_min(0)

    def nulls(self) -> Sequence[Null]:
        return (
            Null(name="one pure tone", knows="nothing", guess=self._tone, steady=True),
            *guesses.averaged(self.noun),
            *guesses.drawn(self.noun),
        )

    def _tone(self, auxiliary: Batch, wanted: Wanted, rng: Rng) -> Batch:
        wave = torch.sin(torch.arange(self.samples) * 2 * math.pi / self.samples)
        return Batch(inputs=wave.repeat(wanted.count, 1), labels=guesses.labels_for(auxiliary, wanted, rng))

    def display(self, example: Tensor) -> Display:
        return Display(text=" ".join(f"{number:+.2f}" for number in example[:8].tolist()))


@final
@dataclass(frozen=True, kw_only=True)
class Direction(Task):
    """An angle in radians by the cosine loss: 359 degrees are close to 1 degree."""

    card: ClassVar[Card] = Card(summary="an angle, by the cosine of the difference")
    name: ClassVar[str] = "direction"
    utility: ClassVar[str] = "closeness of direction"

    @property
    def outputs(self) -> tuple[int, ...]:
        return (1,)

    @property
    def target_shape(self) -> tuple[int, ...]:
        return ()

    def violation(self, labels: Tensor) -> tuple[str, str] | None:
        if labels.ndim == 1 and labels.is_floating_point() and bool(labels.isfinite().all()):
            return None
        return "angles (B,) in radians", f"shape {tuple(labels.shape)} of {labels.dtype}"

    def losses(self, outputs: Tensor, labels: Tensor, inputs: Tensor) -> Tensor:
        return 1 - torch.cos(outputs[:, 0] - labels)

    def scores(self, outputs: Tensor, labels: Tensor, inputs: Tensor) -> Tensor:
        """1 for the right direction, 0 for the opposite one."""
        return (1 + torch.cos(outputs[:, 0].double() - labels.double())) / 2

    def constant(self, labels: Tensor, inputs: Tensor) -> float:
        mean = torch.atan2(labels.sin().mean(), labels.cos().mean())
        return float(self.scores(mean.expand(len(labels), 1), labels, inputs).mean())

    def guess(self, labels: Tensor, count: int, *, rng: Rng) -> Tensor:
        return labels[torch.randint(len(labels), (count,), generator=rng.torch())]


@final
@dataclass(frozen=True, kw_only=True)
class Listener:
    """The call behind an update of one example: a row of the first layer's gradient over its bias."""

    card: ClassVar[Card] = Card(
        title="Listener",
        summary="a single call, from a first linear layer",
        threat="server, sees single updates",
        control={
            "setting": "an MLP, one digit, no defence",
            "scenario": {"model": {"name": "mlp"}},
            "metric": "mse",
        },
    )
    needs: ClassVar[Needs] = Needs(sees=frozenset({"broadcast", "update"}), scope="update")
    budget: ClassVar[None] = None

    def run(self, view: View, *, rng: Rng) -> tuple[Reconstruction, ...]:
        client = replica(view, subject="attack 'listener'")
        gradient = client.gradient()
        weight = next(name for name in gradient if name.endswith(".weight"))
        d = gradient[weight.replace(".weight", ".bias")]
        if client.images != 1 or not bool(d.any()):
            raise Inapplicable(
                "attack 'listener'",
                needs="one example, and a bias gradient that is not zero",
                got=f"{client.images} examples",
                fix="set federation.batch_size = 1",
            )
        call = client.to_image((d @ gradient[weight] / d.dot(d)).reshape(1, *client.shape))
        about = About(rounds=(client.update.round,), client=client.update.client)
        return (Reconstruction(about=about, inputs=call, labels=None, confidence=d.norm()[None]),)


@final
@dataclass(frozen=True, kw_only=True)
class CallLikeness(Metric):
    """1 - the modality's distance to the nearest claim, per call."""

    card: ClassVar[Card] = Card(summary="likeness of claimed calls, whatever their loudness and beginning")
    wording: ClassVar[Wording] = Wording(
        label="likeness of calls",
        sentence="wrote down calls with likeness {}",
        explanation="The largest correlation of the claimed call with the private one: higher is worse.",
        severity="images",
        chance="that of a guessed call",
        range=(0.0, 1.0),
    )

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> NDArray[np.float64]:
        assert isinstance(context.inputs, Call)  # the modality of these data, for which the metric is made
        nearest = context.inputs.distance(claimed, truth).amin(0)
        return np.asarray((1 - nearest).clamp(0, 1).numpy(), dtype=np.float64)


@final
@dataclass(frozen=True, kw_only=True)
class Spectra:
    """Mean spectra of the private and the claimed calls."""

    card: ClassVar[Card] = Card(summary="spectra of private and claimed calls")
    reads: ClassVar[frozenset[type]] = frozenset({Reconstruction})

    def draw(self, cell: CellEvidence) -> Iterator[Exhibit]:
        for attack in cell.attacks:
            group = attack.groups[0]
            claims = group.of(Reconstruction)
            if not isinstance(group.context.inputs, Call) or not claims:
                continue
            said = torch.cat([claim.inputs for claim in claims])
            private = [group.truth.batch(c.about.rounds[0], c.about.client)[0].inputs for c in claims]
            spectra = [torch.fft.rfft(calls).abs().mean(0).tolist() for calls in (torch.cat(private), said)]
            pitches = list(range(len(spectra[0])))
            yield lines(
                cell.place,
                "Spectra of the calls",
                "Mean over all victims.",
                labels=("pitch", "strength"),
                series=[
                    line("private calls", pitches, spectra[0], null=True),
                    line(attack.label, pitches, spectra[1]),
                ],
            )


def ear(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A network of the stranger's own."""
    return nn.Sequential(nn.Flatten(), nn.Linear(input_shape[0], 24), nn.Sigmoid(), nn.Linear(24, classes))
