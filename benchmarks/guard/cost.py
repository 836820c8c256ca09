"""Cost of inspection and preflight relative to a client's local epoch: CPU seconds and memory.

    python -m benchmarks.guard cost --networks lenet5

The client holds ``--examples`` images (4,000: a client of Flower's quickstart; ten clients share CIFAR-10's
training images and use a fifth for validation) and trains one epoch in batches of 32. Plain and watched
steps alternate; the overhead of watching is part of preflight's cost. The pursuit uses 192 images in
training mode, preflight all of them; learning the ranges of honest models happens once per node. If fewer
images are ``--trained`` on, epoch, watching and preflight are scaled up. Memory: what watching stores for
the training images, and the increase of the training peak by inspection and preflight.

The epoch consists of forward and backward passes and the optimizer, on tensors in memory. With ``--loaded``
it includes loading: images are PNG in a Hugging Face data set, decoded and normalised one by one for a
``DataLoader``, as in Flower's PyTorch quickstart.
"""

import argparse
import copy
import io
import resource
import time
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from benchmarks.guard.networks import NETWORKS, of_zoo
from glasshouse.data.sources import load
from glasshouse.guard.inspect import inspect
from glasshouse.guard.preflight import preflight
from glasshouse.guard.pursuit.examples import Own
from glasshouse.guard.pursuit.inspect import HonestRanges, inspect_in_modes
from glasshouse.guard.watch import Watched

FULL = {"lenet5": NETWORKS["lenet5"], "resnet18": of_zoo("resnet18"), "mlp": NETWORKS["mlp-512-plain"]}


BATCH = 32
Trained = tuple[Mapping[str, Tensor], Watched]
"""(parameter changes, records of watching)."""


def seconds(what: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    start = time.process_time()
    what()
    return time.process_time() - start


def peak() -> float:
    """Peak memory of this process so far, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def kept(seen: Watched) -> float:
    """Memory of the stored training records, MiB."""
    seen.settle()
    tensors = [t for calls in seen.calls.values() for call in calls for t in (call.inputs, call.pulls)]
    return sum(t.nbytes for t in tensors if t is not None) / 2**20


def in_words(share: float) -> str:
    """A share in percent; measurement noise may exceed small shares."""
    return f"{share:.1%}" if share > 0 else "0 (below what can be measured)"


def loading(images: Tensor, labels: Tensor) -> float:
    """CPU seconds of loading an epoch from PNG, as Flower's quickstart does: to a tensor, then to [-1, 1]."""
    import datasets  # noqa: PLC0415  (of the extra flower-data)

    def png(image: Tensor) -> dict[str, bytes]:
        file = io.BytesIO()
        Image.fromarray((image * 255).round().byte().permute(1, 2, 0).numpy()).save(file, "PNG")
        return {"bytes": file.getvalue()}

    def transform(rows: dict[str, list[object]]) -> dict[str, list[object]]:
        pixels = [torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous() for image in rows["img"]]
        rows["img"] = [(one.to(torch.float32).div(255) - 0.5) / 0.5 for one in pixels]
        return rows

    table = {"img": [png(image) for image in images], "label": labels.tolist()}
    features = datasets.Features({"img": datasets.Image(), "label": datasets.Value("int64")})
    data = datasets.Dataset.from_dict(table, features=features).with_transform(transform)

    def load_all() -> None:
        for _ in DataLoader(data, batch_size=BATCH, shuffle=True):
            pass

    return seconds(load_all)


def epochs(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[list[float], list[float], Trained]:
    """CPU seconds of each step of an epoch, plain and watched, alternating step by step."""
    twins = copy.deepcopy(model), copy.deepcopy(model)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.01) for one in twins]
    seen = Watched()
    seen.follow(twins[1])
    spent: tuple[list[float], list[float]] = [], []
    for number, rows in enumerate(torch.randperm(len(images)).split(BATCH)):

        def step(which: int, rows: Tensor = rows) -> None:
            optimizers[which].zero_grad()
            F.cross_entropy(twins[which](images[rows]), labels[rows]).backward()
            optimizers[which].step()

        for which in ((0, 1), (1, 0))[number % 2]:
            spent[which].append(seconds(partial(step, which)))
    start = dict(model.named_parameters())
    change = {n: (p - start[n]).detach() for n, p in twins[1].named_parameters()}
    return *spent, (change, seen)


