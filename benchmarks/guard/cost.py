"""What inspection and preflight cost, in shares of a client's local epoch: CPU seconds and peak memory.

    python -m benchmarks.guard cost --networks lenet5

The client holds ``--examples`` pictures (4,000: a client of Flower's quickstart; ten share CIFAR-10's
training images and keep a fifth to validate) and trains one epoch in batches of 32. Epochs are run in
alternation as they are and watched; what watching adds is part of preflight's cost. Inspection looks at 64
pictures, preflight at all; learning the honest range happens once per node and is listed apart.
"""

import argparse
import copy
import resource
import time
from collections.abc import Callable, Mapping
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.guard.networks import NETWORKS, of_zoo
from glasshouse.data.sources import load
from glasshouse.guard.behaviour.inspect import learn_honest_range, observe
from glasshouse.guard.inspect import inspect
from glasshouse.guard.preflight import preflight
from glasshouse.guard.watch import Watched, watch

FULL = {"lenet5": NETWORKS["lenet5"], "resnet18": of_zoo("resnet18"), "mlp": NETWORKS["mlp-512-plain"]}


def seconds(what: Callable[[], object]) -> float:
    """CPU seconds."""
    start = time.process_time()
    what()
    return time.process_time() - start


def peak() -> float:
    """Largest memory of this process so far, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def train(model: nn.Module, images: Tensor, labels: Tensor) -> nn.Module:
    """A copy of ``model`` after one local epoch."""
    after = copy.deepcopy(model)
    optimizer = torch.optim.SGD(after.parameters(), lr=0.01)
    for rows in torch.randperm(len(images)).split(32):
        optimizer.zero_grad()
        F.cross_entropy(after(images[rows]), labels[rows]).backward()
        optimizer.step()
    return after


def measure(model: nn.Module, images: Tensor, labels: Tensor) -> Mapping[str, float]:
    """CPU seconds of everything, once."""
    kept: list[tuple[nn.Module, Watched]] = []

    def watched_epoch() -> None:
        with watch() as seen:
            kept.append((train(model, images, labels), seen))

    spent = {"epoch": seconds(lambda: train(model, images, labels)), "watched": seconds(watched_epoch)}
    (after, seen), start = kept[0], dict(model.named_parameters())
    change = {n: (p - start[n]).detach() for n, p in after.named_parameters()}
    before = peak()
    spent["preflight"] = seconds(lambda: preflight(change, model, images, labels, watched=seen))
    spent["more MiB"] = peak() - before
    spent["by a pass"] = seconds(lambda: preflight(change, model, images, labels))
    spent["rules"] = seconds(lambda: inspect(model.state_dict()))
    spent["behaviour"] = seconds(lambda: observe(model, images[:64], labels[:64]))
    return spent


def main() -> None:
    """Print one line per network: medians, in shares of the epoch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--networks", nargs="+", default=["lenet5", "resnet18"], choices=list(FULL))
    parser.add_argument("--examples", type=int, default=4000)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--range", action="store_true", help="also learn the honest range")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    part = load(chosen.data).splits["train"]
    batch = part.batch(torch.arange(min(chosen.examples, len(part))))
    images, labels = batch.inputs, batch.labels
    columns = "network, examples, epoch s, rules, behaviour, watching, preflight, all, by a pass, more MiB"
    print("| " + columns.replace(", ", " | ") + " |\n|" + "---|" * 10)
    for name in chosen.networks:
        model = FULL[name](tuple(images.shape[1:]), 10)
        measure(model, images[:64], labels[:64])  # what is imported and allocated once
        runs = [measure(model, images, labels) for _ in range(chosen.times)]
        spent = {what: median(run[what] for run in runs) for what in runs[0]}
        epoch = spent["epoch"]
        watching = median(run["watched"] / run["epoch"] for run in runs) - 1
        shares = [spent["rules"] / epoch, spent["behaviour"] / epoch, watching, spent["preflight"] / epoch]
        words = " | ".join(f"{share:.1%}" for share in (*shares, sum(shares), spent["by a pass"] / epoch))
        memory = max(run["more MiB"] for run in runs)
        print(f"| {name} | {len(images)} | {epoch:.2f} | {words} | {memory:.0f} |", flush=True)
        if chosen.range:
            once = seconds(
                lambda model=model: learn_honest_range(model, images[:256], labels[:256], batch=64)
            )
            print(f"{name}: the honest range, once, {once / epoch:.1%} of an epoch")
