"""Maui's head on images of 224 x 224: leakage at batches of 8 and 64, on features learnt from CIFAR-10.

    python -m reproduce.maui_pictures --set 'model.name="resnet18"' --set model.width=32 ...

The changes select the public features, as in ``reproduce.maui``: trained on images of 32 x 32. Networks that
end in global average pooling accept images of any size, so the same weights are used at 224 x 224. The 700
images (one per class) are split once into 350 of the adversary and 350 private ones; ten labels, each for 70
neighbouring classes. Nothing was tuned on these images.
"""

import argparse

import torch
from torch import Tensor

from glasshouse.attacks.parts.readout.linear_tail import FrozenFeatures
from glasshouse.attacks.transfer.maui.leakage import Sample
from glasshouse.cache import load_or_make
from glasshouse.data.sources import load as load_source
from glasshouse.process import prepare_process
from reproduce.maui import TABLE_3, measure_head
from reproduce.maui_bench import ROOT, Bench, head_of

GROUPS = 10
CHUNK = 10


def features_of(model: FrozenFeatures, images: Tensor) -> Tensor:
    """Features (B, D), in bfloat16 if the processor supports it; cached."""

    def make(_: object) -> dict[str, Tensor]:
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            parts = [
                model(part.contiguous(memory_format=torch.channels_last)).float()
                for part in torch.split(images, CHUNK)
            ]
        return {"features": torch.cat(parts)}

    key = {"version": 1, "images": images, "tensors": dict(model.tensors)}
    return load_or_make("maui-pictures", key, make)["features"]


def samples(model: FrozenFeatures) -> tuple[Sample, Sample]:
    """The adversary's images, and the private ones."""
    split = load_source("imagenet").split("train")
    order = torch.randperm(len(split), generator=ROOT.child("pictures").torch())
    data = split.batch(order)
    labels = data.labels * GROUPS // (int(data.labels.max()) + 1)
    every = Sample(features=features_of(model, data.inputs), labels=labels)
    half = len(split) // 2
    return every.pick(torch.arange(half)), every.pick(torch.arange(half, len(split)))


def main() -> None:
    """Print one row per head and batch size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", default="cifar10_full")
    parser.add_argument("--set", dest="changes", action="append", default=[], help="as of reproduce.maui")
    parser.add_argument("--draws", type=int, default=100, help="batches of each size")
    given = parser.parse_args()
    prepare_process()
    bench = Bench(given.source, given.changes)
    own, private = samples(bench.features("robust"))
    print(f"{len(own)} and {len(private)} pictures, {own.features.shape[1]} features", flush=True)
    recipe = TABLE_3.get(bench.built("robust").setting.terms.architecture.name, {})
    for batch in (8, 64):
        share = {"behind": batch, "shares": (1 / batch,)}
        heads = {
            "exemplars": head_of(own, mode="exemplars", output_epochs=20, **share),
            "quantile": head_of(own, mode="quantile", **share),
            "trained": head_of(own, mode="trained", **recipe),
        }
        for name, head in heads.items():
            measure_head(name, head, private, batch, given.draws)


if __name__ == "__main__":
    main()
