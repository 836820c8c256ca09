"""Cost of Maui's head for the federation: held-out accuracy over rounds, with ordinary and crafted heads.

    python -m benchmarks.maui_rounds

FedAvg of the head of preset ``maui``: 8 clients with 125 test images each, one local epoch in batches of 8,
evaluated on the 1,000 other test images. The learning rate is the best of four for the ordinary head, with
1,000 auxiliary (train) images as the clients' and 1,000 others for evaluation. The features are frozen:
they are computed once per image, and clients train the head on them, which is equivalent.
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch import Tensor, nn

from benchmarks.maui_bench import Bench, head_of
from glasshouse.attacks.transfer.maui.leakage import Sample, Spab
from glasshouse.federation.protocols.transfer import Transfer
from glasshouse.federation.setting import Setting
from glasshouse.models.fit import accuracy
from glasshouse.process import prepare_process
from glasshouse.rng import Rng
from glasshouse.wire import Aggregate, Architecture, Batch, Broadcast, Trained, Update

CLIENTS, EACH, BATCH = 8, 125, 8
ROUNDS, SHOWN = 20, (0, 1, 2, 5, 10, 20)
RATES = (0.003, 0.01, 0.03, 0.1)
ROOT = Rng.root(0, salt="benchmark maui rounds")


@final
class Head(nn.Module):
    """The agreed head only, on features in the shape of images."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.head = Spab(width, 512, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.head(x.flatten(1))
        return logits


def _built(architecture: Architecture, *, rng: Rng | None = None) -> nn.Module:
    del rng  # its weights are about to be overwritten
    return Head(architecture.input_shape[0])


@final
@dataclass(kw_only=True)
class Curve:
    """A recorder of the server model's held-out accuracy before every round."""

    heldout: Batch
    model: nn.Module
    points: list[float] = field(default_factory=list)

    def measure(self, tensors: Mapping[str, Tensor]) -> None:
        """Measure and store the accuracy."""
        self.model.load_state_dict(dict(tensors))
        self.points.append(accuracy(self.model, self.heldout))

    def prepare(self, broadcast: Broadcast) -> None:
        """Measure before every round."""
        self.measure(broadcast.tensors)

    def broadcast(self, broadcast: Broadcast) -> None:
        """Not kept."""

    def update(self, update: Update) -> None:
        """Not kept."""

    def aggregate(self, aggregate: Aggregate) -> None:
        """Not kept."""

    def own(self, round: int, tensors: Mapping[str, Tensor]) -> None:
        """Not kept."""

    def private(self, round: int, client: int, *, index: Tensor, trained: Trained, behaviour: str) -> None:
        """Not kept."""


def federation(
    bench: Bench, start: Mapping[str, Tensor], private: Batch, heldout: Batch, rate: float
) -> list[float]:
    """Accuracy before every round, and after the last."""
    width = private.inputs.shape[1]
    terms = bench.built("robust").setting.terms
    setting = Setting(
        terms=replace(
            terms,
            architecture=Architecture.of("head", (width, 1, 1), 10),
            sends="delta",
            clients=CLIENTS,
            cohort=CLIENTS,
            batch_size=BATCH,
            learning_rate=rate,
        ),
        rounds=ROUNDS,
        private=private,
        shards=tuple(torch.arange(CLIENTS * EACH).split(EACH)),
        start=start,
        build=_built,
    )
    curve = Curve(heldout=heldout, model=Head(width))
    curve.measure(Transfer().play(setting, recorder=curve, rng=ROOT.child("federation")))
    # The last state was measured after all others: prepare() ran once per round.
    return curve.points


def as_batch(sample: Sample) -> Batch:
    """Features as a batch, in the shape of images."""
    return Batch(inputs=sample.features[:, :, None, None], labels=sample.labels)


def heads(bench: Bench, which: str) -> dict[str, dict[str, Tensor]]:
    """The initial broadcasts, by name."""
    start = bench.built(which).setting.start
    tensors = {"ordinary": {n: t for n, t in start.items() if n.startswith("head.")}}
    if which == "robust":
        sample, share = bench.auxiliary(), {"batch": BATCH, "shares": (1 / BATCH,)}
        crafted = {
            "Maui, trained": head_of(sample, mode="trained"),
            "Maui, both, output fitted": head_of(sample, **share, output_epochs=5),
            "Maui, exemplars, output fitted (the preset)": head_of(
                sample, mode="exemplars", **share, output_epochs=20
            ),
            "Maui, calibrated random": head_of(sample, mode="quantile", **share),
        }
        tensors |= {
            name: {f"head.{n}": t.detach() for n, t in h.state_dict().items()} for name, h in crafted.items()
        }
    return tensors


def curves(bench: Bench, which: str) -> None:
    """Accuracy curves of all initial heads on one kind of features."""
    model, tuning = bench.features(which), as_batch(bench.auxiliary(which))
    heldout = bench.built(which).heldout
    assert heldout is not None  # the preset asks for 1,000
    own, judge = (
        as_batch(Sample(features=model.of(part.inputs), labels=part.labels))
        for part in (bench.private(1000), heldout)
    )
    starts = heads(bench, which)
    few, others = tuning.pick(torch.arange(1000)), tuning.pick(torch.arange(1000, 2000))
    ends = {rate: federation(bench, starts["ordinary"], few, others, rate)[-1] for rate in RATES}
    best = max(ends, key=lambda rate: ends[rate])
    print(f"{which} features: learning rate {best:g} of {ends}", flush=True)
    for name, start in starts.items():
        points = federation(bench, start, own, judge, best)
        print(f"  {name}: " + ", ".join(f"{r}: {points[r]:.3f}" for r in SHOWN), flush=True)


def main() -> None:
    """Run both kinds of features."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", default="cifar10_full")
    given = parser.parse_args()
    prepare_process()
    bench = Bench(given.source, [])
    for which in ("robust", "natural"):
        curves(bench, which)


if __name__ == "__main__":
    main()
