"""Figures of docs/results/maui.md that an audit does not print.

    python -m reproduce.maui WHAT

WHAT: features heads searched inversion batches dp preimages architecture, or several. Features are
those of preset ``maui``, from the cache or trained now. Judged: test images; chosen on: train images.
"""

import argparse
import math
from collections.abc import Callable

import torch
from torch import Tensor

from glasshouse.attacks.parts.readout.columns import read_columns
from glasshouse.attacks.parts.readout.linear_tail import FrozenFeatures
from glasshouse.attacks.parts.search.deep_image_prior import Search, by_generator
from glasshouse.attacks.parts.search.features import Distance
from glasshouse.attacks.transfer.maui.head import HeadSettings
from glasshouse.attacks.transfer.maui.leakage import Sample, Spab, accuracy, alone, gradient_of_units
from glasshouse.attacks.transfer.maui.tune import NAMES, search_recipe
from glasshouse.images import psnr, ssim
from glasshouse.metrics.base import ScoreContext
from glasshouse.metrics.match import UNMATCHED, assign
from glasshouse.metrics.representations import Leakage, LeakagePrecision
from glasshouse.metrics.statistics.interval import mean_interval, paired_gain
from glasshouse.process import prepare_process
from glasshouse.rng import Rng
from reproduce.maui_bench import ROOT, Bench, by_pixels, counted, drawn, head_of, spread, uploaded
from reproduce.preimages import preimage_distance

SHAPE = (3, 32, 32)
MANY = 100
"""Batches for a head whose leakage varies much from batch to batch."""
DISTANCE = Distance(bfloat16=True)


def features(bench: Bench) -> None:
    """Accuracies of the public models."""
    for which in ("robust", "natural"):
        print(which, bench.built(which).facts.pretrained, bench.built(which).facts.model, flush=True)


def measure_head(name: str, head: Spab, held: Sample, batch: int, draws: int = 10) -> None:
    """Print leakage by truth, blind and its precision over ``draws`` batches, and the head's accuracy."""
    context, result = ScoreContext(), {"truth": [], "blind": [], "precision": []}
    for one in drawn(held, batch, draws):
        sent = uploaded(head, one)
        result["truth"].append(
            float(alone(gradient_of_units(head, one.features, one.labels)).double().mean())
        )
        read = read_columns(sent["hidden.weight"], sent["hidden.bias"], limit=batch)
        result["blind"].append(float(Leakage().score(read.vectors, one.features, context=context).mean()))
        if len(read.vectors):
            right = LeakagePrecision().score(read.vectors, one.features, context=context)
            result["precision"].append(float(right.mean()))
    parts = ", ".join(f"{word} {spread(values)}" for word, values in result.items())
    print(f"{name}, B = {batch}: {parts}; accuracy {accuracy(head, held):.3f}", flush=True)


def heads(bench: Bench) -> None:
    """Leakage, blind leakage and precision, and the head's accuracy, by mode and batch size."""
    sample, private = bench.auxiliary(), bench.private(1000)
    heldout = Sample(features=bench.features("robust").of(private.inputs), labels=private.labels)
    for batch, draws in ((8, 10), (64, 10), (512, 4)):
        share = (1 / batch,)
        measure_head("trained", head_of(sample, mode="trained"), heldout, batch, draws)
        measure_head("trained, many batches", head_of(sample, mode="trained"), heldout, batch, MANY)
        measure_head(
            "quantile", head_of(sample, mode="quantile", behind=batch, shares=share), heldout, batch, draws
        )
        measure_head("both", head_of(sample, behind=batch, shares=share), heldout, batch, draws)
        measure_head(
            "exemplars", head_of(sample, mode="exemplars", behind=batch, shares=share), heldout, batch, draws
        )
        measure_head(
            "exemplars, output fitted",
            head_of(sample, mode="exemplars", behind=batch, shares=share, output_epochs=20),
            heldout,
            batch,
            draws,
        )
        measure_head(
            "both, output fitted",
            head_of(sample, behind=batch, shares=share, output_epochs=5),
            heldout,
            batch,
            draws,
        )
        measure_head(
            "ladder 1/8 to 1/512",
            head_of(sample, mode="quantile", shares=(1 / 8, 1 / 512)),
            heldout,
            batch,
            draws,
        )


def searched(bench: Bench) -> None:
    """The trained head with settings found by 12 trials, as ``trials = 12`` of the attack."""
    sample, private = bench.auxiliary(), bench.private(1000)
    heldout = Sample(features=bench.features("robust").of(private.inputs), labels=private.labels)
    sizes, start = {"units": 512, "classes": 10, "behind": 512}, HeadSettings(mode="trained")
    rng = Rng.root(0).child("maui/head")
    found = search_recipe(sample, **sizes, settings=start, trials=bench.trials, rng=rng)
    print(found, flush=True)
    recipe = {name: getattr(found, name) for name in NAMES}
    for batch, draws in ((8, 10), (64, 10), (512, 4)):
        head = head_of(sample, mode="trained", **recipe)
        measure_head(f"trained, {bench.trials} trials of TPE", head, heldout, batch, draws)


