"""What Maui's benchmarks share: features and data of the preset ``maui``, heads, batches and intervals."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from glasshouse.attacks.parts.readout.linear_tail import FrozenFeatures, freeze_features
from glasshouse.attacks.parts.search.features import (
    Distance,
    Features,
    InvertedImages,
    draw_starts,
    from_starts,
)
from glasshouse.attacks.transfer.maui.head import HeadSettings, craft_head
from glasshouse.attacks.transfer.maui.leakage import Sample, Spab
from glasshouse.audit.simulation.build import Built, build
from glasshouse.metrics.statistics.interval import mean_interval
from glasshouse.metrics.statistics.shares import proportion_interval, share_interval
from glasshouse.rng import Rng
from glasshouse.scenario.axes import cells
from glasshouse.scenario.load import load
from glasshouse.wire import Batch

ROOT = Rng.root(0, salt="benchmark maui")


def by_pixels(
    features: Features,
    targets: Tensor,
    shape: tuple[int, int, int],
    *,
    distance: Distance,
    iterations: int = 500,
    step: float = 0.8,
    rng: Rng,
) -> InvertedImages:
    """Adam on the pixels, with a cosine schedule, inside [0, 1], starting from grey with a little noise.

    Args:
        features: of the frozen model.
        targets: (B, D).
        shape: (C, H, W).
        distance: the loss.
        iterations: of Adam.
        step: initial step size, see ``from_starts``.
        rng: for the start.
    """
    starts = draw_starts(len(targets), shape, rng=rng)
    return from_starts(features, targets, starts, distance=distance, iterations=iterations, step=step)


class Bench:
    """Robust and natural features with their data, built when first asked for."""

    def __init__(
        self, source: str, changes: list[str], *, images: int = 64, pairs: int = 96, trials: int = 12
    ) -> None:
        self.images, self.pairs, self.trials = images, pairs, trials
        self.changes = [f'data.source="{source}"', "data.examples=125", *changes]
        self._built: dict[str, Built] = {}

    def built(self, which: str) -> Built:
        """Preset ``maui`` on ``robust`` or ``natural`` features, with 1,000 private test images."""
        if which not in self._built:
            (scenario,) = load("maui", self.changes).scenarios
            method = {"robust": "fgsm", "natural": "none"}[which]
            cell = next(c for c in cells(scenario) if method in c.axes.values())
            self._built[which] = build(cell.scenario, seed=cell.scenario.seed)
        return self._built[which]

    def features(self, which: str) -> FrozenFeatures:
        """The frozen features."""
        setting = self.built(which).setting
        return freeze_features(setting.terms.architecture, setting.start, subject="benchmark")

    def private(self, count: int) -> Batch:
        """The first private test images."""
        return self.built("robust").setting.private.pick(torch.arange(count))

    def auxiliary_images(self) -> Tensor:
        """The adversary's images."""
        data = self.built("robust").auxiliary
        assert data is not None  # the preset asks for 5,000
        return data.inputs

    def auxiliary(self, which: str = "robust") -> Sample:
        """Features of the adversary's images."""
        data = self.built(which).auxiliary
        assert data is not None
        return Sample(features=self.features(which).of(data.inputs), labels=data.labels)


def head_of(sample: Sample, *, units: int = 512, behind: int = 512, **changes: Any) -> Spab:
    """The head that the attack would send, from the cache or made now."""
    settings, rng = HeadSettings(**changes), Rng.root(0).child("maui/head")
    return craft_head(sample, units=units, classes=10, behind=behind, settings=settings, rng=rng).head


def uploaded(head: Spab, batch: Sample) -> dict[str, Tensor]:
    """The gradient of the head, as a client computes it."""
    for p in head.parameters():
        p.requires_grad_()
    loss = functional.cross_entropy(head(batch.features), batch.labels)
    result = torch.autograd.grad(loss, list(head.parameters()))
    return dict(zip([n for n, _ in head.named_parameters()], result, strict=True))


def drawn(sample: Sample, batch: int, draws: int) -> Iterator[Sample]:
    """Batches of test images: disjoint as long as there are enough, then drawn anew."""
    for number in range(draws):
        order = torch.randperm(len(sample), generator=ROOT.child(f"draw/{batch}/{number}").torch())
        yield sample.pick(order[:batch])


def spread(values: list[float]) -> str:
    """Mean with its 95 % interval over batches."""
    interval = mean_interval(values, rng=ROOT)
    return f"{interval.value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def counted(hits: list[float], *, batch: int = 8) -> str:
    """A rate of yes and no: exact as if images were independent, then with batches as the unit."""
    alone = proportion_interval(round(sum(hits)), len(hits))
    joint = share_interval(hits, [i // batch for i in range(len(hits))])
    return (
        f"{alone.value:.3f} [{alone.low:.3f}, {alone.high:.3f}] ({sum(hits):.0f} of {len(hits)}; by batches "
        f"[{joint.low:.3f}, {joint.high:.3f}])"
    )