def measure(
    model: nn.Module, images: Tensor, labels: Tensor, *, honest: HonestRanges, loaded: bool, passed: bool
) -> dict[str, float]:
    """CPU seconds of every part, measured once."""
    plain, watched, (change, seen) = epochs(model, images, labels)
    more = sorted(b - a for a, b in zip(plain, watched, strict=True))
    spent = {"epoch": median(plain) * len(plain), "watching": median(more) * len(plain)}
    if loaded:
        spent["epoch"] += loading(images, labels)
    spent["kept MiB"] = kept(seen)
    before = peak()
    spent["preflight"] = seconds(lambda: preflight(change, model, images, labels, watched=seen))
    spent["rules"] = seconds(lambda: inspect(model.state_dict()))
    own = Own(inputs=images, targets=labels)
    spent["pursuit"] = seconds(lambda: inspect_in_modes(model, own, honest=honest, modes=("train",)))
    spent["more MiB"] = peak() - before
    if passed:
        spent["by a pass"] = seconds(lambda: preflight(change, model, images, labels))
    return spent


def main() -> None:
    """Print one line per network: medians, as shares of the epoch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--networks", nargs="+", default=["lenet5", "resnet18"], choices=list(FULL))
    parser.add_argument("--examples", type=int, default=4000, help="of the client")
    parser.add_argument("--trained", type=int, default=4000, help="of these are trained on; what costs more")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--loaded", action="store_true", help="the epoch counts loading its images")
    parser.add_argument("--passed", action="store_true", help="also preflight by a pass")
    parser.add_argument("--range", action="store_true", help="also learn the honest range")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    part = load(chosen.data).splits["train"]
    batch = part.batch(torch.arange(min(chosen.trained, chosen.examples, len(part))))
    images, labels = batch.inputs, batch.labels
    columns = "network, trained, epoch s, rules, pursuit, watching, preflight, all, kept MiB, more MiB"
    print("| " + columns.replace(", ", " | ") + " |\n|" + "---|" * 10)
    for name in chosen.networks:
        model = FULL[name](tuple(images.shape[1:]), 10)
        honest = HonestRanges.of(model, Own(inputs=images, targets=labels))
        once = seconds(partial(honest.known, "train"))
        measure(model, images, labels, honest=honest, loaded=False, passed=False)  # imports, allocations
        runs = [
            measure(model, images, labels, honest=honest, loaded=chosen.loaded, passed=chosen.passed)
            for _ in range(chosen.times)
        ]
        spent = {what: median(run[what] for run in runs) for what in runs[0]}
        scale = chosen.examples / len(images)
        epoch = spent["epoch"] * scale
        shares = [spent["rules"] / epoch, spent["pursuit"] / epoch]
        shares += [spent[what] / spent["epoch"] for what in ("watching", "preflight")]
        every = sum(max(0.0, share) for share in shares)
        words = " | ".join(in_words(share) for share in (*shares, every))
        memory = " | ".join(f"{max(run[what] for run in runs):.0f}" for what in ("kept MiB", "more MiB"))
        print(f"| {name} | {len(images)} | {epoch:.2f} | {words} | {memory} |", flush=True)
        if chosen.passed:
            print(f"{name}: preflight by a pass {spent['by a pass'] / spent['epoch']:.1%}")
        if chosen.range:
            print(f"{name}: the ranges of honest models, once, {once / epoch:.1%} of an epoch")