def extracted(bench: Bench, which: str, batch: int, count: int) -> tuple[Tensor, Tensor, list[int]]:
    """Right representations, read blind from ``count`` test images in batches; their images, and rows."""
    model, private = bench.features(which), bench.private(count)
    all_of = Sample(features=model.of(private.inputs), labels=private.labels)
    head = head_of(bench.auxiliary(which), mode="quantile", behind=batch, shares=(1 / batch,))
    vectors, places = [], []
    for rows in torch.split(torch.arange(count), batch):
        one = all_of.pick(rows)
        sent = uploaded(head, one)
        read = read_columns(sent["hidden.weight"], sent["hidden.bias"], limit=batch).vectors
        apart, nearest = torch.cdist(read, one.features).min(1)
        right = apart < 1e-2 * one.features[nearest].norm(dim=1)
        vectors.append(read[right])
        places.append(rows[nearest[right]])
    index = torch.cat(places)
    return torch.cat(vectors), private.inputs[index], index.tolist()


def inversion(bench: Bench) -> None:
    """Test images by pixels on both features; 16 of 64 by generators on the robust ones, paired."""
    goals, images, result = _inverted(bench, "robust")
    if bench.images >= 64:
        values, few, model = psnr(result[:16], images[:16]).tolist(), goals[:16], bench.features("robust")
        for name, start, iterations in (("from pixels", result[:16], 300), ("from noise", None, 600)):
            painted = by_generator(
                model, few, SHAPE, distance=DISTANCE, how=Search(iterations=iterations), rng=ROOT, start=start
            ).images
            theirs = psnr(painted, images[:16]).tolist()
            gain = paired_gain(theirs, values, rng=ROOT)
            print(f"robust, generator {name}, 16: PSNR {spread(theirs)}, "
                  f"SSIM {spread(ssim(painted, images[:16]).tolist())}; pixels on these {spread(values)}, "
                  f"{spread(ssim(result[:16], images[:16]).tolist())}; "
                  f"gain {gain.value:.2f} [{gain.low:.2f}, {gain.high:.2f}]", flush=True)  # fmt: skip
    _inverted(bench, "natural")


def _inverted(bench: Bench, which: str) -> tuple[Tensor, Tensor, Tensor]:
    """By pixels: representations, their images, and what was found."""
    goals, images, _ = extracted(bench, which, 8, bench.images)
    pixel = by_pixels(bench.features(which), goals, SHAPE, distance=DISTANCE, rng=ROOT).images
    values = psnr(pixel, images).tolist()
    mean = bench.auxiliary_images().mean(0, keepdim=True).expand_as(images)
    above = paired_gain(values, psnr(mean, images).tolist(), rng=ROOT)
    print(f"{which}, pixels, {len(images)} images: PSNR {spread(values)}, "
          f"SSIM {spread(ssim(pixel, images).tolist())}; the mean auxiliary image: SSIM "
          f"{spread(ssim(mean, images).tolist())}, {above.value:.2f} dB [{above.low:.2f}, "
          f"{above.high:.2f}] below", flush=True)  # fmt: skip
    return goals, images, pixel


def batches(bench: Bench) -> None:
    """PSNR of the same 24 images, which leaked from batches of 8, of 32 and of 128."""
    sizes = (8, 32, 128)
    table = {batch: extracted(bench, "robust", batch, 128) for batch in sizes}
    shared = sorted(set.intersection(*(set(rows) for _, _, rows in table.values())))[:24]
    for batch, (goals, images, rows) in table.items():
        few = [rows.index(row) for row in shared]
        made_of = by_pixels(bench.features("robust"), goals[few], SHAPE, distance=DISTANCE, rng=ROOT).images
        print(f"B = {batch}: {len(set(rows))} of 128 extracted; PSNR of {len(few)}: "
              f"{spread(psnr(made_of, images[few]).tolist())}", flush=True)  # fmt: skip


def dp(bench: Bench) -> None:
    """(eps, 1e-4) by the classical Gaussian mechanism as the paper has it: S = 100, B = 8, wrong labels."""
    model, private = bench.features("robust"), bench.private(1000)
    rest = Sample(features=model.of(private.inputs), labels=private.labels)
    heldout, clip = rest.pick(torch.arange(bench.images)), 100.0
    for update_norm, powers in ((0.0, (6, 5, 4)), (clip, (6, 5, 4, 3, 2, 1))):
        head = head_of(
            bench.auxiliary(), mode="trained", wrong_labels=True, behind=8, update_norm=update_norm
        )
        print(f"head made for updates of length {update_norm:g}: accuracy {accuracy(head, rest):.3f}")
        for power in powers:
            std = clip * (2 * torch.tensor(1.25e4).log()).sqrt().item() / 10**power
            _noised(
                model,
                head,
                heldout,
                private.inputs[: bench.images],
                clip=clip,
                std=std,
                name=f"eps = 1e{power}",
            )


def _noised(
    model: FrozenFeatures, head: Spab, held: Sample, images: Tensor, *, clip: float, std: float, name: str
) -> None:
    """Rate of success over batches of 8, PSNR of the successes, and both scored against other images.

    In each batch images are paired with candidates, each once, so that SSIM is largest in all.
    """
    rate, chance, good, lengths = [], [], [], []
    for number, rows in enumerate(torch.split(torch.arange(len(held)), 8)):
        sent = uploaded(head, held.pick(rows))
        lengths.append(sum(float(t.square().sum()) for t in sent.values()) ** 0.5)
        draws = ROOT.child(f"dp/{name}/{number}").torch()
        factor = min(1.0, clip / lengths[-1])
        sent = {n: t * factor + std * torch.randn(t.shape, generator=draws) for n, t in sent.items()}
        read = read_columns(sent["hidden.weight"], sent["hidden.bias"], limit=8).vectors
        if not len(read):
            rate += [0.0] * 8
            chance += [0.0] * 8
            continue
        result = by_pixels(model, read, SHAPE, distance=DISTANCE, iterations=200, rng=ROOT).images
        others = images[(rows + 8) % len(images)]
        for true, kept in ((images[rows], rate), (others, chance)):
            table = torch.stack([ssim(result, x[None].expand_as(result)) for x in true]).double()
            pairs = [(i, j) for i, j in enumerate(assign(-table.numpy())) if j != UNMATCHED]
            close = [(i, j) for i, j in pairs if float(table[i, j]) > 0.3]
            kept += [float(i in dict(close)) for i in range(len(true))]
            if kept is rate and close:
                here, there = (list(side) for side in zip(*close, strict=True))
                good += psnr(result[there], true[here]).tolist()
    mean = f"{spread(good)} (n = {len(good)})" if len(good) > 1 else f"{len(good)} images"
    print(f"{name}, std {std:.2g}: rate {counted(rate)}, of other images {counted(chance)}; PSNR {mean}; "
          f"length {sum(lengths) / len(lengths):.1f}; each candidate for one image", flush=True)  # fmt: skip


def preimages(bench: Bench) -> None:
    """Share of the feature distance left by changes of 4/255, pairs of unrelated test images."""
    x = bench.private(2 * bench.pairs).inputs
    left = {}
    for which in ("natural", "robust"):
        model = bench.features(which)
        parts = zip(x[: bench.pairs].split(24), x[bench.pairs :].split(24), strict=True)
        left[which] = torch.cat([preimage_distance(model, model.of(one), other) for one, other in parts])
        print(f"{which}: geometric mean {left[which].log().mean().exp():.3g}, "
              f"median {left[which].median():.3g}", flush=True)  # fmt: skip
    ratios = (left["robust"] / left["natural"]).log()
    interval = mean_interval(ratios.double().numpy(), rng=ROOT.child("preimages"))
    value, low, high = (math.exp(v) for v in (interval.value, interval.low, interval.high))
    print(f"apart: {value:.1f} times [{low:.1f}, {high:.1f}]")


TABLE_3: dict[str, dict[str, float]] = {
    "resnet18": {"rate": 0.0328, "beta1": 17140.799, "beta2": 66.6352, "noise": 0.0863},
    "shufflenet_v2": {"rate": 0.0015, "beta1": 19538.475, "beta2": 50.942, "noise": 0.132},
}
"""The paper's head training on features other than the CNN's."""


def architecture(bench: Bench) -> None:
    """Another model (``--set model.name=...``) in short: leakage at B = 8 and 64, images by pixels."""
    sample, private = bench.auxiliary(), bench.private(1000)
    heldout = Sample(features=bench.features("robust").of(private.inputs), labels=private.labels)
    recipe = TABLE_3.get(bench.built("robust").setting.terms.architecture.name, {})
    for batch in (8, 64):
        share = {"behind": batch, "shares": (1 / batch,)}
        measure_head(
            "both, output fitted", head_of(sample, output_epochs=5, **share, **recipe), heldout, batch, MANY
        )
        measure_head(
            "exemplars", head_of(sample, mode="exemplars", output_epochs=20, **share), heldout, batch, MANY
        )
        measure_head("quantile", head_of(sample, mode="quantile", **share), heldout, batch, MANY)
        measure_head("trained", head_of(sample, mode="trained", **recipe), heldout, batch, MANY)
    for which in ("robust", "natural"):
        _inverted(bench, which)


STEPS: dict[str, Callable[[Bench], None]] = {
    f.__name__: f
    for f in (
        features,
        heads,
        searched,
        inversion,
        batches,
        dp,
        preimages,
        architecture,
    )
}


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="+", choices=list(STEPS))
    parser.add_argument("--source", default="cifar10_full")
    parser.add_argument("--set", dest="changes", action="append", default=[], help="as of glasshouse audit")
    parser.add_argument("--images", type=int, default=64, help="of inversion and dp; below 64 no generator")
    parser.add_argument("--pairs", type=int, default=96, help="of preimages")
    parser.add_argument("--trials", type=int, default=12, help="of searched")
    given = parser.parse_args()
    prepare_process()
    bench = Bench(given.source, given.changes, images=given.images, pairs=given.pairs, trials=given.trials)
    for name in given.what:
        print(f"== {name}", flush=True)
        STEPS[name](bench)


if __name__ == "__main__":
    main()
